"""Pop-Art with the optimizer of the categorical heads, so that they can be told apart from it."""

from dataclasses import replace

from popart.lab.dqn.methods.popart import METHOD as POPART

METHOD = replace(POPART, optimizer="adam")
