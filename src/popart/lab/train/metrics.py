"""What is written down while an agent learns: a table, and the same for TensorBoard."""

import csv
from collections.abc import Mapping
from typing import Any

import numpy as np
from tensorboardX import SummaryWriter

from popart.lab.dqn.learner import Metrics
from popart.lab.runs import Run

NAME = "metrics"
TIMES = ("seconds", "frames_per_second", "updates_per_second")
"""Columns that differ between runs that are otherwise the same."""


class Table:
    """Rows in metrics.csv and in TensorBoard's events; those after `frames` are of a run that was killed."""

    def __init__(self, run: Run, frames: int) -> None:
        rows = [row for row in run.read_table(NAME) if row["frames"] and int(row["frames"]) <= frames]
        self._path = run.folder / f"{NAME}.csv"
        if rows:
            run.write_table(NAME, rows)
        else:
            self._path.unlink(missing_ok=True)
        self._events = SummaryWriter(str(run.folder / "tensorboard"), purge_step=frames + 1)

    def add(self, row: Mapping[str, Any]) -> None:
        new = not self._path.exists()
        with self._path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, row.keys(), lineterminator="\n")
            if new:
                writer.writeheader()
            writer.writerow({k: "" if v is None else v for k, v in row.items()})
        for name, value in row.items():
            if value is not None and name != "frames":
                self._events.add_scalar(name, value, row["frames"])

    def close(self) -> None:
        self._events.close()


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
