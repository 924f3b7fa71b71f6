r"""Normalized SGD (Algorithm 2) and Deep Pop-Art (appendix)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class NormalizedLinear(nn.Module): ...


class NormalizeGradient(nn.Module): ...


def backpropagated_targets(loss: Callable[[Tensor], Tensor], z: Tensor) -> Any: ...
