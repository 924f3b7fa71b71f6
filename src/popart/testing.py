"""A test that the scale of rewards does not matter, for agents written with NumPy, JAX or PyTorch.

    from popart.testing import assert_scale_invariant


    def test_scale_does_not_matter():
        assert_scale_invariant(train)  # train(scale) trains on rewards × scale, and returns parameters

Neither JAX nor PyTorch is imported: `train` has imported them if its results are theirs.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from popart._installation import check_installation
from popart._trees import Leaf, Leaves, Snapshot, chooser, listed, matches, snapshot

check_installation()

__all__ = ["Difference", "Divergence", "ScaleReport", "assert_scale_invariant", "compare_scales"]

SCALES = (2.0**-20, 2.0**20)
"""Default scales, about 10⁻⁶ and 10⁶. Squares of such rewards are far from the limits of float32."""

SHOWN = 8
"""Largest number of leaves that a report lists."""


@dataclass(frozen=True)
class Difference:
    """The difference of a leaf from that of the training with scale 1."""

    leaf: str
    """Name of the leaf: keys, indices and attributes that lead to it, joined by dots."""

    reason: str
    """The difference in words."""

    absolute: float = math.nan
    """Largest difference of two elements; NaN where they cannot be subtracted."""

    relative: float = math.nan
    """Largest difference, divided by the largest magnitude in the leaf with scale 1."""

    ulps: float = math.nan
    """Largest difference of two elements, in units of the last place of the larger one."""

    is_proportional: bool = False
    """Whether the leaf is exactly the scale times that of scale 1."""


@dataclass(frozen=True)
class Divergence:
    """The first difference of a training from that with scale 1."""

    scale: float
    step: int | None
    """Number of the step, from 0; None if `train` returned one result."""

    differences: tuple[Difference, ...]
    """All leaves that differ there."""


@dataclass(frozen=True)
class ScaleReport:
    """The result of a comparison; its text says whether scale matters, where, and by how much."""

    scales: tuple[float, ...]
    steps: int | None
    """Number of steps with scale 1; None if `train` returned one result."""

    leaves: int
    """Number of leaves that were compared in each step."""

    largest: float
    """Largest relative difference that was tolerated; 0 if all results are the same to the bit."""

    divergences: tuple[Divergence, ...]
    """For each scale that matters, the first difference."""

    deterministic: bool = True
    """Whether a second training with scale 1 gave the same; it is run only if scales differ."""

    @property
    def is_invariant(self) -> bool:
        """Whether no scale mattered."""
        return not self.divergences

    def __str__(self) -> str:
        """Return what was found, in sentences."""
        return "\n".join(_sentences(self))


def assert_scale_invariant(
    train: Callable[[float], Any],
    scales: Iterable[float] = SCALES,
    *,
    rtol: float = 0.0,
    proportional: Leaves = (),
    ignore: Leaves = (),
    equal_nan: bool = False,
) -> ScaleReport:
    """Raise AssertionError if training depends on the scale of its rewards; return a report if it does not.

    `train(scale)` trains with all rewards multiplied by `scale`, from the same random seeds each time, and
    returns parameters, actions, or anything else that must not depend on the scale. It is called with 1
    first, and then with each of `scales`. To find the step in which results first differ, let it yield a
    result after each step, or return a list with one item per step:

        def train(scale):
            torch.manual_seed(0)
            for batch in batches:
                learn(network, batch.state, scale * batch.reward)
                yield network.state_dict()

    A yielded result is copied at once, so that it may be changed in place afterwards.

    Args:
        train: A function of the scale.
        scales: The scales to compare with 1. Multiplying by a power of two rounds nothing, so that with
            Pop-Art all results are the same to the bit. Other scales need `rtol`.
        rtol: How much floats may differ, relative to the largest magnitude in their leaf. Integers and
            booleans, such as actions, must always be equal.
        proportional: Leaves in the units of the rewards, such as values. They must be `scale` times as
            large. A name stands for all leaves whose name ends with it: `"shift"` is also `"head.shift"`.
        ignore: Leaves that are not compared.
        equal_nan: Whether NaN may be in the results with scale 1. It is refused by default, because a
            training that diverges for every scale proves nothing.
    """
    __tracebackhide__ = True
    report = compare_scales(
        train, scales, rtol=rtol, proportional=proportional, ignore=ignore, equal_nan=equal_nan
    )
    if not report.is_invariant:
        raise AssertionError(str(report))
    return report


def compare_scales(
    train: Callable[[float], Any],
    scales: Iterable[float] = SCALES,
    *,
    rtol: float = 0.0,
    proportional: Leaves = (),
    ignore: Leaves = (),
    equal_nan: bool = False,
) -> ScaleReport:
    """Return a report that says whether training depends on the scale of its rewards.

    The arguments are those of `assert_scale_invariant`.
    """
    scales, proportional = tuple(scales), listed(proportional)
    _check_settings(scales, rtol)
    is_ignored, is_proportional = chooser(ignore), chooser(proportional)
    result = train(1.0)
    in_steps = isinstance(result, (Iterator, list))
    reference = list(_steps(result, is_ignored))
    _check_reference(reference, equal_nan)
    _check_names(reference, "proportional", proportional)
    comparison = _Comparison(reference, rtol, is_proportional, in_steps)
    found = [comparison.divergence(scale, _steps(train(scale), is_ignored)) for scale in scales]
    divergences = tuple(d for d in found if d is not None)
    again = _Comparison(reference, 0.0, lambda name: False, in_steps)
    same = not divergences or again.divergence(1.0, _steps(train(1.0), is_ignored)) is None
    steps = len(reference) if in_steps else None
    return ScaleReport(scales, steps, len(reference[0]), comparison.largest, divergences, same)


def _check_settings(scales: tuple[float, ...], rtol: float) -> None:
    if not 0 <= rtol < 1:
        raise ValueError(f"rtol is {rtol!r}; it must be in [0, 1)")
    if not scales:
        raise ValueError("scales is empty; give at least one scale")
    for scale in scales:
        if not 0 < scale < math.inf or scale == 1:
            raise ValueError(f"scales has {scale!r}; a scale must be positive, finite and not 1")
        if not rtol and math.frexp(scale)[0] != 0.5:
            near = 2.0 ** round(math.log2(scale))
            raise ValueError(
                f"scales has {scale!r}, which is not a power of two: multiplying by it rounds, so that "
                f"results cannot be the same to the bit. Give rtol=, such as 1e-3, or the scale {near!r}"
            )


def _steps(result: Any, is_ignored: Callable[[str], bool]) -> Iterator[Snapshot]:
    items = cast(Iterable[Any], result) if isinstance(result, (Iterator, list)) else (result,)
    for item in items:
        yield {name: leaf for name, leaf in snapshot(item).items() if not is_ignored(name)}


def _check_reference(reference: list[Snapshot], equal_nan: bool) -> None:
    if not reference or not all(reference):
        raise ValueError("train gave nothing to compare; it must return or yield parameters or actions")
    if equal_nan:
        return
    for step, leaves in enumerate(reference):
        for name, leaf in leaves.items():
            bad = int(np.isnan(leaf.values).sum()) if leaf.eps else 0
            if bad:
                when = f" at step {step}" if len(reference) > 1 else ""
                raise AssertionError(
                    f"with scale 1, {bad} of {leaf.values.size} elements of {name or 'the result'} are "
                    f"NaN{when}: a training that diverges shows nothing about scale. If NaN is right there, "
                    "give equal_nan=True"
                )


def _check_names(
    reference: list[Snapshot], argument: str, names: tuple[str, ...] | Callable[[str], bool]
) -> None:
    """Raise for a name of no leaf, which is likely a mistake."""
    if callable(names):
        return
    known = {name: None for leaves in reference for name in leaves}
    for pattern in names:
        if not any(matches(name, pattern) for name in known):
            raise ValueError(
                f"{argument} has {pattern!r}, which names no leaf; leaves are {', '.join(known)}"
            )


class _Comparison:
    """A training with scale 1, to which others are compared, step by step."""

    def __init__(
        self, reference: list[Snapshot], rtol: float, is_proportional: Callable[[str], bool], in_steps: bool
    ) -> None:
        self._reference, self._rtol, self._in_steps = reference, rtol, in_steps
        self._is_proportional = is_proportional
        self.largest = 0.0

    def divergence(self, scale: float, steps: Iterator[Snapshot]) -> Divergence | None:
        """Return the first step with a difference; later ones are not run."""
        for step, expected in enumerate(self._reference):
            found = next(steps, None)
            if found is None:
                return Divergence(scale, step, (_ended(step, len(self._reference)),))
            differences = tuple(self._differences(scale, expected, found))
            if differences:
                return Divergence(scale, step if self._in_steps else None, differences)
        if next(steps, None) is not None:
            return Divergence(scale, len(self._reference), (_went_on(len(self._reference)),))
        return None

    def _differences(self, scale: float, expected: Snapshot, found: Snapshot) -> Iterator[Difference]:
        for name in {**expected, **found}:
            if name not in found or name not in expected:
                where = "scale 1" if name in expected else f"scale {_scale_text(scale)}"
                yield Difference(name, f"exists only with {where}")
                continue
            factor = scale if self._is_proportional(name) else 1.0
            difference = self._difference(name, expected[name], found[name], factor, scale)
            if difference is not None:
                yield difference

    def _difference(self, name: str, a: Leaf, b: Leaf, factor: float, scale: float) -> Difference | None:
        for what, x, y in (("shape", a.values.shape, b.values.shape), ("dtype", a.dtype, b.dtype)):
            if x != y:
                return Difference(name, f"has {what} {y} instead of {x}")
        if not a.eps:
            return _unequal(name, a.values, b.values)
        unscaled, found = _floats(a.values), _floats(b.values)
        expected = _times(factor, unscaled)
        error = _error(expected, found)
        size = float(np.max(np.abs(expected), initial=0.0, where=np.isfinite(expected)))
        largest = float(error.max(initial=0.0))
        if largest <= self._rtol * size:
            self.largest = max(self.largest, largest / size if size else 0.0)
            return None
        proportional = factor == 1 and not _error(_times(scale, unscaled), found).any()
        return _measured(name, expected, found, error, size, a.eps, proportional)


Floats = np.ndarray[Any, np.dtype[np.float64]]


def _floats(x: np.ndarray[Any, Any]) -> Floats:
    """Return real numbers in float64, with real and imaginary parts as elements."""
    return np.stack((x.real, x.imag), -1).astype(float) if x.dtype.kind == "c" else x.astype(float)


def _times(factor: float, x: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return factor * x


def _error(a: Floats, b: Floats) -> Floats:
    """Return |a - b|: 0 where both are the same infinity or both NaN, infinite where only one is."""
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore", over="ignore"):
        return np.where(same, 0.0, np.nan_to_num(np.abs(a - b), nan=math.inf, posinf=math.inf))


def _measured(
    name: str,
    a: Floats,
    b: Floats,
    error: Floats,
    size: float,
    eps: float,
    proportional: bool,
) -> Difference:
    where = tuple(int(i) for i in np.argwhere(error)[0])
    largest = float(error.max())
    magnitude = np.maximum(np.abs(a), np.abs(b))
    with np.errstate(invalid="ignore", over="ignore"):
        ulp = np.spacing(np.where(np.isfinite(magnitude), magnitude, 1.0)) * (eps / np.finfo(float).eps)
    ulps = float((error / ulp).max())
    reason = (
        f"{b[where]:.9g} instead of {a[where]:.9g}{_place(where)}; {_share(error)}; largest difference "
        f"{largest:.3g}, {largest / size if size else math.inf:.3g} of the largest element, {ulps:.3g} ulps"
    )
    return Difference(name, reason, largest, largest / size if size else math.inf, ulps, proportional)


def _unequal(name: str, a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> Difference | None:
    """Compare integers, booleans and strings."""
    unequal = np.asarray(a != b)
    if not unequal.any():
        return None
    where = tuple(int(i) for i in np.argwhere(unequal)[0])
    reason = f"{b[where]} instead of {a[where]}{_place(where)}; {_share(unequal)}"
    if a.dtype.kind not in "iu":
        return Difference(name, reason)
    gap = float(np.abs(a.astype(float) - b.astype(float)).max())
    size = float(np.abs(a.astype(float)).max())
    return Difference(name, reason, gap, gap / size if size else math.inf)


def _place(where: tuple[int, ...]) -> str:
    return f" at [{', '.join(map(str, where))}]" if where else ""


def _share(unequal: np.ndarray[Any, Any]) -> str:
    return f"{np.count_nonzero(unequal):,} of {unequal.size:,} elements differ"


def _ended(step: int, steps: int) -> Difference:
    return Difference("", f"the training ended after {step} steps instead of {steps}")


def _went_on(steps: int) -> Difference:
    return Difference("", f"the training did not end after {steps} steps")


def _scale_text(scale: float) -> str:
    mantissa, exponent = math.frexp(scale)
    return f"2^{exponent - 1}" if mantissa == 0.5 else f"{scale:g}"


def _sentences(report: ScaleReport) -> Iterator[str]:
    compared = f"{report.leaves} {'leaf' if report.leaves == 1 else 'leaves'}"
    if report.steps is not None:
        compared += f" in {report.steps:,} {'step' if report.steps == 1 else 'steps'}"
    scales = ", ".join(map(_scale_text, report.scales))
    if report.is_invariant:
        same = f"to {report.largest:.3g} of their size" if report.largest else "to the bit"
        yield f"Scale does not matter: scales {scales} give the same as scale 1, {same} ({compared})."
        return
    if not report.deterministic:
        yield "Training is not deterministic: two with scale 1 differ. Set all random seeds in train."
    yield f"Scale matters: {len(report.divergences)} of the scales {scales} differ from scale 1 ({compared})."
    for divergence in report.divergences:
        yield from _divergence_lines(divergence)
    yield from _hints(report)


def _divergence_lines(divergence: Divergence) -> Iterator[str]:
    where = "" if divergence.step is None else f", first at step {divergence.step}"
    yield f"  scale {_scale_text(divergence.scale)}{where}:"
    for difference in divergence.differences[:SHOWN]:
        yield f"    {difference.leaf}{': ' if difference.leaf else ''}{difference.reason}"
    more = len(divergence.differences) - SHOWN
    if more > 0:
        yield f"    and {more} more leaves"


def _hints(report: ScaleReport) -> Iterator[str]:
    found = [d for divergence in report.divergences for d in divergence.differences]
    exact = dict.fromkeys(d.leaf for d in found if d.is_proportional)
    if exact:
        names = ", ".join(repr(name) for name in exact)
        yield (
            f"Exactly proportional to the scale: {names}. If they are in the units of the rewards, name "
            "them in proportional=."
        )
    if report.deterministic and not all(d.is_proportional for d in found):
        yield (
            "Look for constants in the units of the rewards: a clip of rewards or values, the threshold of "
            "a Huber loss, an epsilon, a limit on the norm of gradients."
        )
