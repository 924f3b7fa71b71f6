"""A fleet on a small game for a long time, killed at random: the same results, and no growth?

First the fleet trains undisturbed. Then, until the time is over, it trains again and again in processes that
get a SIGKILL, SIGTERM, SIGINT or SIGHUP after a random time, each of which the next process resumes. Tables
of every round are compared with those of the undisturbed fleet. Memory and open files are recorded.

    python -m benchmarks.soak --minutes 60
"""

import argparse
import csv
import json
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from popart.lab.files import read_table
from popart.lab.machine import cores
from popart.lab.manifest import read_manifest, versions
from popart.lab.train.metrics import TIMES

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
COMMAND = "import popart_command; popart_command.main()"
EVERY = 1.0
"""Seconds between two samples of memory and files."""


@dataclass
class Soak:
    """What has happened so far."""

    began: float = field(default_factory=time.monotonic)
    undisturbed: float = 0.0
    """Seconds of the undisturbed fleet."""

    rounds: int = 0
    identical: int = 0
    processes: int = 0
    signals: dict[str, int] = field(default_factory=lambda: {number.name: 0 for number in SIGNALS})
    tracebacks: int = 0
    other_statuses: list[str] = field(default_factory=list)
    temporary_files: int = 0
    samples: list[dict[str, float]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began


def train(soak: Soak, out: Path, options: argparse.Namespace, rng: random.Random | None) -> None:
    """Train the fleet to its end; with random numbers, its processes are killed until one ends by itself."""
    while True:
        patience = soak.undisturbed * rng.uniform(*options.between) if rng else float("inf")
        number = rng.choice(SIGNALS) if rng else signal.SIGKILL
        soak.processes += 1
        words = ["train", "--game", options.game, "--seed", *map(str, range(options.members))]
        words += [
            "--frames",
            str(options.frames),
            "--checkpoint-every",
            "3",
            "--device",
            "cpu",
            "--out",
            str(out),
        ]
        with tempfile.TemporaryFile() as said:
            command = [sys.executable, "-c", COMMAND, *words, "--out", str(out)]
            process = subprocess.Popen(command, stdout=said, stderr=said)
            killed = watch(soak, process, patience)
            if killed:
                process.send_signal(number)
                soak.signals[number.name] += 1
            status = process.wait()
            said.seek(0)
            soak.tracebacks += said.read().count(b"Traceback")
        if status == 0:
            return
        expected = -signal.SIGKILL if number == signal.SIGKILL else 130
        if not killed or status != expected:
            soak.other_statuses.append(f"{number.name} after {patience:.1f} s: {status}")
        if not killed:
            return


def watch(soak: Soak, process: "subprocess.Popen[bytes]", patience: float) -> bool:
    """Sample memory and files until the process ends, or patience does; return whether it still runs."""
    began, watched = time.monotonic(), psutil.Process(process.pid)
    while process.poll() is None:
        age = time.monotonic() - began
        if age > patience:
            return True
        try:
            with watched.oneshot():
                row = {"megabytes": watched.memory_info().rss / 1e6, "files": watched.num_fds()}
                row["threads"] = watched.num_threads()
        except psutil.Error:
            break
        where = {"seconds": soak.seconds, "process": soak.processes, "age": age}
        soak.samples.append({name: round(x, 1) for name, x in (where | row).items()})
        time.sleep(EVERY)
    return False


def tables(out: Path) -> list[list[dict[str, str]]]:
    """Return what must be the same: metrics without times, and evaluations, of all members."""
    found = []
    for folder in sorted(out.iterdir()):
        assert read_manifest(folder)["finished"], folder
        rows = read_table(folder / "metrics.csv")
        found.append([{name: x for name, x in row.items() if name not in TIMES} for row in rows])
        found.append(read_table(folder / "evaluations.csv"))
    return found


def summary(soak: Soak, options: argparse.Namespace) -> dict[str, object]:
    """Return the numbers of the report.

    Growth is that of the undisturbed process, from the third to the last quarter of its life.
    """
    first = [row for row in soak.samples if row["process"] == 1][:-2]  # at the end it may be half gone
    middle, end = first[len(first) // 2 : 3 * len(first) // 4], first[3 * len(first) // 4 :]
    growth = {name: _median(end, name) - _median(middle, name) for name in ("megabytes", "files")}
    counts = {name: x for name, x in asdict(soak).items() if name not in ("began", "samples")}
    return {
        "minutes": round(soak.seconds / 60, 1),
        "game": options.game,
        "members": options.members,
        "frames": options.frames,
        **counts,
        "most_megabytes": max(row["megabytes"] for row in soak.samples),
        "growth_megabytes": round(growth["megabytes"], 1),
        "growth_files": growth["files"],
        "growth_minutes": round((_median(end, "age") - _median(middle, "age")) / 60, 1),
        "most_files": max(row["files"] for row in soak.samples),
        "versions": versions(),
        "machine": f"{cores()} cores, {platform.machine()}, {platform.system()}",
    }


def _median(rows: Sequence[Mapping[str, float]], name: str) -> float:
    return statistics.median(row[name] for row in rows)


def publish(soak: Soak, options: argparse.Namespace) -> None:
    """Write all samples as CSV, and the summary as JSON beside it."""
    with options.path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, soak.samples[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(soak.samples)
    text = json.dumps(summary(soak, options), indent=2)
    options.path.with_suffix(".json").write_text(text + "\n", encoding="utf-8")
    print(text)


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--game", default="catch")
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--frames", type=int, default=50_000)
    between = "time until a signal, as parts of the undisturbed fleet's time"
    parser.add_argument("--between", type=float, nargs=2, default=(0.05, 0.5), help=between)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--path", type=Path, default=Path("results/soak.csv"))
    options = parser.parse_args()
    soak, rng = Soak(), random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        train(soak, Path(folder) / "undisturbed", options, None)
        soak.undisturbed = soak.seconds
        expected = tables(Path(folder) / "undisturbed")
        while soak.seconds < 60 * options.minutes:
            out = Path(folder) / f"round{soak.rounds}"
            train(soak, out, options, rng)
            soak.rounds += 1
            soak.identical += tables(out) == expected
            soak.temporary_files += len(list(out.rglob(".*.tmp")))
            publish(soak, options)


if __name__ == "__main__":
    main()
