"""Pop-Art with the optimizer of the categorical heads, to separate the effect of the optimizer."""

from dataclasses import replace

from popart.lab.dqn.methods.popart import METHOD as POPART

METHOD = replace(POPART, optimizer="adam")
