"""Metrics: the table, the same for TensorBoard, and summaries of updates."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]

from popart.lab.dqn.learner import Metrics
from popart.lab.files import read_table
from popart.lab.train.metrics import Record, summary


@pytest.mark.xdist_group("catch")
def test_tensorboard_has_what_the_table_has(catch: Path) -> None:
    (events,) = (catch / "tensorboard").iterdir()
    data, found = events.read_bytes(), {}
    while data:  # a record: its length, a checksum, itself, a checksum
        (length,) = struct.unpack("<Q", data[:8])
        event = Event.FromString(data[12 : 12 + length])
        found.update({(value.tag, event.step): value.simple_value for value in event.summary.value})
        data = data[16 + length :]
    rows = read_table(catch / "metrics.csv")
    expected = {
        (name, int(row["frames"])): float(value)
        for row in rows
        for name, value in row.items()
        if value and name != "frames"
    }
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, rel=1e-6)


@pytest.mark.xdist_group("catch")
def test_rows_have_means_of_their_own_episodes_and_of_the_last_hundred(catch: Path) -> None:
    rows = read_table(catch / "metrics.csv")
    numbers = np.diff([int(row["episodes"]) for row in rows], prepend=0)
    means = np.array([float(row["score"]) for row in rows])
    assert (numbers > 100).all()
    for row, number, mean in zip(rows, numbers, means, strict=True):
        wins = (1 + mean) / 2 * number  # each episode of Catch scores 1 or -1
        assert wins == pytest.approx(round(wins), abs=1e-6)
        assert -1 <= float(row["score_100"]) <= 1
    assert [float(row["epsilon"]) for row in rows] == sorted(
        (float(row["epsilon"]) for row in rows), reverse=True
    )
    assert [row["overflows"] for row in rows] == ["0"] * len(rows)


def random_updates(number: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).exponential(size=(len(Metrics._fields), number)).astype(np.float32)


def test_a_summary_has_the_mean_loss_quantiles_of_norms_and_the_last_scale() -> None:
    updates = random_updates(50)
    fields, found = Metrics(*updates), summary(updates)
    assert found["loss"] == pytest.approx(fields.loss.mean())
    assert found["gradient_norm"] == pytest.approx(np.median(fields.gradient_norm))
    assert found["gradient_norm_5"] == pytest.approx(np.quantile(fields.gradient_norm, 0.05))
    assert found["gradient_norm_95"] == pytest.approx(np.quantile(fields.gradient_norm, 0.95))
    assert found["body_norm"] == pytest.approx(np.median(fields.body_norm))
    assert found["head_norm"] == pytest.approx(np.median(fields.head_norm))
    assert (found["scale"], found["shift"]) == (float(fields.scale[-1]), float(fields.shift[-1]))


def test_a_summary_of_no_updates_has_the_same_columns_without_values() -> None:
    found = summary(np.zeros((6, 0), np.float32))
    assert found.keys() == summary(random_updates(2)).keys()
    assert set(found.values()) == {None}


def test_a_record_restored_from_its_notes_gives_the_same_row() -> None:
    record = Record()
    record.updates, record.scores, record.recent = (
        [random_updates(3), random_updates(4, 1)],
        [1.5, -2.0],
        [7.0],
    )
    record.start_row({"frames": 100, "updates": 7, "seconds": 0.5})
    record.updates, record.scores = [random_updates(5, 2)], [3.25]
    restored = Record.of(json.loads(json.dumps(record.notes())))
    assert restored.summary() == record.summary()
    counts = {"frames": 200, "steps": 50, "updates": 12, "episodes": 3}
    rows = [each.row(counts, {"epsilon": 0.5}, seconds=1.0) for each in (record, restored)]
    assert rows[0] == rows[1]
    assert rows[0]["score"] == 3.25
    assert rows[0]["score_100"] == (7.0 + 3.25) / 2
    assert (rows[0]["frames_per_second"], rows[0]["updates_per_second"]) == (200.0, 10.0)
