"""Read the run folders of a campaign: settings, metrics, and three kinds of scores."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from popart.lab.checks import LabError
from popart.lab.files import read_table
from popart.lab.manifest import MANIFEST, read_manifest
from popart.lab.train.config import Member, member_of

SCORES = {
    "evaluate": "`popart evaluate`",
    "best": "best evaluation in training (32 episodes each)",
    "training": "last 100 episodes of training",
}
"""Kinds of scores, the best first."""

Row = Mapping[str, str]


class LeftOut(NamedTuple):
    """A run folder that is not compared, and why."""

    folder: Path
    reason: str


class Evaluation(NamedTuple):
    """An evaluation by `popart evaluate`: its protocol, the frames that the agent was trained for, scores."""

    folder: Path
    protocol: tuple[str, int, float]
    frames: int
    scores: list[float]


@dataclass(frozen=True)
class Trained:
    """The content of a run folder."""

    folder: Path
    member: Member
    finished: bool
    metrics: Sequence[Row]
    evaluations: Sequence[Row]
    evaluated: Sequence[Evaluation]

    @property
    def frames(self) -> int:
        """Frames trained so far."""
        return int(self.metrics[-1]["frames"]) if self.metrics else 0

    def until(self, frames: int) -> list[Row]:
        """Return the rows of metrics up to the first one with this number of frames."""
        earlier = sum(int(row["frames"]) < frames for row in self.metrics)
        return list(self.metrics[: earlier + 1])

    def best(self, frames: int) -> tuple[int, float] | None:
        """Return frames and score of the best evaluation in training so far."""
        last = int(self.until(frames)[-1]["frames"])
        found = [(int(r["frames"]), float(r["score"])) for r in self.evaluations if int(r["frames"]) <= last]
        return max(found, key=lambda each: each[1]) if found else None

    def evaluation(self, frames: int, protocol: tuple[str, int, float] | None) -> Evaluation | None:
        """Return the evaluation of the agent after this number of frames."""
        best = self.best(frames)
        trained = {"last": int(self.until(frames)[-1]["frames"]), "best": best[0] if best else None}
        return next(
            (x for x in self.evaluated if x.protocol == protocol and x.frames == trained[x.protocol[0]]),
            None,
        )

    def score(self, kind: str, frames: int, protocol: tuple[str, int, float] | None) -> float | None:
        """Return the score of one kind after this number of frames; None if the run has none."""
        if kind == "training":
            score = self.until(frames)[-1]["score_100"]
            return float(score) if score else None
        if kind == "best":
            best = self.best(frames)
            return best[1] if best else None
        found = self.evaluation(frames, protocol)
        return float(np.mean(found.scores)) if found else None


def read(folders: Sequence[Path]) -> tuple[list[Trained], list[LeftOut]]:
    """Read all training runs in these folders; those that cannot be read are left out."""
    found, left_out = list[Trained](), list[LeftOut]()
    for folder in folders:
        if not folder.is_dir():
            raise LabError(f"{folder} is not a folder; give folders that contain runs of `popart train`")
        for path in _runs(folder):
            try:
                trained = _read(path)
            except (LabError, KeyError, ValueError) as error:
                left_out.append(LeftOut(path, f"cannot be read: {error}"))
                continue
            if trained and path not in {x.folder for x in found}:
                found.append(trained)
    return found, left_out


def _runs(folder: Path) -> Iterator[Path]:
    """Yield the folders of training runs, and those whose manifest cannot be read."""
    for here, folders, files in os.walk(folder):
        if MANIFEST in files and _experiment(Path(here)) in ("train", None):
            folders.clear()  # checkpoints have thousands of files
            yield Path(here)
        folders[:] = sorted(name for name in folders if not name.startswith("."))


def _experiment(folder: Path) -> str | None:
    try:
        return read_manifest(folder)["experiment"]
    except LabError:
        return None


def _read(folder: Path) -> Trained:
    manifest = read_manifest(folder)
    return Trained(
        folder,
        member_of(manifest["settings"], folder),
        manifest["finished"] is not None,
        _rows(folder / "metrics.csv"),
        _rows(folder / "evaluations.csv"),
        [x for path in sorted(folder.glob("evaluation-*")) for x in _evaluation(path)],
    )


def _rows(path: Path) -> list[dict[str, str]]:
    """Read the complete rows of a table; the last one may be half written."""
    return read_table(path, growing=True) if path.exists() else []


def _evaluation(folder: Path) -> Iterator[Evaluation]:
    if not (folder / MANIFEST).exists():
        return
    manifest = read_manifest(folder)
    settings = manifest["settings"]
    which, frames = folder.name.split("-")[1:3]
    if manifest["finished"] is not None:
        scores = [float(row["score"]) for row in _rows(folder / "episodes.csv")]
        protocol = which, int(settings["episodes"]), float(settings["epsilon"])
        yield Evaluation(folder, protocol, int(frames), scores)
