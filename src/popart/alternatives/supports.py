r"""Bins in normalised units: how a categorical head follows scale and shift without a choice of its range.

The bins of a histogram are at fixed places in normalised units, $\tilde y = (y - \mu)/\sigma$. Outputs of a
softmax cannot be preserved precisely when the units change, as those of a linear layer can: the logits of the
new bins are interpolated between those of the old ones. Because every interpolation blurs a little, units
follow the statistics only when these have changed by more than a tolerance, the slack.
"""

import numpy as np

from popart._arrays import Array, asarray, namespace
from popart.affine import Affine
from popart.alternatives.histograms import Histogram

SLACK = 0.25
"""Change of the statistics, relative to the scale, after which the bins follow."""


def following(units: Affine, measured: Affine, slack: float) -> tuple[Affine, Array]:
    """Return the units of the bins after an update of the statistics, and whether they moved.

    They become the measured ones when their scale is wrong by more than a factor of 1 + `slack`, their shift
    by more than `slack` times the scale, or when the old units have no spread.
    """
    xp = namespace(units.scale)
    known = units.scale > 0
    scale = xp.where(known, units.scale, 1.0)
    shift = xp.where(measured.shift == measured.shift, measured.shift, 0.0)
    ratio, distance = measured.scale / scale, xp.abs(shift - units.shift) / scale
    far = ~known | (ratio > 1 + slack) | (ratio * (1 + slack) < 1) | (distance > slack)
    return Affine(xp.where(far, measured.scale, units.scale), xp.where(far, shift, units.shift)), far


def interpolation(histogram: Histogram, old: Affine, new: Affine) -> Array:
    r"""Return the matrix that moves logits of bins to other units, `(bins, bins)`.

    Bins are at fixed places in normalised units. When scale and shift change, a new bin lies between two old
    ones, and its logit is interpolated between theirs; beyond the outer bins it is that of the outermost. For
    logits $W h + b$ the new head is $A W$ and $A b$. Where `old` has no spread, A is the identity: the head
    is not changed.

    This keeps the density over real values, up to the width of a bin, as long as the new bins are not much
    wider than the old distribution. A new bin that is as wide as many old ones gets the logit of one of them.
    """
    xp = namespace(new.scale)
    here = histogram.places
    values, places = (asarray(xp, x, new.scale.dtype, new.scale) for x in (histogram.values, here))
    known = (old.scale > 0) & (new.scale > 0)
    scale = xp.where(known, old.scale, 1.0)
    shift = xp.where(known, old.shift, 0.0)
    moved = new.scale / scale * values + (xp.where(known, new.shift, 0.0) - shift) / scale
    at = histogram.transform.apply(xp.where(known, moved, values))
    step = (here[-1] - here[0]) / (len(here) - 1)
    at = ((at - places[0]) / step).clip(0, len(here) - 1)
    numbers = asarray(xp, np.arange(len(here)), at.dtype, at)
    hat = (1 - xp.abs(at[:, None] - numbers)).clip(0, None)
    return xp.where(known, hat, asarray(xp, np.eye(len(here)), at.dtype, at))
