"""`popart paper`: its settings."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Paper:
    """Redraw Fig. 2 and recompute the headline numbers from the paper's own scores on 57 Atari games.

    No agent is trained. `popart campaign report` draws Fig. 2 from runs.
    """

    out: Path = Path("runs/paper")
    """Run folder."""

    def run(self) -> Path:
        from popart.lab.experiments.atari_scores.run import run

        return run(self)
