"""Pop-Art for PyTorch: heads that take the place of the last `torch.nn.Linear`."""

from popart._installation import check_installation
from popart.torch.averages import polyak_
from popart.torch.deep import NormalizedLinear, NormalizeGradient, backpropagated_targets
from popart.torch.heads import DuelingPopArt, PopArt
from popart.torch.wrapping import wrap

check_installation()

__all__ = [
    "DuelingPopArt",
    "NormalizeGradient",
    "NormalizedLinear",
    "PopArt",
    "backpropagated_targets",
    "polyak_",
    "wrap",
]
