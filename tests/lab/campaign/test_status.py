"""The table of runs, from their folders alone."""

import io
import os
import time
from pathlib import Path

import pytest
from rich.console import Console

from popart.lab.campaign import records, status
from popart.lab.campaign.config import Start
from popart.lab.campaign.folder import Folder
from popart.lab.campaign.run import opened
from popart.lab.campaign.status import Runs, last_row, summary, table
from popart.lab.cli import main
from popart.lab.manifest import FORMAT, write_manifest

METRICS = "frames,score_100,frames_per_second\n1000,1.5,200.0\n1500,2.5,300.0\n"


@pytest.fixture
def campaign(tmp_path: Path) -> Folder:
    return opened(Start(games=("catch",), agents=("popart",), seeds=6, frames=2000, out=tmp_path))


def write(campaign: Folder, seed: int, metrics: str = METRICS) -> Path:
    run = campaign.path / f"catch-popart-{seed}"
    records.begin(run)
    (run / "metrics.csv").write_text(metrics, "utf-8")
    return run


def test_states_frames_scores_nodes_and_failures_come_from_the_run_folders(
    campaign: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its runs wait, train, were interrupted, failed, lost their machine, and are finished."""
    write(campaign, 1)
    records.end(write(campaign, 2), "interrupted")
    records.end(write(campaign, 3), "failed", "no space left")
    long_ago = time.time() - 2 * status.SILENT
    os.utime(write(campaign, 4) / records.NAME, (long_ago, long_ago))
    run = write(campaign, 5)
    records.end(run, "finished")
    settings = {"game": "catch", "agent": "popart", "frames": 2000}
    texts = dict.fromkeys(("title", "command", "started", "finished"), "text")
    about = {"format": FORMAT, "experiment": "train", "settings": settings, "versions": {}, "resumed": []}
    write_manifest(run, about | texts)
    rows = table(campaign)
    assert [row.state for row in rows] == ["waiting", "training", "stopped", "failed", "silent", "finished"]
    assert [row.frames for row in rows] == [0, *[1500] * 5]
    assert (rows[1].score, rows[1].rate, rows[1].node) == (2.5, 300.0, os.uname().nodename)
    assert (rows[3].failures, rows[3].reason) == (1, "no space left")
    assert summary(rows) == (
        "6 runs: 1 failed, 1 silent, 1 training, 1 stopped, 1 waiting, 1 finished; 7.5 k frames (62%), "
        "300 frames/s"
    )
    main(["campaign", "status", str(campaign.path)])
    said = capsys.readouterr().out
    assert all(f"catch-popart-{seed}" in said for seed in range(6))
    assert "1: no space left" in said
    assert said.splitlines()[-1] == str(campaign.path)


def test_the_table_is_refreshed_or_not_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["campaign", "status", "--help"])
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--watch, --no-watch Refresh the table until" in said
    assert "None" not in said


def test_a_row_that_is_just_being_written_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    assert last_row(path) == {}
    for text, frames in ((METRICS, "1500"), (METRICS + "2000,3", "1500"), (METRICS[:36], None), ("", None)):
        path.write_text(text, "utf-8")
        assert last_row(path).get("frames") == frames
    path.write_text(METRICS + 10_000 * "1600,1.0,2.0\n" + "1700,1.0,2.0\n", "utf-8")
    assert last_row(path)["frames"] == "1700"


def test_on_a_small_terminal_what_needs_attention_comes_first(campaign: Folder) -> None:
    write(campaign, 1)
    records.end(write(campaign, 3), "failed", "no space left")
    console = Console(file=io.StringIO(), width=100, height=10, force_terminal=True, color_system=None)
    rows = table(campaign)
    console.print(Runs(rows, summary(rows)))
    said = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert "catch-popart-3" in said
    assert "catch-popart-1" in said
    assert "catch-popart-5" not in said
    assert "and 4 more" in said


def test_a_worker_that_left_no_word_is_a_failure_of_the_next_attempt(tmp_path: Path) -> None:
    records.begin(tmp_path)
    records.begin(tmp_path)
    record = records.read(tmp_path)
    assert record is not None
    assert record.attempt == 2
    assert "killed" in record.failures[0].reason
    records.end(tmp_path, "interrupted")
    records.begin(tmp_path)
    record = records.read(tmp_path)
    assert record is not None
    assert len(record.failures) == 1


def test_a_run_is_given_up_after_failures_without_a_new_checkpoint(tmp_path: Path) -> None:
    def fail(reason: str = "no space left") -> None:
        records.begin(tmp_path)
        records.end(tmp_path, "failed", reason)

    fail()
    fail()
    assert records.given_up(tmp_path, "", tries=3) is None
    (tmp_path / "checkpoints" / "last").mkdir(parents=True)
    (tmp_path / "checkpoints" / "last" / "40.npz").touch()
    fail()
    assert records.given_up(tmp_path, "", tries=3) is None  # the others were before the checkpoint
    fail()
    fail()
    assert "no space left" in str(records.given_up(tmp_path, "", tries=3))
    assert records.given_up(tmp_path, "9999", tries=3) is None  # all were before this start
    fail("it diverged: loss nan")
    assert records.given_up(tmp_path, "", tries=30) == "it diverged: loss nan"


def test_a_record_that_is_damaged_is_as_none(tmp_path: Path) -> None:
    for text in ("", "{}", "[]", '{"failures": 3}'):
        (tmp_path / records.NAME).write_text(text, "utf-8")
        assert records.read(tmp_path) is None
