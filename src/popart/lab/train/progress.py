"""The tracker of progress: a bar with the rate, and the score and scale of the members."""

import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from rich.table import Table

from popart.lab.dqn.learner import Metrics
from popart.lab.progress import Advance, quantity
from popart.lab.train.config import Member
from popart.lab.train.loop import Turn

EVERY = 0.5
"""Seconds between two updates of the bar."""

RECENT = 100


class ProgressTracker:
    """Shows the progress of a fleet. `advance` comes from `popart.lab.progress.progress`, in frames."""

    def __init__(self, members: Sequence[Member], advance: Advance) -> None:
        self._members, self._advance = members, advance
        self._recent: list[list[float]] = [[] for _ in members]
        self._metrics: list[tuple[np.ndarray, jax.Array]] = []
        self._latest: list[Metrics | None] = [None] * len(members)
        self._shown_at, self._frames, self._updates = 0.0, -1, 0

    def step(self, turn: Turn) -> None:
        for member, score in turn.episodes:
            self._recent[member] = [*self._recent[member], score][-RECENT:]
        self._metrics = (self._metrics + turn.metrics)[-8:]
        now = time.monotonic()
        if now - self._shown_at < EVERY and turn.active.any():
            return
        self._look()
        frames, updates = int(turn.counts.frames.sum()), int(turn.counts.updates.sum())
        rate = (updates - self._updates) / max(now - self._shown_at, 1e-9)
        if self._frames >= 0:
            self._advance(frames - self._frames, self._doing(turn, rate))
        else:
            self._advance(0, "compiling the program, which takes a minute on Atari")
        self._shown_at, self._frames, self._updates = now, frames, updates

    def _look(self) -> None:
        """Read metrics that have certainly been computed by now."""
        for learned, metrics in self._metrics[:-3]:
            values = np.asarray(metrics)[:, :, -1]
            for member in np.flatnonzero(learned):
                self._latest[member] = Metrics(*values[member])

    def _doing(self, turn: Turn, rate: float) -> Any:
        if len(self._members) > 1:
            return FleetTable([self._row(member, turn) for member in range(len(self._members))])
        latest = self._latest[0]
        words = [f"score {np.mean(self._recent[0]):.4g}" if self._recent[0] else "no episode yet"]
        if latest:
            words.append(f"μ {latest.shift:.3g}, σ {latest.scale:.3g}, gradient {latest.gradient_norm:.3g}")
            words.append(f"{quantity(rate)} updates/s")
        elif not turn.counts.updates[0]:
            words.append("filling the replay buffer")
        return ", ".join(words)

    def _row(self, member: int, turn: Turn) -> tuple[str, str, str, str]:
        """Return name, score, σ and frames of a member."""
        latest, recent = self._latest[member], self._recent[member]
        frames = "failed" if member in turn.failures else quantity(float(turn.counts.frames[member]))
        score = f"{np.mean(recent):.4g}" if recent else "–"
        return self._members[member].name, score, f"{latest.scale:.3g}" if latest else "–", frames

    def close(self) -> None:
        pass


class FleetTable:
    """A table of members for a terminal, in as many columns as fit; a short sentence elsewhere."""

    def __init__(self, rows: Sequence[tuple[str, str, str, str]]) -> None:
        self.rows = rows

    def __str__(self) -> str:
        scores = [f"{name} {score}" for name, score, _, _ in self.rows]
        shown = ", ".join(scores[:3]) + (f" and {len(scores) - 3} more" if len(scores) > 3 else "")
        return f"scores: {shown}"

    def __rich_console__(self, console: Any, options: Any) -> Any:
        width = max(len(name) for name, *_ in self.rows) + 30
        height = max(1, (options.height or console.height) - 6)
        columns = max(1, options.max_width // width)
        lines = min(height, -(-len(self.rows) // columns))
        table = Table(*(columns * ("member", "score", "σ", "frames")), box=None, pad_edge=False)
        for line in range(lines):
            shown = self.rows[line::lines][:columns]
            table.add_row(*(cell for row in shown for cell in row))
        yield table
        hidden = len(self.rows) - lines * columns
        if hidden > 0:
            yield f"and {hidden} more"
