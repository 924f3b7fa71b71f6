"""Double DQN with the optimizer of the categorical heads, so that they can be told apart from it."""

from dataclasses import replace

from popart.lab.dqn.methods.unclipped import METHOD as PLAIN

METHOD = replace(PLAIN, optimizer="adam")
