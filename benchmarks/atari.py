r"""Frames per second of Double DQN with Pop-Art on Atari: emulators alone, learner alone, and both.

- emulators: all environments with random actions, with the same threads, and no network.
- learner: the updates alone, from the same replay, as frames per second (16 frames per update).
- end to end: training as `popart train` does it, from the first update on, with its logs and checkpoints, but
  without the replay in these, and without evaluations.

All in one process, one after the other. On a GPU, where emulators and learner have hardware of their own, the
limit is the slower of the two; on a CPU they share it, and the limit is what both allow one after the other.

    python -m benchmarks.atari --game breakout --num-envs 512 --replay 1000000 --warm-up 50000 \
        --frames 25000000 --log-every 40000 --path results/atari_breakout-popart.csv

All options of `popart train` are taken; with `--out`, the run's folder stays, as one of it. Ctrl-C ends the
training early; rates are of what was done.
"""

import argparse
import shlex
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro

from benchmarks.tables import publish
from popart.lab.machine import cores
from popart.lab.runs import Run, read_table
from popart.lab.train import Train
from popart.lab.train.curves import show
from popart.lab.train.training import Training, title

SMALL = Train(
    game="breakout",
    frames=20_000,
    num_envs=16,
    replay=100_000,
    warm_up=1000,
    log_every=2000,
    evaluate_every=0,
    save_replay=False,
    threads=cores(),
)
"""What is measured if nothing else is asked for."""


def emulators(training: Training, seconds: float) -> float:
    """Frames per second of the environments alone. They begin anew afterwards."""
    rng, groups = np.random.default_rng(0), training.groups
    actions = training.network.actions

    def play(group: Any) -> None:
        group.receive()
        group.send(rng.integers(0, actions, group.number, dtype=np.int32))

    for group in groups * 5:
        play(group)
    frames, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        for group in groups:
            play(group)
            frames += group.number * group.frames
    rate = frames / (time.perf_counter() - start)
    for i, group in enumerate(groups):
        group.receive()
        group.start(i * group.number)
    return rate


def learner(training: Training, seconds: float) -> float:
    """Frames per second that the updates alone allow."""
    calls, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        for _ in range(3):
            training.agent, training.learning, _ = training._learn(
                training.agent, training.learning, training.memory
            )
        jax.block_until_ready(training.agent)
        calls += 3
    return calls * training.per_call * frames_per_update(training) / (time.perf_counter() - start)


def frames_per_update(training: Training) -> int:
    return training.schedule.steps_per_update * training.groups[0].frames


def end_to_end(folder: Path) -> tuple[float, float]:
    """Frames per second from the row of the first updates to the last, and seconds in between."""
    rows = [row for row in read_table(folder / "metrics.csv") if int(row["updates"])]
    if len(rows) < 2:
        raise SystemExit(
            f"{folder}: two rows with updates are needed; give more --frames or less --log-every"
        )
    frames, seconds = (float(rows[-1][k]) - float(rows[0][k]) for k in ("frames", "seconds"))
    return frames / seconds, seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--seconds", type=float, default=20, help="for what is measured alone")
    parser.add_argument("--path", type=Path, default=Path("results/atari_cpu.csv"))
    options, rest = parser.parse_known_args()
    seconds, path = options.seconds, options.path
    settings = tyro.cli(Train, args=rest, default=SMALL).filled()
    if "--out" not in rest:
        settings = replace(settings, out=Path(tempfile.mkdtemp()) / "run")
    with Run("train", title(settings), settings, Train.FREE) as run:  # pyright: ignore[reportArgumentType]
        with Training(run, settings) as training:
            began = time.monotonic()
            alone = emulators(training, seconds)
            print(f"emulators alone: {alone:.0f} frames/s", flush=True)
            training.clock += time.monotonic() - began
            try:
                training.run()
            except KeyboardInterrupt:
                print(f"stopped after {training.counts.frames:,} frames", flush=True)
            learning = learner(training, seconds)
        if training.counts.frames >= settings.frames:
            show(run, settings)
            run.finish()
    both, took = end_to_end(run.folder)
    on_cpu = jax.devices()[0].platform == "cpu"
    limit = 1 / (1 / alone + 1 / learning) if on_cpu else min(alone, learning)
    rates = (("emulators", alone), ("learner", learning), ("limit of both", limit), ("end to end", both))
    per = frames_per_update(training)
    rows = [
        [settings.game, settings.dtype, n, f"{r:.0f}", f"{r / per:.0f}", f"{both / r:.3f}"] for n, r in rates
    ]
    header = ["game", "dtype", "what", "frames/s", "updates/s", "end to end / this"]
    device = f"{'CPU' if on_cpu else jax.devices()[0].device_kind}, {cores()} cores"
    asked = {
        "arguments": shlex.join(sys.argv[1:]),
        "num_envs": settings.num_envs,
        "threads": settings.threads,
    }
    publish(path, header, rows, "atari", device, **asked, replay=settings.replay, seconds=round(took, 1))


if __name__ == "__main__":
    main()
