"""A plugin of pytest: programs that import an algorithm of Stable-Baselines3 get ours instead.

Its tests replace each tensor of a state dictionary by `torch.rand_like`, which PyTorch has for floating-point
tensors alone. The counts of our statistics are integers, and get random integers. They also require that
every tensor changes when it is loaded. The settings of a head are compared and do not change, so they are not
in the state dictionary here.
"""

from typing import Any

import stable_baselines3
import torch

import popart.sb3
from popart.torch.statistics import Statistics

for ours in popart.sb3.__all__:
    setattr(stable_baselines3, ours.removeprefix("PopArt"), getattr(popart.sb3, ours))

Statistics.get_extra_state = torch.nn.Module.get_extra_state

of_floats = torch.rand_like


def rand_like(x: torch.Tensor, **options: Any) -> torch.Tensor:
    return of_floats(x, **options) if x.is_floating_point() else x + torch.randint_like(x, 1, 9)


torch.rand_like = rand_like
