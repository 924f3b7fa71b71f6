"""Time several programs that take turns, so that a busy moment of the machine affects all of them."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np


class Case(NamedTuple):
    """A program to time: its labels in the table, and a function that returns after n steps are done."""

    labels: tuple[str, ...]
    run: Callable[[int], Any]
    at_once: int = 1
    """Steps that one call of the program takes; n is a multiple of it."""


class Times(NamedTuple):
    """The least time per step in seconds, its ratio to that of the first case, and the ratio's quartiles."""

    seconds: float
    ratio: float
    low: float
    high: float

    @property
    def quartiles(self) -> str:
        return f"{self.low:.3f} to {self.high:.3f}"


def compare(cases: Sequence[Case], seconds: float, turn: float) -> list[Times]:
    """Compare cases for the given seconds, at least ten rounds; a case runs for `turn` seconds per round.

    Quartiles are over rounds, of the ratio within a round.
    """
    rounds = np.array(_measure(cases, seconds, turn))
    best = rounds.min(0)
    low, high = np.percentile(rounds / rounds[:, :1], (25, 75), axis=0)
    return [Times(*map(float, row)) for row in zip(best, best / best[0], low, high, strict=True)]


def _measure(cases: Sequence[Case], seconds: float, turn: float) -> list[list[float]]:
    """Return seconds per step of each case in each round. Every second round has the reverse order."""
    steps = [_steps_in(turn, case) for case in cases]
    rounds: list[list[float]] = []
    end = time.perf_counter() + seconds
    while len(rounds) < 10 or time.perf_counter() < end:
        order = 1 if len(rounds) % 2 else -1
        times = [_time(case, n) / n for case, n in list(zip(cases, steps, strict=True))[::order]]
        rounds.append(times[::order])
    return rounds


def _steps_in(turn: float, case: Case) -> int:
    """Return the number of steps that fit into a turn, after a warm-up."""
    case.run(3 * case.at_once)
    per_call = _time(case, 3 * case.at_once) / 3
    return max(1, round(turn / per_call)) * case.at_once


def _time(case: Case, n: int) -> float:
    start = time.perf_counter()
    case.run(n)
    return time.perf_counter() - start
