"""The tracker of metrics: rows of metrics.csv, and the same for TensorBoard."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import jax
import numpy as np

from popart.lab.checks import LabError
from popart.lab.console import say
from popart.lab.dqn.learner import Metrics
from popart.lab.runs import Run
from popart.lab.tensorboard import Events
from popart.lab.train.config import Member
from popart.lab.train.loop import Turn
from popart.lab.train.tracker import crossed

NAME = "metrics"
TIMES = ("seconds", "frames_per_second", "updates_per_second")
"""Columns that differ between runs that are otherwise the same."""

RECENT = 100
"""Number of episodes whose mean score is `score_100`."""


class MetricsTracker:
    """Writes a row for each member whenever it has played `log_every` frames, and one at its end.

    A member whose loss, gradient, σ or μ is no longer finite is marked as diverged, and stopped.
    """

    def __init__(self, members: Sequence[Member], runs: Sequence[Run]) -> None:
        self._members, self._runs = members, runs
        self._records = [Record() for _ in members]
        self._tables: dict[int, Table] = {}
        self._diverged: set[int] = set()
        self._pending: list[tuple[np.ndarray, jax.Array]] = []

    def step(self, turn: Turn) -> None:
        for member, score in turn.episodes:
            self._records[member].scores.append(score)
        self._pending += turn.metrics
        for member, settings in enumerate(self._members):
            frames, logged = int(turn.counts.frames[member]), self._records[member].logged
            ended = not turn.active[member] and logged < frames
            if member not in turn.failures and (ended or crossed(logged, frames, settings.log_every)):
                self._fetch()
                self._log(member, turn)

    def _fetch(self) -> None:
        """Bring the metrics of updates from the device."""
        for learned, metrics in self._pending:
            values = np.asarray(metrics)
            for member in np.flatnonzero(learned):
                self._records[member].updates.append(values[member])
        self._pending = []

    def _log(self, member: int, turn: Turn) -> None:
        record, counts = self._records[member], turn.counts
        epsilon = self._members[member].schedule.epsilon_at(np.float32(counts.steps[member]))  # pyright: ignore[reportArgumentType]
        summary = record.summary()
        row = record.row(
            {
                name: getattr(counts, name)[member].item()
                for name in ("frames", "steps", "updates", "episodes")
            },
            {"epsilon": float(epsilon), **summary, "overflows": int(counts.overflows[member])},
            float(counts.seconds[member]),
        )
        if member not in self._tables:
            self._tables[member] = Table(self._runs[member], record.logged)
        self._tables[member].add(row)
        record.start_row(row)
        reason = diverged(summary)
        if reason and member not in self._diverged:
            self._diverged.add(member)
            frames = int(counts.frames[member])
            self._runs[member].mark(diverged=f"after {frames:,} frames: {reason}")
            say(f"{self._members[member].name} diverged after {frames:,} frames: {reason}")
        if reason and self._members[member].stop_diverged:
            turn.fail(member, f"it diverged: {reason}; --no-stop-diverged continues it")

    def notes(self, member: int) -> dict[str, Any]:
        self._fetch()
        return self._records[member].notes()

    def restore(self, member: int, notes: dict[str, Any]) -> None:
        self._records[member] = Record.of(notes)

    def start(self, frames: Sequence[int]) -> None:
        """Remove rows that were written after the checkpoint that each member starts from."""
        for run, last in zip(self._runs, frames, strict=True):
            run.cut_table(NAME, last)

    def close(self) -> None:
        for table in self._tables.values():
            table.close()


class Record:
    """Episodes and updates of one member since its last row."""

    def __init__(self) -> None:
        self.scores: list[float] = []
        self.recent: list[float] = []
        self.updates: list[np.ndarray] = []
        """Metrics of learning calls, (fields, updates) each."""

        self.logged = 0
        """Frames, updates and seconds at the last row."""

        self.logged_updates = 0
        self.logged_seconds = 0.0

    def summary(self) -> dict[str, float | None]:
        return summary(np.concatenate(self.updates, 1) if self.updates else np.zeros((6, 0), np.float32))

    def row(
        self, counts: Mapping[str, int], measured: Mapping[str, Any], seconds: float
    ) -> dict[str, float | None]:
        self.recent = (self.recent + self.scores)[-RECENT:]
        took = max(seconds - self.logged_seconds, 1e-9)
        return {
            **counts,
            "score": _mean(self.scores),
            "score_100": _mean(self.recent),
            **measured,
            "seconds": round(seconds, 3),
            "frames_per_second": round((counts["frames"] - self.logged) / took, 1),
            "updates_per_second": round((counts["updates"] - self.logged_updates) / took, 1),
        }

    def start_row(self, row: Mapping[str, Any]) -> None:
        self.scores, self.updates = [], []
        self.logged, self.logged_updates, self.logged_seconds = row["frames"], row["updates"], row["seconds"]

    def notes(self) -> dict[str, Any]:
        copies = {"scores": list(self.scores), "updates": [x.tolist() for x in self.updates]}
        return vars(self) | copies  # written later, while episodes end

    @classmethod
    def of(cls, notes: dict[str, Any]) -> "Record":
        record = cls()
        vars(record).update(notes, updates=[np.array(x, np.float32) for x in notes["updates"]])
        return record


def diverged(summary: Mapping[str, float | None]) -> str:
    """Name the metrics that are no longer finite; an empty text if all are."""
    wrong = {name: x for name, x in summary.items() if x is not None and not np.isfinite(x)}
    names = {"gradient_norm": "gradient norm", "scale": "σ", "shift": "μ"}
    shown = [name for name in ("loss", *names) if name in wrong] or list(wrong)
    return ", ".join(f"{names.get(name, name)} {wrong[name]}" for name in shown)


def summary(updates: np.ndarray) -> dict[str, float | None]:
    """Summarise the metrics of several updates, (fields, updates)."""
    names = ("loss", "gradient_norm", "gradient_norm_5", "gradient_norm_95", "body_norm", "head_norm")
    if not updates.size:
        return dict.fromkeys((*names, "scale", "shift"))
    fields = Metrics(*updates)
    low, middle, high = np.quantile(fields.gradient_norm, (0.05, 0.5, 0.95))
    medians = (np.median(x) for x in (fields.body_norm, fields.head_norm))
    values = (np.mean(fields.loss), middle, low, high, *medians, fields.scale[-1], fields.shift[-1])
    return dict(zip((*names, "scale", "shift"), map(float, values), strict=True))


class Table:
    """The file metrics.csv and TensorBoard's events of one run."""

    def __init__(self, run: Run, frames: int) -> None:
        self._path = run.folder / f"{NAME}.csv"
        with self._writing():
            self._events = Events(run.folder / "tensorboard", frames + 1)

    def add(self, row: Mapping[str, Any]) -> None:
        new = not self._path.exists()
        with self._writing():
            with self._path.open("a", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, row.keys(), lineterminator="\n")
                if new:
                    writer.writeheader()
                writer.writerow({k: "" if v is None else v for k, v in row.items()})
            shown = {k: v for k, v in row.items() if v is not None and k != "frames"}
            self._events.add(row["frames"], shown)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LabError(
                f"{self._path} and the files beside it cannot be written: {error.strerror}. Run the same "
                "command again to resume from the last checkpoint."
            ) from error

    def close(self) -> None:
        with suppress(OSError):  # all rows are flushed
            self._events.close()


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
