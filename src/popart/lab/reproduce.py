"""Everything of the paper that this machine can do, then the report."""

from dataclasses import dataclass
from pathlib import Path

from popart.lab.atari import Paper
from popart.lab.histograms import Histograms
from popart.lab.regression import Regression
from popart.lab.report import Report
from popart.lab.scale import Scale


@dataclass(frozen=True)
class Reproduce:
    """Run the paper's experiments that need no Atari, and make a page of them.

    It takes four to five minutes on two cores. What is finished already is not run again.
    """

    quick: bool = False
    """A look in half a minute, at a small part of each experiment, in a folder of its own."""

    out: Path = Path("runs")
    """The folder for the runs and the page."""

    def run(self) -> Path:
        out = self.out / "quick" if self.quick else self.out
        for experiment, few in (
            (Paper, {}),
            (Histograms, {}),
            (Regression, {"methods": ("sgd", "art", "popart"), "repetitions": 5}),
            (Scale, {"games": ("catch",), "scales": (1e-8, 1.0, 1e8), "seeds": 1, "steps": 10_000}),
        ):
            experiment(**(few if self.quick else {}), out=out / experiment.__name__.lower()).run()
        return Report((out,), out / "report.html").run()
