"""What is read from a run folder is checked: files, fields and values are named, links are not followed."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from popart.lab import manifest as manifests
from popart.lab.checks import LabError
from popart.lab.cli import main
from popart.lab.files import printable, read_table
from popart.lab.manifest import own_command, read_manifest
from popart.lab.play.config import Evaluate
from popart.lab.runs import Run
from popart.lab.schemas import Metrics
from tests.lab.examples import CATCH

pytestmark = pytest.mark.xdist_group("catch")

MORE = CATCH.changed(frames=13_000)


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, to be read."""
    out = tmp_path_factory.mktemp("paper") / "run"
    main(["paper", "--out", str(out)])
    return out


@pytest.fixture
def run(paper: Path, tmp_path: Path) -> Path:
    """A finished run, to be damaged."""
    return shutil.copytree(paper, tmp_path / "run")


@pytest.fixture
def trained(catch: Path, tmp_path: Path) -> Path:
    """A finished training run, to be damaged."""
    return shutil.copytree(catch, tmp_path / "trained")


def change(run: Path, **changes: Any) -> None:
    path = run / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), "utf-8")


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the one line that a refused command says."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert ended.value.code == 2
    said = [line for line in capsys.readouterr().err.splitlines() if "loading the program" not in line]
    assert len(said) == 1
    return said[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"settings": []}, "at settings (it is 'list')"),
        ({"settings": {"a": {"b": 1}}}, "at settings[...]"),
        ({"versions": "1.0"}, "at versions (it is '1.0')"),
        ({"versions": {"jax": 1}}, "at versions[...]"),
        ({"resumed": 3}, "at resumed (it is 3)"),
        ({"resumed": ["yesterday"]}, "at resumed[0] (it is 'yesterday')"),
        ({"shown": {}}, "at shown"),
        ({"shown": [{"name": "x"}]}, "missing required field `heading` at shown[0]"),
        (
            {"findings": [{"claim": 1, "paper": "", "here": "", "agrees": True}]},
            "findings[0].claim (it is 1)",
        ),
        ({"findings": [{"claim": "", "paper": "", "here": "", "agrees": "yes"}]}, "agrees (it is 'yes')"),
        ({"finished": 1}, "at finished (it is 1)"),
        ({"title": None}, "at title"),
        ({"command": "x" * 20_001}, "at command"),
    ],
)
def test_manifests_are_checked_and_the_field_and_value_are_named(
    run: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], words: str
) -> None:
    change(run, **changes)
    for command in ("plot", "report", "evaluate"):
        line = refused(capsys, command, str(run))
        assert str(run / "manifest.json") in line
        assert words in line


def test_settings_that_an_analysis_needs_are_checked(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(trained, settings=read_manifest(trained)["settings"] | {"agent": "other"})
    assert "Invalid enum value 'other' at agent" in refused(capsys, "plot", str(trained))
    change(trained, settings=read_manifest(trained)["settings"] | {"agent": "popart", "num_envs": "8"})
    assert "num_envs" in refused(capsys, "evaluate", str(trained))


def test_json_that_is_nested_too_deeply_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "manifest.json").write_text("[" * 200_000)
    assert "is damaged (it is nested too deeply)" in refused(capsys, "report", str(run))


def test_a_manifest_that_is_too_large_is_not_read(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifests, "MOST_BYTES", 100)
    assert "which is too much to be read" in refused(capsys, "report", str(run))


def test_control_characters_are_removed_from_what_is_read(run: Path) -> None:
    change(run, command="popart \x1b[31mred\x1b]0;owned\x07 \u202epaper", title="line\nnext\x00")
    manifest = read_manifest(run)
    assert manifest["command"] == "popart [31mred]0;owned paper"
    assert manifest["title"] == "line\nnext"
    (run / "scores.csv").write_text("name\n\x1b[2Jcell\n")
    assert read_table(run / "scores.csv") == [{"name": "[2Jcell"}]
    assert printable("σ β é 漢\t") == "σ β é 漢\t"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda content: b"", "is damaged: it is empty"),
        (lambda content: content[: content.index(b"\n") + 1], "no rows"),
        (lambda content: content.replace(b",", b"", 1), "row 2 has 8 cells, not 7"),
        (lambda content: content + b"a,b\n", "row 59 has 2 cells, not 8"),
        (lambda content: content + b"\xff\xfe\n", "it is not UTF-8 at byte"),
        (lambda content: content.replace(b"human", b"people", 1), "no column 'human'"),
        (lambda content: content.replace(b"human", b"random", 1), "there twice"),
        (lambda content: content.replace(b"7127.7", b"many", 1), "at human (it is 'many')"),
        (lambda content: content + b'"' + b"x" * 200_000, "is damaged: field larger than"),
    ],
)
def test_tables_are_checked_and_the_place_is_named(
    run: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[bytes], bytes], words: str
) -> None:
    path = run / "scores.csv"
    assert b"7127.7" in path.read_bytes()
    path.write_bytes(damage(path.read_bytes()))
    line = refused(capsys, "plot", str(run))
    assert "scores.csv" in line
    assert words in line.replace("or one without rows", "no rows")
    if "column" not in words and "human (" not in words:  # a report only shows the table
        assert "scores.csv" in refused(capsys, "report", str(run), "--out", str(run.parent / "page.html"))


def test_a_damaged_summary_of_an_evaluation_is_named(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluation = Evaluate(trained, episodes=2, device="cpu").run()
    capsys.readouterr()
    (evaluation / "summary.csv").write_text("who,score\n1\n")
    words = ["evaluate", str(trained), "--episodes", "2", "--device", "cpu"]
    assert "summary.csv is damaged: row 2 has 1 cells, not 2" in refused(capsys, *words)


def test_an_incomplete_last_row_of_metrics_is_left_out_when_a_run_is_resumed(trained: Path) -> None:
    path = trained / "metrics.csv"
    rows = read_table(path, Metrics)
    content = path.read_bytes()
    path.write_bytes(content[: content.rindex(b"\n", 0, -1) + 20])
    with pytest.raises(LabError):
        read_table(path, Metrics)
    assert read_table(path, Metrics, growing=True) == rows[:-1]


def test_a_damaged_row_of_metrics_is_named_when_a_run_is_resumed(trained: Path) -> None:
    path = trained / "metrics.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1].replace(",", ",x", 2), *lines[2:]]) + "\n")
    with pytest.raises(LabError, match=r"metrics.csv, row 2, is damaged: .* at updates"):
        MORE.changed(out=trained).run()


def make_a_link(path: Path) -> Path:
    """Move a file or folder elsewhere, and leave a link."""
    elsewhere = path.parent.parent / f"elsewhere-{path.name}"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    return elsewhere


def content(folder: Path) -> dict[Path, Any]:
    files = [folder] if folder.is_file() else [p for p in folder.rglob("*") if p.is_file()]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@pytest.mark.parametrize(
    "name", ["checkpoints/last", "checkpoints", "tensorboard", "metrics.csv", "manifest.json", ".lock"]
)
def test_nothing_is_written_or_deleted_through_a_link(trained: Path, name: str) -> None:
    if name == "checkpoints/last":
        shutil.copytree(trained / "checkpoints" / "last", trained / "checkpoints" / "last" / "7")
    elsewhere = make_a_link(trained / name)
    before = content(elsewhere)
    with pytest.raises(LabError, match="is a symbolic link"):
        MORE.changed(out=trained).run()
    assert content(elsewhere) == before


def test_an_evaluation_is_not_written_through_a_link(trained: Path) -> None:
    evaluation = Evaluate(trained, episodes=2, device="cpu").run()
    elsewhere = make_a_link(evaluation)
    (elsewhere / "episodes.csv").unlink()
    change(elsewhere, finished=None)
    before = content(elsewhere)
    with pytest.raises(LabError, match="is a symbolic link"):
        Evaluate(trained, episodes=2, device="cpu").run()
    assert content(elsewhere) == before


def test_a_link_to_a_run_folder_may_be_given(paper: Path, tmp_path: Path) -> None:
    """The user's own link is followed; links inside of a run folder are not."""
    (tmp_path / "run").symlink_to(paper)
    main(["paper", "--out", str(tmp_path / "run")])


def test_a_run_that_wrote_nothing_does_not_block_its_folder(tmp_path: Path) -> None:
    with Run("nothing", "", {"out": tmp_path, "steps": 10**20}):
        pass
    with Run("nothing", "", {"out": tmp_path, "steps": 1000}):
        assert read_manifest(tmp_path)["settings"] == {"steps": 1000}
        (tmp_path / "table.csv").write_text("a\n1\n")
    with pytest.raises(LabError, match="other settings"), Run("nothing", "", {"out": tmp_path, "steps": 2}):
        pass


def test_temporary_files_of_checkpoints_are_removed(trained: Path) -> None:
    half = trained / "checkpoints" / "last" / ".9.npz.abc.tmp"
    half.write_text("half")
    MORE.changed(out=trained).run()
    assert not half.exists()


def test_a_run_that_cannot_be_written_is_copied_to_be_evaluated(trained: Path) -> None:
    """`popart evaluate` has no --out. A file where the folder would be cannot be written, even by root."""
    evaluation = Evaluate(trained, episodes=2, device="cpu").run()
    shutil.rmtree(evaluation)
    evaluation.write_text("in the way")
    with pytest.raises(LabError, match="copy the run to a folder that can be written"):
        Evaluate(trained, episodes=2, device="cpu").run()


def test_the_command_of_a_run_that_was_moved_names_its_folder() -> None:
    def command(words: str, folder: str, experiment: str = "train") -> str:
        settings = {"game": "catch", "agent": "popart", "seed": 1}
        return own_command(Path(folder), {"command": words, "experiment": experiment, "settings": settings})

    assert command("popart train --out old", "new/run") == "popart train --out new/run"
    assert command("popart train --seed 1 2 --out old", "new/catch-popart-1").endswith("--out new")
    assert command("popart train", "here/run") == "popart train --out here/run"
    assert command("popart evaluate old --episodes 2", "new/evaluation-x", "evaluate") == (
        "popart evaluate new --episodes 2"
    )


def test_git_is_asked_without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    run = manifests.subprocess.run

    def recorded(command: list[str], **options: Any) -> Any:
        asked.append(command)
        return run(command, **options)

    monkeypatch.setattr(manifests.subprocess, "run", recorded)
    if manifests.commit() is None:
        pytest.skip("not a checkout")
    assert all("--no-optional-locks" in command for command in asked if "status" in command)
    assert any("status" in command for command in asked)


def test_a_pipe_as_manifest_is_not_waited_for(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "manifest.json").unlink()
    os.mkfifo(run / "manifest.json")
    for command in (["plot", str(run)], ["evaluate", str(run)], ["paper", "--out", str(run)]):
        assert "is not a regular file" in refused(capsys, *command)
