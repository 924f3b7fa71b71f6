"""Double DQN with the optimizer of the categorical heads, to separate its effect."""

from dataclasses import replace

from popart.lab.dqn.methods.unclipped import METHOD as PLAIN

METHOD = replace(PLAIN, optimizer="adam")
