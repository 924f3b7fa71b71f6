r"""Fixed transforms that make large targets small: identity, h(x) and symlog.

A transform is put around a rule: targets are transformed and then measured and normalised, outputs are
denormalised and then transformed back.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from popart._arrays import Array, floats, namespace


class Transform(ABC):
    """A strictly increasing function of targets, and its inverse."""

    @abstractmethod
    def apply(self, x: Array) -> Array:
        """Return the transformed targets."""

    @abstractmethod
    def invert(self, y: Array) -> Array:
        """Return the targets of transformed targets: the inverse of `apply`."""


@dataclass(frozen=True)
class Identity(Transform):
    """No transform."""

    def apply(self, x: Array) -> Array:
        return x

    def invert(self, y: Array) -> Array:
        return y


@dataclass(frozen=True)
class H(Transform):
    r"""The transform of R2D2 (Pohlen et al., 2018, arXiv 1805.11593; Kapturowski et al., 2019).

    $$h(x) = \mathrm{sign}(x)\left(\sqrt{|x| + 1} - 1\right) + \varepsilon x$$

    With $s = \sqrt{|x| + 1} - 1$ this is $\varepsilon s^2 + (1 + 2 \varepsilon) s$, a quadratic equation
    whose root is the exact inverse. Both are computed without differences of nearly equal numbers.

    It does not adapt to the size of targets: those far below 1 stay as small as they are, and above
    $1/\varepsilon^2$ it is linear. The mean of transformed targets is not the transformed mean: outputs that
    minimise a squared loss are below the expected return if that varies.
    """

    epsilon: float = 1e-3

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon < math.inf:
            raise ValueError(f"epsilon is {self.epsilon!r}; it must be in [0, inf)")

    def apply(self, x: Array) -> Array:
        xp, x = namespace(x), floats(x)
        return x / (xp.sqrt(xp.abs(x) + 1) + 1) + self.epsilon * x

    def invert(self, y: Array) -> Array:
        xp = namespace(y)
        one = 1 + 2 * self.epsilon
        s = 2 * y / (one + xp.sqrt(one**2 + 4 * self.epsilon * xp.abs(y)))
        return s * (xp.abs(s) + 2)


@dataclass(frozen=True)
class Symlog(Transform):
    r"""The symmetric logarithm of DreamerV3 (Hafner et al., 2023, arXiv 2301.04104).

    $$\mathrm{symlog}(x) = \mathrm{sign}(x) \ln(|x| + 1) \qquad
      \mathrm{symexp}(y) = \mathrm{sign}(y) (e^{|y|} - 1)$$

    It does not adapt to the size of targets: those far below 1 stay as small as they are, and large ones
    differ little: by 0.01 for targets that differ by 1 %, at any mean. An error of 0.1 in
    the output is one of 10 %. The mean of transformed targets is not the transformed mean.
    """

    def apply(self, x: Array) -> Array:
        xp, x = namespace(x), floats(x)
        return xp.sign(x) * xp.log1p(xp.abs(x))

    def invert(self, y: Array) -> Array:
        xp = namespace(y)
        return xp.sign(y) * xp.expm1(xp.abs(y))


IDENTITY, SYMLOG = Identity(), Symlog()
