r"""Frames per second of Double DQN on Atari: emulators alone, learner alone, and both.

- emulators: all environments with random actions, in the same processes, and no network: in pauses of the
  training, one a minute, because the speed of a machine and of the games varies.
- learner: the updates alone, from the same replay buffers, as frames per second (16 frames per update).
- end to end: training as `popart train` does it, from the first updates on, with its logs and checkpoints,
  but without replay buffers in these, and without evaluations.

All in one process, one after the other, by the clock on the wall. On a GPU, where emulators and learner have
hardware of their own, the limit is the slower of the two; on a CPU they share it, and the limit is what both
allow one after the other.

    python -m benchmarks.atari --game all --num-envs 24 --replay-size 100000 --warm-up 3000 \
        --log-every 40000 --frames 10000000 --segments 5 --path results/atari_all.csv
    python -m benchmarks.atari --game breakout --num-envs 512 --replay-size 1000000 --warm-up 50000 \
        --frames 25000000 --path results/atari_breakout-popart.csv

All options of `popart train` are taken. The training ends when its first member is finished, after
`--segments`, or with Ctrl-C. With `--out`, run folders are kept, and `popart train` resumes them.
"""

import argparse
import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import jax
import numpy as np
import psutil
import tyro

from benchmarks.tables import publish
from popart.lab.envs.timestep import Suite
from popart.lab.machine import cores
from popart.lab.progress import progress
from popart.lab.runs import command_line
from popart.lab.stops import stopping
from popart.lab.train.config import Member, Train
from popart.lab.train.fleet import Fleet
from popart.lab.train.loop import Loop
from popart.lab.train.progress import ProgressTracker
from popart.lab.train.run import open_run, training
from popart.lab.train.tracker import Tracker

DEFAULT = Train.of(
    game="breakout",
    frames=20_000,
    num_envs=16,
    replay_size=100_000,
    warm_up=1000,
    log_every=2000,
    evaluate_every=0,
    save_replay=False,
)
"""What is measured if nothing else is given."""

SEGMENT = 61.0
"""Seconds of training between two measurements of the emulators alone."""


def emulators(suite: Suite, seconds: float) -> float:
    """Return frames per second of the environments alone."""
    rng, actions = np.random.default_rng(0), np.array(suite.actions)[:, None]

    def play(group: int) -> None:
        suite.receive(group)
        suite.send(group, (rng.random((len(actions), suite.size)) * actions).astype(np.int32))

    for group in list(range(suite.groups)) * 5:
        play(group)
    frames, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        for group in range(suite.groups):
            play(group)
            frames += len(actions) * suite.size * suite.spec.frames_per_step
    return frames / (time.perf_counter() - start)


def learner(fleet: Fleet, seconds: float) -> float:
    """Return updates per second of all members together, without anything else."""
    everyone, calls, start = np.ones(len(fleet.members), bool), 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        for _ in range(3):
            fleet.learn(everyone)
        jax.block_until_ready(fleet.learner)
        calls += 3
    return calls * len(everyone) * fleet.updates_per_call / (time.perf_counter() - start)


class Clock:
    """Segments of training, in frames and seconds, and rates of the emulators alone in the pauses between."""

    def __init__(self, seconds: float, most: int) -> None:
        self.most = most
        self.segments: list[tuple[int, float]] = []
        self.alone: list[float] = []
        self._seconds, self._start, self._frames = seconds, 0.0, 0

    def look(self, loop: Loop, ended: bool) -> None:
        """Begin a segment when all members learn; end it after a minute, and measure the emulators."""
        now = time.perf_counter()
        if not self._start and loop.counts.updates.all():
            self._start, self._frames = now, int(loop.counts.frames.sum())
        elif self._start and (ended or now - self._start > SEGMENT):
            self.segments.append((int(loop.counts.frames.sum()) - self._frames, now - self._start))
            self.alone.append(pause(loop, self._seconds))
            rate = self.segments[-1][0] / self.segments[-1][1]
            print(f"end to end {rate:.0f}, emulators alone {self.alone[-1]:.0f} frames/s", flush=True)
            self._start, self._frames = time.perf_counter(), int(loop.counts.frames.sum())

    def rate(self) -> tuple[float, float]:
        """Return frames per second, and the seconds that were measured."""
        if not self.segments:
            raise SystemExit("training ended before its rate could be measured; give more --frames")
        frames, seconds = map(sum, zip(*self.segments, strict=True))
        return frames / seconds, seconds


def pause(loop: Loop, seconds: float) -> float:
    """Let the emulators play alone for a while. Replay buffers have no transition across the pause."""
    for group in range(loop.suite.groups):
        loop.wait_sent(group)
    rate = emulators(loop.suite, seconds)
    for member in range(len(loop.members)):
        loop.fleet.interrupt(member)
    return rate


def train(loop: Loop, trackers: Sequence[Tracker], members: Sequence[Member], clock: Clock) -> None:
    total = sum(member.frames for member in members)
    stop = threading.Event()
    with stopping(stop), progress("end to end", total, "frames") as advance:
        shown = ProgressTracker(members, advance)
        with closing(loop.turns()) as turns:
            for turn in turns:
                for tracker in (*trackers, shown):
                    tracker.step(turn)
                ended = stop.is_set() or not turn.active.all()  # while all emulators still run
                clock.look(loop, ended)
                if ended or len(clock.segments) == clock.most:
                    return


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--seconds", type=float, default=6, help="of each measurement alone")
    parser.add_argument("--segments", type=int, default=0, help="minutes of training; 0: until the end")
    parser.add_argument("--path", type=Path, default=Path("results/atari_cpu.csv"))
    options, rest = parser.parse_known_args()
    command = tyro.cli(Train, args=rest, default=DEFAULT)
    if command.out is None:
        command = command.changed(out=Path(tempfile.mkdtemp()) / "run")
    members, clock = command.members(), Clock(options.seconds, options.segments)
    one = members[0]
    with ExitStack() as stack:
        line = command_line("train", command)
        runs = [stack.enter_context(open_run(member, line)) for member in members]
        began = time.perf_counter()
        with training(members, runs, threading.Event()) as (loop, _, trackers):
            start = time.perf_counter() - began
            print(f"started in {start:.1f} s", flush=True)
            busy = psutil.Process()
            busy.cpu_percent()
            train(loop, trackers, members, clock)
            busy_cores = busy.cpu_percent() / 100
            (both, took), alone = clock.rate(), float(np.mean(clock.alone))
            per = one.schedule.steps_per_update * loop.suite.spec.frames_per_step
            learning = per * learner(loop.fleet, options.seconds)
            done = not loop.active.any()
        for run in runs if done and not loop.failures and "--out" in rest else []:
            run.finish()
    on_cpu = jax.devices()[0].platform == "cpu"
    limit = 1 / (1 / alone + 1 / learning) if on_cpu else min(alone, learning)
    rates = (("emulators", alone), ("learner", learning), ("limit of both", limit), ("end to end", both))
    game = one.game if len(members) == 1 else f"{len(members)} members"
    rows = [[game, one.dtype, n, f"{r:.0f}", f"{r / per:.0f}", f"{both / r:.3f}"] for n, r in rates]
    header = ["game", "dtype", "what", "frames/s", "updates/s", "end to end / this"]
    device = f"{'CPU' if on_cpu else jax.devices()[0].device_kind}, {cores()} cores"
    settings = {
        "arguments": shlex.join(sys.argv[1:]),
        "num_envs": one.num_envs,
        "replay_size": one.replay_size,
        "seconds": round(took, 1),
        "start_seconds": round(start, 1),
        "cores_of_main_process": round(busy_cores, 2),
        "end_to_end_by_minute": [round(frames / seconds) for frames, seconds in clock.segments],
        "emulators_by_minute": [round(rate) for rate in clock.alone],
    }
    publish(options.path, header, rows, "atari", device, **settings)


if __name__ == "__main__":
    main()
