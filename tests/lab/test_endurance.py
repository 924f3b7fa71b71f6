"""Lost terminals, signals at any time, narrow encodings and odd environments: never a traceback."""

import io
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from rich.console import Console

from popart.lab import files, progress
from popart.lab.cli import main
from popart.lab.manifest import read_manifest
from popart.lab.train.loading import load
from tests.lab import processes

pytestmark = pytest.mark.xdist_group("stops")

POPART = [sys.executable, "-m", "popart.lab.cli"]
CATCH = ["train", "--game", "catch", "--num-envs", "16", "--evaluate-every", "0", "--device", "cpu"]


def popart(
    *arguments: "str | bytes", check: int | None = None, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Run a command in a process of its own; what it says has no traceback."""
    command = [*POPART, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, check=False)
    assert "Traceback" not in ended.stderr, ended.stderr
    if check is not None:
        assert ended.returncode == check, ended.stderr
    return ended


def test_help_can_be_written_in_any_encoding() -> None:
    for encoding in ("ascii", "latin-1"):
        said = popart("train", "--help", check=0, PYTHONIOENCODING=encoding).stdout
        assert "Step size ? of Pop-Art's statistics" in " ".join(said.split())


@pytest.mark.parametrize("arguments", ["paper --help", "--version", "paper"])
def test_a_reader_that_leaves_is_no_error(arguments: str, tmp_path: Path) -> None:
    command = f"{' '.join(POPART)} {arguments} | head -c 1"
    ended = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "Traceback" not in ended.stderr
    assert "BrokenPipe" not in ended.stderr


def test_a_name_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    said = popart("paper", "--out", os.fsencode(tmp_path) + b"/\xff", check=2).stderr
    assert r"\udcff' is not UTF-8" in said
    assert os.listdir(tmp_path) == []


def test_platforms_that_are_not_there_are_named(tmp_path: Path) -> None:
    said = popart("histograms", "--out", str(tmp_path / "run"), check=2, JAX_PLATFORMS="cuda").stderr
    assert "JAX finds no device (JAX_PLATFORMS is 'cuda'); unset JAX_PLATFORMS" in said


@pytest.mark.slow
def test_double_precision_of_the_environment_does_not_change_results(tmp_path: Path) -> None:
    for name, wide in (("narrow", "0"), ("wide", "1")):
        words = ("histograms", "--targets", "1000", "--out", str(tmp_path / name))
        popart(*words, check=0, JAX_ENABLE_X64=wide)
    for table in ("variances.csv", "examples.csv", "densities.csv"):
        assert (tmp_path / "narrow" / table).read_bytes() == (tmp_path / "wide" / table).read_bytes()


def test_files_that_may_not_be_read_are_named(tmp_path: Path) -> None:
    """Root may read everything, and becomes nobody for this test."""
    main(["paper", "--out", str(tmp_path / "run")])
    tmp_path.chmod(0o755)
    (tmp_path / "run" / "manifest.json").chmod(0)
    code = (
        "import os, sys, tyro, typeguard, popart.lab.report.page; from popart.lab.cli import main\n"
        "if os.getuid() == 0: os.setuid(65534)\n"
        "main(['report', sys.argv[1], '--out', '/tmp/never.html'])"
    )
    for parent in tmp_path.parents:
        if parent.stat().st_uid == os.getuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o111)
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2, ended.stderr
    assert "manifest.json cannot be read: Permission denied" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_folder_that_is_no_run_is_refused_before_jax_is_loaded() -> None:
    code = (
        "import sys; from popart.lab.cli import main\n"
        "for command in ('evaluate', 'watch', 'plot'):\n"
        "    try: main([command, '/nonexistent'])\n    except SystemExit as end: assert end.code == 2\n"
        "assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_training_does_not_import_pytorch() -> None:
    code = "import sys, popart.lab.train.run; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def finished(run: Path) -> bool:
    return read_manifest(run)["finished"] is not None


def test_a_terminal_that_is_lost_does_not_end_training(tmp_path: Path) -> None:
    """The reader takes one line and leaves; training goes on to its end."""
    out, said = tmp_path / "run", tmp_path / "said"
    os.mkfifo(said)
    lines: list[bytes] = []

    def read_one_line() -> None:
        with said.open("rb") as file:
            lines.append(file.readline())

    reader = threading.Thread(target=read_one_line)
    reader.start()
    words = [*CATCH, "--frames", "4000", "--log-every", "500", "--out", str(out)]
    with processes.started(words, said) as process:
        process.join()
    reader.join()
    assert lines[0]
    assert process.exitcode == 0
    assert finished(out)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
def test_a_full_log_does_not_end_training(tmp_path: Path) -> None:
    words = [*CATCH, "--frames", "2000", "--out", str(tmp_path / "run")]
    with processes.started(words, Path("/dev/full")) as process:
        process.join()
    assert process.exitcode == 0
    assert finished(tmp_path / "run")


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_signals_that_end_a_session_save(tmp_path: Path, number: signal.Signals) -> None:
    out, said = tmp_path / "run", tmp_path / "said"
    words = [*CATCH, "--frames", "1000000", "--log-every", "500", "--out", str(out)]
    with processes.started([*words, "--checkpoint-every", "1e6"], said) as process:
        while not (out / "metrics.csv").exists():
            assert process.is_alive()
            time.sleep(0.02)
        assert process.pid is not None
        os.kill(process.pid, number)
        process.join()
    assert process.exitcode == 130
    text = said.read_text("utf-8")
    assert text.index("Saving ...") < text.index("Interrupted. Run the same command again to resume.")
    assert load(out, "last").frames >= 500


def check_interrupted(status: int | None, said: Path) -> None:
    text = said.read_text("utf-8")
    assert status == 130, text
    assert "Traceback" not in text
    assert "Interrupted. Run the same command again to" in text


@pytest.mark.parametrize("command", ["train", "scale"])
def test_ctrl_c_during_the_start_is_heard(tmp_path: Path, command: str) -> None:
    rng = random.Random(0)
    arguments = {"train": CATCH, "scale": ["scale"]}[command]
    for i in range(4):
        said = tmp_path / f"said{i}"
        with processes.started([*arguments, "--out", str(tmp_path / f"run{i}")], said) as process:
            time.sleep(rng.uniform(0.2, 2.5))
            assert process.pid is not None
            os.kill(process.pid, signal.SIGINT)
            process.join()
        check_interrupted(process.exitcode, said)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="handlers of a process are not known")
def test_ctrl_c_is_heard_from_the_first_line_of_the_command_on(tmp_path: Path) -> None:
    """While NumPy, JAX and the laboratory are imported; a handler of SIGTERM shows that the command runs."""
    rng = random.Random(0)
    code = "import popart_command; popart_command.main()"
    for i in range(12):
        said = tmp_path / f"said{i}"
        with said.open("wb") as file:
            words = [sys.executable, "-c", code, *CATCH, "--out", str(tmp_path / f"run{i}")]
            process = subprocess.Popen(words, stdout=file, stderr=file)
        while not hears(process.pid, signal.SIGTERM):
            assert process.poll() is None
        time.sleep(rng.uniform(0, 4.0) if i % 2 else rng.uniform(0, 0.6))
        process.send_signal(signal.SIGINT)
        check_interrupted(process.wait(), said)


def hears(pid: int, number: signal.Signals) -> bool:
    """Return whether a process has a handler for a signal."""
    (caught,) = re.findall(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(caught, 16) >> (number - 1) & 1)


ENDINGS = {
    "atexit": "atexit.register(wait)",
    "unloading": "class Last:\n    def __del__(self, wait=wait): wait()\nlast = Last()",
}
"""Moments at which Python ends: Python's handlers of signals are still there, or gone."""


@pytest.mark.parametrize("moment", ENDINGS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_after_the_work_is_done_does_not_change_the_exit_status(
    moment: str, number: signal.Signals
) -> None:
    code = f"""
import atexit, os, popart_command
def wait(read=os.read, write=os.write):
    write(1, b"ending\\n")
    read(0, 1)
{ENDINGS[moment]}
popart_command.main()
"""
    words = [sys.executable, "-c", code, "--version"]
    with subprocess.Popen(words, stdin=-1, stdout=-1, stderr=-1) as process:
        assert process.stdout is not None
        while process.stdout.readline() != b"ending\n":
            assert process.poll() is None
        process.send_signal(number)
        _, said = process.communicate(b"\n")
    assert (process.returncode, said) == (0, b"")


def test_something_is_said_while_the_program_is_loaded(tmp_path: Path) -> None:
    """And what is waited for."""
    said = popart(*CATCH, "--frames", "1", "--out", str(tmp_path / "run"), check=0).stderr
    assert "loading the program of popart train ..." in said
    assert "compiling the program" in said


def test_progress_never_exceeds_what_was_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([*CATCH, "--frames", "1", "--out", str(tmp_path / "run")])
    said = capsys.readouterr().err
    shares = [int(word.rstrip("%,")) for word in said.split() if word.rstrip(",").endswith("%")]
    assert max(shares) == 100


def test_the_bar_stays_at_a_hundred_and_reads_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    terminal = Console(file=shown, force_terminal=True, width=120, color_system=None)
    monkeypatch.setattr(progress, "Console", lambda **_: terminal)
    with progress.progress("[bold]runs[/nothing]", 1, "frames") as advance:
        advance(8)
    assert "[bold]runs[/nothing]" in shown.getvalue()
    assert "100%" in shown.getvalue()
    assert "800%" not in shown.getvalue()


def test_a_run_that_diverges_says_so_once_is_marked_and_stopped(tmp_path: Path) -> None:
    run, said = tmp_path / "run", tmp_path / "said"
    words = [*CATCH, "--agent", "unclipped", "--reward-scale", "1e30", "--log-every", "400"]
    words += ["--frames", "4000", "--out", str(run)]
    with processes.started(words, said) as process:
        process.join()
    text = said.read_text("utf-8")
    assert process.exitcode == 2, text
    assert text.count("diverged after") == 1
    assert "--no-stop-diverged continues it" in text
    manifest = read_manifest(run)
    assert manifest["finished"] is None
    assert manifest["diverged"].startswith("after 1,")
    with processes.started([*words, "--no-stop-diverged"], said) as process:
        process.join()
    text = said.read_text("utf-8")
    assert process.exitcode == 0, text
    assert text.count("diverged after") == 1
    assert finished(run)
    assert "diverged" in read_manifest(run)
    with processes.started(["evaluate", str(run), "--device", "cpu"], said) as process:
        process.join()
    assert process.exitcode == 2
    assert "has weights that are not finite: the agent diverged" in said.read_text("utf-8")
    assert not list(run.glob("evaluation-*/episodes.csv"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "--game", "catch", "--beta", "1e-45"], "beta is 1e-45; it must be from"),
        (["train", "--game", "catch", "--reward-scale", "1e300"], "reward_scale is 1e+300; it must be from"),
        (["train", "--game", "catch", "--warm-up", "3000000000"], "warm_up is 3000000000; it must be"),
        (["train", "--game", "catch", "--replay-size", "1000000000"], "GB of memory"),
        (["train", "--game", "catch", "--replay-size", str(10**12)], "replay_size is"),
        (["scale", "--seed", str(2**31)], "seed is 2147483648; it must be"),
        (["scale", "--steps", str(10**20)], "steps is 100000000000000000000; it must be"),
        (["scale", "--seeds", str(10**6)], "seeds is 1,000,000, which takes"),
        (["histograms", "--targets", str(10**15)], "targets is 1000000000000000; it must be"),
        (["histograms", "--targets", str(10**9)], "targets is 1,000,000,000, which takes"),
        (["regression", "--repetitions", str(10**7)], "repetitions is 10,000,000, which takes"),
    ],
)
def test_what_cannot_fit_is_refused_in_advance(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--out", str(tmp_path / "run")])
    assert ended.value.code == 2
    assert words in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert not (tmp_path / "run").exists()


def test_long_work_is_announced(capsys: pytest.CaptureFixture[str]) -> None:
    from popart.lab.budget import announce, duration

    announce(59, 1e9)
    announce(7500, 2.26e9)
    assert capsys.readouterr().err == "popart: this takes about 2.1 h and 2.3 GB of memory\n"
    assert [duration(x) for x in (90, 900, 11_520)] == ["90 s", "15 min", "3.2 h"]


def test_a_regression_in_which_all_cells_diverge_has_figures(tmp_path: Path) -> None:
    words = ["regression", "--methods", "sgd", "popart", "--alphas", "1e30", "1e38", "--betas", "0.1"]
    main([*words, "--samples", "20", "--repetitions", "2", "--out", str(tmp_path / "run")])
    assert (tmp_path / "run" / "figure_1a.png").exists()


def test_fewer_frames_than_a_run_has_are_refused_and_the_run_stays_as_it_is(tmp_path: Path) -> None:
    run, said = tmp_path / "run", tmp_path / "said"
    words = [*CATCH, "--log-every", "500", "--out", str(run)]
    with processes.started([*words, "--frames", "1000000"], said) as process:
        while not (run / "metrics.csv").exists():
            assert process.is_alive(), said.read_text()
            time.sleep(0.02)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGINT)
        process.join()
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with processes.started([*words, "--frames", "100"], said) as process:
        process.join()
    assert process.exitcode == 2
    assert f"frames is 100, but {run} has " in said.read_text("utf-8")
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_request_for_an_option_of_a_small_game_is_honoured(tmp_path: Path) -> None:
    """The first release replaced 200 million frames, exploration and environments by its own defaults."""
    from popart.lab.train.config import Train

    (member,) = Train.of(game="catch", frames=200_000_000, epsilon=0.01, num_envs=512).members()
    assert (member.frames, member.schedule.epsilon, member.num_envs) == (200_000_000, 0.01, 512)
    main([*CATCH[:3], "--num-envs", "32", "--epsilon", "0.01", "--frames", "64", "--device", "cpu",
          "--out", str(tmp_path / "run")])  # fmt: skip
    settings = read_manifest(tmp_path / "run")["settings"]
    assert (settings["num_envs"], settings["epsilon"], settings["frames"]) == (32, 0.01, 64)


@pytest.mark.slow
@pytest.mark.xdist_group("atari")
def test_sigterm_during_a_video_leaves_no_temporary_file(asterix: Path, tmp_path: Path) -> None:
    run, said = shutil.copytree(asterix, tmp_path / "run"), tmp_path / "said"
    with processes.started(["watch", str(run), "--device", "cpu"], said) as process:
        while not list(run.glob(".watch.mp4.*.tmp")):
            assert process.is_alive(), said.read_text("utf-8")
            time.sleep(0.01)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGTERM)
        process.join()
    assert process.exitcode == 130
    assert not list(run.glob(".*.tmp"))


def test_what_writes_a_temporary_file_is_ended_before_it_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "beginning", threading.Lock())
    again = (
        "import sys, time; open(sys.argv[1], 'w'); sys.stdin.read(); time.sleep(0.2); open(sys.argv[1], 'w')"
    )
    with (
        open(os.devnull, "wb") as said,
        files.temporary_file(tmp_path / "file") as temporary,
        files.writer([sys.executable, "-c", again, str(temporary)], said) as process,
    ):
        files.remove_temporaries()
        assert process.returncode == -signal.SIGKILL
        assert not temporary.exists()


@pytest.mark.parametrize("line", range(1, 11))
def test_an_interruption_at_any_line_leaves_no_temporary_file(
    line: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "beginning", threading.Lock())  # which is not released again
    lines: list[int] = []

    def interrupt(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_name == "temporary_file" and event == "line":
            lines.append(frame.f_lineno)
            if len(lines) == line:
                raise KeyboardInterrupt
        return interrupt

    sys.settrace(interrupt)
    try:
        with files.temporary_file(tmp_path / "file"):
            pass
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    files.remove_temporaries()
    assert lines
    assert not list(tmp_path.iterdir())


def test_version_is_printed() -> None:
    assert popart("--version", check=0).stdout.startswith("popart ")


@pytest.mark.slow
def test_nothing_needs_or_uses_a_network(tmp_path: Path) -> None:
    """Training, evaluation and a report without any network, and with no socket connected."""
    code = """
import socket, sys
def connect(self, address, *rest): raise SystemExit(f"connects to {address}")
socket.socket.connect = socket.socket.connect_ex = connect
from popart.lab.cli import main
out = sys.argv[1]
main(["train", "--game", "catch", "--frames", "2000", "--device", "cpu", "--out", out + "/run"])
main(["evaluate", out + "/run", "--episodes", "2", "--device", "cpu"])
main(["report", out, "--out", out + "/report.html"])
"""
    alone = ["unshare", "--map-root-user", "--net"]
    allowed = subprocess.run([*alone, "true"], capture_output=True, check=False).returncode == 0
    command = [*(alone if allowed else []), sys.executable, "-c", code, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "report.html").exists()
