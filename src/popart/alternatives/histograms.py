r"""Targets as distributions over bins, for heads that classify instead of regress: two-hot and HL-Gauss."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from popart._arrays import Array, asarray, floats, is_torch, namespace
from popart.alternatives.transforms import IDENTITY, SYMLOG, Transform


@dataclass(frozen=True)
class Histogram(ABC):
    """Bins at fixed places, and how targets become distributions over them and back.

    Bins are equally spaced from `low` to `high` in the space of the transform. Targets beyond the outer bins
    are put into the outer bins.
    """

    low: float
    high: float
    bins: int
    transform: Transform = IDENTITY

    def __post_init__(self) -> None:
        if not -math.inf < self.low < self.high < math.inf:
            raise ValueError(f"low is {self.low!r} and high is {self.high!r}; both must be finite, in order")
        if self.bins < 2:
            raise ValueError(f"bins is {self.bins!r}; it must be 2 or more")

    @property
    @abstractmethod
    def places(self) -> np.ndarray[Any, np.dtype[Any]]:
        """Places of the bins, in the space of the transform."""

    @property
    def values(self) -> np.ndarray[Any, np.dtype[Any]]:
        """Values of the bins, in the units of the targets."""
        return self.transform.invert(self.places)

    @abstractmethod
    def encode(self, y: Array) -> Array:
        """Return the distribution of each target, `(*shape, bins)`."""

    def decode(self, p: Array) -> Array:
        """Return the mean of each distribution, `(*shape,)`.

        Bins that lie opposite are added first, so that a symmetric distribution has a mean of exactly 0.
        """
        xp = namespace(p)
        x = p * asarray(xp, self.values, p.dtype, p)
        return ((x + xp.flip(x, (-1,))) / 2).sum(-1)


@dataclass(frozen=True)
class TwoHot(Histogram):
    r"""The two bins beside a target share it, so that their mean is the target (DreamerV3, arXiv 2301.04104).

    The defaults are DreamerV3's: 255 bins at $\mathrm{symexp}(-20 \ldots 20)$.

    It cannot tell apart targets beyond the outer bins (4.9 · 10⁸ by default), and the bins next to 0 are 0.17
    apart: targets far below that have nearly the same distribution. Large bins dominate the output: with
    a probability of 10⁻⁸ the outermost adds 5 to the mean.
    """

    low: float = -20.0
    high: float = 20.0
    bins: int = 255
    transform: Transform = SYMLOG

    @property
    def places(self) -> np.ndarray[Any, np.dtype[Any]]:
        return np.linspace(self.low, self.high, self.bins)

    def encode(self, y: Array) -> Array:
        xp, y = namespace(y), floats(y)
        values = asarray(xp, self.values, y.dtype, y)
        y = y.clip(values[0], values[-1])[..., None]
        gaps = values[1:] - values[:-1]
        rising, falling = (y - values[:-1]) / gaps, (values[1:] - y) / gaps
        up, down = rising.clip(0, 1), falling.clip(0, 1)
        inner = xp.minimum(up[..., :-1], down[..., 1:])
        return xp.concatenate((down[..., :1], inner, up[..., -1:]), -1)


@dataclass(frozen=True)
class HLGauss(Histogram):
    r"""The probability of each bin under a Gaussian around the target (Farebrother et al., 2024, 2403.03950).

    $$p_i \propto \Phi\left(\frac{e_{i+1} - y}{\sigma}\right) - \Phi\left(\frac{e_i - y}{\sigma}\right)$$

    with edges $e_i$ from `low` to `high`, and $\sigma$ = `ratio` · (width of a bin). The defaults are those
    of the paper's agents on Atari, whose rewards are clipped: 51 bins from -10 to 10, and a ratio of 0.75.

    It cannot tell apart targets beyond `low` and `high`, which have to be known. Near them the mean of the
    distribution is not the target, because the Gaussian is cut off; targets whose differences are far below
    the width of a bin have nearly the same distribution.
    """

    low: float = -10.0
    high: float = 10.0
    bins: int = 51
    transform: Transform = IDENTITY
    ratio: float = 0.75

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.ratio < math.inf:
            raise ValueError(f"ratio is {self.ratio!r}; it must be positive")

    @property
    def places(self) -> np.ndarray[Any, np.dtype[Any]]:
        edges = self._edges
        return (edges[:-1] + edges[1:]) / 2

    @property
    def _edges(self) -> np.ndarray[Any, np.dtype[Any]]:
        return np.linspace(self.low, self.high, self.bins + 1)

    def encode(self, y: Array) -> Array:
        xp, y = namespace(y), floats(y)
        edges = asarray(xp, self._edges, y.dtype, y)
        width = self.ratio * (self.high - self.low) / self.bins
        x = self.transform.apply(y).clip(self.low, self.high)[..., None]
        below = _erf(xp, (edges - x) / (math.sqrt(2) * width))
        return (below[..., 1:] - below[..., :-1]) / (below[..., -1:] - below[..., :1])


def _erf(xp: Any, x: Array) -> Array:
    if is_torch(xp):
        return xp.special.erf(x)
    if xp is np:
        return np.vectorize(math.erf, otypes=[x.dtype])(x)
    from jax.scipy.special import erf

    return erf(x)
