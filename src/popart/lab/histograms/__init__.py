"""Fig. 3 of the appendix: what the step size of the statistics does to normalised targets."""

from dataclasses import dataclass
from pathlib import Path

from popart.lab.checks import check_seed, check_whole


@dataclass(frozen=True)
class Histograms:
    """Limit normalised targets by beta or by s, and see how they are distributed (appendix, Fig. 3)."""

    targets: int = 10_000
    """How many targets, from a normal distribution with mean 1 and standard deviation 2."""

    seed: int = 0
    """The same seed gives the same results, to the bit, on the same machine."""

    out: Path = Path("runs/histograms")
    """The run's folder."""

    def __post_init__(self) -> None:
        check_whole("targets", self.targets, 1000)
        check_seed(self.seed)

    def run(self) -> Path:
        from popart.lab.histograms.experiment import run

        return run(self)
