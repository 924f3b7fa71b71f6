"""Atari: so far, the paper's own scores (Table 1 of its appendix, Fig. 2)."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Paper:
    """The paper's scores on 57 Atari games, Fig. 2 and the headline figures, recomputed from its table."""

    out: Path = Path("runs/paper")
    """The run's folder."""

    def run(self) -> Path:
        from popart.lab.atari.paper import run

        return run(self)
