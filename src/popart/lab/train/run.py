"""`popart train`: fleets one after the other; in each, trackers consume the turns of the loop."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from popart.lab.checks import LabError
from popart.lab.envs.games import title
from popart.lab.machine import use_device
from popart.lab.manifest import MANIFEST, read_manifest
from popart.lab.progress import progress
from popart.lab.runs import Run, command_line, finish_all
from popart.lab.stops import stopping
from popart.lab.tables import print_table
from popart.lab.train import plan
from popart.lab.train.analysis import outcome
from popart.lab.train.checkpoints import CheckpointTracker
from popart.lab.train.config import Member, Train, flat
from popart.lab.train.evaluation import EvaluationTracker
from popart.lab.train.fleet import Fleet
from popart.lab.train.games import suite
from popart.lab.train.loop import Loop
from popart.lab.train.metrics import MetricsTracker
from popart.lab.train.progress import ProgressTracker
from popart.lab.train.storage import DAMAGE, Checkpoints
from popart.lab.train.tracker import FailureTracker, Tracker, ignore

TABLE = "Score: mean of the last 100 episodes. *: published, after 200 million frames"

AGENTS = {"clipped": "Double DQN, clipped", "unclipped": "Double DQN, unclipped", "popart": "Pop-Art"}


def run(command: Train) -> Path:
    """Train all members; return the run folder, or the folder that holds several."""
    use_device(command.device)
    members, room = command.members(), plan.Room.now()
    planned = plan.fleets(members, room)
    if len(members) > 1:
        plan.show(planned, room)
    failures: dict[str, str] = {}
    for i, fleet in enumerate(planned):
        name = fleet[0].name if len(members) == 1 else f"fleet {i + 1} of {len(planned)}"
        failures |= train(fleet, name, command_line("train", command))
    if len(members) > 1:
        rows = [outcome(member.out) for member in members if member.name not in failures]
        known = [name for name in (rows or [{}])[0] if any(row[name] for row in rows)]
        print_table(TABLE, [{name: row[name] for name in known} for row in rows])
    if failures:
        raise LabError(
            f"{len(failures)} of {len(members)} runs failed; the same command retries them from their last "
            "checkpoints: " + "; ".join(f"{name}: {reason}" for name, reason in failures.items())
        )
    return members[0].out if len(members) == 1 else command.out or Path("runs")


def train(
    members: Sequence[Member], name: str, command: str, failed: Callable[[str, str], None] = ignore
) -> dict[str, str]:
    """Train members that share a program; return those that failed, with the reasons.

    `failed` is called with name and reason as soon as a member fails, while the others continue.
    """
    for member in members:
        _check_frames(member)
    with ExitStack() as stack:
        opened = [(member, stack.enter_context(open_run(member, command))) for member in members]
        for member, run in opened:
            if run.finished and member.frames > run.settings["frames"]:
                run.reopen()
        unfinished = [(member, run) for member, run in opened if not run.finished]
        if not unfinished:
            return {}
        members, runs = zip(*unfinished, strict=True)
        if len(opened) == 1:
            plan.announce_one(members[0], plan.Room.now())
        failures = _train(members, runs, name, failed)
        finish_all([run for i, run in enumerate(runs) if i not in failures])
    return {members[i].name: reason for i, reason in failures.items()}


def _check_frames(member: Member) -> None:
    """Refuse to resume a run with fewer frames than it already has."""
    if not os.path.lexists(member.out / MANIFEST) or read_manifest(member.out)["finished"]:
        return
    frames = 0
    for checkpoint in Checkpoints(member.out / "checkpoints" / "last").all():
        with suppress(*DAMAGE):  # reported when the run is resumed
            frames = max(frames, checkpoint.notes()["frames"])
    if member.frames < frames:
        raise LabError(
            f"frames is {member.frames:,}, but {member.out} has {frames:,} already; give --frames "
            f"{frames} or more, or another --out"
        )


def open_run(member: Member, command: str = "") -> Run:
    """Describe the run folder of a member."""
    heading = f"{title(member.game)}: {AGENTS[member.agent.agent]}"
    return Run("train", heading, flat(member), Member.FREE, command)


def _train(
    members: Sequence[Member], runs: Sequence[Run], name: str, failed: Callable[[str, str], None]
) -> dict[int, str]:
    stop = threading.Event()
    with training(members, runs, stop) as (loop, checkpoints, trackers), ExitStack() as saving:
        total, done = sum(m.frames for m in members), int(loop.counts.frames.sum())
        with progress(name, total, "frames", done) as advance, closing(loop.turns()) as turns:
            reporter = FailureTracker(members, failed)
            shown = ProgressTracker(members, advance)
            for i, turn in enumerate(turns):
                if i == 1:  # before the first turn there is nothing to save
                    saving.enter_context(stopping(stop))
                for tracker in (*trackers, reporter, shown):
                    tracker.step(turn)
                if stop.is_set():
                    checkpoints.save(turn)
                    raise KeyboardInterrupt
        checkpoints.wait()
        if stop.is_set():
            raise KeyboardInterrupt
    return loop.failures


@contextmanager
def training(
    members: Sequence[Member], runs: Sequence[Run], stop: threading.Event
) -> Iterator[tuple[Loop, CheckpointTracker, list[Tracker]]]:
    """Start or resume members: their environments, agents and trackers."""
    with closing(suite(members)) as games, ExitStack() as stack:
        fleet = Fleet(members, games.actions, games.spec, games.size)
        loop = Loop(members, fleet, games)
        metrics = stack.enter_context(closing(MetricsTracker(members, runs)))
        evaluation = stack.enter_context(closing(EvaluationTracker(members, runs, fleet, stop)))
        parts = {"metrics": metrics, "evaluation": evaluation}
        every = members[0].checkpoint_every
        checkpoints = stack.enter_context(closing(CheckpointTracker(runs, loop, parts, every)))
        frames = checkpoints.start([run.resumed for run in runs])
        metrics.start(frames)
        evaluation.start(frames)
        yield loop, checkpoints, [metrics, evaluation, checkpoints]
