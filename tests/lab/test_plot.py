"""`popart plot` redraws finished runs from their tables, and every command prints its findings."""

import json
import shutil
from pathlib import Path

import pytest

from popart.lab.analysis import Page
from popart.lab.cli import main
from popart.lab.experiments.atari_scores import analysis
from popart.lab.files import read_table
from popart.lab.findings import print_findings
from popart.lab.manifest import read_manifest

RESULTS = Path(__file__).parents[2] / "results"
FINISHED = sorted(path.parent.relative_to(RESULTS) for path in RESULTS.glob("**/manifest.json"))
ALIKE = [path for path in FINISHED if path.parts[0] == "campaign"]
SLOW = {Path("lab/methods"), Path("lab/methods-space-invaders"), *ALIKE} - {*ALIKE[::10]}
FIGURES = (".png", ".svg")


@pytest.fixture
def paper(tmp_path: Path) -> Path:
    return shutil.copytree(RESULTS / "lab" / "paper", tmp_path / "paper")


def without_times(manifest: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in manifest.items() if name not in ("shown", "findings", "read")}


@pytest.mark.parametrize(
    "folder",
    [pytest.param(path, marks=[pytest.mark.slow] if path in SLOW else []) for path in FINISHED],
    ids=str,
)
def test_every_run_in_the_results_is_redrawn_from_its_tables(folder: Path, tmp_path: Path) -> None:
    """Without its figures and without checkpoints; tables of the run stay as they are."""
    ignored = shutil.ignore_patterns(*(f"*{suffix}" for suffix in FIGURES))
    whole = Path(*folder.parts[:2])  # with the run that an evaluation is of
    shutil.copytree(RESULTS / whole, tmp_path / whole, ignore=ignored)
    run = tmp_path / folder
    tables = {path.name: path.read_bytes() for path in run.glob("*.csv")}
    before = json.loads((run / "manifest.json").read_text("utf-8"))
    main(["plot", str(run)])
    shown = read_manifest(run)["shown"]
    for each in shown:
        suffixes = FIGURES if each["kind"] == "figure" else (".csv",)
        assert all((run / f"{each['name']}{suffix}").stat().st_size for suffix in suffixes)
    assert any(each["kind"] == "figure" for each in shown)
    assert {name: (run / name).read_bytes() for name in tables} == tables
    assert without_times(json.loads((run / "manifest.json").read_text("utf-8"))) == without_times(before)


def test_a_changed_caption_needs_no_new_run(paper: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis, "FIGURE", "Another caption.")
    main(["plot", str(paper)])
    assert read_manifest(paper)["shown"][0]["caption"] == "Another caption."


def test_findings_are_computed_from_the_tables(paper: Path) -> None:
    path = paper / "scores.csv"
    rows = path.read_text("utf-8").splitlines()
    path.write_text("\n".join([rows[0], *rows[2:]]) + "\n", "utf-8")
    main(["plot", str(paper)])
    assert read_manifest(paper)["findings"][0]["here"] == "31 of 56"


def refuses(capsys: pytest.CaptureFixture[str], run: Path, *words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plot", str(run)])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert all(word in said for word in words)


def test_runs_that_cannot_be_drawn_are_refused(paper: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refuses(capsys, paper.parent, "is not a run folder")
    manifest = json.loads((paper / "manifest.json").read_text("utf-8"))
    for changes, word in (({"finished": None}, "is not finished"), ({"experiment": "x"}, "no analysis")):
        (paper / "manifest.json").write_text(json.dumps(manifest | changes), "utf-8")
        refuses(capsys, paper, word)
    (paper / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    (paper / "scores.csv").unlink()
    refuses(capsys, paper, "has no scores.csv")


def test_an_error_of_the_analysis_itself_is_not_taken_for_damage(
    paper: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tables are those that were analysed before; after a change of one, they may be the reason."""
    main(["plot", str(paper)])

    def wrong(page: Page) -> None:
        page.needed_table("scores")[0]["no such column"]

    monkeypatch.setattr(analysis, "analyse", wrong)
    with pytest.raises(KeyError, match="no such column"):
        main(["plot", str(paper)])
    path = paper / "scores.csv"
    path.write_text("\n".join(path.read_text("utf-8").splitlines()[:-1]) + "\n", "utf-8")
    refuses(capsys, paper, "do not fit together (KeyError: 'no such column')")


def test_several_runs_are_drawn_and_their_paths_printed(
    paper: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = shutil.copytree(paper, paper.with_name("other"))
    main(["plot", str(paper), str(other)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == str(other)
    assert str(paper) in lines
    assert all(line.isprintable() for line in lines)


def test_findings_are_a_table_with_the_paper_beside(capsys: pytest.CaptureFixture[str]) -> None:
    print_findings(RESULTS / "lab" / "regression")
    said = capsys.readouterr().out
    assert "Chosen step sizes" in said
    assert "claim" in said
    assert "the paper" in said
    assert "\x1b" not in said
    for row in read_table(RESULTS / "lab" / "regression" / "chosen.csv"):
        assert row["area"] in said
