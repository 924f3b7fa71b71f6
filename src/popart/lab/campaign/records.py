"""Records of workers: where a run trains, since when, and its failures with their reasons.

Each run folder has one as `.worker.json`. It is changed only by a process that has the lock of the fleet, and
touched every few seconds as a heartbeat, so that anybody who reads the folder sees the state of the run.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from popart.lab.files import write_atomically
from popart.lab.manifest import now

NAME = ".worker.json"
BEAT = 5.0
"""Seconds between two heartbeats."""

DIVERGED = "diverged"
"""Word in the reason of a failure that another attempt would repeat."""

Outcome = Literal["training", "finished", "failed", "interrupted"]


class Failure(NamedTuple):
    """A failed attempt: when and where, the turns of the last checkpoint by then, and the reason."""

    at: str
    node: str
    turns: int
    reason: str


@dataclass(frozen=True)
class Record:
    """The worker of a run: node, process, attempts and failures."""

    node: str
    pid: int
    attempt: int
    since: str
    outcome: Outcome
    failures: tuple[Failure, ...] = ()

    @property
    def times_failed(self) -> int:
        return len(self.failures)


def read(run: Path) -> Record | None:
    """Read the record of a run; None if no worker has taken it, or the record is damaged."""
    try:
        content = json.loads((run / NAME).read_text(encoding="utf-8"))
        failures = tuple(Failure(**each) for each in content.pop("failures"))
        return Record(**content, failures=failures)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _write(run: Path, record: Record) -> None:
    run.mkdir(parents=True, exist_ok=True)
    content = asdict(record) | {"failures": [each._asdict() for each in record.failures]}
    write_atomically(run / NAME, (json.dumps(content, indent=2) + "\n").encode())


def begin(run: Path) -> None:
    """Record that this process trains a run. An earlier attempt without an end counts as a failure."""
    old, node = read(run), socket.gethostname()
    failures = old.failures if old else ()
    if old and old.outcome == "training":
        reason = "its process was killed, or could not write why it ended"
        failures += (Failure(now(), old.node, turns(run), reason),)
    attempt = old.attempt + 1 if old else 1
    _write(run, Record(node, os.getpid(), attempt, now(), "training", failures))


def end(run: Path, outcome: Outcome, reason: str = "") -> None:
    """Record how the attempt of this process ended, if it began one; a failure has a reason."""
    record = read(run)
    if record is None or (record.node, record.pid) != (socket.gethostname(), os.getpid()):
        return
    failure = (Failure(now(), record.node, turns(run), reason),) if outcome == "failed" else ()
    _write(run, replace(record, outcome=outcome, failures=record.failures + failure))


def turns(run: Path) -> int:
    """Return the turns of the newest checkpoint of a run: its name."""
    names = (path.name.removesuffix(".npz") for path in (run / "checkpoints" / "last").glob("*"))
    return max((int(name) for name in names if name.isdigit()), default=0)


def given_up(run: Path, started: str, tries: int) -> str | None:
    """Return why a run is not tried again: it failed too often without a new checkpoint, or it diverged."""
    record, at = read(run), turns(run)
    failures = [each for each in record.failures if each.at >= started] if record else []
    if failures and DIVERGED in failures[-1].reason:
        return failures[-1].reason
    if sum(each.turns == at for each in failures) >= tries:
        return f"{tries} attempts ended without a new checkpoint; the last on {failures[-1].node}: " + (
            failures[-1].reason
        )
    return None


def silence(run: Path) -> float:
    """Return the seconds since the last heartbeat of a run's worker."""
    try:
        return max(0.0, time.time() - (run / NAME).stat().st_mtime)
    except OSError:
        return float("inf")


@contextmanager
def heartbeats(runs: Sequence[Path], parent: int | None = None) -> Iterator[None]:
    """Touch the records every few seconds. If the parent dies, interrupt this process, so that it saves."""
    import signal

    stop = threading.Event()

    def beat() -> None:
        interrupted = False
        while not stop.wait(1.0 if parent else BEAT):
            for run in runs:
                with suppress(OSError):
                    os.utime(run / NAME)
            if parent and os.getppid() != parent and not interrupted:
                os.kill(os.getpid(), signal.SIGTERM)
                interrupted = True

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
