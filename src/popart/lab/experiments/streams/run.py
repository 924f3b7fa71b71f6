"""Choose learning rates and step sizes on separate random seeds, then learn all streams with all methods."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from popart.lab.budget import announce, check_memory
from popart.lab.experiments.streams.config import BETA, CONTROL, METHODS, STREAMS, TUNING, Stream
from popart.lab.experiments.streams.data import INPUTS, Data, make
from popart.lab.experiments.streams.learner import Errors, learn
from popart.lab.experiments.streams.measures import curve, error, geometric_mean, settled
from popart.lab.experiments.streams.methods import METHODS as HEADS
from popart.lab.machine import as_done, cores
from popart.lab.progress import progress
from popart.lab.runs import Run

BLOCK = 30
"""Networks per call. It is always the same, so that a method is compiled once."""

BYTES_PER_SAMPLE = 3 * 4 * (INPUTS + 5)
"""Memory of a sample for one network: inputs, targets and errors, with copies."""

UPDATES_PER_SECOND = 6e5
"""Updates per second of one core's time, measured with the default settings."""

Case = tuple[str, str]
"""A stream and a method."""

Row = dict[str, Any]
Tables = dict[str, list[Row]]


class Cell(NamedTuple):
    """A learning rate, and a step size if the method has one."""

    rate: float
    beta: float | None


Member = tuple[Cell, int]
"""A cell and a random seed."""


def run(settings: Stream) -> Path:
    budget = _check_budget(settings)
    with Run("stream", "Running regression on targets whose size changes", settings) as run:
        if not run.finished:
            announce(*budget)
            _learn_all(run, settings)
            run.finish()
    return run.folder


def cells(settings: Stream, method: str) -> list[Cell]:
    """Return the learning rates and step sizes to try."""
    betas = settings.betas if HEADS[method].has_beta else (None,)
    return [Cell(rate, beta) for beta in betas for rate in settings.rates]


def choose(tuned: Sequence[Row], case: Case) -> dict[str, Cell]:
    """Return the best cell on the steady stream with the common step size, and the best on the stream itself.

    The best has the fewest runs that diverged, and of these the smallest error.
    """
    stream, method = case
    tried: dict[Cell, dict[str, tuple[float, float]]] = {}
    for row in tuned:
        if row["method"] == method:
            cell = Cell(float(row["rate"]), float(row["beta"]) if row["beta"] else None)
            tried.setdefault(cell, {})[row["stream"]] = float(row["diverged"]), float(row["error"])
    common = [cell for cell in tried if cell.beta in (None, BETA)]
    return {
        "steady": min(common, key=lambda cell: tried[cell][CONTROL]),
        "own": min(tried, key=lambda cell: tried[cell][stream]),
    }


def _check_budget(settings: Stream) -> tuple[float, float]:
    """Refuse settings that do not fit into memory; return seconds and bytes. A core learns one block."""
    bytes_each = BYTES_PER_SAMPLE * (BLOCK + settings.seeds + len(TUNING)) * cores()
    check_memory("samples", settings.samples, bytes_each)
    runs = sum(len(cells(settings, m)) * len(TUNING) + 2 * settings.seeds for m in settings.methods)
    updates = settings.samples * runs * len(settings.streams)
    return updates / UPDATES_PER_SECOND / cores(), settings.samples * bytes_each


def _learn_all(run: Run, settings: Stream) -> None:
    def tuning_work(case: Case) -> int:
        return settings.samples * len(cells(settings, case[1])) * len(TUNING)

    streams = dict.fromkeys((CONTROL, *settings.streams))
    tune, cases = partial(_tune, settings), list(product(streams, settings.methods))
    tuned = _phase(run, ("tuning",), cases, tune, tuning_work)["tuning"]
    evaluate, cases = partial(_evaluate, settings, tuned), list(product(settings.streams, settings.methods))
    _phase(run, ("curves", "errors"), cases, evaluate, lambda _: 2 * settings.samples * settings.seeds)


def _phase(
    run: Run,
    names: Sequence[str],
    cases: Sequence[Case],
    compute: Callable[[Case], Tables],
    work: Callable[[Case], int],
) -> Tables:
    """Compute the tables of all cases; a case that an interrupted run has in the last table is read."""
    done: dict[Case, Tables] = {case: {name: [] for name in names} for case in cases}
    for name in names:
        for row in run.read_table(name):
            done[row["stream"], row["method"]][name].append(dict(row))
    todo = [case for case in cases if not done[case][names[-1]]]
    before = sum(work(case) for case in cases if case not in todo)
    with progress(names[-1], sum(map(work, cases)), "updates", before) as advance:
        for case, found in as_done(compute, tuple(todo)):
            done[case] = found
            todo.remove(case)
            for name in names:
                run.write_table(name, [row for c in cases if c not in todo for row in done[c][name]])
            advance(work(case), f"{STREAMS[case[0]]}, {METHODS[case[1]]}")
    return {name: [row for case in cases for row in done[case][name]] for name in names}


def _tune(settings: Stream, case: Case) -> Tables:
    """Return the errors of all cells with the seeds for tuning."""
    found = _learned(settings, case, cells(settings, case[1]), TUNING)
    rows = [
        _head(case, cell) | {"error": geometric_mean(error(windows)), "diverged": int(diverged.sum())}
        for cell, (windows, diverged) in found.items()
    ]
    return {"tuning": rows}


def _evaluate(settings: Stream, tuned: Sequence[Row], case: Case) -> Tables:
    """Return the errors of the chosen cells with the other seeds."""
    choices = choose(tuned, case)
    seeds = range(settings.seed, settings.seed + settings.seeds)
    found = _learned(settings, case, list(dict.fromkeys(choices.values())), seeds)
    tables: Tables = {"curves": [], "errors": []}
    for choice, cell in choices.items():
        windows, diverged = found[cell]
        for seed, e, s, d in zip(seeds, error(windows), settled(windows), diverged, strict=True):
            row = _head(case, cell) | {"choice": choice, "seed": seed}
            tables["errors"].append(row | {"error": float(e), "settled": float(s), "diverged": int(d)})
        which = {"stream": case[0], "method": case[1], "choice": choice}
        tables["curves"] += [which | point for point in curve(windows, settings.samples)]
    return tables


def _head(case: Case, cell: Cell) -> Row:
    return {"stream": case[0], "method": case[1], **cell._asdict()}


def _learned(settings: Stream, case: Case, tried: Sequence[Cell], seeds: Sequence[int]) -> dict[Cell, Errors]:
    """Learn a stream with each cell and each random seed, block by block; errors have an axis of seeds."""
    stream, method = case
    data = {seed: make(stream, seed, settings.samples) for seed in seeds}
    members = list(product(tried, seeds))
    parts = [_block(settings.optimizer, method, data, block) for block in _blocks(members)]
    windows, diverged = (np.concatenate(x)[: len(members)] for x in zip(*parts, strict=True))
    by_cell = (x.reshape(len(tried), len(seeds), *x.shape[1:]) for x in (windows, diverged))
    return {cell: Errors(*x) for cell, *x in zip(tried, *by_cell, strict=True)}


def _blocks(members: Sequence[Member]) -> Iterator[list[Member]]:
    """Yield members in blocks of the same size; the last one is filled up with other members."""
    for start in range(0, len(members), BLOCK):
        yield [members[i % len(members)] for i in range(start, start + BLOCK)]


def _block(optimizer: str, method: str, data: Mapping[int, Data], members: Sequence[Member]) -> Errors:
    tried, seeds = zip(*members, strict=True)
    rates, betas = (np.array([x or BETA for x in each], np.float32) for each in zip(*tried, strict=True))
    streams = Data(*(np.stack(x) for x in zip(*(data[seed] for seed in seeds), strict=True)))
    found = learn(method, optimizer, streams, rates, betas, np.array(seeds))
    return Errors(*map(np.asarray, found))
