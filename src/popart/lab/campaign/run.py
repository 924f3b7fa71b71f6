"""`popart campaign start`: give fleets to an engine until all are finished or given up."""

import shlex
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol

import filelock

from popart.lab.campaign import records, status
from popart.lab.campaign.config import Start
from popart.lab.campaign.folder import NAME, Folder, is_finished, members_of
from popart.lab.campaign.planning import cores_each, fleets
from popart.lab.campaign.work import Result
from popart.lab.checks import LabError
from popart.lab.progress import progress
from popart.lab.runs import command_line
from popart.lab.stops import stopping
from popart.lab.tables import print_table

BUSY = 5.0
"""Seconds between two checks of a fleet that another process trains."""

LONGEST = 1800.0
"""Longest wait, in seconds, before a failed fleet is tried again."""


class Engine(Protocol):
    """Trains fleets, one attempt after the other."""

    def room(self) -> bool:
        """Return whether the engine can take another fleet now."""
        ...

    def submit(self, fleet: int, avoid: str | None) -> None:
        """Start an attempt, if possible not on the node of the last one."""
        ...

    def wait(self, seconds: float) -> Iterable[tuple[int, Result]]:
        """Wait for a while, or until an attempt ends; return those that ended."""
        ...

    def close(self) -> None:
        """Interrupt all attempts, and wait until they are saved."""
        ...


def run(command: Start) -> Path:
    """Start or resume a campaign; return its folder."""
    campaign = opened(command)
    if command.engine == "slurm":
        from popart.lab.campaign.engines.slurm import submit

        return submit(campaign, command)
    stop = threading.Event()
    with stopping(stop), closing(_engine(campaign, command)) as engine:
        lost = drive(campaign, engine, command.tries, command.retry_after, stop.is_set)
    rows = status.table(campaign)
    print_table(status.summary(rows), [row.cells() for row in rows] if len(rows) <= 60 else [])
    if lost:
        raise LabError(ending(lost, len(campaign.fleets)))
    return campaign.path


def ending(lost: Sequence[Result], fleets: int) -> str:
    """Return which fleets did not finish, and what to do: a fleet that was refused would be refused again."""
    failed = [each.message for each in lost if each.status != "refused"]
    refused = [each.message for each in lost if each.status == "refused"]
    parts = []
    if failed:
        again = "the same command retries them from their last checkpoints"
        parts.append(f"{len(failed)} of {fleets} fleets failed; {again}: {'; '.join(failed)}")
    if refused:
        parts.append(f"{len(refused)} of {fleets} fleets were refused: {'; '.join(dict.fromkeys(refused))}")
    return ". ".join(parts)


def opened(command: Start) -> Folder:
    """Read or create the campaign, and write what this start changes."""
    with _locked(command.out):  # two that start at the same time use the same plan
        members = members_of(command.train())
        line = shlex.join(["popart", "campaign", *shlex.split(command_line("start", command))[1:]])
        campaign = Folder.new(command.train(), [], line)
        if (command.out / NAME).exists():
            campaign = Folder.read(command.out).restarted(campaign, command.accept_versions)
        known = {name for fleet in campaign.fleets for name in fleet}
        added = [member for member in members if member.name not in known]
        campaign = campaign.extended(fleets(command, added))
        campaign.write()
    return campaign


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(out / ".lock")
        lock.acquire()
    except OSError as error:
        raise LabError(f"{out} cannot be written: {error.strerror}; give another --out") from error
    try:
        yield
    finally:
        lock.release()


def _engine(campaign: Folder, command: Start) -> Engine:
    if command.engine == "ray":
        from popart.lab.campaign.engines.ray import RayEngine

        return RayEngine(campaign, command, cores_each(command))
    from popart.lab.campaign.engines.here import Here

    return Here(campaign, command)


def drive(campaign: Folder, engine: Engine, tries: int, retry_after: float, stop: "Stop") -> list[Result]:
    """Give fleets to an engine until all are finished or given up; return the last attempts at the latter."""
    queue = Queue(campaign, tries, retry_after)
    rows = status.table(campaign)
    total, done = sum(row.wanted for row in rows), sum(row.frames for row in rows)
    with progress(f"campaign {campaign.path}", total, "frames", done) as advance:
        while not queue.empty:
            for fleet in queue.due():
                if engine.room():
                    engine.submit(fleet, queue.taken(fleet))
            for fleet, result in engine.wait(1.0):
                queue.ended(fleet, result)
            if stop():
                raise KeyboardInterrupt
            rows = status.table(campaign)
            now = sum(row.frames for row in rows)
            if now > done or now < total:
                advance(max(0, now - done), status.Runs(rows, status.counted(rows)))
            done = max(done, now)
    return queue.lost


class Stop(Protocol):
    """A function that returns whether the user asked to stop."""

    def __call__(self) -> bool: ...


class Queue:
    """The fleets that are not finished: those that wait until they are due, and those that train."""

    def __init__(self, campaign: Folder, tries: int, retry_after: float) -> None:
        self._campaign, self._tries, self._retry_after = campaign, tries, retry_after
        numbers = range(1, len(campaign.fleets) + 1)
        self._due = {n: 0.0 for n in numbers if not all(map(is_finished, campaign.fleet(n)))}
        self._training = set[int]()
        self._failed: dict[int, tuple[int, int]] = {}
        """Turns of a fleet at its last failure, and failures in a row without more turns."""

        self._avoid: dict[int, str] = {}
        self.lost: list[Result] = []
        """The last attempts at fleets that were given up."""

        self._refused = set[str]()

    @property
    def empty(self) -> bool:
        return not self._due and not self._training

    def due(self) -> list[int]:
        return [fleet for fleet, due in self._due.items() if due <= time.monotonic()]

    def taken(self, fleet: int) -> str | None:
        """Record that a fleet trains; return the node on which it failed last."""
        del self._due[fleet]
        self._training.add(fleet)
        return self._avoid.get(fleet)

    def ended(self, fleet: int, result: Result) -> None:
        """Record how an attempt ended; after a failure that may pass, the fleet is due again later."""
        self._training.remove(fleet)
        if result.status == "finished":
            return
        if result.status == "busy":
            self._due[fleet] = time.monotonic() + BUSY
            return
        self._tell(result)
        self._avoid[fleet] = result.node
        times = self._times(fleet)
        nowhere = result.status == "refused" and not result.node
        if result.status == "failed" or nowhere or times >= self._tries:
            self.lost.append(result)
        else:
            self._due[fleet] = time.monotonic() + min(LONGEST, self._retry_after * 2 ** (times - 1))

    def _tell(self, result: Result) -> None:
        """Print the message of an attempt; of a machine that is refused for every fleet only once."""
        if result.message not in self._refused:
            print(f"popart: {result.message}", flush=True)
        if result.status == "refused":
            self._refused.add(result.message)

    def _times(self, fleet: int) -> int:
        turns = sum(records.turns(member.out) for member in self._campaign.fleet(fleet))
        before, times = self._failed.get(fleet, (turns, 0))
        times = times + 1 if turns == before else 1
        self._failed[fleet] = turns, times
        return times
