"""Everything of the paper that this machine can do, then the report."""

from dataclasses import dataclass
from pathlib import Path

from popart.lab.atari import Paper
from popart.lab.histograms import Histograms
from popart.lab.regression import Regression
from popart.lab.report import Report


@dataclass(frozen=True)
class Reproduce:
    """Run the paper's experiments that need no game, and make a page of them.

    It takes a minute or two on two cores. What is finished already is not run again.
    """

    out: Path = Path("runs")
    """The folder for the runs and the page."""

    def run(self) -> Path:
        for experiment in (Paper, Histograms, Regression):
            experiment(out=self.out / experiment.__name__.lower()).run()
        return Report((self.out,), self.out / "report.html").run()
