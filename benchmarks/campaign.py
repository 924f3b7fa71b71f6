"""Time of a campaign with two workers on two cores, beside one worker that trains the same fleets.

Each time is that of the whole command `popart campaign start`: it starts a process for each fleet, trains it
with metrics, evaluations and checkpoints, and draws its figures. Both are measured in turns, after everything
has been compiled once, and the shortest time of each counts.

    python -m benchmarks.campaign --fleets 4 --frames 40000 --repeats 3
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.tables import publish
from popart.lab.campaign.config import MachineOptions, Start
from popart.lab.campaign.run import opened
from popart.lab.machine import cores


def measured(command: list[str], fleets: int, workers: int, folder: Path) -> float:
    """Train a new campaign with a number of fleets; return the seconds that it took."""
    with tempfile.TemporaryDirectory(dir=folder) as out:
        options = dict(zip(command[::2], command[1::2], strict=True))
        games, frames, path = (options["--games"],), int(options["--frames"]), Path(out)
        machines = MachineOptions(workers=fleets)
        opened(Start(games, ("popart",), fleets, frames, path, machines))  # fleets do not depend on workers
        start = [sys.executable, "-m", "popart", "campaign", "start", *command, "--out", out]
        cache = {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled")}
        began = time.perf_counter()
        subprocess.run(
            [*start, "--workers", str(workers)], env=os.environ | cache, check=True, capture_output=True
        )
        return time.perf_counter() - began


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--game", default="catch")
    parser.add_argument("--fleets", type=int, default=4)
    parser.add_argument("--frames", type=int, default=40_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--path", type=Path, default=Path("results/campaign_cpu.csv"))
    options = parser.parse_args()
    command = ["--games", options.game, "--agents", "popart", "--seeds", str(options.fleets)]
    times: dict[int, list[float]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as folder:
        measured([*command, "--frames", "2000"], options.fleets, 2, Path(folder))
        for _ in range(options.repeats):
            for workers, found in times.items():
                seconds = measured(
                    [*command, "--frames", str(options.frames)], options.fleets, workers, Path(folder)
                )
                found.append(seconds)
    least = {workers: min(found) for workers, found in times.items()}
    rows = [
        [
            options.game,
            str(options.fleets),
            str(workers),
            f"{seconds:.1f}",
            f"{seconds * workers / least[1]:.2f}",
        ]
        for workers, seconds in least.items()
    ]
    header = ["game", "fleets", "workers", "seconds", "of one worker's time divided by workers"]
    settings = {"frames": options.frames, "repeats": options.repeats}
    publish(options.path, header, rows, "campaign", f"CPU, {cores()} cores", **settings)


if __name__ == "__main__":
    main()
