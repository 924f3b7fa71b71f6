"""A diagnosis in words: a verdict, an answer, findings, reasons for the rule, and advice."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from popart.correspondence import bound
from popart.diagnosis.choice import NARROW, Choice
from popart.diagnosis.measures import FEWEST, Measures
from popart.moments import Moments
from popart.percentiles import Percentiles

LARGE, SMALL = 10.0, 0.1
"""Sizes outside of which a plain network learns worse or diverges; see `benchmarks/target_size.py`.

At a size of 31.6, SGD with a learning rate of 0.1 diverged, and at 0.1 errors were 2.5 to 9 times those at 1.
"""

CHANGE = 10.0
"""Ratio of two scales in one stream above which no fixed scale fits both."""

HEAVY = 0.5
"""Share of the variance in 1 % of the targets above which these count more than all others."""

Verdict = Literal["too large", "too small", "changing", "constant", "fine"]


class Finding(NamedTuple):
    """A line of the diagnosis: the name of a measure, its value, and what it means."""

    name: str
    value: str
    meaning: str


def code(rule: Moments | Percentiles) -> str:
    """Return a rule as Python code."""
    return f"popart.{type(rule).__name__}(beta={rule.beta:g})"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _clipped(m: Measures) -> str:
    return "rewards" if m.of_rewards else "targets"


def verdict(m: Measures) -> Verdict:
    """Return whether a plain network would learn the targets, or why not."""
    if m.std == 0:
        return "constant"
    if m.rms > LARGE:
        return "too large"
    if m.rms < SMALL:
        return "too small"
    return "changing" if changes(m) else "fine"


def changes(m: Measures) -> bool:
    """Return whether location or scale differ too much between tenths for a fixed scale and shift."""
    return m.scale_drift > CHANGE or m.location_drift > CHANGE


def answer(m: Measures) -> str:
    """Return the answer to "are my rewards too large?"."""
    size = f"Their root mean square is {m.rms:.3g}"
    steady = "" if _few(m) else ", and it does not change much"
    answers: dict[Verdict, str] = {
        "constant": f"They are all {m.mean:.6g}: there is no scale to learn yet.",
        "too large": f"Yes. {size}. Plain networks suit a size of 1; above {LARGE:g} SGD may diverge.",
        "too small": f"No, too small. {size}. Below {SMALL:g} plain networks learn slowly, or nothing.",
        "changing": f"Not on average, but they change. {size}.",
        "fine": f"No. {size}{steady}. A plain network learns them.",
    }
    found = verdict(m)
    return answers[found] + ("" if found == "constant" else _change(m))


def _few(m: Measures) -> bool:
    return m.count < FEWEST


def _change(m: Measures) -> str:
    if _few(m):
        few = f"{m.count} target{' is' if m.count == 1 else 's are'}"
        return f" {few} too few to say whether they change; give at least {FEWEST}."
    if not changes(m):
        return ""
    return (
        f" Between tenths of the stream the scale differs by a factor of {m.scale_drift:.3g} and the mean by "
        f"{m.location_drift:.3g} standard deviations within tenths: no fixed scale and shift fit all of it."
    )


def findings(m: Measures) -> Iterator[Finding]:
    """Yield each measure with its meaning."""
    bad = f"; {m.nonfinite:,} are not finite" if m.nonfinite else ""
    yield Finding("targets", f"{m.count:,}{bad}", f"mean {m.mean:.4g}, standard deviation {m.std:.4g}")
    yield Finding("size", f"{m.rms:.4g}", f"root mean square; plain networks learn {SMALL:g} to {LARGE:g}")
    yield Finding(
        "orders of magnitude",
        f"{m.orders:.1f}",
        f"magnitudes from {m.smallest:.3g} to {m.largest:.3g}; the number is for their middle 98 %",
    )
    yield from _drift_and_tails(m)
    yield Finding(
        "clip to [-1, 1]",
        f"{_percent(m.clipped)}",
        f"of the {_clipped(m)} would be cut, and {_percent(m.clip_loss)} of the sum of magnitudes lost",
    )
    yield Finding(
        "naive variance",
        f"{m.cancellation:.2g}",
        f"relative error of E[y²] - E[y]² in float32; its root is {m.naive_std:.4g}",
    )
    yield Finding(
        "zeros", f"{_percent(m.zeros)}", f"of the targets; the longest run of equal ones is {m.longest_run:,}"
    )


def _drift_and_tails(m: Measures) -> Iterator[Finding]:
    if _few(m):
        yield Finding(
            "drift and tails", "not measured", f"tenths of fewer than {FEWEST} targets differ by chance"
        )
        return
    yield Finding(
        "drift of location",
        f"{m.location_drift:.3g}",
        "range of means of tenths, in standard deviations within tenths",
    )
    yield Finding(
        "drift of scale", f"{m.scale_drift:.3g}", "largest by smallest scale of a tenth of the stream"
    )
    yield Finding(
        "tails",
        f"{_percent(m.tail_share)}",
        "of the variance within tenths is in 1 % of the targets (normal: 8 %); excess kurtosis "
        f"{m.kurtosis:.3g}",
    )


def reasons(m: Measures, choice: Choice, batch: int) -> Iterator[str]:
    """Yield why this rule and this step size."""
    part = "the stream" if _few(m) else "a tenth of the stream"
    if isinstance(choice.rule, Percentiles):
        yield (
            f"Percentiles, because the middle 90 % of {part} is within ±{m.bulk:.2g} of its standard "
            "deviations: outliers would make the others look alike."
        )
    elif m.bulk == 0:
        yield "Moments, because most targets are the same: percentiles would find no spread."
    else:
        yield (
            f"Moments, because the middle 90 % of {part} spans ±{m.bulk:.2g} of its standard deviations "
            f"(Percentiles is for less than {NARROW:g})."
        )
    if choice.updates == 1:
        yield (
            f"β = {choice.beta:g}, the smallest tried: all targets are in the first update of {batch}, "
            "which is the same with each."
        )
        return
    tried = ", ".join(f"{factor:.3g} for {beta:g}" for beta, factor in choice.misfits.items())
    yield (
        f"β = {choice.beta:g}, because it is the smallest that keeps the size of normalised targets near 1 "
        f"throughout the stream. It is off by a mean factor of {tried}; up to 2 is fine."
    )
    if choice.updates * choice.beta < 1:
        yield (
            f"These are only {choice.updates:,} updates with {batch} targets each. Step sizes below "
            f"{1 / choice.updates:.1g} give all of them the same weight: watch σ in a longer run."
        )


def advice(m: Measures, choice: Choice, batch: int) -> Iterator[str]:
    """Yield what to do."""
    rule, beta = code(choice.rule), choice.beta
    if verdict(m) == "constant":
        yield "Diagnose the targets again when they vary."
    elif verdict(m) == "fine":
        yield f"Keep the plain layer, or use a head with {rule} if targets may change."
    else:
        yield f"Replace the last layer by a head, such as popart.torch.PopArt(in, out, {rule})."
    if m.clipped:
        yield f"Do not clip to [-1, 1]: {_percent(m.clipped)} of the {_clipped(m)} would become 1 or -1."
    if m.scale_fall > CHANGE and beta >= 1e-3:
        yield (
            f"Give max_norm=3.0 to update: the scale falls by a factor of {m.scale_fall:.3g}, and preserved "
            "weights would grow by as much."
        )
    if m.tail_share > HEAVY and isinstance(choice.rule, Moments):
        yield (
            f"Expect rare normalised targets of up to {bound(beta, batch=batch):.0f}; limit the gradients if "
            "training becomes unstable."
        )
    if m.longest_run / batch * beta > 1:
        yield (
            f"The longest run of equal targets, {m.longest_run:,}, outlasts the memory of β = {beta:g}: give "
            "epsilon, a lower bound on the variance, or a smaller β."
        )
    if m.cancellation > 0.1:
        yield "Do not track the variance as E[y²] - E[y]² in float32. Rules of popart do not."
    if m.nonfinite:
        yield f"Find the cause of the {m.nonfinite:,} targets that are not finite. Rules leave them out."
