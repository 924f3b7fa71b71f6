"""The methods to compare: how targets are normalised, whether outputs are preserved, and the optimizer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import popart

WINDOW = 20
"""Latest targets that `Extremes` takes as a minibatch."""

PART = (WINDOW - 1) / (WINDOW + 1)
"""The fraction p of targets between the percentiles that corresponds to it (Proposition 6)."""

EPSILON = 1e-8
"""Lower bound on the variance: with β = 1, which the grid has, Eq. 4 gives a variance of 0."""

Rule = Callable[[Any], popart.Rule[Any]]

RULES: dict[str, Rule] = {
    "moments": lambda beta: popart.Moments(beta, nu0=1.0, epsilon=EPSILON),
    "adopting": lambda beta: popart.Moments(beta, epsilon=EPSILON),
    "percentiles": lambda beta: popart.Percentiles(beta, p=PART),
    "expectiles": lambda beta: popart.Expectiles(beta, p=PART),
    "extremes": lambda beta: popart.Extremes(beta),
}


@dataclass(frozen=True)
class Method:
    """A method of the comparison."""

    name: str
    label: str
    rule: str | None = None
    preserve: bool = False
    optimizer: Literal["sgd", "rmsprop"] = "sgd"

    @property
    def family(self) -> str:
        """The method of the paper that this is a variant of."""
        return self.name.split("-")[0]

    @property
    def window(self) -> int:
        return WINDOW if self.rule == "extremes" else 1


def _methods() -> dict[str, Method]:
    paper = [
        Method("sgd", "SGD"),
        Method("art", "Art", "moments"),
        Method("popart", "Pop-Art", "moments", preserve=True),
    ]
    rmsprop = [
        Method(f"{m.name}-rmsprop", f"{m.label}, RMSprop", m.rule, m.preserve, "rmsprop") for m in paper
    ]
    others = [
        Method(f"{m.name}-{rule}", f"{m.label}, {label}", rule, m.preserve)
        for rule, label in {**{rule: rule for rule in RULES}, "adopting": "adopting start"}.items()
        if rule != "moments"
        for m in paper[1:]
    ]
    return {m.name: m for m in (*paper, *rmsprop, *others)}


METHODS = _methods()

PAPER: dict[str, tuple[float, float | None]] = {
    "sgd": (10**-3.5, None),
    "art": (10**-2.5, 1e-4),
    "popart": (10**-2.5, 10**-0.5),
}
"""The learning rate α and step size β that Section 3 reports."""
