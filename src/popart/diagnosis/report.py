"""The result of a diagnosis: measures, a recommended rule, an answer in words, and a figure."""

import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from popart._trees import as_leaf
from popart.diagnosis import words
from popart.diagnosis.choice import choose
from popart.diagnosis.measures import Floats, Measures, measure
from popart.diagnosis.returns import discounted_returns
from popart.diagnosis.words import Finding, Verdict
from popart.moments import Moments
from popart.percentiles import Percentiles

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Diagnosis(Measures):
    """The result of `popart.diagnose`. `print` shows it as text, and `plot` draws it."""

    verdict: Verdict
    """Whether a plain network would learn these targets: 'fine', or why not."""

    answer: str
    """The answer to "are my rewards too large?"."""

    rule: Moments | Percentiles
    """The recommended rule, with its step size."""

    reasons: tuple[str, ...]
    """Reasons for this rule and this step size."""

    advice: tuple[str, ...]
    """Recommendations."""

    batch: int
    """Number of targets in an update, as given."""

    targets: Floats = field(repr=False, compare=False)
    """The finite targets in the order of time: as given, or returns if a discount was given."""

    unclipped: Floats = field(repr=False, compare=False)
    """The numbers that a clip would apply to: rewards if a discount was given, targets otherwise."""

    after_clip: Floats = field(repr=False, compare=False)
    """The targets with this clip."""

    @property
    def beta(self) -> float:
        """The step size of the recommended rule."""
        assert isinstance(self.rule.beta, float)
        return self.rule.beta

    def findings(self) -> tuple[Finding, ...]:
        """Return all measures in words, for a table."""
        return tuple(words.findings(self))

    def figure(self) -> "Figure":
        """Draw the targets over time, their magnitudes, and a network's targets; this needs matplotlib."""
        from popart.diagnosis.figure import draw

        return draw(self)

    def plot(self, path: str | Path) -> Path:
        """Write the figure to a file with the format of its suffix, such as .png; this needs matplotlib."""
        from popart.diagnosis.figure import save

        return save(self.figure(), Path(path))

    def __str__(self) -> str:
        """Return the answer, the findings, the rule and the advice."""
        width = max(len(finding.name) for finding in self.findings())
        lines = [f"Are these targets too large? {self.answer}", ""]
        lines += [f"{f.name:<{width}}  {f.value}: {f.meaning}" for f in self.findings()]
        lines += ["", f"Begin with {words.code(self.rule)}.", *(f"- {x}" for x in self.reasons)]
        lines += ["", "What to do:", *(f"- {x}" for x in self.advice)]
        return "\n".join(
            textwrap.fill(line, 110, subsequent_indent="  ", break_on_hyphens=False) for line in lines
        )


def diagnose(targets: Any, *, discount: float | None = None, ends: Any = None, batch: int = 32) -> Diagnosis:
    """Measure a stream of targets: are they too large, do they drift, and which rule suits them?

        print(popart.diagnose(targets))
        popart.diagnose(rewards, discount=0.99, ends=terminated).plot("diagnosis.png")

    Args:
        targets: The targets of a value function or regression in the order of time: a list, or an array of
            NumPy, JAX or PyTorch, whose first axis is time. Entries along later axes, such as environments,
            have the same time. Targets that are not finite are counted and left out.
        discount: γ, if `targets` are rewards. The diagnosis is then of their discounted returns, which a
            value function learns, and which are up to 1 / (1 - γ) times as large. Rewards after the last one
            count as 0.
        ends: With `discount`, whether an episode ends with each reward, in the shape of `targets`.
        batch: Number of targets in one update of the statistics, to which the step size refers.
    """
    if batch < 1:
        raise ValueError(f"batch is {batch!r}; it must be at least 1")
    y = _numbers("targets", targets)
    finite = np.isfinite(y)
    if discount is None:
        if ends is not None:
            raise ValueError("ends is given without discount; give both: episodes matter only for returns")
        unclipped = used = y[finite]
        after_clip = np.clip(used, -1, 1)
    else:
        over = None if ends is None else _ends(ends, y)
        unclipped = np.where(finite, y, 0.0)
        used, after_clip = (
            discounted_returns(rewards, discount, over).ravel()
            for rewards in (unclipped, np.clip(unclipped, -1, 1))
        )
    if not finite.any():
        raise ValueError(f"targets has no finite number ({y.size} elements); nothing can be diagnosed")
    measures = measure(used, int(np.count_nonzero(~finite)), None if discount is None else unclipped.ravel())
    choice = choose(measures, used, batch)
    return Diagnosis(
        **vars(measures),
        verdict=words.verdict(measures),
        answer=words.answer(measures),
        rule=choice.rule,
        reasons=tuple(words.reasons(measures, choice, batch)),
        advice=tuple(words.advice(measures, choice, batch)),
        batch=batch,
        targets=used,
        unclipped=unclipped.ravel(),
        after_clip=after_clip,
    )


def _numbers(name: str, x: Any) -> Floats:
    try:
        values = as_leaf(x).values
    except ValueError:
        raise TypeError(f"{name} has rows of different lengths; it must be an array of numbers") from None
    if values.dtype.kind not in "biuf":
        raise TypeError(
            f"{name} is of type {type(x).__name__} ({values.dtype}); it must be an array of numbers"
        )
    return np.atleast_1d(values.astype(float))


def _ends(ends: Any, y: Floats) -> Floats:
    found = _numbers("ends", ends)
    if found.shape != y.shape:
        raise ValueError(f"ends has shape {found.shape}; it must be that of targets, {y.shape}")
    return found
