"""Progress of long work: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console, ConsoleRenderable, RenderableType, RichCast
from rich.progress import BarColumn, Progress, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from popart.lab.stops import waiting_for

EVERY = 10.0
"""Seconds between plain lines."""


class Advance(Protocol):
    """A function that reports an amount of finished work, and the present work."""

    def __call__(self, amount: float, doing: "Doing | None" = None) -> None: ...


Doing = str | RichCast | ConsoleRenderable
"""A line of text, or something with a `str` for plain lines that rich renders on a terminal."""


@contextmanager
def progress(title: str, total: int, unit: str, done: int = 0) -> Iterator[Advance]:
    """Show the progress of `total` units of work, of which some may be done already.

    The rate and the remaining time are those of this process.
    """
    console = Console(stderr=True)
    waiting_for("")
    if console.is_terminal:
        columns = (
            TextColumn("{task.description}", markup=False),  # the name of a folder is not markup
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            _Rate(unit),
            TimeRemainingColumn(),
        )
        with _Bar(*columns, console=console, transient=True) as bar:
            task = bar.add_task(title, total=total, completed=done)

            def advance(amount: float, doing: Doing | None = None) -> None:
                bar.doing = doing or ""
                now = bar.tasks[task].completed + amount
                bar.update(task, completed=min(now, total))  # the last turn may exceed the total

            yield advance
    else:
        yield _Lines(title, total, unit, done)


class _Bar(Progress):
    """A bar, and below it the present work."""

    doing: Doing = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if isinstance(self.doing, str):
            yield Text(f"  {self.doing}" if self.doing else "", no_wrap=True, overflow="ellipsis")
        else:
            yield self.doing


class _Rate(TextColumn):
    def __init__(self, unit: str) -> None:
        super().__init__("")
        self.unit = unit

    def render(self, task: Task) -> Text:
        return Text(f"{quantity(task.speed or 0)} {self.unit}/s")


class _Lines:
    """A line on standard error every few seconds, and one at the end."""

    def __init__(self, title: str, total: float, unit: str, done: float) -> None:
        self.title, self.total, self.unit, self.done = title, total, unit, done
        self.began, self.before, self.spoke = time.monotonic(), done, 0.0

    def __call__(self, amount: float, doing: Doing | None = None) -> None:
        self.done += amount
        now = time.monotonic()
        if now - self.spoke < EVERY and self.done < self.total:
            return
        self.spoke = now
        rate = (self.done - self.before) / max(now - self.began, 1e-9)
        left = f", {max(0.0, self.total - self.done) / rate:.0f} s left" if rate else ""
        print(
            f"{self.title}{f': {doing}' if doing else ''}: {min(1.0, self.done / self.total):.0%}, "
            f"{quantity(rate)} {self.unit}/s{left}",
            file=sys.stderr,
            flush=True,
        )


def quantity(x: float) -> str:
    """Return three digits and a unit: 1.23 k, 12.3 M."""
    for power, prefix in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if x >= power:
            return f"{x / power:.3g}{prefix}"
    return f"{x:.3g}"
