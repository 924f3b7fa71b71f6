"""`popart reproduce`: the paper's experiments that need no Atari emulator, and a report."""

from dataclasses import dataclass
from pathlib import Path

from popart.lab.experiments.atari_scores.config import Paper
from popart.lab.experiments.histograms.config import Histograms
from popart.lab.experiments.regression.config import Regression
from popart.lab.experiments.reward_scale.config import QUICK, Scale
from popart.lab.report import Report


@dataclass(frozen=True)
class Reproduce:
    """Run the paper's experiments that need no Atari emulator, and write a report of them.

    It takes four to five minutes on two cores. Finished runs are not repeated.
    """

    quick: bool = False
    """Run a small part of each experiment, in half a minute; the results have their own folder."""

    out: Path = Path("runs")
    """Folder for the runs and the report."""

    def run(self) -> tuple[Path, ...]:
        out = self.out / "quick" if self.quick else self.out
        small = {
            Paper: {},
            Histograms: {},
            Regression: {"methods": ("sgd", "art", "popart"), "repetitions": 5},
            Scale: QUICK,
        }
        runs = tuple(
            experiment(**(few if self.quick else {}), out=out / experiment.__name__.lower()).run()
            for experiment, few in small.items()
        )
        return *runs, Report((out,), out / "report.html").run()
