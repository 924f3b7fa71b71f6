"""Time of a campaign with two workers on two cores, beside one worker that trains the same fleets.

Each time is that of the whole command `popart campaign start`: it starts a process for each fleet, trains it
with metrics, evaluations and checkpoints, and draws its figures. Both are measured in turns, after everything
has been compiled once, and the shortest time of each counts. CPU time is given as well, which depends less on
what else the machine does.

    python -m benchmarks.campaign --fleets 4 --frames 40000 --repeats 3
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.tables import publish
from popart.lab.campaign.config import MachineOptions, Start
from popart.lab.campaign.run import opened
from popart.lab.machine import cores


def measured(game: str, fleets: int, frames: int, workers: int, folder: Path) -> tuple[float, float]:
    """Train a new campaign; return the seconds that it took, and those of its CPUs."""
    with tempfile.TemporaryDirectory(dir=folder) as out:
        # Planned fleets stay the same for any number of workers.
        planned = MachineOptions(workers=fleets, gpus=0)
        opened(Start((game,), ("popart",), fleets, frames, Path(out), planned))
        settings = {"games": game, "agents": "popart", "seeds": fleets, "frames": frames}
        settings |= {"gpus": 0, "out": out}
        options = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        command = [sys.executable, "-m", "popart", "campaign", "start", *options, "--workers", str(workers)]
        cache = {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled")}
        began, used = time.perf_counter(), cpu_seconds()
        subprocess.run(command, env=os.environ | cache, check=True, capture_output=True)
        return time.perf_counter() - began, cpu_seconds() - used


def cpu_seconds() -> float:
    """Return the CPU time of all processes that this one has started and that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--game", default="catch")
    parser.add_argument("--fleets", type=int, default=4)
    parser.add_argument("--frames", type=int, default=40_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--path", type=Path, default=Path("results/campaign_cpu.csv"))
    options = parser.parse_args()
    times: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as folder:
        measured(options.game, 1, 2000, 1, Path(folder))  # compiles
        for _ in range(options.repeats):
            for workers, found in times.items():
                found.append(measured(options.game, options.fleets, options.frames, workers, Path(folder)))
                print(f"{workers} workers: {found[-1][0]:.1f} s, {found[-1][1]:.1f} s of CPU", flush=True)
    least = {n: (min(s for s, _ in found), min(cpu for _, cpu in found)) for n, found in times.items()}
    rows = []
    for workers, (seconds, cpu) in least.items():
        ratios = seconds * workers / least[1][0], cpu / least[1][1]
        figures = [f"{seconds:.1f}", f"{cpu:.1f}", *(f"{ratio:.2f}" for ratio in ratios)]
        rows.append([options.game, str(options.fleets), str(workers), *figures])
    header = ["game", "fleets", "workers", "seconds", "CPU seconds"]
    header += ["of one worker's time divided by workers", "of one worker's CPU time"]
    load = round(os.getloadavg()[2], 1) if hasattr(os, "getloadavg") else None
    settings = {"frames": options.frames, "repeats": options.repeats, "load of the machine": load}
    publish(options.path, header, rows, "campaign", f"CPU, {cores()} cores", **settings)


if __name__ == "__main__":
    main()
