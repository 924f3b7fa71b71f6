"""A run's folder survives what happens to folders: kills, full disks, other settings, damage."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from popart.lab.cli import main
from popart.lab.regression import Regression
from popart.lab.runs import LabError, Run, command_line, read_manifest, write_atomically
from tests.backends import sharing_what_is_compiled

POPART = [sys.executable, "-m", "popart.lab.cli"]
SMALL = ["--methods", "sgd", "popart", "--alphas", "1e-4", "1e-2", "--betas", "0.1"]
SMALL += ["--samples", "50", "--repetitions", "3"]
SWEEP = ["--methods", "sgd", "art", "popart", "--samples", "2000", "--repetitions", "40"]
TABLES = ("grid.csv", "curves.csv", "chosen.csv", "readings.csv")


def small(out: Path, *more: str) -> None:
    main(["regression", *SMALL, "--out", str(out), *more])


def files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name not in (".lock", "manifest.json")}


def refuses(capsys: pytest.CaptureFixture[str], *words: str, arguments: list[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    said = " ".join(capsys.readouterr().err.split())
    for word in words:
        assert word in said
    return said


def test_a_run_leaves_its_manifest_tables_and_figures(tmp_path: Path) -> None:
    small(tmp_path / "run")
    manifest = read_manifest(tmp_path / "run")
    assert manifest["experiment"] == "regression"
    assert manifest["settings"]["samples"] == 50
    assert manifest["settings"]["seed"] == 0
    assert {"python", "popart-learn", "numpy", "jax"} <= set(manifest["versions"])
    assert "cores" in manifest["device"]
    assert manifest["started"] <= manifest["finished"]
    names = {x["name"] for x in manifest["shown"]}
    assert {"figure_1a", "grids", "chosen", "grid"} <= names
    for shown in manifest["shown"]:
        suffixes = ("png", "svg") if shown["kind"] == "figure" else ("csv",)
        assert all((tmp_path / "run" / f"{shown['name']}.{suffix}").stat().st_size for suffix in suffixes)


def test_the_command_in_the_manifest_makes_the_same_run(tmp_path: Path) -> None:
    small(tmp_path / "run")
    words = read_manifest(tmp_path / "run")["command"].split()
    words[words.index("--out") + 1] = str(tmp_path / "again")
    main(words[1:])
    assert files(tmp_path / "run") == files(tmp_path / "again")


def test_settings_become_a_command_line() -> None:
    assert command_line("regression", Regression()) == "popart regression"
    settings = Regression(methods=("sgd",), alphas=(0.1, 10**-4.5), seed=3)
    expected = "popart regression --methods sgd --alphas 0.1 3.162277660e-05 --seed 3"
    assert command_line("regression", settings).replace("3.16227766e-05", "3.162277660e-05") == expected


def test_the_same_seed_gives_the_same_files_and_another_seed_others(tmp_path: Path) -> None:
    small(tmp_path / "one")
    small(tmp_path / "two")
    small(tmp_path / "three", "--seed", "1")
    one, two, three = (files(tmp_path / name) for name in ("one", "two", "three"))
    assert one == two
    assert one["grid.csv"] != three["grid.csv"]


def test_a_finished_run_is_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small(tmp_path / "run")
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "run").iterdir() if p.name != ".lock"}
    small(tmp_path / "run")
    assert {p: p.stat().st_mtime_ns for p in before} == before
    assert capsys.readouterr().out.splitlines() == [str(tmp_path / "run")] * 2


def start(out: Path, *arguments: str) -> subprocess.Popen[str]:
    """As from a terminal, where Ctrl-C is heard: a shell's background jobs ignore it."""
    listen = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    run = "from popart.lab.cli import main; main()"
    command = [sys.executable, "-c", f"{listen}; {run}", "regression", *arguments, "--out", str(out)]
    pipe, environment = subprocess.PIPE, sharing_what_is_compiled()
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)


def rows_of(out: Path) -> int:
    path = out / "grid.csv"
    return len(path.read_text().splitlines()) - 1 if path.exists() else 0


def stop_during_the_sweep(out: Path, sign: signal.Signals) -> tuple[int, str, int]:
    """Start the sweep, and send the signal once it has written more than was there; how it ended."""
    before = rows_of(out)
    process = start(out, *SWEEP)
    while process.poll() is None and rows_of(out) <= before:
        time.sleep(0.01)
    process.send_signal(sign)
    _, said = process.communicate(timeout=60)
    return process.returncode, said, rows_of(out)


def test_a_sweep_that_is_stopped_and_killed_goes_on_to_the_same_tables(tmp_path: Path) -> None:
    undisturbed = start(tmp_path / "undisturbed", *SWEEP)
    out = tmp_path / "disturbed"
    code, said, first = stop_during_the_sweep(out, signal.SIGINT)
    assert code == 130
    assert "stopped; the same command goes on from here" in said
    assert "Traceback" not in said
    code, _, second = stop_during_the_sweep(out, signal.SIGKILL)
    assert code == -signal.SIGKILL
    code, _, third = stop_during_the_sweep(out, signal.SIGKILL)
    assert code == -signal.SIGKILL
    assert 0 < first < second < third < 253
    assert read_manifest(out)["finished"] is None
    last = start(out, *SWEEP)
    for process in (undisturbed, last):
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
    assert len(read_manifest(out)["continued"]) == 3
    for name in TABLES:
        assert (out / name).read_bytes() == (tmp_path / "undisturbed" / name).read_bytes()
    assert {p.name for p in out.iterdir()} == {p.name for p in (tmp_path / "undisturbed").iterdir()}


def test_a_full_disk_leaves_nothing_corrupt_and_the_run_goes_on_later(tmp_path: Path) -> None:
    """Files may not grow beyond 4 kB: the kernel refuses to write the grid when it has some rows."""
    out = tmp_path / "run"
    arguments = [*POPART, "regression", "--methods", "popart", "--samples", "10", "--repetitions", "2"]
    arguments += ["--out", str(out)]
    limited = ["sh", "-c", 'ulimit -f 8; exec "$@"', "sh", *arguments]
    on_the_cpu = {**os.environ, "JAX_PLATFORMS": "cpu"}  # a GPU's compiler writes files of its own
    failed = subprocess.run(limited, capture_output=True, text=True, check=False, env=on_the_cpu)
    assert failed.returncode == 2, failed.stderr
    assert f"{out / 'grid.csv'} cannot be written: File too large" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert {p.name for p in out.iterdir()} == {".lock", "manifest.json", "grid.csv"}
    assert read_manifest(out)["finished"] is None
    lines = (out / "grid.csv").read_text().splitlines()
    assert len(lines) > 1
    assert {line.count(",") for line in lines} == {6}
    other = tmp_path / "other"
    for command in (arguments, [*arguments[:-1], str(other)]):
        environment = {**sharing_what_is_compiled(), "JAX_PLATFORMS": "cpu"}
        subprocess.run(command, check=True, capture_output=True, env=environment)
    assert (out / "grid.csv").read_bytes() == (other / "grid.csv").read_bytes()


def test_a_failed_write_keeps_what_was_there(tmp_path: Path) -> None:
    """A folder cannot be replaced by a file: the last of the steps fails."""
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "old").write_text("old")
    with pytest.raises(LabError, match="cannot be written: Is a directory"):
        write_atomically(tmp_path / "taken", b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["taken"]
    assert (tmp_path / "taken" / "old").read_text() == "old"


def test_what_a_killed_process_was_writing_is_cleared_away(tmp_path: Path) -> None:
    with Run("nothing", "", Nothing(tmp_path)):
        (tmp_path / ".grid.csv.x1y2.tmp").write_text("half")
    with Run("nothing", "", Nothing(tmp_path)):
        assert {p.name for p in tmp_path.iterdir()} == {".lock", "manifest.json"}


def test_a_folder_of_other_settings_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small(tmp_path / "run")
    before = files(tmp_path / "run")
    arguments = ["regression", *SMALL, "--out", str(tmp_path / "run"), "--seed", "7"]
    said = refuses(capsys, "seed is 0 there, 7 here", "give another --out", arguments=arguments)
    assert "samples" not in said.split("; give another")[0]
    assert files(tmp_path / "run") == before


def test_a_folder_of_another_experiment_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small(tmp_path / "run")
    refuses(
        capsys,
        "is a run of 'regression', not of 'paper'",
        arguments=["paper", "--out", str(tmp_path / "run")],
    )


def test_a_folder_of_something_else_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    refuses(capsys, "thesis.tex", "is not a run's folder", arguments=["paper", "--out", str(tmp_path)])
    assert (tmp_path / "thesis.tex").read_text() == "mine"
    assert not (tmp_path / "manifest.json").exists()


@pytest.mark.parametrize(
    "content", ["", '{"experiment": "paper"', "[]", '{"experiment": "paper"}', "\x00\xff"]
)
def test_a_damaged_manifest_is_refused_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    (tmp_path / "manifest.json").write_text(content, encoding="latin-1")
    refuses(capsys, "manifest.json is damaged", "move", arguments=["paper", "--out", str(tmp_path)])
    assert (tmp_path / "manifest.json").read_text(encoding="latin-1") == content


@pytest.mark.parametrize("folder", ["file/run", "file"])
def test_a_folder_that_cannot_be_written_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], folder: str
) -> None:
    (tmp_path / "file").write_text("mine")
    out = str(tmp_path / folder)
    refuses(capsys, out, "cannot be written", "give another --out", arguments=["paper", "--out", out])
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_without_permission_is_refused(tmp_path: Path) -> None:
    """Root may write anywhere, and becomes nobody for it."""
    tmp_path.chmod(0o555)
    code = (
        "import os, sys, popart.lab.atari.paper; from popart.lab.cli import main\n"
        "if os.getuid() == 0: os.setuid(65534)\n"
        "main(['paper', '--out', sys.argv[1]])"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2, ended.stderr
    assert "cannot be written: Permission denied" in ended.stderr


@dataclass(frozen=True)
class Nothing:
    out: Path


def test_a_folder_in_use_is_refused_until_its_process_is_gone(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from popart.lab.runs import Run; "
        "from tests.lab.test_runs import Nothing\n"
        "with Run('nothing', '', Nothing(Path(sys.argv[1]))): print('held', flush=True); time.sleep(600)"
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=root
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(LabError, match="in use by another process"),
            Run("nothing", "", Nothing(tmp_path)),
        ):
            pass
        holder.kill()
    with Run("nothing", "", Nothing(tmp_path)) as run:
        assert not run.finished


def test_a_run_that_fails_frees_its_folder(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{")
    for _ in range(2):
        with pytest.raises(LabError, match="damaged"), Run("nothing", "", Nothing(tmp_path)):
            pass


def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere(tmp_path: Path) -> None:
    lines = start(tmp_path / "lines", *SMALL)
    _, said = lines.communicate(timeout=120)
    assert "regression: Pop-Art: 100%" in said
    assert "updates/s" in said
    assert "s left" in said
    assert "\x1b" not in said
    primary, secondary = pty.openpty()
    command = [*POPART, "regression", *SMALL, "--out", str(tmp_path / "bar")]
    environment = {**sharing_what_is_compiled(), "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(command, stderr=secondary, stdout=subprocess.DEVNULL, env=environment) as process:
        os.close(secondary)
        shown = b""
        try:
            while chunk := os.read(primary, 4096):
                shown += chunk
        except OSError:  # the terminal's end, once nobody holds the other side
            pass
    assert process.returncode == 0
    assert b"updates/s" in shown
    assert "━".encode() in shown


def test_the_manifest_is_readable_json_with_words_as_they_are(tmp_path: Path) -> None:
    main(["histograms", "--targets", "1000", "--out", str(tmp_path / "run")])
    text = (tmp_path / "run" / "manifest.json").read_text(encoding="utf-8")
    assert "√" in text
    assert json.loads(text)["settings"] == {"targets": 1000, "seed": 0}
