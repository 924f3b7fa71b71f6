"""Training that is really stopped: by SIGKILL, by Ctrl-C, by a full disk. What was saved is whole."""

import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

import jax
import numpy as np
import pytest

from popart.lab.dqn.networks import Nature
from popart.lab.runs import read_manifest, read_table
from popart.lab.train import Train
from popart.lab.train.loading import load
from popart.lab.train.metrics import TIMES
from popart.lab.train.playing import make
from tests.backends import sharing_what_is_compiled
from tests.lab import processes

pytestmark = pytest.mark.xdist_group("stops")

TRAIN = ["train", "--device", "cpu"]

ON_CATCH = [*TRAIN, "--game", "catch", "--frames", "60000", "--num-envs", "16", "--evaluate-every", "10000",
            "--log-every", "1500"]  # fmt: skip

ON_ATARI = [*TRAIN, "--game", "pong", "--frames", "1000000", "--num-envs", "4", "--replay", "3000",
            "--warm-up", "200", "--evaluate-every", "0", "--log-every", "400"]  # fmt: skip

KILLS_ON_ATARI = 4
"""Each takes ten seconds."""


@contextmanager
def started(out: Path, seconds: float = 0.2, command: Sequence[str] = ON_CATCH) -> Iterator[BaseProcess]:
    """A process that saves so often."""
    arguments = [*command, "--out", str(out), "--checkpoint-every", str(seconds)]
    with processes.started(arguments, out.with_suffix(".said")) as process:
        yield process


def ended(process: BaseProcess, status: int, out: Path) -> str:
    """By itself, and so. What it said."""
    process.join()
    said = out.with_suffix(".said").read_text("utf-8")
    assert process.exitcode == status, said
    return said


def press_ctrl_c(process: BaseProcess) -> None:
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)


def wait_for(path: Path, process: BaseProcess) -> None:
    while not path.exists():
        assert process.is_alive()
        time.sleep(0.02)


def newest(out: Path) -> int:
    """The turn that the last checkpoint was saved after: its name, given when all is written."""
    found = (path.name for path in (out / "checkpoints" / "last").glob("*"))
    return max((int(name) for name in found if name.isdigit()), default=0)


def wait_for_another(out: Path, process: BaseProcess, turns: int = 1) -> None:
    """A checkpoint, so many turns later at least."""
    enough = newest(out) + turns
    while newest(out) < enough:
        assert process.is_alive()
        time.sleep(0.02)


def saved_frames(out: Path) -> int:
    """By what is read, not by its name."""
    return load(out, "last").frames if newest(out) else 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody disturbed."""
    out = tmp_path_factory.mktemp("whole") / "run"
    with started(out, seconds=1e6) as process:
        ended(process, 0, out)
    return out


def assert_same(out: Path, other: Path) -> None:
    """In all but the time it took."""
    rows, others = (read_table(path / "metrics.csv") for path in (out, other))
    for row, same in zip(rows, others, strict=True):
        assert {**row, **dict.fromkeys(TIMES)} == {**same, **dict.fromkeys(TIMES)}
    assert read_table(out / "evaluations.csv") == read_table(other / "evaluations.csv")
    network = make(Train("catch"), 1, training=False).network("float32")
    for which in ("last", "best"):
        policies = [load(path, which).policy(network) for path in (out, other)]
        jax.tree.map(np.testing.assert_array_equal, *policies)


def test_killed_twenty_times_it_ends_as_if_nothing_had_happened(whole: Path, tmp_path: Path) -> None:
    """First when the best agent is saved, and nothing else. Then at random, after up to two checkpoints."""
    out, rng, reached = tmp_path / "run", random.Random(0), [0]
    with started(out, seconds=1e6) as process:
        wait_for(out / "checkpoints" / "best" / "1", process)
    for _ in range(19):
        with started(out) as process:
            for _ in range(rng.randrange(3)):
                wait_for_another(out, process)
            time.sleep(rng.uniform(0, 0.5))
            assert process.is_alive()
        reached.append(saved_frames(out))
    assert reached == sorted(reached)  # nothing that was saved is lost
    assert reached[-1] > 2000  # by then it learns
    with started(out, seconds=1e6) as process:
        ended(process, 0, out)
    assert_same(out, whole)


def test_killed_on_atari_it_goes_on_from_a_whole_checkpoint(tmp_path: Path) -> None:
    """Whenever it is killed, and with the replay; emulators begin anew."""
    out, rng, reached = tmp_path / "run", random.Random(0), [0]
    for i in range(KILLS_ON_ATARI):
        with started(out, 1.0, ON_ATARI) as process:
            if i % 2 == 0:
                wait_for_another(out, process, turns=40)
            time.sleep(rng.uniform(0, 2))
            assert process.is_alive()
        reached.append(saved_frames(out))
    assert reached == sorted(reached)
    assert len(set(reached)) > KILLS_ON_ATARI // 2  # it gets on
    with started(out, 1.0, ON_ATARI) as process:
        wait_for_another(out, process, turns=40)
        press_ctrl_c(process)
        ended(process, 130, out)
    rows = [int(row["frames"]) for row in read_table(out / "metrics.csv")]
    assert rows == sorted(set(rows))
    assert reached[-1] < saved_frames(out)
    policy = load(out, "last").policy(Nature(actions=6))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(policy.params))


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with started(out, seconds=1e6) as process:
        wait_for(out / "metrics.csv", process)
        press_ctrl_c(process)
        assert "the same command goes on from here" in ended(process, 130, out)
    assert saved_frames(out) >= int(read_table(out / "metrics.csv")[-1]["frames"])
    assert read_manifest(out)["finished"] is None


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    """Files may not be larger than 32 kB, which the tables are not, but a checkpoint is."""
    options = ["--out", str(tmp_path / "run"), "--checkpoint-every", "0.2"]
    command = shlex.join([sys.executable, "-m", "popart.lab.cli", *ON_CATCH, *options])
    limited = ["sh", "-c", f"ulimit -f 64; exec {command}"]
    reading = {**sharing_what_is_compiled(), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1e9"}
    process = subprocess.run(limited, env=reading, capture_output=True, text=True, check=False)
    assert process.returncode == 2
    assert "a checkpoint could not be written to" in process.stderr
    assert read_manifest(tmp_path / "run")["finished"] is None
