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
from popart.lab.campaign.config import Start
from popart.lab.campaign.engines.slurm import script
from popart.lab.campaign.run import opened
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
# sbatch [--array=LIST] [--begin=TIME] SCRIPT [ARGUMENT ...]
while [[ $1 = --* ]]; do case $1 in --array=*) array=${1#*=} ;; esac; shift; done
script=$1
shift
: "${array:=$(sed -n 's/^#SBATCH --array=\\([0-9,]*\\).*/\\1/p' "$script")}"
echo "$array" >> "$SUBMITTED"
mapfile -t submitted < "$SUBMITTED"
[ ${#submitted[@]} -lt 9 ] || exit 1 # a real one would go on for ever
for index in ${array//,/ }; do SLURM_ARRAY_TASK_ID=$index bash "$script" "$@"; done
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
    text, said = written(tmp_path / "my runs", environment, *options)
    assert "sbatch is not installed here. Submit with: sbatch" in said
    for line in ("array=1,2%2", "partition=gpu", "time=24:00:00", "signal=B:TERM@60", "gpus-per-task=1",
                 "cpus-per-task=1", "requeue"):  # fmt: skip
        assert f"#SBATCH --{line}\n" in text
    assert text.count("--signal=") == 1
    path = tmp_path / "my runs" / "campaign.sbatch"
    subprocess.run(["bash", "-n", str(path)], check=True)
    if checker := shutil.which("shellcheck"):
        subprocess.run([checker, str(path)], check=True)


def turns_of(worker: str, tmp_path: Path, environment: dict[str, str]) -> tuple[int, str]:
    """Run the first task of a job with this worker and `--tries 3`; return its turns and what was said."""
    (tmp_path / "python").write_text(worker, "utf-8")
    (tmp_path / "python").chmod(0o755 if worker else 0o644)
    out, submitted = tmp_path / "my runs", tmp_path / "submitted"
    command = Start(games=("catch",), agents=("popart",), out=out, slurm=True)
    campaign = opened(command)
    (out / "campaign.sbatch").write_text(script(campaign, command, [1]), "utf-8")
    done = subprocess.run(
        ["bash", str(out / "campaign.sbatch")],
        env=environment | {"SLURM_ARRAY_TASK_ID": "1", "RUN": str(out / RUNS[0])},
        capture_output=True,
        text=True,
        check=False,
    )
    again = len(submitted.read_text("utf-8").split()) if submitted.exists() else 0
    return 1 + again, done.stdout


@pytest.mark.parametrize(
    ("worker", "status"),
    [
        ("", 126),
        ("#!/nonexistent/python", 127),
        ("#!/bin/bash\necho ImportError >&2; exit 1", 1),
        ("#!/bin/bash\nexit 2", 2),
    ],
    ids=["not executable", "no interpreter", "an error while it is imported", "given up"],
)
def test_a_worker_that_would_end_in_the_same_way_is_not_submitted_again(
    worker: str, status: int, tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    turns, said = turns_of(worker, tmp_path, environment)
    assert turns == 1
    assert said == f"popart: fleet 1 ended with status {status} and is not submitted again\n"


@pytest.mark.parametrize(("end", "status"), [("exit 75", 75), ("kill -SEGV $$", 139)])
def test_a_fleet_that_makes_no_checkpoint_is_submitted_again_until_it_had_its_tries(
    end: str, status: int, tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    turns, said = turns_of(f"#!/bin/bash\n{end}", tmp_path, environment)
    assert turns == 3
    given_up = f"fleet 1 ended with status {status} and is given up after 3 attempts without a new checkpoint"
    assert said.splitlines()[-1] == f"popart: {given_up}"


@pytest.mark.parametrize("then", ['echo > "$last/1$n.npz"; exit 130', "exit 69"], ids=["saved", "in use"])
def test_a_fleet_that_makes_checkpoints_or_is_in_use_is_submitted_again_without_end(
    then: str, tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    (tmp_path / "my runs" / RUNS[0] / "checkpoints" / "last").mkdir(parents=True)
    worker = (
        '#!/bin/bash\nmapfile -t n < "$SUBMITTED"; n=${#n[@]}; last=$RUN/checkpoints/last\n'
        f"[ $n -lt 5 ] || exit 0; {then}"
    )
    assert turns_of(worker, tmp_path, environment)[0] == 6


@pytest.mark.slow
def test_tasks_submit_themselves_again_until_all_fleets_are_finished(
    undisturbed: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    """SLURM signals all processes of the first task after a checkpoint; the second one's worker is killed."""
    out = tmp_path / "runs"
    written(out, environment, *OFTEN)
    for index, run, number in ((1, RUNS[0], signal.SIGTERM), (2, RUNS[2], signal.SIGKILL)):
        log = (tmp_path / f"{index}.txt").open("wb")
        task = subprocess.Popen(
            ["bash", str(out / "campaign.sbatch")],
            env=environment | {"SLURM_ARRAY_TASK_ID": str(index)},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        wait_until(lambda run=run: saved(out / run), task)
        record = records.read(out / run)
        assert record is not None
        if number == signal.SIGTERM:
            os.killpg(task.pid, number)
        else:
            os.kill(record.pid, number)
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
