"""What is written down while an agent learns: a table, and the same for TensorBoard."""

import csv
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto import event_pb2, summary_pb2

from popart.lab.checks import LabError
from popart.lab.dqn.learner import Metrics
from popart.lab.runs import Run

NAME = "metrics"
TIMES = ("seconds", "frames_per_second", "updates_per_second")
"""Columns that differ between runs that are otherwise the same."""


class Table:
    """Rows in metrics.csv and in TensorBoard's events; those after `frames` are of a run that was killed."""

    def __init__(self, run: Run, frames: int) -> None:
        run.cut_table(NAME, frames)
        self._path = run.folder / f"{NAME}.csv"
        folder = run.folder / "tensorboard"
        with self._writing():
            folder.mkdir(exist_ok=True)
            self._events = EventsWriter(str(folder / "events"))  # SummaryWriter hangs when a disk is full
            begun = _proto(event_pb2, "SessionLog")(status=_proto(event_pb2, "SessionLog").START)
            self._write_event(step=frames + 1, session_log=begun)

    def add(self, row: Mapping[str, Any]) -> None:
        new = not self._path.exists()
        with self._writing():
            with self._path.open("a", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, row.keys(), lineterminator="\n")
                if new:
                    writer.writeheader()
                writer.writerow({k: "" if v is None else v for k, v in row.items()})
            shown = {k: v for k, v in row.items() if v is not None and k != "frames"}
            values = [{"tag": name, "simple_value": value} for name, value in shown.items()]
            self._write_event(step=row["frames"], summary=_proto(summary_pb2, "Summary")(value=values))

    def _write_event(self, **content: Any) -> None:
        self._events.write_event(_proto(event_pb2, "Event")(wall_time=time.time(), **content))
        self._events.flush()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LabError(
                f"{self._path} and what is beside it cannot be written: {error.strerror}; "
                "the same command goes on from the last checkpoint"
            ) from error

    def close(self) -> None:
        with suppress(OSError):  # all that was written is flushed
            self._events.close()


def _proto(module: Any, name: str) -> Any:
    """A message's class, which is made when the module is imported."""
    return getattr(module, name)


def summary(updates: np.ndarray) -> dict[str, float | None]:
    """Of the metrics of several updates, (updates, fields)."""
    if not len(updates):
        names = ("loss", "gradient_norm", "gradient_norm_5", "gradient_norm_95", "body_norm", "head_norm")
        return dict.fromkeys((*names, "scale", "shift"))
    fields = Metrics(*updates.T)
    low, middle, high = np.quantile(fields.gradient_norm, (0.05, 0.5, 0.95))
    return {
        "loss": float(np.mean(fields.loss)),
        "gradient_norm": float(middle),
        "gradient_norm_5": float(low),
        "gradient_norm_95": float(high),
        "body_norm": float(np.median(fields.body_norm)),
        "head_norm": float(np.median(fields.head_norm)),
        "scale": float(fields.scale[-1]),
        "shift": float(fields.shift[-1]),
    }
