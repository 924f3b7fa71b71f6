"""Training that is really stopped: by SIGKILL, by Ctrl-C, by a full disk. What was saved is complete."""

import os
import random
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from popart.lab.dqn.networks import Nature
from popart.lab.files import read_table
from popart.lab.manifest import read_manifest
from popart.lab.stops import stopping
from popart.lab.train.checkpoints import CheckpointTracker
from popart.lab.train.config import Train
from popart.lab.train.loading import load
from popart.lab.train.metrics import TIMES
from tests.backends import sharing_what_is_compiled
from tests.lab import processes
from tests.lab.examples import CATCH_NETWORK

pytestmark = pytest.mark.xdist_group("stops")

TRAIN = ["train", "--device", "cpu"]

ON_CATCH = [*TRAIN, "--game", "catch", "--num-envs", "16", "--evaluate-every", "6000", "--log-every", "1500"]

FLEET = [*ON_CATCH, "--seed", "0", "1", "2", "--frames", "36000"]
MEMBERS = ("catch-popart-0", "catch-popart-1", "catch-popart-2")

ON_ATARI = [*TRAIN, "--game", "pong", "--frames", "1000000", "--num-envs", "4", "--groups", "4",
            "--replay-size", "3000", "--warm-up", "200",
            "--evaluate-every", "0", "--log-every", "400"]  # fmt: skip

KILLS_ON_ATARI = 4
"""Each takes ten seconds."""


@contextmanager
def started(out: Path, seconds: float = 0.2, command: Sequence[str] = ON_CATCH) -> Iterator[BaseProcess]:
    """Start a process that saves every few seconds."""
    arguments = [*command, "--out", str(out), "--checkpoint-every", str(seconds)]
    with processes.started(arguments, out.with_suffix(".said")) as process:
        yield process


def ended(process: BaseProcess, status: int, out: Path) -> str:
    """Wait until a process ends with a status; return its output."""
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


def newest(run: Path) -> int:
    """Return the number of turns at the last checkpoint: its name, which it has when it is complete."""
    return max((int(path.stem) for path in (run / "checkpoints" / "last").glob("*.npz")), default=0)


def wait_for_another(run: Path, process: BaseProcess, turns: int = 1) -> None:
    """Wait for a checkpoint that is some turns later."""
    enough = newest(run) + turns
    while newest(run) < enough:
        assert process.is_alive()
        time.sleep(0.02)


def saved_frames(run: Path) -> int:
    """Return the frames of the last checkpoint, by its content."""
    return load(run, "last").frames if newest(run) else 0


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of a fleet that nobody disturbed."""
    out = tmp_path_factory.mktemp("undisturbed") / "runs"
    with started(out, 1e6, FLEET) as process:
        ended(process, 0, out)
    return out


def assert_same(run: Path, other: Path) -> None:
    """Compare everything but the time it took."""
    rows, others = (read_table(path / "metrics.csv") for path in (run, other))
    for row, same in zip(rows, others, strict=True):
        assert {**row, **dict.fromkeys(TIMES)} == {**same, **dict.fromkeys(TIMES)}
    assert read_table(run / "evaluations.csv") == read_table(other / "evaluations.csv")
    for which in ("last", "best"):
        policies = [load(path, which).policy(CATCH_NETWORK) for path in (run, other)]
        jax.tree.map(np.testing.assert_array_equal, *policies)


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_killed_fleet_ends_as_if_undisturbed(undisturbed: Path, tmp_path: Path, kills: int) -> None:
    """First when the best agent is saved and nothing else, then at random."""
    out, rng = tmp_path / "runs", random.Random(0)
    reached = [[0] * len(MEMBERS)]
    with started(out, 1e6, FLEET) as process:
        wait_for(out / MEMBERS[1] / "checkpoints" / "best" / "1.npz", process)
    for _ in range(kills - 1):
        with started(out, 0.3, FLEET) as process:
            wait_for_another(out / rng.choice(MEMBERS), process, turns=rng.choice((0, 1, 20)))
            time.sleep(rng.uniform(0, 0.5))
            assert process.is_alive()
        reached.append([saved_frames(out / member) for member in MEMBERS])
    for frames in zip(*reached, strict=True):
        assert list(frames) == sorted(frames)  # nothing that was saved is lost
    if kills == 20:
        assert min(reached[-1]) > 2000  # by then they learn
        assert any(len(set(frames)) > 1 for frames in reached)  # members do not resume from the same turn
    with started(out, 1e6, FLEET) as process:
        ended(process, 0, out)
    for member in MEMBERS:
        assert_same(out / member, undisturbed / member)


@pytest.mark.slow
def test_a_run_killed_on_atari_resumes_from_a_complete_checkpoint(tmp_path: Path) -> None:
    """Whenever it is killed, and with the replay buffer; emulators are reset."""
    out, rng, reached = tmp_path / "run", random.Random(0), [0]
    for i in range(KILLS_ON_ATARI):
        with started(out, 1.0, ON_ATARI) as process:
            if i % 2 == 0:
                wait_for_another(out, process, turns=10)
            time.sleep(rng.uniform(0, 2))
            assert process.is_alive()
        reached.append(saved_frames(out))
    assert reached == sorted(reached)
    assert len(set(reached)) > KILLS_ON_ATARI // 2  # it makes progress
    with started(out, 1.0, ON_ATARI) as process:
        wait_for_another(out, process, turns=10)
        press_ctrl_c(process)
        ended(process, 130, out)
    rows = [int(row["frames"]) for row in read_table(out / "metrics.csv")]
    assert rows == sorted(set(rows))
    assert reached[-1] < saved_frames(out)
    policy = load(out, "last").policy(Nature(actions=6))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(policy.params))


def test_ctrl_c_saves_and_says_how_to_resume(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with started(out, seconds=1e6) as process:
        wait_for(out / "metrics.csv", process)
        press_ctrl_c(process)
        assert "Interrupted. Run the same command again to resume." in ended(process, 130, out)
    assert saved_frames(out) >= int(read_table(out / "metrics.csv")[-1]["frames"])
    assert read_manifest(out)["finished"] is None


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    """Files may not be larger than 32 kB; tables are smaller, a checkpoint is larger."""
    options = ["--out", str(tmp_path / "run"), "--checkpoint-every", "0.2"]
    command = shlex.join([sys.executable, "-m", "popart.lab.cli", *ON_CATCH, *options])
    limited = ["sh", "-c", f"ulimit -f 64; exec {command}"]
    reading = {**sharing_what_is_compiled(), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1e9"}
    process = subprocess.run(limited, env=reading, capture_output=True, text=True, check=False)
    assert process.returncode == 2
    (line,) = [line for line in process.stderr.splitlines() if "could not be written" in line]
    assert "a checkpoint could not be written to" in line
    assert "there is none before it" in line
    assert "Traceback" not in process.stderr
    assert read_manifest(tmp_path / "run")["finished"] is None
    assert not list((tmp_path / "run").rglob(".*.tmp"))


LISTENING = """
import fcntl, os, signal, sys, threading, time
from popart.lab.stops import listening, stopping
stop = threading.Event()
def send(*signals):
    for number in signals:
        os.kill(os.getpid(), number)
        time.sleep(0.2)
"""


def said_by(code: str, stderr: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", LISTENING + code], stdout=subprocess.PIPE, stderr=stderr)


def test_only_ctrl_c_stops_without_saving_because_systems_repeat_other_signals() -> None:
    code = """
with listening("stopped", lambda: None), stopping(stop):
    send(signal.SIGTERM, signal.SIGTERM, signal.SIGHUP)
    print(stop.is_set(), "saved", flush=True)
    send(signal.SIGINT)
    time.sleep(600)
"""
    with said_by(code, subprocess.DEVNULL) as process:
        output, _ = process.communicate(timeout=300)
    assert (process.returncode, output) == (130, b"True saved\n")


def test_without_a_command_only_ctrl_c_stops_without_saving_and_ignored_signals_stay_ignored() -> None:
    stop, before = threading.Event(), signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopping(stop):
            signal.raise_signal(signal.SIGHUP)
            assert not stop.is_set()
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
            assert stop.is_set()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_command_whose_messages_nobody_reads_can_be_stopped() -> None:
    code = """
os.set_blocking(2, False)
try:
    while True:
        os.write(2, b"x" * 4096)
except BlockingIOError:
    os.set_blocking(2, True)
with listening("stopped", lambda: None):
    send(signal.SIGTERM)
    time.sleep(600)
"""
    with said_by(code, subprocess.PIPE) as process:
        assert process.wait(300) == 130


def test_a_signal_during_the_last_checkpoint_stops_before_the_next_fleet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost: the same command only has to finish."""

    def interrupted(tracker: CheckpointTracker) -> None:
        signal.raise_signal(signal.SIGTERM)
        wait(tracker)

    small: Any = {"num_envs": 16, "frames": 640, "log_every": 320, "evaluate_every": 0, "device": "cpu"}
    command = Train.of(game=("catch", "cartpole"), out=tmp_path / "runs", **small)
    wait = CheckpointTracker.wait
    with monkeypatch.context() as patch:
        patch.setattr(CheckpointTracker, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            command.run()
    assert not (tmp_path / "runs" / "cartpole-popart-0" / "metrics.csv").exists()
    command.run()
    assert all(read_manifest(path)["finished"] for path in (tmp_path / "runs").glob("*-popart-0"))
