"""Emulators: how long they take to start and how fast they play, in one process and in worker processes.

- one process: one `AtariVectorEnv`, as the first release had it; a thread per core.
- workers: `AtariSuite`, as `popart train` uses it; emulators start side by side.

    python -m benchmarks.emulators --game breakout --num-envs 64
    python -m benchmarks.emulators --game all --num-envs 16 --groups 4     # 912 emulators in worker processes
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.tables import publish
from popart.lab.envs.atari import Atari
from popart.lab.envs.games import ATARI
from popart.lab.envs.workers import AtariSuite
from popart.lab.machine import cores

ROUNDS = 3
"""Measurements in turn; the table has their medians."""


def in_one_process(game: str, number: int, seconds: float) -> tuple[float, float]:
    """Return the seconds that environments of one game take to start, and their frames per second."""
    began = time.perf_counter()
    games = Atari(game, number)
    start, rng = time.perf_counter() - began, np.random.default_rng(0)
    games.reset(0)

    def turn() -> int:
        games.receive()
        games.send(rng.integers(0, games.actions, number, dtype=np.int32))
        return number

    rate = frames_per_second(turn, seconds)
    games.receive()
    games.close()
    return start, rate


def in_workers(names: tuple[str, ...], groups: int, number: int, seconds: float) -> tuple[float, float]:
    """Return the seconds that a suite takes to start, and its frames per second."""
    began = time.perf_counter()
    suite = AtariSuite(names, groups, number // groups)
    start, rng = time.perf_counter() - began, np.random.default_rng(0)
    for game in range(len(names)):
        suite.reset(game, range(groups))
    actions = np.array(suite.actions)[:, None]

    def turn() -> int:
        for group in range(groups):
            suite.receive(group)
            suite.send(group, (rng.random((len(names), suite.size)) * actions).astype(np.int32))
        return len(names) * number

    rate = frames_per_second(turn, seconds)
    suite.close()
    return start, rate


def frames_per_second(turn: Callable[[], int], seconds: float) -> float:
    for _ in range(5):
        turn()
    frames, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        frames += 4 * turn()
    return frames / (time.perf_counter() - start)


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--game", nargs="+", default=["breakout"])
    parser.add_argument("--num-envs", type=int, default=64, help="of each game")
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--path", type=Path, default=Path("results/emulators_cpu.csv"))
    options = parser.parse_args()
    names = ATARI if options.game == ["all"] else tuple(options.game)
    found: dict[str, list[tuple[float, float]]] = {"one process": [], "workers": []}
    for _ in range(ROUNDS):
        if len(names) == 1:
            found["one process"].append(in_one_process(names[0], options.num_envs, options.seconds))
        found["workers"].append(in_workers(names, options.groups, options.num_envs, options.seconds))
    rows = []
    for name, measured in found.items():
        if measured:
            start, rate = np.median(measured, 0)
            rows.append([str(len(names) * options.num_envs), name, f"{start:.1f}", f"{rate:.0f}"])
    header = ["emulators", "in", "seconds to start", "frames/s"]
    publish(
        options.path, header, rows, "emulators", f"{cores()} cores", games=len(names), groups=options.groups
    )


if __name__ == "__main__":
    main()
