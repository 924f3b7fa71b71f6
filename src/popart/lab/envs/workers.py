"""A suite of Atari games in worker processes that share memory with this one.

Each worker has a part of the environments of one game, in all groups, and steps them in one thread. Workers
start side by side, because ALE takes 0.15 s for an emulator and holds Python's lock meanwhile. The operating
system shares the cores among them, and a game that crashes ends its own worker alone.

A message to a worker is a group and a seed, or -1 for a step with the actions in shared memory. Its answer is
one byte, when observations are there. A worker ends when its pipe is closed, also by a killed parent.
"""

import json
import math
import mmap
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from popart.lab.checks import LabError
from popart.lab.envs.atari import SPEC
from popart.lab.envs.timestep import TimeStep
from popart.lab.machine import cores

WORKERS_PER_CORE = 2
"""Workers per core: while one waits for its actions, the other uses the core."""

MESSAGE = struct.Struct("<bq")
STEP = -1
DONE = b"."
NICE = 5
"""Niceness of the workers: the thread that drives a GPU must not wait for a core."""


class Shared(NamedTuple):
    """Arrays in shared memory: `(groups, games, size, ...)`, and facts of each game."""

    observation: np.ndarray
    reward: np.ndarray
    terminal: np.ndarray
    first: np.ndarray
    last: np.ndarray
    action: np.ndarray
    actions: np.ndarray
    overflows: np.ndarray


def _shared(memory: int, groups: int, games: int, size: int, workers: int) -> Shared:
    """Map the arrays into the memory of a file descriptor, each at a multiple of 64 bytes."""
    each = (groups, games, size)
    layout: list[tuple[tuple[int, ...], Any]] = [
        ((*each, *SPEC.shape), np.uint8),
        (each, np.float32),
        *((each, np.bool_) for _ in range(3)),
        (each, np.int32),
        ((games,), np.int32),
        ((workers,), np.int64),
    ]
    counts = [math.prod(shape) for shape, _ in layout]
    items = [np.dtype(dtype).itemsize for _, dtype in layout]
    sizes = [64 * math.ceil(n * item / 64) for n, item in zip(counts, items, strict=True)]
    if os.fstat(memory).st_size == 0:
        os.truncate(memory, sum(sizes))
    buffer = mmap.mmap(memory, sum(sizes))
    places = accumulate(sizes, initial=0)
    return Shared(
        *(
            np.frombuffer(buffer, dtype, n, place).reshape(shape)
            for (shape, dtype), n, place in zip(layout, counts, places, strict=False)
        )
    )


class AtariSuite:
    """Several Atari games, each with `groups * size` environments.

    Args:
        games: names in ALE.
        groups: number of groups that take turns.
        size: environments per game and group.
        threads: number of cores used for emulation; default: all.
        started: called with a number of environments when these have started.
        options: of `Atari`.
    """

    spec = SPEC

    def __init__(
        self,
        games: Sequence[str],
        groups: int,
        size: int,
        threads: int | None = None,
        started: Callable[[int], object] = lambda environments: None,
        **options: Any,
    ) -> None:
        self.groups, self.size, self.failures = groups, size, dict[int, str]()
        per_game = max(1, min(size, WORKERS_PER_CORE * (threads or cores()) // len(games)))
        parts = [int(i * size / per_game) for i in range(per_game + 1)]
        self._memory = _Memory(groups, len(games), size, per_game * len(games))
        task = {"options": options, "cores": threads or cores()}
        self.workers = [
            _Worker(self._memory, name, game, number, parts[i], parts[i + 1], task)
            for game, name in enumerate(games)
            for i in range(per_game)
            for number in [game * per_game + i]
        ]
        self._playing = range(len(games))
        self._of = [[w for w in self.workers if w.game == game] for game in range(len(games))]
        for worker in self.workers:
            self._wait(worker)
            started(groups * (worker.high - worker.low))
        if self.failures:
            game, reason = next(iter(self.failures.items()))
            self.close()
            raise LabError(f"the emulator of {games[game]} did not start: {reason}")

    @property
    def actions(self) -> tuple[int, ...]:
        return tuple(self._memory.shared.actions.tolist())

    @property
    def overflows(self) -> np.ndarray:
        return self._memory.shared.overflows.reshape(len(self._of), -1).sum(1)

    def reset(self, game: int, seeds: Sequence[int]) -> None:
        for group, seed in enumerate(seeds):
            for worker in self._of[game]:
                worker.tell(group, seed % (2**31 - self.size) + worker.low)

    def receive(self, group: int) -> TimeStep:
        """Wait for a group, and return views of its arrays; they are valid until its next `send`."""
        for game in self._playing:
            for worker in self._of[game]:
                self._wait(worker)
        return TimeStep(*(x[group] for x in self._memory.shared[:5]))

    def send(self, group: int, action: np.ndarray) -> None:
        self._memory.shared.action[group] = action
        for game in self._playing:
            for worker in self._of[game]:
                worker.tell(group, STEP)

    def stop(self, game: int) -> None:
        """Stop playing a game; its workers are idle until the suite is closed."""
        self._playing = [other for other in self._playing if other != game]  # another thread may be sending

    def _wait(self, worker: "_Worker") -> None:
        if worker.game not in self.failures and not worker.answered():
            self.failures[worker.game] = worker.reason()
            self.stop(worker.game)

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        for worker in self.workers:
            worker.end()
        self._memory.file.close()  # arrays that are still in use stay valid


class _Memory:
    """Memory behind a file descriptor: it is freed with the last process that has it open."""

    def __init__(self, *shape: int) -> None:
        in_memory = hasattr(os, "memfd_create")  # on Linux
        self.file = os.fdopen(os.memfd_create("popart"), "r+b") if in_memory else tempfile.TemporaryFile()  # noqa: SIM115
        self.shape, self.shared = shape, _shared(self.file.fileno(), *shape)


class _Worker:
    """A process that steps some environments of one game."""

    def __init__(
        self, memory: _Memory, name: str, game: int, number: int, low: int, high: int, task: dict[str, Any]
    ) -> None:
        self.game, self.low, self.high = game, low, high
        theirs, self._out = os.pipe()
        self._in, answers = os.pipe()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 it lasts as long as the worker
        fds = (memory.file.fileno(), theirs, answers)
        task = task | {"fds": fds, "shape": memory.shape, "name": name, "game": game, "number": number}
        task |= {"low": low, "high": high}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "popart.lab.envs.workers", json.dumps(task)],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            process_group=0,  # Ctrl-C is for the parent
        )
        os.close(theirs)
        os.close(answers)

    def tell(self, group: int, seed: int) -> None:
        with suppress(OSError):  # it has ended, which the next wait finds out
            os.write(self._out, MESSAGE.pack(group, seed))

    def answered(self) -> bool:
        return os.read(self._in, 1) == DONE

    def reason(self) -> str:
        self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"its process ended with status {self._process.returncode}"

    def close(self) -> None:
        if self._out >= 0:
            os.close(self._out)
            self._out = -1

    def end(self) -> None:
        self._process.wait()
        os.close(self._in)
        self._errors.close()


def serve(task: dict[str, Any]) -> None:
    """Step environments for as long as there are messages."""
    from popart.lab.envs.atari import Atari

    os.nice(NICE)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-task["cores"] :])
    memory, messages, answers = task["fds"]
    shared = _shared(memory, *task["shape"])
    game, number, mine = task["game"], task["number"], slice(task["low"], task["high"])
    size, options = task["high"] - task["low"], task["options"]
    groups = [Atari(task["name"], size, threads=1, **options) for _ in range(task["shape"][0])]
    shared.actions[game] = groups[0].actions
    os.write(answers, DONE)
    while message := os.read(messages, MESSAGE.size):
        group, seed = MESSAGE.unpack(message)
        games = groups[group]
        if seed == STEP:
            games.send(shared.action[group, game, mine])
        else:
            games.reset(seed)
        for array, values in zip(shared[:5], games.receive(), strict=True):
            array[group, game, mine] = values
        shared.overflows[number] = sum(each.overflows for each in groups)
        os.write(answers, DONE)


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
