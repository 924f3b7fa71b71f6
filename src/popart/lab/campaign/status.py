"""`popart campaign status`: a table of runs, from the run folders alone."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from popart.lab.campaign import records
from popart.lab.campaign.folder import Folder, is_finished
from popart.lab.checks import LabError, check_positive
from popart.lab.progress import quantity
from popart.lab.tables import print_table
from popart.lab.train.config import Member

SILENT = 60.0
"""Seconds without a heartbeat after which a worker is considered dead."""

ORDER = ("failed", "silent", "training", "stopped", "waiting", "finished")
TAIL = 4096
"""Bytes at the end of metrics.csv that contain its last row."""


@dataclass(frozen=True)
class Status:
    """Show the runs of a campaign: frames, score, rate, node and failures.

    Everything is read from the run folders: it works on any machine that can read them, for
    every engine. On a terminal the table is live until all runs are finished; Ctrl-C ends it.
    """

    folder: tyro.conf.Positional[Path] = Path("runs/campaign")
    """Folder of the campaign."""

    watch: Annotated[bool, tyro.conf.arg(help_behavior_hint="(default: --watch on a terminal)")] = field(
        default_factory=lambda: Console().is_terminal
    )
    """Refresh the table until all runs are finished."""

    every: float = 5.0
    """Seconds between two refreshes of the table."""

    def __post_init__(self) -> None:
        check_positive("every", self.every)

    def run(self) -> Path:
        console = Console()
        if console.is_terminal and self.watch:
            self._live(console)
            return self.folder
        rows = table(Folder.read(self.folder))
        while self.watch and not all(row.over for row in rows):
            print_table(summary(rows), [row.cells() for row in rows])
            time.sleep(self.every)
            rows = table(Folder.read(self.folder))
        print_table(summary(rows), [row.cells() for row in rows])
        return self.folder

    def _live(self, console: Console) -> None:
        shown = self._shown()
        with Live(shown, console=console, auto_refresh=False) as live:
            try:
                while not all(row.over for row in shown.rows):
                    time.sleep(self.every)
                    shown = self._shown()
                    live.update(shown, refresh=True)
            except KeyboardInterrupt:
                pass

    def _shown(self) -> "Runs":
        rows = table(Folder.read(self.folder))
        return Runs(rows, summary(rows))


@dataclass(frozen=True)
class Row:
    """A row of the table: the state of one run, read from its folder."""

    name: str
    state: str
    frames: int
    wanted: int
    score: float | None
    rate: float | None
    node: str
    failures: int
    reason: str

    @property
    def over(self) -> bool:
        return self.state in ("finished", "failed")

    def cells(self) -> dict[str, str]:
        share = min(1.0, self.frames / self.wanted)
        failures = f"{self.failures}: {self.reason}" if self.failures else ""
        return {
            "run": self.name,
            "state": self.state,
            "frames": f"{self.frames:,} ({int(100 * share)}%)",
            "score": "" if self.score is None else f"{self.score:,.1f}",
            "frames/s": quantity(self.rate) if self.rate and self.state == "training" else "",
            "node": self.node,
            "failures": failures,
        }


def table(campaign: Folder) -> list[Row]:
    """Return a row for each run, in the order of the fleets."""
    members = campaign.members()
    return [_row(members[name]) for fleet in campaign.fleets for name in fleet]


def _row(member: Member) -> Row:
    record, last = records.read(member.out), last_row(member.out / "metrics.csv")
    return Row(
        member.name,
        _state(member, record),
        int(last.get("frames") or 0),
        member.frames,
        _number(last.get("score_100")),
        _number(last.get("frames_per_second")),
        record.node if record else "",
        len(record.failures) if record else 0,
        record.failures[-1].reason if record and record.failures else "",
    )


def _state(member: Member, record: records.Record | None) -> str:
    try:
        if is_finished(member):
            return "finished"
    except LabError:  # a manifest that is damaged
        return "failed"
    if record is None:
        return "waiting"
    if record.outcome == "training":
        return "silent" if records.silence(member.out) > SILENT else "training"
    return {"failed": "failed", "interrupted": "stopped", "finished": "waiting"}[record.outcome]


def last_row(path: Path) -> Mapping[str, str]:
    """Return the last complete row of a table that a process may just be writing; empty if there is none."""
    try:
        with path.open("rb") as file:
            header = file.readline()
            size = file.seek(0, 2)
            file.seek(max(len(header), size - TAIL))
            lines = file.read().decode("utf-8", "replace").split("\n")[:-1]
    except OSError:
        return {}
    names = header.decode("utf-8").strip().split(",")
    cells = lines[-1].split(",") if lines else []
    return dict(zip(names, cells, strict=True)) if len(cells) == len(names) else {}


def _number(text: str | None) -> float | None:
    return float(text) if text else None


def summary(rows: Sequence[Row]) -> str:
    """Return how many runs are in each state, their frames, and their rate."""
    frames = sum(row.frames for row in rows)
    share = int(100 * min(1.0, frames / sum(row.wanted for row in rows)))
    rate = sum(row.rate or 0 for row in rows if row.state == "training")
    return f"{counted(rows)}; {quantity(float(frames))} frames ({share}%), {quantity(rate)} frames/s"


def counted(rows: Sequence[Row]) -> str:
    """Return how many runs are in each state."""
    states = Counter(row.state for row in rows)
    return f"{len(rows)} runs: " + ", ".join(f"{states[state]} {state}" for state in ORDER if states[state])


class Runs:
    """A table with the runs that need attention first, on a terminal; elsewhere its heading alone."""

    def __init__(self, rows: Sequence[Row], heading: str) -> None:
        self.rows, self.heading = rows, heading

    def __str__(self) -> str:
        return self.heading

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        space = max(1, (options.height or console.height) - 8)
        rows = sorted(self.rows, key=lambda row: ORDER.index(row.state))
        shown = Table(box=SIMPLE_HEAD)
        for name in rows[0].cells() if rows else ():
            shown.add_column(name, no_wrap=name != "failures", overflow="ellipsis")
        for row in rows[:space]:
            shown.add_row(*map(Text, row.cells().values()))
        yield Text(self.heading)
        yield shown
        if len(rows) > space:
            yield Text(f"and {len(rows) - space} more")
