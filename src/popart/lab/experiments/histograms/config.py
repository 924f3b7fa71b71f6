"""`popart histograms`: its settings."""

from dataclasses import dataclass
from pathlib import Path

from popart.lab.checks import check_seed, check_whole


@dataclass(frozen=True)
class Histograms:
    """Limit normalised targets by β or by s, and compare their distributions (appendix, Fig. 3)."""

    targets: int = 10_000
    """Number of targets, from a normal distribution with mean 1 and standard deviation 2."""

    seed: int = 0
    """Random seed. The same seed gives the same results, to the bit, on the same machine."""

    out: Path = Path("runs/histograms")
    """Run folder."""

    def __post_init__(self) -> None:
        check_whole("targets", self.targets, 1000)
        check_seed(self.seed)

    def run(self) -> Path:
        from popart.lab.experiments.histograms.run import run

        return run(self)
