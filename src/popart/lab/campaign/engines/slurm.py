"""Fleets as the tasks of an array job of SLURM.

Each task trains one fleet. Before its time limit SLURM warns it; it saves, and submits itself again until its
fleet is finished or given up. A worker that cannot run, such as one without its interpreter, is not repeated.
There is no process that has to live as long as the campaign.
"""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from popart.lab.campaign.config import AGAIN, BUSY, Start
from popart.lab.campaign.folder import Folder, is_finished
from popart.lab.campaign.planning import cores_each
from popart.lab.checks import LabError
from popart.lab.files import write_atomically

SCRIPT = "campaign.sbatch"
WARNING = 180
"""Seconds before the time limit at which a task saves."""

TEMPLATE = """#!/bin/bash
{directives}

# Submit with: sbatch --array={array} {script}
# A task trains one fleet. One that has to stop before the fleet is finished submits itself again, with the
# number of attempts in a row that made no new checkpoint.
set -u
checkpoints() (
  cd {folder} || exit
  case $SLURM_ARRAY_TASK_ID in
{checkpoints}
  esac
)
before=$(checkpoints)
{work} --fleet "$SLURM_ARRAY_TASK_ID" &
worker=$!
trap 'kill -TERM "$worker" 2> /dev/null' TERM INT
wait "$worker"
status=$?
while kill -0 "$worker" 2> /dev/null; do # a signal ended the wait; the worker is saving
  wait "$worker"
  status=$?
done
fleet="popart: fleet $SLURM_ARRAY_TASK_ID"
attempts=${{1:-0}}
case $status in
  0) exit ;;
  {busy}) ;; # another process trains the fleet
  {again} | 12[89] | 1[3-9]? | 2??) # it failed and may be tried again, or a signal ended it
    attempts=$((attempts + 1))
    [ "$(checkpoints)" = "$before" ] || attempts=0 ;;
  *) # another attempt would end in the same way
    echo "$fleet ended with status $status and is not submitted again"
    exit "$status" ;;
esac
if [ "$attempts" -ge {tries} ]; then
  echo "$fleet ended with status $status and is given up after $attempts attempts without a new checkpoint"
  exit "$status"
fi
echo "$fleet ended with status $status and is submitted again"
sbatch --array="$SLURM_ARRAY_TASK_ID" --begin="now+{retry_after}" {script} "$attempts"
"""


def submit(campaign: Folder, command: Start) -> Path:
    """Write the array job and submit it, if SLURM is installed; return the path of the script."""
    left = unfinished(campaign)
    path = campaign.path.absolute() / SCRIPT
    (campaign.path / "logs").mkdir(exist_ok=True)
    write_atomically(path, script(campaign, command, left).encode())
    if not left:
        print("All fleets are finished; nothing was submitted.")
    elif shutil.which("sbatch") is None:
        print(f"sbatch is not installed here. Submit with: sbatch {shlex.quote(str(path))}")
    else:
        _submit(path)
    return path


def unfinished(campaign: Folder) -> list[int]:
    """Return the numbers of the fleets that are not finished."""
    numbers = range(1, len(campaign.fleets) + 1)
    return [n for n in numbers if not all(map(is_finished, campaign.fleet(n)))]


def _submit(path: Path) -> None:
    done = subprocess.run(["sbatch", str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"sbatch did not take {path}: {done.stderr.strip() or done.stdout.strip()}")
    print(done.stdout.strip())


def script(campaign: Folder, command: Start, left: list[int]) -> str:
    """Return the array job for some fleets."""
    path = campaign.path.absolute()
    array = ",".join(map(str, left)) or "1"
    options = {
        "job-name": f"popart-{path.name}",
        "array": array + (f"%{command.machines.workers}" if command.machines.workers else ""),
        "output": str(path / "logs" / "slurm-%A_%a.log"),
        "open-mode": "append",
        "requeue": "",
        "signal": f"B:TERM@{WARNING}",
        "cpus-per-task": str(cores_each(command)),
    }
    if command.gpus:
        options["gpus-per-task"] = "1"
    for option in command.sbatch:
        name, _, value = option.removeprefix("--").partition("=")
        options[name] = value
    lines = [f"#SBATCH --{name}={value}" if value else f"#SBATCH --{name}" for name, value in options.items()]
    work = [sys.executable, "-m", "popart", "campaign", "work", str(path), "--tries", str(command.tries)]
    fleets = [f"    {n}) echo {_checkpoints(campaign.fleets[n - 1])} ;;" for n in left]
    return TEMPLATE.format(
        directives="\n".join(lines),
        array=array,
        script=shlex.quote(str(path / SCRIPT)),
        folder=shlex.quote(str(path)),
        checkpoints="\n".join(fleets),
        work=shlex.join(work),
        busy=BUSY,
        again=AGAIN,
        tries=command.tries,
        retry_after=int(command.retry_after),
    )


def _checkpoints(names: Sequence[str]) -> str:
    """Return the pattern of the newest checkpoints of runs."""
    return " ".join(f"{name}/checkpoints/last/*" for name in names)
