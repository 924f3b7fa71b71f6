"""A fleet on a small game for a long time, killed at random: the same results, and no growth?

One process trains a fleet undisturbed for a quarter of the time, to see whether memory or open files grow.
Then a shorter fleet is trained once undisturbed, and after that again and again in processes that get a
SIGKILL, SIGTERM, SIGINT or SIGHUP after a random CPU time, each of which the next process resumes. The tables
of every round are compared with those of the undisturbed fleet.

Samples are appended to the CSV file as they are taken, and the summary is replaced after every process, so
that a kill of this program loses nothing. What a process printed before an unexpected end, and the folder of
a round whose tables differ, are kept beside them.

    python -m benchmarks.soak --minutes 60
"""

import argparse
import json
import platform
import random
import shutil
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

from popart.lab.files import read_table, write_atomically
from popart.lab.machine import cores
from popart.lab.manifest import read_manifest, versions
from popart.lab.train.metrics import TIMES

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
COMMAND = "import popart_command; popart_command.main()"
EVERY = 1.0
"""Seconds between two samples of memory and files."""

ENDLESS = 10**9
"""Frames of the fleet that is watched for growth; time ends it."""

COLUMNS = ("seconds", "process", "age", "megabytes", "files", "threads", "cpu")


@dataclass
class Soak:
    """What has happened so far."""

    path: Path
    """CSV file of the samples."""

    began: float = field(default_factory=time.monotonic)
    undisturbed: float = 0.0
    """CPU seconds of the undisturbed fleet."""

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

    def add(self, row: dict[str, float]) -> None:
        """Keep a sample, also in the file."""
        self.samples.append({name: round(x, 1) for name, x in row.items()})
        with self.path.open("a", encoding="utf-8") as file:
            file.write(",".join(str(self.samples[-1][name]) for name in COLUMNS) + "\n")


def train(soak: Soak, out: Path, options: argparse.Namespace, rng: random.Random | None) -> None:
    """Train the fleet to its end; with random numbers, its processes are killed until one ends by itself."""
    while True:
        patience = soak.undisturbed * rng.uniform(*options.between) if rng else float("inf")
        number = rng.choice(SIGNALS) if rng else signal.SIGKILL
        if run(soak, out, options, options.frames, number, patience):
            return


def run(
    soak: Soak,
    out: Path,
    options: argparse.Namespace,
    frames: int,
    number: int,
    patience: float = float("inf"),
    longest: float = float("inf"),
) -> bool:
    """Train in one process; return whether it ended by itself, without a signal.

    It gets the signal after `patience` seconds of CPU time, which a busy machine does not shorten, or when it
    is `longest` seconds old.
    """
    name = signal.Signals(number).name
    soak.processes += 1
    words = ["train", "--game", options.game, "--seed", *map(str, range(options.members))]
    words += ["--frames", str(frames), "--checkpoint-every", "3", "--device", "cpu", "--out", str(out)]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen([sys.executable, "-c", COMMAND, *words], stdout=said, stderr=said)
        killed = watch(soak, process, patience, longest)
        if killed:
            process.send_signal(number)
            soak.signals[name] += 1
        status = process.wait()
        said.seek(0)
        text = said.read()
    expected = (-signal.SIGKILL if number == signal.SIGKILL else 130) if killed else 0
    soak.tracebacks += text.count(b"Traceback")
    if status not in (0, expected):
        soak.other_statuses.append(
            f"{name if killed else 'no signal'} after {patience:.1f} s of CPU time: {status}"
        )
    if status not in (0, expected) or b"Traceback" in text:
        soak.path.with_suffix(f".{soak.processes}.log").write_bytes(text)
    publish(soak, options)
    return status == 0 or not killed


def watch(soak: Soak, process: "subprocess.Popen[bytes]", patience: float, longest: float) -> bool:
    """Sample the process until it ends, or its CPU time exceeds patience; return whether it still runs."""
    began, watched = time.monotonic(), psutil.Process(process.pid)
    while process.poll() is None:
        try:
            with watched.oneshot():
                row = {"megabytes": watched.memory_info().rss / 1e6, "files": watched.num_fds()}
                row |= {"threads": watched.num_threads(), "cpu": sum(watched.cpu_times()[:2])}
        except psutil.Error:
            break
        age = time.monotonic() - began
        soak.add({"seconds": soak.seconds, "process": soak.processes, "age": age} | row)
        if row["cpu"] > patience or age > longest:
            return True
        time.sleep(EVERY)
    return False


def tables(out: Path) -> list[list[dict[str, str]]]:
    """Return what must be the same: metrics without times, and evaluations, of all members that finished."""
    found = []
    for folder in sorted(out.iterdir()):
        if not read_manifest(folder)["finished"]:
            continue
        rows = read_table(folder / "metrics.csv")
        found.append([{name: x for name, x in row.items() if name not in TIMES} for row in rows])
        found.append(read_table(folder / "evaluations.csv"))
    return found


def summary(soak: Soak, options: argparse.Namespace) -> dict[str, object]:
    """Return the numbers of the report, with medians of each quarter of the first process's life."""
    first = [row for row in soak.samples if row["process"] == 1][:-2]  # at the end it may be half gone
    step = max(len(first) / 4, 1)
    quarters = [first[int(step * n) : int(step * (n + 1))] or first[-1:] for n in range(4)]
    counts = {name: x for name, x in asdict(soak).items() if name not in ("began", "samples", "path")}
    return {
        "minutes": round(soak.seconds / 60, 1),
        "game": options.game,
        "members": options.members,
        "frames": options.frames,
        **counts,
        "most_megabytes": max((row["megabytes"] for row in soak.samples), default=0.0),
        "most_files": max((row["files"] for row in soak.samples), default=0),
        "long_minutes": round(first[-1]["age"] / 60, 1) if first else 0.0,
        "long_megabytes": [_median(rows, "megabytes") for rows in quarters],
        "long_files": [_median(rows, "files") for rows in quarters],
        "long_threads": [_median(rows, "threads") for rows in quarters],
        "versions": versions(),
        "machine": f"{cores()} cores, {platform.machine()}, {platform.system()}",
    }


def _median(rows: Sequence[Mapping[str, float]], name: str) -> float:
    return statistics.median(row[name] for row in rows) if rows else 0.0


def publish(soak: Soak, options: argparse.Namespace) -> None:
    """Replace the summary, which is beside the samples."""
    text = json.dumps(summary(soak, options), indent=2) + "\n"
    write_atomically(soak.path.with_suffix(".json"), text.encode())


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--game", default="catch")
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--frames", type=int, default=100_000, help="frames of the fleet that is killed")
    between = "CPU time until a signal, as parts of the undisturbed fleet's"
    parser.add_argument("--between", type=float, nargs=2, default=(0.05, 0.8), help=between)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--path", type=Path, default=Path("results/soak.csv"))
    options = parser.parse_args()
    for number in SIGNALS[1:]:  # a shell may have started this with signals ignored, which processes inherit
        signal.signal(number, signal.default_int_handler)
    options.path.parent.mkdir(parents=True, exist_ok=True)
    options.path.write_text(",".join(COLUMNS) + "\n", encoding="utf-8")
    soak, rng = Soak(options.path), random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        run(soak, Path(folder) / "long", options, ENDLESS, signal.SIGTERM, longest=60 * options.minutes / 4)
        train(soak, Path(folder) / "undisturbed", options, None)
        soak.undisturbed = soak.samples[-1]["cpu"]
        expected = tables(Path(folder) / "undisturbed")
        assert len(expected) == 2 * options.members, "the undisturbed fleet did not finish"
        while soak.seconds < 60 * options.minutes:
            out = Path(folder) / f"round{soak.rounds}"
            train(soak, out, options, rng)
            soak.rounds += 1
            same = tables(out) == expected
            soak.identical += same
            soak.temporary_files += len(list(out.rglob(".*.tmp")))
            publish(soak, options)
            if not same:
                shutil.copytree(out, options.path.with_suffix(f".{out.name}"))
            shutil.rmtree(out)
    print(soak.path.with_suffix(".json").read_text(encoding="utf-8"), end="")


if __name__ == "__main__":
    main()
