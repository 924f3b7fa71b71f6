r"""Deep Pop-Art (appendix): normalisation below the output of a network.

A layer that is not the last has no targets of its own. They are found from what is above it: by
back-propagating the loss through it, or by inverting it. The layer then is a Pop-Art head like any
other, with these for targets.
"""

from popart._arrays import Array, is_numpy, namespace


def step_targets(z: Array, gradient: Array, step: float = 1.0) -> Array:
    r"""Return targets by back-propagation: $Y = z - \eta \nabla_z L$, a step down the loss from outputs z.

    The squared loss towards Y has the gradient $\eta \nabla_z L$ at z, so that without normalisation
    this is the usual back-propagation. `gradient` is of the sum of the losses of a batch, not of their mean.
    The step is in units of z² per loss: a loss that is much smaller than its outputs leaves Y next to z, and
    only a normalisation of gradients enlarges what is between them.
    """
    return z - step * gradient


def softmax_targets(probabilities: Array, smoothing: float = 0.0) -> Array:
    """Return targets by inversion: the outputs that a soft-max makes into these probabilities, `(*batch, k)`.

    A soft-max ignores the mean of all outputs; theirs is 0. Labels are given as probabilities of 0 and 1 with
    some `smoothing`, the part of them that is spread over all classes, because a soft-max never gives 0. In
    compiled code, which cannot refuse it, the smallest normal number stands for 0.
    """
    xp, k = namespace(probabilities), probabilities.shape[-1]
    if not 0 <= smoothing < 1:
        raise ValueError(f"smoothing is {smoothing!r}; it must be in [0, 1)")
    p = (1 - smoothing) * probabilities + smoothing / k
    if is_numpy(p) and not (p > 0).all():
        raise ValueError(
            f"probabilities reach down to {probabilities.min()} with smoothing {smoothing!r}; a soft-max "
            "never gives 0: give some smoothing"
        )
    z = xp.log(p.clip(float(xp.finfo(p.dtype).tiny), None))
    return z - z.mean(-1)[..., None]
