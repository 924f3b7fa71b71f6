"""What one update of the statistics and of the head costs, beside peers, in one run.

ART and POP for a head of 512 features, as a compiled call, as a part of a longer compiled program, and
eagerly. TorchRL's value norms preserve no outputs, so they are compared with ART alone. Times are
the least of many, taken in turns; only ratios within a run mean anything.

    python -m benchmarks.statistics [CSV]
"""

import csv
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import rlax
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torchrl.modules import PercentileValueNorm, PopArtValueNorm, RunningValueNorm

import popart

FEATURES = 512
ART = popart.Moments(beta=1e-4)
ROW, SCAN = 20, 50


class Case(NamedTuple):
    """Something to time: what it is, and a call that returns when it is done."""

    module: str
    mode: str
    batch: int
    outputs: int
    what: str
    call: Callable[[], Any]
    updates: int = 1

    @property
    def group(self) -> tuple[Any, ...]:
        return self[:4]


def jax_cases(batch: int, outputs: int) -> list[Case]:
    """rlax has one statistic per output, and takes which output each target is of."""
    rng = np.random.default_rng(0)
    y = jnp.asarray(rng.normal(2, 5, batch), jnp.float32)
    index = jnp.asarray(rng.integers(0, outputs, batch))
    W, b = jnp.ones((FEATURES, outputs)), jnp.zeros(outputs)
    init, rlax_update = rlax.popart(outputs, 1e-4, 1e-6, 1e6)

    def theirs(carry: Any, y: Any) -> Any:
        parameters, state = carry
        return rlax_update(parameters, state, y, index)

    def ours(carry: Any, y: Any, index: Any = None) -> Any:
        W, b, state = carry
        new = ART.update(state, y, index=index)
        return *popart.preserve(W, b, ART.affine(state), ART.affine(new), layout="in_out"), new

    variants = [
        ("rlax", theirs, ({"w": W, "b": b}, init())),
        ("popart", ours, (W, b, ART.init((), like=W))),
    ]
    if outputs > 1:
        per_output = (W, b, ART.init((outputs,), like=W))
        variants.append(("popart, per output", lambda carry, y: ours(carry, y, index), per_output))
    cases = []
    for name, update, carry in variants:
        once = jax.jit(update)
        many = jax.jit(
            lambda carry, ys, update=update: jax.lax.scan(lambda c, y: (update(c, y), None), carry, ys)[0]
        )
        ys = jnp.broadcast_to(y, (SCAN, batch))
        cases += [
            Case("jax", "jit", batch, outputs, name, _jax_calls(once, ROW, carry, y), ROW),
            Case("jax", "in a scan", batch, outputs, name, _jax_calls(many, 1, carry, ys), SCAN),
        ]
    return cases


def _jax_calls(f: Callable[..., Any], times: int, *arguments: Any) -> Callable[[], Any]:
    """So many calls in a row, as a training loop makes them, and a wait for the last."""

    def calls() -> Any:
        for _ in range(times - 1):
            f(*arguments)
        return jax.block_until_ready(f(*arguments))

    return calls


def torch_cases(batch: int, outputs: int) -> list[Case]:
    rng = np.random.default_rng(0)
    y = torch.asarray(rng.normal(2, 5, (batch, 1)), dtype=torch.float32)
    index = torch.asarray(rng.integers(0, outputs, batch))
    W, b = torch.ones(outputs, FEATURES), torch.zeros(outputs)
    one, many = ART.init((), like=y), ART.init((outputs,), like=y)

    def art() -> Any:
        return ART.update(one, y)

    def pop_art() -> Any:
        new = ART.update(one, y)
        return popart.preserve(W, b, ART.affine(one), ART.affine(new))

    def pop_art_per_output() -> Any:
        new = ART.update(many, y[:, 0], index=index)
        return popart.preserve(W, b, ART.affine(many), ART.affine(new))

    cases = []
    for mode in ("eager", "compiled"):
        wrap: Any = torch.compile(fullgraph=True) if mode == "compiled" else (lambda f: f)
        norms = [PopArtValueNorm, RunningValueNorm, PercentileValueNorm]
        for norm in norms:
            update = norm(shape=1, device="cpu").update
            if mode == "compiled" and norm is PercentileValueNorm:
                continue  # It reads its statistics back to the host: no full graph.
            call = torch.compile(update) if mode == "compiled" else update
            cases.append(Case("torch", mode, batch, outputs, f"TorchRL {norm.__name__}", lambda c=call: c(y)))
        cases.append(Case("torch", mode, batch, outputs, "popart, ART alone", wrap(art)))
        cases.append(Case("torch", mode, batch, outputs, "popart", wrap(pop_art)))
        if outputs > 1:
            cases.append(Case("torch", mode, batch, outputs, "popart, per output", wrap(pop_art_per_output)))
    return cases


def microseconds(cases: list[Case], rounds: int = 30) -> list[float]:
    """The least time of each, taken in turns so that a busy moment hits all alike."""
    for case in cases:
        for _ in range(3):
            case.call()
    best = [float("inf")] * len(cases)
    repeats = []
    for case in cases:
        start = time.perf_counter()
        case.call()
        repeats.append(max(1, round(2e-3 / (time.perf_counter() - start))))
    for _ in range(rounds):
        for i, case in enumerate(cases):
            start = time.perf_counter()
            for _ in range(repeats[i]):
                case.call()
            spent = (time.perf_counter() - start) / repeats[i] / case.updates
            best[i] = min(best[i], 1e6 * spent)
    return best


def main(path: Path) -> None:
    rows = []
    settings = [(batch, outputs) for batch in (32, 65_536) for outputs in (1, 18)]
    runs = [(make, *setting) for make in (jax_cases, torch_cases) for setting in settings]
    for make, batch, outputs in track(runs, description="Measuring"):
        cases = make(batch, outputs)
        times = microseconds(cases)
        peers = {}
        for case, spent in zip(cases, times, strict=True):
            if case.what in ("rlax", "TorchRL PopArtValueNorm"):
                peers[case.group] = spent
        rows += [
            (*case.group, case.what, round(spent, 2), round(spent / peers[case.group], 2))
            for case, spent in zip(cases, times, strict=True)
        ]
    rows.sort(key=lambda row: row[:4])
    header = ("module", "mode", "batch", "outputs", "what", "µs per update", "ratio to peer")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([header, *rows])
    table = Table(*header, caption=f"jax {jax.__version__}, torch {torch.__version__}; written to {path}")
    for before, row in zip([None, *rows], rows, strict=False):
        if before is not None and before[:4] != row[:4]:
            table.add_section()
        table.add_row(*map(str, row))
    Console(width=100).print(table)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/benchmarks/statistics.csv"))
