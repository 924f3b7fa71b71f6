"""Campaigns on this machine: real processes that are interrupted and killed, and workers that fail."""

import os
import shutil
import signal
import subprocess
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import filelock
import psutil
import pytest

from popart.lab.campaign import records
from popart.lab.campaign.config import MachineOptions, Start
from popart.lab.campaign.engines.here import Here
from popart.lab.campaign.folder import Folder
from popart.lab.campaign.run import Queue, drive, ending, opened
from popart.lab.campaign.status import table
from popart.lab.campaign.work import Result, attempt
from popart.lab.checks import LabError
from tests.backends import sharing_what_is_compiled
from tests.lab.campaign.examples import (
    DIVERGING,
    LIMIT,
    OFTEN,
    RUNS,
    assert_same,
    assert_unclipped_diverged,
    attempts,
    failures,
    finished,
    is_finished,
    popart,
    resumed,
    said,
    settings,
    started,
    wait_until,
)

pytestmark = pytest.mark.xdist_group("campaign")


def test_every_run_has_a_folder_and_is_trained_once(undisturbed: Path) -> None:
    assert settings(undisturbed)["fleets"] == [list(RUNS[:2]), [RUNS[2]]]
    assert all(is_finished(undisturbed / run) for run in RUNS)
    assert attempts(undisturbed) == dict.fromkeys(RUNS, 1)
    assert resumed(undisturbed) == dict.fromkeys(RUNS, 0)


def test_lines_of_progress_say_each_thing_once(undisturbed: Path) -> None:
    """Both those of the campaign, and those of a fleet in its log."""
    logs = said(undisturbed), undisturbed / "logs" / "fleet-1.log"
    for log, title in zip(logs, ("campaign ", "fleet 1: scores:"), strict=True):
        lines = [line for line in log.read_text("utf-8").splitlines() if line.startswith(title)]
        assert lines
        assert {(line.count("%"), line.count("/s")) for line in lines} == {(1, 1)}, lines


def test_a_finished_campaign_is_not_trained_again(undisturbed: Path) -> None:
    before = {run: (undisturbed / run / "manifest.json").read_bytes() for run in RUNS}
    with started(undisturbed, name="again") as driver:
        text = finished(driver, undisturbed, name="again")
    assert text.splitlines()[-1] == str(undisturbed)
    assert {run: (undisturbed / run / "manifest.json").read_bytes() for run in RUNS} == before


@pytest.mark.slow
def test_a_campaign_that_is_interrupted_and_whose_driver_and_worker_are_killed_ends_as_if_undisturbed(
    undisturbed: Path, tmp_path: Path
) -> None:
    """First Ctrl-C, then SIGKILL of a worker, then of the driver, whose workers save and end."""
    out = tmp_path / "runs"
    with started(out) as driver:
        wait_until(lambda: all((out / run / "metrics.csv").exists() for run in RUNS), driver)
        driver.send_signal(signal.SIGINT)
        assert "Interrupted. Run the same command again to resume." in finished(driver, out, 130)
    interrupted = {run: records.turns(out / run) for run in RUNS}
    assert min(interrupted.values()) > 0
    assert not any(failures(out).values())
    with started(out, *OFTEN) as driver:
        wait_until(lambda: records.turns(out / RUNS[2]) > interrupted[RUNS[2]], driver)
        record = records.read(out / RUNS[2])
        assert record is not None
        os.kill(record.pid, signal.SIGKILL)
        wait_until(lambda: failures(out)[RUNS[2]], driver)
        workers = [child.pid for child in psutil.Process(driver.pid).children()]
        driver.kill()
    assert "killed" in failures(out)[RUNS[2]][0]
    with started(out) as driver:  # old workers may still be saving
        finished(driver, out)
    assert not any(psutil.pid_exists(worker) for worker in workers)
    assert_same(out, undisturbed)


def test_a_fleet_that_another_process_trains_is_left_to_it(undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    with started(out) as driver:
        wait_until(lambda: (out / ".locks" / "fleet-2").exists() and records.read(out / RUNS[2]), driver)
        result = attempt(out, 2, tries=3)
        record = records.read(out / RUNS[2])
        driver.send_signal(signal.SIGINT)
        driver.wait(LIMIT)
    assert result.status == "busy"
    assert record is not None
    assert record.pid != os.getpid()


def test_a_worker_that_finds_its_fleet_in_use_did_not_fail(tmp_path: Path) -> None:
    """The driver waits for the other process, however long that takes."""
    command = Start(games=("catch",), agents=("popart",), out=tmp_path)
    engine = Here(opened(command), command)
    (tmp_path / ".locks").mkdir()
    with filelock.FileLock(tmp_path / ".locks" / "fleet-1"):
        engine.submit(1, None)
        ((fleet, result),) = engine.wait(LIMIT)
    assert (fleet, result.status) == (1, "busy")


def test_a_worker_that_is_interrupted_before_it_trains_is_shown_as_stopped(tmp_path: Path) -> None:
    """And that is not a failure for the next attempt."""
    out = tmp_path / "runs"
    opened(Start(games=("catch",), agents=("popart",), seeds=1, frames=10**8, out=out))
    worker = subprocess.Popen(
        popart("campaign", "work", str(out), "--fleet", "1"),
        env=sharing_what_is_compiled(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: records.read(out / RUNS[0]), worker)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(LIMIT) == 130
    assert records.turns(out / RUNS[0]) == 0, "it was interrupted too late to show anything"
    assert [row.state for row in table(Folder.read(out))] == ["stopped"]
    records.begin(out / RUNS[0])
    assert not any(failures(out).values())


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LabError, match="file/runs cannot be written: Not a directory; give another --out"):
        opened(Start(games=("catch",), agents=("popart",), out=tmp_path / "file" / "runs"))


def copied(undisturbed: Path, tmp_path: Path) -> Path:
    """A campaign of which the last run is not trained yet."""
    out = Path(shutil.copytree(undisturbed, tmp_path / "runs"))
    shutil.rmtree(out / RUNS[2])
    return out


@pytest.mark.slow
def test_a_run_whose_agent_diverges_fails_alone_and_is_not_tried_again(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    with started(out, *DIVERGING) as driver:
        text = finished(driver, out, 2)
    assert_unclipped_diverged(out, text)
    shown = subprocess.run(popart("campaign", "status", str(out)), capture_output=True, text=True, check=True)
    assert "1 failed, 1 finished" in shown.stdout
    assert "it diverged" in shown.stdout


@pytest.mark.slow
def test_a_full_disk_is_named_and_the_fleet_is_given_up_after_some_attempts(
    undisturbed: Path, tmp_path: Path
) -> None:
    """Files may not be larger than 32 kB: tables are smaller, checkpoints larger."""
    out = copied(undisturbed, tmp_path)
    worker = popart("campaign", "work", str(out), "--fleet", "2", "--tries", "1")
    limited = ["sh", "-c", 'ulimit -f 64; exec "$@"', "sh", *worker]
    reading = {**sharing_what_is_compiled(), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1e9"}
    ended = subprocess.run(limited, env=reading, capture_output=True, text=True, check=False)
    assert ended.returncode == 75, ended.stderr
    assert "could not be written" in ended.stdout
    assert "could not be written" in failures(out)[RUNS[2]][0]
    assert attempt(out, 2, tries=1).status == "failed"
    assert not is_finished(out / RUNS[2])


def test_a_failed_fleet_waits_longer_each_time_and_is_given_up(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr("popart.lab.campaign.run.time.monotonic", lambda: clock[0])
    queue = Queue(Folder.read(copied(undisturbed, tmp_path)), tries=3, retry_after=30.0)
    for wait in (0.0, 30.0, 60.0):
        clock[0] += wait - 1e-3
        assert queue.due() == []
        clock[0] += 1e-3
        assert queue.due() == [2]
        queue.taken(2)
        assert queue.due() == []
        queue.ended(2, Result("again", "no space left", "node"))
    assert queue.empty
    assert queue.lost == [Result("again", "no space left", "node")]
    assert capsys.readouterr().out.count("no space left") == 3


def test_a_machine_with_other_versions_is_refused_once_for_all_fleets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after an upgrade during the campaign. The same command would be refused again: it is not advised."""
    two = MachineOptions(workers=2, gpus=0)
    command = Start(games=("catch",), agents=("popart",), seeds=2, out=tmp_path, machines=two)
    campaign = opened(command)
    assert len(campaign.fleets) == 2
    replace(campaign, versions={**campaign.versions, "jax": "0.1"}).write()
    with closing(Here(campaign, command)) as engine:
        lost = drive(campaign, engine, tries=3, retry_after=30.0, stop=lambda: False)
    reason = "has other versions than the campaign"
    assert capsys.readouterr().out.count(reason) == 1
    said = ending(lost, 2)
    assert said.startswith("2 of 2 fleets were refused: ")
    assert said.count(reason) == 1
    assert "install the same versions there, or start with --accept-versions" in said
    assert "the same command" not in said
    assert ending([Result("failed", "it diverged", ""), *lost], 3) == (
        "1 of 3 fleets failed; the same command retries them from their last checkpoints: it diverged. "
        + said.replace("2 of 2", "2 of 3")
    )


@pytest.mark.slow
def test_more_seeds_extend_a_campaign_by_fleets(undisturbed: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(undisturbed, tmp_path / "runs"))
    with started(out, "--seeds", "4") as driver:
        finished(driver, out)
    assert settings(out)["fleets"] == [list(RUNS[:2]), [RUNS[2]], ["catch-popart-3"]]
    assert is_finished(out / "catch-popart-3")
    assert attempts(out) == dict.fromkeys(RUNS, 1)
    assert_same(out, undisturbed)
