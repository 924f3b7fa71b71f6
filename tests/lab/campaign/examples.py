"""Small campaigns in real processes, and what they must have in common."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from popart.lab.campaign import records
from popart.lab.files import read_table
from popart.lab.manifest import read_manifest
from popart.lab.train.metrics import TIMES
from tests.backends import sharing_what_is_compiled

RUNS = ("catch-popart-0", "catch-popart-1", "catch-popart-2")
"""Two fleets: the first two, and the last."""

OPTIONS = ["--games", "catch", "--agents", "popart", "--seeds", "3", "--frames", "24000", "--num-envs", "16",
           "--evaluate-every", "12000", "--log-every", "3000", "--replay-size", "5000", "--workers", "2",
           "--gpus", "0", "--cores", "1", "--retry-after", "0.5"]  # fmt: skip

OFTEN = ["--checkpoint-every", "0.5"]

DIVERGING = ["--agents", "clipped", "unclipped", "--seeds", "1", "--frames", "3000", "--reward-scale", "1e30",
             "--evaluate-every", "0"]  # fmt: skip
"""With rewards of 1e30 the unclipped agent's errors overflow; the clipped one does not notice."""

LIMIT = 300.0
"""Seconds after which a condition is given up, on a machine however slow."""


def popart(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "popart", *arguments]


@contextmanager
def started(out: Path, *options: str, name: str = "driver") -> Iterator[subprocess.Popen[bytes]]:
    """Start a driver in a process; its output goes to a file beside the campaign."""
    with said(out, name).open("wb") as file:
        command = popart("campaign", "start", *OPTIONS, "--out", str(out), *options)
        process = subprocess.Popen(
            command, env=sharing_what_is_compiled(), stdout=file, stderr=subprocess.STDOUT
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def said(out: Path, name: str = "driver") -> Path:
    return out.with_name(f"{out.name}-{name}.txt")


def finished(process: subprocess.Popen[bytes], out: Path, status: int = 0, name: str = "driver") -> str:
    """Wait until a driver ends with a status; return what it said."""
    process.wait(LIMIT)
    text = said(out, name).read_text("utf-8")
    logs = "".join(path.read_text("utf-8") for path in (out / "logs").glob("*.log"))
    assert process.returncode == status, text + logs
    return text


def wait_until(condition: Callable[[], Any], process: subprocess.Popen[bytes]) -> None:
    """Wait until a condition holds, while a process lives."""
    end = time.monotonic() + LIMIT
    while not condition():
        assert process.poll() is None, "the process has ended"
        assert time.monotonic() < end, "waited for too long"
        time.sleep(0.05)


def saved(run: Path) -> bool:
    return records.turns(run) > 0


def is_finished(run: Path) -> bool:
    return (run / "manifest.json").exists() and read_manifest(run)["finished"] is not None


def content(run: Path) -> dict[str, Any]:
    """Return all that a finished run leaves, but for times: tables and the results in the manifest."""
    rows = [{k: v for k, v in row.items() if k not in TIMES} for row in read_table(run / "metrics.csv")]
    manifest = read_manifest(run)
    kept = {k: manifest.get(k) for k in ("experiment", "title", "shown", "findings")}
    tables = {name: (run / name).read_bytes() for name in ("evaluations.csv", "result.csv")}
    return {"metrics": rows, "manifest": kept, "checkpoint": records.turns(run), **tables}


def assert_same(out: Path, undisturbed: Path, runs: Sequence[str] = RUNS) -> None:
    """Compare the tables of two campaigns."""
    for name in runs:
        assert content(out / name) == content(undisturbed / name), name


def attempts(out: Path) -> dict[str, int]:
    """Return how often a worker took each run."""
    return {run: record.attempt for run in RUNS if (record := records.read(out / run))}


def failures(out: Path) -> dict[str, list[str]]:
    found = {run: records.read(out / run) for run in RUNS}
    return {run: [each.reason for each in record.failures] for run, record in found.items() if record}


def resumed(out: Path) -> dict[str, int]:
    """Return how often each run was resumed."""
    return {run: len(read_manifest(out / run)["resumed"]) for run in RUNS}


def assert_unclipped_diverged(out: Path, text: str) -> None:
    """Check what a campaign of DIVERGING leaves and says: one fleet failed, after one attempt."""
    text = " ".join(text.split())
    assert "1 of 2 fleets failed" in text
    assert "catch-unclipped-0: it diverged" in text
    clipped, unclipped = out / "catch-clipped-0", out / "catch-unclipped-0"
    assert is_finished(clipped)
    assert not is_finished(unclipped)
    record = records.read(unclipped)
    assert record is not None
    assert (record.attempt, len(record.failures), record.outcome) == (1, 1, "failed")
    assert "it diverged" in record.failures[0].reason


def settings(out: Path) -> Mapping[str, Any]:
    return json.loads((out / "campaign.json").read_text("utf-8"))
