"""A run folder survives kills, full disks, other settings and damage."""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from popart.lab.analysis import Page, analyse, analyse_all
from popart.lab.checks import LabError
from popart.lab.cli import main
from popart.lab.experiments.regression.config import Regression
from popart.lab.files import temporary_file, write_atomically
from popart.lab.manifest import read_manifest
from popart.lab.runs import Run, command_line
from tests.backends import sharing_what_is_compiled
from tests.lab.processes import started

POPART = [sys.executable, "-m", "popart.lab.cli"]
SMALL = ["--methods", "sgd", "popart", "--alphas", "1e-4", "1e-2", "--betas", "0.1"]
SMALL += ["--samples", "50", "--repetitions", "3"]
SWEEP = ["--methods", "sgd", "popart", "--samples", "2000", "--repetitions", "40"]
TABLES = ("grid.csv", "curves.csv", "intervals.csv", "chosen.csv", "readings.csv")


def small(out: Path, *more: str) -> None:
    main(["regression", *SMALL, "--out", str(out), *more])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, to be read."""
    out = tmp_path_factory.mktemp("finished") / "run"
    small(out)
    return out


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A finished run, to be changed."""
    return shutil.copytree(finished, tmp_path / "run")


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


def test_a_run_leaves_its_manifest_tables_and_figures(finished: Path) -> None:
    manifest = read_manifest(finished)
    assert manifest["format"] == 2
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
        assert all((finished / f"{shown['name']}.{suffix}").stat().st_size for suffix in suffixes)


def test_the_manifest_is_readable_json_without_escapes(finished: Path) -> None:
    text = (finished / "manifest.json").read_text(encoding="utf-8")
    assert "β" in text
    assert json.loads(text)["settings"]["betas"] == [0.1]


def test_the_command_in_the_manifest_repeats_the_run(finished: Path, tmp_path: Path) -> None:
    """To the bit, since the seed is the same."""
    words = read_manifest(finished)["command"].split()
    words[words.index("--out") + 1] = str(tmp_path / "again")
    main(words[1:])
    assert files(finished) == files(tmp_path / "again")


def test_another_seed_gives_other_results(finished: Path, tmp_path: Path) -> None:
    small(tmp_path / "other", "--seed", "1")
    assert files(finished)["grid.csv"] != files(tmp_path / "other")["grid.csv"]


def test_settings_become_a_command_line() -> None:
    assert command_line("regression", Regression()) == "popart regression"
    settings = Regression(methods=("sgd",), alphas=(0.1, 10**-4.5), seed=3)
    expected = "popart regression --methods sgd --alphas 0.1 3.1622776601683795e-05 --seed 3"
    assert command_line("regression", settings) == expected


@dataclass(frozen=True)
class Inner:
    rate: float = 0.1
    sticky: bool = False


@dataclass(frozen=True)
class Outer:
    run_folder: Path
    inner: Inner = field(default_factory=Inner)
    out: Path = Path("runs")


def test_nested_settings_become_flat_options() -> None:
    settings = Outer(Path("here"), Inner(0.5, sticky=True))
    assert command_line("nothing", settings) == "popart nothing here --rate 0.5 --sticky"


def test_a_finished_run_is_not_repeated(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {p: p.stat().st_mtime_ns for p in run.iterdir() if p.name != ".lock"}
    words = read_manifest(run)["command"].split()[1:]
    main([*words[:-1], str(run)])
    assert {p: p.stat().st_mtime_ns for p in before} == before
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == str(run)
    assert any("Pop-Art" in line for line in said)


@contextmanager
def sweep(out: Path) -> Iterator[BaseProcess]:
    with started(["regression", *SWEEP, "--out", str(out)], out.with_suffix(".said")) as process:
        yield process


def rows_of(out: Path) -> int:
    path = out / "grid.csv"
    return len(path.read_text().splitlines()) - 1 if path.exists() else 0


def stop_during_the_sweep(out: Path, number: signal.Signals) -> int:
    """Start the sweep, and send the signal once it has written more rows; return their number."""
    before = rows_of(out)
    with sweep(out) as process:
        while process.is_alive() and rows_of(out) <= before:
            time.sleep(0.01)
        assert process.pid is not None
        os.kill(process.pid, number)
        process.join()
    assert process.exitcode == (130 if number == signal.SIGINT else -number)
    return rows_of(out)


def test_a_sweep_that_is_interrupted_and_killed_resumes_to_the_same_tables(tmp_path: Path) -> None:
    out, undisturbed = tmp_path / "disturbed", tmp_path / "undisturbed"
    first = stop_during_the_sweep(out, signal.SIGINT)
    said = out.with_suffix(".said").read_text("utf-8")
    assert "Interrupted. Run the same command again to resume." in said
    assert "Traceback" not in said
    second = stop_during_the_sweep(out, signal.SIGKILL)
    assert 0 < first < second < 132
    assert read_manifest(out)["finished"] is None
    for folder in (out, undisturbed):
        with sweep(folder) as process:
            process.join()
        assert process.exitcode == 0, folder.with_suffix(".said").read_text("utf-8")
    assert len(read_manifest(out)["resumed"]) == 2
    for name in TABLES:
        assert (out / name).read_bytes() == (undisturbed / name).read_bytes()
    assert {p.name for p in out.iterdir()} == {p.name for p in undisturbed.iterdir()}


def test_a_full_disk_damages_nothing_and_the_run_can_be_resumed(tmp_path: Path) -> None:
    """Files may not grow beyond 4 kB: the kernel refuses to write the grid when it has some rows."""
    out, other = tmp_path / "run", tmp_path / "other"
    arguments = ["regression", "--methods", "popart", "--samples", "10", "--repetitions", "2", "--out"]
    limited = ["sh", "-c", 'ulimit -f 8; exec "$@"', "sh", *POPART, *arguments, str(out)]
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
    for folder in (out, other):
        main([*arguments, str(folder)])
    assert (out / "grid.csv").read_bytes() == (other / "grid.csv").read_bytes()


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    """A folder cannot be replaced by a file: the last of the steps fails."""
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "old").write_text("old")
    with pytest.raises(LabError, match="cannot be written: Is a directory"):
        write_atomically(tmp_path / "taken", b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["taken"]
    assert (tmp_path / "taken" / "old").read_text() == "old"


@dataclass(frozen=True)
class Nothing:
    out: Path


def test_temporary_files_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    with Run("nothing", "", Nothing(tmp_path)):
        (tmp_path / ".grid.csv.x1y2.tmp").write_text("half")
    with Run("nothing", "", {"out": tmp_path}):
        assert {p.name for p in tmp_path.iterdir()} == {".lock", "manifest.json"}


def test_temporary_files_of_a_living_process_stay(tmp_path: Path) -> None:
    """Such as a film of a finished run that is being written."""
    with Run("nothing", "", Nothing(tmp_path)), temporary_file(tmp_path / "film.mp4") as film:
        with subprocess.Popen([sys.executable, "-c", ""]) as ended:
            ended.wait()
        (tmp_path / f".table.csv.{ended.pid}.x1y2.tmp").write_text("half")
        Run("nothing", "", {"out": tmp_path})._open()
        assert film.exists()
        assert len(list(tmp_path.glob(".*.tmp"))) == 1


def test_a_folder_with_other_settings_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(run)
    arguments = ["regression", *SMALL, "--out", str(run), "--seed", "7"]
    said = refuses(capsys, "seed is 0 there, 7 here", "give another --out", arguments=arguments)
    assert "samples" not in said.split("; give another")[0]
    assert files(run) == before


def test_a_folder_of_another_experiment_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = "is a run of 'regression', not of 'paper'"
    refuses(capsys, said, arguments=["paper", "--out", str(run)])


def test_a_folder_with_other_files_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    refuses(capsys, "thesis.tex", "is not a run folder", arguments=["paper", "--out", str(tmp_path)])
    assert (tmp_path / "thesis.tex").read_text() == "mine"
    assert not (tmp_path / "manifest.json").exists()


def first_release(run: Path, **changes: object) -> None:
    """Rewrite the manifest as the first release wrote it."""
    manifest = json.loads((run / "manifest.json").read_text("utf-8")) | changes
    del manifest["format"]
    manifest["continued"] = manifest.pop("resumed")
    (run / "manifest.json").write_text(json.dumps(manifest), "utf-8")


def test_a_finished_run_of_the_first_release_is_read(run: Path) -> None:
    old = {"step_size": 1e-4, "start": "he", "replay": 100, "undo_wraps": False, "beta": 0.1}
    first_release(run, settings=old)
    manifest = read_manifest(run)
    assert (manifest["format"], manifest["resumed"]) == (1, [])
    new = {"learning_rate": 1e-4, "initial_weights": "he", "replay_size": 100, "undo_overflow": False}
    assert manifest["settings"] == {**new, "beta": 0.1}


def test_an_unfinished_run_of_the_first_release_is_refused(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first_release(run, finished=None)
    before = (run / "manifest.json").read_bytes()
    refuses(capsys, "first release of popart", arguments=["regression", *SMALL, "--out", str(run)])
    assert (run / "manifest.json").read_bytes() == before


def test_a_run_that_lacks_a_later_setting_has_the_value_that_was_fixed_then(tmp_path: Path) -> None:
    settings = {"out": tmp_path / "run", "learning_rate": 1e-4}
    with Run("train", "", settings):
        pass
    (tmp_path / "run" / "metrics.csv").write_text("frames\n")
    with Run("train", "", settings | {"rmsprop_epsilon": 0.01}) as run:
        assert run.resumed == 1
    with pytest.raises(LabError, match="other settings"), Run("train", "", settings | {"rmsprop_epsilon": 1}):
        pass


def test_a_run_of_a_later_release_is_refused(run: Path) -> None:
    manifest = json.loads((run / "manifest.json").read_text("utf-8")) | {"format": 3}
    (run / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    with pytest.raises(LabError, match="newer version"):
        read_manifest(run)


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
    """Root may write anywhere, and becomes nobody for this test."""
    tmp_path.chmod(0o555)
    code = (
        "import os, sys, tyro, popart.lab.experiments.atari_scores.run; from popart.lab.cli import main\n"
        "if os.getuid() == 0: os.setuid(65534)\n"
        "main(['paper', '--out', sys.argv[1]])"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2, ended.stderr
    assert "cannot be written: Permission denied" in ended.stderr


def test_a_folder_in_use_is_refused_until_its_process_has_ended(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from popart.lab.runs import Run\n"
        "with Run('nothing', '', {'out': Path(sys.argv[1])}): print('held', flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
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


def test_a_run_that_fails_unlocks_its_folder(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{")
    for _ in range(2):
        with pytest.raises(LabError, match="damaged"), Run("nothing", "", Nothing(tmp_path)):
            pass


def test_progress_is_plain_lines_without_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small(tmp_path / "lines")
    said = capsys.readouterr().err
    assert re.search("regression: (SGD|Pop-Art): 100%", said)
    assert "updates/s" in said
    assert "s left" in said
    assert "\x1b" not in said


def test_progress_is_a_bar_on_a_terminal(tmp_path: Path) -> None:
    primary, secondary = pty.openpty()
    command = [*POPART, "regression", *SMALL, "--out", str(tmp_path / "bar")]
    environment = {**sharing_what_is_compiled(), "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(command, stderr=secondary, stdout=subprocess.DEVNULL, env=environment) as process:
        os.close(secondary)
        shown = b""
        try:
            while chunk := os.read(primary, 4096):
                shown += chunk
        except OSError:  # the terminal is closed when no process holds the other end
            pass
    assert process.returncode == 0
    assert b"updates/s" in shown
    assert "━".encode() in shown


def test_many_runs_are_analysed_side_by_side_as_each_alone(finished: Path, tmp_path: Path) -> None:
    folders = [shutil.copytree(finished, tmp_path / f"run-{i}") for i in range(5)]
    for figure in (path for folder in folders for path in folder.glob("*.png")):
        figure.unlink()
    together = analyse_all(folders)
    assert files(folders[0]) == files(folders[4]) == files(finished)
    alone = json.loads(json.dumps(analyse(Page(finished)).results()))
    assert together == [alone] * 5


def test_what_is_wrong_with_one_of_many_runs_is_named(finished: Path, tmp_path: Path) -> None:
    folders = [shutil.copytree(finished, tmp_path / f"run-{i}") for i in range(5)]
    (folders[3] / "grid.csv").write_text("method\nsgd\n")
    with pytest.raises(LabError, match=r"run-3.grid\.csv"):
        analyse_all(folders)
    (folders[3] / "manifest.json").unlink()
    with pytest.raises(LabError, match="run-3 is not a run folder"):
        analyse_all(folders)
