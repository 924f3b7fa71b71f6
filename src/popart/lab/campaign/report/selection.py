"""Decide which runs are compared: equally long, with the same settings and the same kind of score."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from popart.lab.campaign.report.reading import SCORES, LeftOut, Trained
from popart.lab.checks import LabError
from popart.lab.train.config import flat

T = TypeVar("T", bound=Hashable)

FREE = (
    *("game", "agent", "seed", "frames", "learning_rate"),
    *("evaluate_every", "log_every", "checkpoint_every", "save_replay", "threads", "device", "out"),
)
"""Settings that may differ between runs that are compared; learning rates only between agents."""


class Compared(NamedTuple):
    """A run and its score."""

    run: Trained
    score: float


class Selection(NamedTuple):
    """Runs that are compared after the same number of frames, and those that are not."""

    frames: int
    kind: str
    protocol: tuple[str, int, float] | None
    compared: list[Compared]
    left_out: list[LeftOut]


def select(runs: Sequence[Trained], frames: int | None, kind: str) -> Selection:
    """Choose the runs to compare, and give for each other run the reason."""
    left_out: list[LeftOut] = []

    def keep(runs: Iterable[Trained], reason: Callable[[Trained], str]) -> list[Trained]:
        """Return the runs without a reason against them."""
        reasons = [(run, reason(run)) for run in runs]
        left_out.extend(LeftOut(run.folder, why) for run, why in reasons if why)
        return [run for run, why in reasons if not why]

    here = keep(runs, lambda run: "" if run.metrics else "has no metrics yet")
    if not here:
        raise LabError(f"{len(runs)} runs were found, but none has metrics yet; train for longer")
    frames = frames or _usual_frames(here)
    here = keep(here, lambda run: _too_short(run, frames))
    here = keep(here, _differs(here, _settings, lambda run: ""))
    here = keep(here, _differs(here, _learning_rate, lambda run: run.member.agent.agent))
    here = keep(here, _repeated(here))
    protocol = most_common(x.protocol for run in here for x in run.evaluated)
    kind = kind if kind != "auto" else _best_kind(here, frames, protocol)
    scores = {run.folder: run.score(kind, frames, protocol) for run in here}
    here = keep(here, lambda run: "" if scores[run.folder] is not None else f"has no score of {SCORES[kind]}")
    if not here:
        raise LabError(
            f"no run can be compared after {frames:,} frames; "
            + "; ".join(f"{folder.name} {reason}" for folder, reason in left_out[:5])
        )
    compared = [Compared(run, score) for run in here if (score := scores[run.folder]) is not None]
    return Selection(frames, kind, protocol if kind == "evaluate" else None, compared, left_out)


def _usual_frames(runs: Sequence[Trained]) -> int:
    """Return the length of most finished runs; if none is finished, the frames that all have reached."""
    lengths = sorted((run.member.frames for run in runs if run.finished), reverse=True)
    return most_common(lengths) or min(run.frames for run in runs)


def most_common(values: Iterable[T]) -> T | None:
    """Return the value that occurs most often, the first of several; None if there is none."""
    return next((value for value, _ in Counter(values).most_common(1)), None)


def _too_short(run: Trained, frames: int) -> str:
    if run.frames >= frames:
        return ""
    state = "finished" if run.finished else f"not finished, {run.member.frames:,} planned"
    return f"was trained for {run.frames:,} frames ({state}), not {frames:,}"


def _settings(run: Trained) -> dict[str, Any]:
    return {name: value for name, value in flat(run.member).items() if name not in FREE}


def _learning_rate(run: Trained) -> dict[str, Any]:
    return {"learning_rate": run.member.agent.learning_rate}


def _differs(
    runs: Sequence[Trained], settings: Callable[[Trained], dict[str, Any]], group: Callable[[Trained], str]
) -> Callable[[Trained], str]:
    """Return a function that says how a run differs from most runs of its group."""
    groups = {group(run): [settings(x) for x in runs if group(x) == group(run)] for run in runs}
    usual = {name: dict(most_common(tuple(x.items()) for x in all_) or ()) for name, all_ in groups.items()}

    def reason(run: Trained) -> str:
        own, others = settings(run), usual[group(run)]
        names = [name for name in own if own[name] != others[name]]
        differences = ", ".join(f"{name} is {own[name]}, not {others[name]}" for name in names)
        return f"has other settings than most: {differences}" if names else ""

    return reason


def _repeated(runs: Sequence[Trained]) -> Callable[[Trained], str]:
    first: dict[str, Trained] = {}
    for run in runs:
        first.setdefault(run.member.name, run)

    def reason(run: Trained) -> str:
        other = first[run.member.name]
        return "" if other is run else f"has the game, agent and seed of {other.folder}"

    return reason


def _best_kind(runs: Sequence[Trained], frames: int, protocol: tuple[str, int, float] | None) -> str:
    """Return the best kind of score that all runs have."""
    for kind in SCORES:
        if all(run.score(kind, frames, protocol) is not None for run in runs):
            return kind
    return "training"
