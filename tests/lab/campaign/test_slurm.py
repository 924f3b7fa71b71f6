"""The array job for SLURM: its script is really run by bash, with a small sbatch in place of a cluster.

The stand-in does what SLURM does with an array: it runs the script once for each index, which is also how a
task that submits itself again gets its next turn.
"""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from popart.lab.campaign import records
from tests.backends import sharing_what_is_compiled
from tests.lab.campaign.examples import (
    LIMIT,
    OFTEN,
    OPTIONS,
    RUNS,
    assert_same,
    popart,
    saved,
    wait_until,
)

pytestmark = pytest.mark.xdist_group("campaign")

SBATCH = """#!/bin/bash
# sbatch [--array=LIST] [--begin=TIME] SCRIPT
for argument; do case $argument in --array=*) array=${argument#*=} ;; esac; done
script=${argument}
: "${array:=$(sed -n 's/^#SBATCH --array=\\([0-9,]*\\).*/\\1/p' "$script")}"
echo "$array" >> "$SUBMITTED"
for index in ${array//,/ }; do SLURM_ARRAY_TASK_ID=$index bash "$script"; done
exit 0
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A PATH with only the stand-in, bash and its tools."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sbatch").write_text(SBATCH, "utf-8")
    (folder / "sbatch").chmod(0o755)
    for tool in ("bash", "sed", "env"):
        (folder / tool).symlink_to(str(shutil.which(tool)))
    return {**sharing_what_is_compiled(), "PATH": str(folder), "SUBMITTED": str(tmp_path / "submitted")}


def written(out: Path, environment: dict[str, str], *options: str) -> tuple[str, str]:
    """Write the job where there is no sbatch; return the script and what was said."""
    nowhere = {**environment, "PATH": "/nonexistent"}
    command = popart("campaign", "start", *OPTIONS, "--out", str(out), "--slurm", *options)
    done = subprocess.run(command, env=nowhere, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == str(out / "campaign.sbatch")
    return (out / "campaign.sbatch").read_text("utf-8"), done.stdout


def test_the_job_has_an_index_for_each_fleet_and_the_options_of_the_cluster(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    options = [
        "--gpus",
        "2",
        "--memory",
        "80",
        "--sbatch",
        "partition=gpu",
        "time=24:00:00",
        "signal=B:TERM@60",
    ]
    script, said = written(tmp_path / "my runs", environment, *options)
    assert "sbatch is not installed here. Submit with: sbatch" in said
    for line in ("array=1,2%2", "partition=gpu", "time=24:00:00", "signal=B:TERM@60", "gpus-per-task=1",
                 "cpus-per-task=1", "requeue"):  # fmt: skip
        assert f"#SBATCH --{line}\n" in script
    assert script.count("--signal=") == 1
    path = tmp_path / "my runs" / "campaign.sbatch"
    subprocess.run(["bash", "-n", str(path)], check=True)
    if checker := shutil.which("shellcheck"):
        subprocess.run([checker, str(path)], check=True)


@pytest.mark.slow
def test_tasks_submit_themselves_again_until_all_fleets_are_finished(
    undisturbed: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    """The first task is warned of its time limit after a checkpoint; the second one's worker is killed."""
    out = tmp_path / "runs"
    written(out, environment, *OFTEN)
    for index, run, number in ((1, RUNS[0], signal.SIGTERM), (2, RUNS[2], signal.SIGKILL)):
        log = (tmp_path / f"{index}.txt").open("wb")
        task = subprocess.Popen(
            ["bash", str(out / "campaign.sbatch")],
            env=environment | {"SLURM_ARRAY_TASK_ID": str(index)},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        wait_until(lambda run=run: saved(out / run), task)
        record = records.read(out / run)
        assert record is not None
        os.kill(task.pid if number == signal.SIGTERM else record.pid, number)
        assert task.wait(LIMIT) == 0, (tmp_path / f"{index}.txt").read_text("utf-8")
        log.close()
    assert (tmp_path / "submitted").read_text("utf-8").split() == ["1", "2"]
    assert_same(out, undisturbed)
    _, said = written(out, environment)
    assert "All fleets are finished; nothing was submitted." in said


@pytest.mark.slow
def test_a_fleet_that_failed_for_good_is_not_submitted_again(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    out = tmp_path / "runs"
    options = ["--agents", "unclipped", "--seeds", "1", "--frames", "3000", "--reward-scale", "1e30",
               "--evaluate-every", "0"]  # fmt: skip
    command = popart("campaign", "start", *OPTIONS, *options, "--out", str(out), "--slurm")
    subprocess.run(command, env=environment, check=True)  # submits, as there is an sbatch
    assert (tmp_path / "submitted").read_text("utf-8").split() == ["1"]
    record = records.read(out / "catch-unclipped-0")
    assert record is not None
    assert (record.attempt, record.outcome) == (1, "failed")
    assert "it diverged" in record.failures[0].reason
