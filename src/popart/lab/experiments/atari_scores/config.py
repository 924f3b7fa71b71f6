"""`popart paper`: its settings."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Paper:
    """Recompute Fig. 2 and the headline numbers from the paper's table of scores on 57 Atari games."""

    out: Path = Path("runs/paper")
    """Run folder."""

    def run(self) -> Path:
        from popart.lab.experiments.atari_scores.run import run

        return run(self)
