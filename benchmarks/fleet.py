"""Updates per second of a fleet of small-game agents, beside the same agents one after the other.

Both train the same members, with the same settings, in one process: from start to end, with metrics and
checkpoints, after everything has been compiled once.

    python -m benchmarks.fleet --game catch --members 16 --frames 10000
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.tables import publish
from popart.lab.files import read_table
from popart.lab.machine import cores
from popart.lab.train.config import Member, Train
from popart.lab.train.run import train


def measured(fleets: Sequence[Sequence[Member]]) -> tuple[int, float]:
    """Train fleets one after the other; return all updates, and the seconds they took."""
    start = time.perf_counter()
    for fleet in fleets:
        train(fleet, "benchmark", "")
    seconds = time.perf_counter() - start
    tables = (read_table(member.out / "metrics.csv") for fleet in fleets for member in fleet)
    return sum(int(rows[-1]["updates"]) for rows in tables), seconds


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--game", default="catch")
    parser.add_argument("--agent", default="popart")
    parser.add_argument("--members", type=int, default=16)
    parser.add_argument("--frames", type=int, default=10_000)
    parser.add_argument("--path", type=Path, default=Path("results/fleet_cpu.csv"))
    options = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("compile", "measure"):
            command = Train.of(
                game=options.game,
                agent=options.agent,
                seed=tuple(range(options.members)),
                frames=options.frames if name == "measure" else 2000,
                evaluate_every=0,
            )
            together = command.changed(out=Path(folder) / name / "fleet").members()
            alone = command.changed(out=Path(folder) / name / "alone").members()
            found = {
                "one after the other": measured([[member] for member in alone]),
                "fleet": measured([together]),
            }
    rates = {name: updates / seconds for name, (updates, seconds) in found.items()}
    slow = rates["one after the other"]
    rows = [
        [options.game, str(options.members), name, f"{rate:.0f}", f"{rate / slow:.2f}"]
        for name, rate in rates.items()
    ]
    header = ["game", "members", "trained", "updates/s", "of one after the other"]
    publish(options.path, header, rows, "fleet", f"CPU, {cores()} cores", frames=options.frames)


if __name__ == "__main__":
    main()
