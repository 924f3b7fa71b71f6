"""An attempt at a fleet: what every engine runs in a process of its own, on any machine.

The lock of the fleet makes sure that only one process trains it. Everything that an attempt needs is in the
folder of the campaign: a fleet that another process started is resumed from its checkpoints.
"""

import hashlib
import os
import platform
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, NamedTuple

import filelock

from popart.lab.campaign import records
from popart.lab.campaign.folder import Folder, is_finished
from popart.lab.campaign.versions import VersionsError
from popart.lab.checks import LabError
from popart.lab.runs import InUseError
from popart.lab.stops import before_leaving
from popart.lab.train.config import Member

Status = Literal["finished", "again", "busy", "failed", "refused"]
"""again: it failed and may be tried again; busy: another process trains it; failed: it is given up;
refused: this machine has other versions."""


class Result(NamedTuple):
    """The end of an attempt: status, message and node; no node if there is no other one to try."""

    status: Status
    message: str
    node: str


def attempt(path: Path, number: int, tries: int, parent: int | None = None) -> Result:
    """Train a fleet until it is finished, fails or is interrupted, unless another process does."""
    node = socket.gethostname()
    try:
        campaign = Folder.read(path)
        campaign.check_versions(node)
        members = campaign.fleet(number)
        with _lock(path, number):
            return Result(*_train(campaign, number, members, tries, parent), node)
    except (filelock.Timeout, InUseError):
        return Result("busy", f"fleet {number} is in use by another process", node)
    except VersionsError as error:
        return Result("refused", str(error), node)
    except LabError as error:
        return Result("again", f"fleet {number} on {node}: {error}", node)


@contextmanager
def _lock(path: Path, number: int) -> Iterator[None]:
    folder = path / ".locks"
    try:
        folder.mkdir(exist_ok=True)
        with filelock.FileLock(folder / f"fleet-{number}", timeout=0):
            yield
    except OSError as error:
        if isinstance(error, filelock.Timeout):
            raise
        raise LabError(f"{folder} cannot be written: {error.strerror}") from error


def _train(
    campaign: Folder, number: int, members: list[Member], tries: int, parent: int | None
) -> tuple[Status, str]:
    left = [member for member in members if not is_finished(member)]
    gone = {m.name: reason for m in left if (reason := records.given_up(m.out, campaign.started, tries))}
    if len(gone) == len(left):  # with fewer, all continue: the bits of the others depend on their number
        return _ended(number, len(members), gone)
    failures = _trained(campaign, number, members, left, parent)
    for member in left:
        if member.name not in failures:
            records.end(member.out, "finished")
    if not failures:
        return "finished", f"fleet {number} is finished"
    lost = {m.name: why for m in left if (why := records.given_up(m.out, campaign.started, tries))}
    if set(failures) <= set(lost):
        return _ended(number, len(members), lost)
    return "again", f"fleet {number}: " + "; ".join(f"{name}: {why}" for name, why in failures.items())


def _ended(number: int, members: int, lost: dict[str, str]) -> tuple[Status, str]:
    if not lost:
        return "finished", f"fleet {number} is finished"
    reasons = "; ".join(f"{name}: {reason}" for name, reason in lost.items())
    return "failed", f"{len(lost)} of {members} runs of fleet {number} failed: {reasons}"


def _trained(
    campaign: Folder, number: int, members: list[Member], left: list[Member], parent: int | None
) -> dict[str, str]:
    """Train the fleet; record for each run that it began, and a failure that concerns it."""
    folders = {member.name: member.out for member in left}
    failed = set[str]()
    writing, over = threading.Lock(), threading.Event()

    def note(name: str, reason: str) -> None:
        failed.add(name)
        with suppress(LabError):  # of a full disk; the failure itself is reported in another way
            records.end(folders[name], "failed", reason)

    def interrupted() -> None:
        with writing:
            over.set()  # no run begins after this
            for name in folders.keys() - failed:
                with suppress(LabError):
                    records.end(folders[name], "interrupted")

    with before_leaving(interrupted):  # a signal ends the process at once until it has something to save
        try:
            with records.heartbeats(list(folders.values()), parent):
                for folder in folders.values():
                    with writing:
                        if over.is_set():
                            raise KeyboardInterrupt
                        records.begin(folder)
                from popart.lab.machine import use_device
                from popart.lab.train.run import train

                use_cache(campaign.path)
                use_device(members[0].device)
                return train(members, f"fleet {number}", campaign.command, note)
        except (KeyboardInterrupt, InUseError):
            interrupted()
            raise
        except Exception as error:
            reason = str(error) if isinstance(error, LabError) else f"{type(error).__name__}: {error}"
            for name in folders.keys() - failed:
                note(name, reason)
            raise LabError(reason) from error


def use_cache(path: Path) -> None:
    """Share compiled programs among the workers of a campaign that have the same kind of processor."""
    import jax

    if jax.config.jax_compilation_cache_dir is None:  # pyright: ignore[reportAttributeAccessIssue]
        jax.config.update("jax_compilation_cache_dir", str(path / ".compiled" / _processor()))


def _processor() -> str:
    """Identify the instructions of this processor: programs for others may crash."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        flags = platform.processor()
    return f"{platform.machine()}-{hashlib.sha256(flags.encode()).hexdigest()[:12]}"


def pin(cores: set[int]) -> None:
    """Let this thread, and processes that it starts, use some cores only, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
