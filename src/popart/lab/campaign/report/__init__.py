"""`popart campaign report`: agents compared over games and seeds, beside the paper's Fig. 1b and Fig. 2."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from popart.lab.checks import check_positive, check_whole

__all__ = ["Report"]


@dataclass(frozen=True)
class Report:
    """Compare agents over the games and seeds of a campaign, beside the paper's Fig. 1b, Fig. 2 and scores.

    Reads run folders of `popart train` and `popart campaign`, also of unfinished runs. Runs are compared
    after the same number of frames, with the same settings and the same kind of score; others are listed with
    the reason. Writes a folder with tables, figures and report.html; an existing report in it is replaced.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional] = (Path("runs"),)
    """Folders that contain run folders, at any depth."""

    frames: Annotated[
        int | None,
        tyro.conf.arg(
            help_behavior_hint="(default: those of most finished runs, or those that all runs have reached)",
            metavar="INT",
        ),
    ] = None
    """Number of frames after which runs are compared; longer runs are read up to this number."""

    score: Literal["auto", "evaluate", "best", "training"] = "auto"
    """Kind of score. evaluate: result of `popart evaluate`; best: best evaluation in training; training: last
    100 episodes of training; auto: the first of these that all runs have."""

    large_rewards: float = 200.0
    """Smallest reward that is called large, in points, for the share of points from large rewards."""

    out: Path = Path("runs/campaign-report")
    """Folder of the report."""

    def __post_init__(self) -> None:
        if not self.runs:
            raise ValueError("runs is empty; give at least one folder")
        if self.frames is not None:
            check_whole("frames", self.frames, 1)
        check_positive("large_rewards", self.large_rewards)

    def run(self) -> Path:
        from popart.lab.campaign.report.run import run

        return run(self)
