"""The time of one update of the statistics and of the head, beside peers, in one run.

- ART and POP, in NumPy, JAX (a jitted call, or a part of a `lax.scan`) and PyTorch (eager, compiled).
  TorchRL's value norms preserve no outputs: *ART alone* does the same as their update.
- `head.update` and `head(x)` in eager PyTorch, the latter against `nn.Linear`.
- The statistics of 57 tasks against one statistic of the same targets, and the least that tasks can cost.

All take turns. Reported are the least time of each, its ratio to the least time of the first case of its
group (the peer, if it is installed), and the quartiles over rounds of the ratio within a round. Only ratios
within a run mean anything. For eager code there are two counts: *calls* of Python functions of this package,
and *operations* that PyTorch computes, each of which starts a kernel on a GPU.

    python -m benchmarks.statistics [CSV] [--device cuda] [--seconds 5] [--only "numpy, eager, 65536, none"]
"""

import argparse
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from rich.progress import track
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import popart
import popart.jax
import popart.torch
from benchmarks.tables import installed, publish
from benchmarks.timing import Case, compare

ART = popart.Moments(beta=1e-4)
LARGE, TASKS, SCAN = 65_536, 57, 50
HEADS = [(512, 1), (512, 18)]


def repeat(call: Callable[[], Any], wait: Callable[[Any], Any] = lambda result: None) -> Callable[[int], Any]:
    """Return a function that makes n calls, as a training loop does, and waits for the last."""

    def run(n: int) -> None:
        for _ in range(n - 1):
            call()
        wait(call())

    return run


def torch_repeat(call: Callable[[], Any], device: str) -> Callable[[int], Any]:
    return repeat(call, lambda _: torch.cuda.synchronize()) if device == "cuda" else repeat(call)


def compiled(what: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a call; ours must be one graph, TorchRL's is not always."""
    return torch.compile(call, fullgraph=what.startswith("popart"))


def batch_of(size: int, outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Return targets, and the output that each of them is of."""
    rng = np.random.default_rng(0)
    return rng.normal(2, 5, size).astype(np.float32), rng.integers(0, outputs, size)


def pop_art(W: Any, b: Any, state: Any, y: Any, index: Any = None) -> Any:
    new = ART.update(state, y, index=index)
    return *popart.preserve(W, b, ART.affine(state), ART.affine(new)), new


def plain(W: Any, b: Any, mu: Any, nu: Any, y: np.ndarray, beta: float = 1e-4) -> Any:
    """Eq. 4 and Proposition 1 as they are written, in five lines of NumPy."""
    new_mu, new_nu = (1 - beta) * mu + beta * y.mean(), (1 - beta) * nu + beta * np.square(y).mean()
    sigma, new_sigma = np.sqrt(nu - mu**2), np.sqrt(new_nu - new_mu**2)
    return sigma / new_sigma * W, (sigma * b + mu - new_mu) / new_sigma, new_mu, new_nu


def numpy_cases(batch: int, features: int, outputs: int) -> Iterator[list[Case]]:
    y, index = batch_of(batch, outputs)
    W, b = np.ones((outputs, features), np.float32), np.zeros(outputs, np.float32)
    one = ART.update(ART.init((), like=y), y)
    mu, nu = y.mean(), np.square(y).mean()
    calls: dict[str, Any] = {
        "plain NumPy": lambda: plain(W, b, mu, nu, y),
        "popart": lambda: pop_art(W, b, one, y),
    }
    if outputs > 1:
        many = ART.update(ART.init((outputs,), like=y), y, index=index)
        calls["popart, per output"] = lambda: pop_art(W, b, many, y, index)
    labels = "numpy", "eager", f"{batch}", f"{features}→{outputs}"
    yield [Case((*labels, what), repeat(call)) for what, call in calls.items()]


def jax_cases(batch: int, features: int, outputs: int) -> Iterator[list[Case]]:
    """Return an update of rlax, which has one statistic per output and an index of outputs."""
    y, index = map(jnp.asarray, batch_of(batch, outputs))
    W, b = jnp.ones((features, outputs)), jnp.zeros(outputs)

    def ours(carry: Any, y: Any, index: Any = None) -> Any:
        head, state = carry
        step = popart.jax.step(ART, state, head, y, index=index)
        return step.head, step.state

    variants: dict[str, Any] = {}
    if installed("rlax", "rlax"):
        import rlax

        init, theirs = rlax.popart(outputs, 1e-4, 1e-6, 1e6)
        start = {"w": W, "b": b}, init()
        variants["rlax"] = lambda carry, y: theirs(carry[0], carry[1], y, index), start
    head = {"w": W, "b": b}
    variants["popart"] = ours, (head, ART.init((), like=W))
    if outputs > 1:
        per_output = head, ART.init((outputs,), like=W)
        variants["popart, per output"] = lambda carry, y: ours(carry, y, index), per_output
    jitted, scanned = [], []
    for what, (update, carry) in variants.items():
        once = jax.jit(update)
        many = jax.jit(lambda carry, ys, f=update: jax.lax.scan(lambda c, y: (f(c, y), None), carry, ys)[0])
        carry = once(carry, y)
        ys = jnp.broadcast_to(y, (SCAN, batch))
        labels = f"{batch}", f"{features}→{outputs}", what
        run = repeat(lambda f=once, carry=carry: f(carry, y), jax.block_until_ready)
        jitted.append(Case(("jax", "jit", *labels), run))
        run = repeat(lambda f=many, carry=carry, ys=ys: f(carry, ys), jax.block_until_ready)
        scanned.append(Case(("jax", "jit, in a scan", *labels), lambda n, run=run: run(n // SCAN), SCAN))
    yield jitted
    yield scanned


def torch_cases(batch: int, features: int, outputs: int, device: str) -> Iterator[list[Case]]:
    y, index = (torch.asarray(x, device=device) for x in batch_of(batch, outputs))
    W, b = torch.ones(outputs, features, device=device), torch.zeros(outputs, device=device)
    one = ART.update(ART.init((), like=y), y)
    calls: dict[str, Any] = norms(y[:, None], device)
    compilable = [name for name in calls if name.split()[-1] in ("PopArtValueNorm", "RunningValueNorm")]
    calls["popart, ART alone"] = lambda: ART.update(one, y)
    calls["popart"] = lambda: pop_art(W, b, one, y)
    if outputs > 1:
        many = ART.update(ART.init((outputs,), like=y), y, index=index)
        calls["popart, per output"] = lambda: pop_art(W, b, many, y, index)
    compilable += [name for name in calls if name.startswith("popart")]
    head, trained = (popart.torch.PopArt(features, outputs, ART, device=device) for _ in range(2))
    adam = torch.optim.Adam(trained.parameters())
    head.update(y)
    trained.update(y)
    trained.normalized(torch.ones(1, features, device=device)).sum().backward()
    adam.step()
    calls["popart, head.update"] = lambda: head.update(y)
    calls["popart, head.update with Adam"] = lambda: trained.update(y, optimizer=adam)
    for mode in ("eager", "compiled"):
        torch.compiler.reset()  # Otherwise another size of the batch makes a program for all sizes.
        labels = "torch", mode, f"{batch}", f"{features}→{outputs}"
        chosen = calls if mode == "eager" else {what: compiled(what, calls[what]) for what in compilable}
        yield [Case((*labels, what), torch_repeat(call, device)) for what, call in chosen.items()]


def norms(y: torch.Tensor, device: str) -> dict[str, Any]:
    """Return updates of TorchRL's value norms; `head.update` also normalises the targets."""
    if not installed("torchrl", "TorchRL"):
        return {}
    from torchrl.modules import PercentileValueNorm, PopArtValueNorm, RunningValueNorm

    kinds = (PopArtValueNorm, RunningValueNorm, PercentileValueNorm)
    first, second, third = (kind(shape=1, device=torch.device(device)) for kind in kinds)
    return {
        "TorchRL PopArtValueNorm": lambda: first.update(y),
        "TorchRL PopArtValueNorm, and normalize": lambda: (first.update(y), first.normalize(y)),
        "TorchRL RunningValueNorm": lambda: second.update(y),
        "TorchRL PercentileValueNorm": lambda: third.update(y),
    }


def forward_cases(batch: int, features: int, outputs: int, device: str) -> Iterator[list[Case]]:
    """Forward passes only, from features that need a gradient or with gradients disabled."""
    h = torch.randn(batch, features, device=device, requires_grad=True)
    linear = nn.Linear(features, outputs, device=device)
    head = popart.torch.PopArt(features, outputs, ART, device=device)
    head.update(torch.asarray(batch_of(batch, outputs)[0], device=device))
    calls = {
        "nn.Linear": lambda: linear(h),
        "popart, head(x)": lambda: head(h),
        "popart, head.normalized(x)": lambda: head.normalized(h),
    }
    for mode in ("eager, forward", "eager, forward without grad"):
        labels = "torch", mode, f"{batch}", f"{features}→{outputs}"
        wrap: Any = torch.no_grad() if mode.endswith("without grad") else (lambda run: run)
        yield [Case((*labels, what), wrap(torch_repeat(call, device))) for what, call in calls.items()]


def task_cases(device: str) -> Iterator[list[Case]]:
    """One statistic per task against one for all, without a head."""
    batch = batch_of(LARGE, TASKS)
    torch.compiler.reset()
    in_jax = tuple(map(jnp.asarray, batch))
    on_device = [torch.asarray(x, device=device) for x in batch]
    for module, mode, wrap, (y, index), run in (
        ("numpy", "eager", lambda f: f, batch, repeat),
        ("torch", "eager", lambda f: f, on_device, lambda call: torch_repeat(call, device)),
        (
            "torch",
            "compiled",
            torch.compile(fullgraph=True),
            on_device,
            lambda call: torch_repeat(call, device),
        ),
        ("jax", "jit", jax.jit, in_jax, lambda call: repeat(call, jax.block_until_ready)),
    ):
        one = wrap(lambda state, y: ART.update(state, y))
        many = wrap(lambda state, y, index: ART.update(state, y, index=index))
        arguments = ART.update(ART.init((), like=y), y), y
        per_task = ART.update(ART.init((TASKS,), like=y), y, index=index), y, index
        labels = module, mode, f"{LARGE}", "none"
        cases = [
            Case((*labels, "popart, one statistic"), run(lambda f=one, x=arguments: f(*x))),
            Case((*labels, f"popart, {TASKS} tasks"), run(lambda f=many, x=per_task: f(*x))),
        ]
        sums = wrap(functools.partial(sums_by_task, module))
        least = run(lambda f=sums, x=(y, index): f(*x))
        yield [*cases, Case((*labels, f"three sums for {TASKS} tasks, nothing else"), least)]


def sums_by_task(module: str, y: Any, index: Any) -> Any:
    """Return the sums by index that a count, a mean and a variance need: the least cost of tasks."""
    if module == "numpy":
        wide = y.astype(float)
        return [np.bincount(index, wide, TASKS) for _ in range(3)]
    if module == "torch":
        return [y.new_zeros(TASKS).index_add(0, index, y * k) for k in (1, 2, 3)]
    return [jnp.zeros(TASKS).at[index].add(y * k) for k in (1, 2, 3)]


def groups(device: str) -> Iterator[list[Case]]:
    """Make the cases that are compared with each other, the peer first, as they are needed."""
    for batch in (32, LARGE):
        for size in HEADS:
            yield from numpy_cases(batch, *size)
            yield from jax_cases(batch, *size)
            yield from torch_cases(batch, *size, device)
    yield from torch_cases(32, 64, 2, device)
    for size in ((64, 2), (512, 18)):
        yield from forward_cases(32, *size, device)
    yield from task_cases(device)


class Operations(TorchDispatchMode):
    """Count operations that compute on a device; views and allocations start no kernel."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device, self.count = device, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        view = func.is_view or torch.Tag.inplace_view in func.tags or name == "_unsafe_view"
        first = next(iter(result)) if isinstance(result, tuple | list) else result
        elsewhere = isinstance(first, torch.Tensor) and first.device.type != self.device
        self.count += not (view or elsewhere or "empty" in name)
        return result


def operations(case: Case, device: str) -> int:
    with Operations(device) as counted:
        case.run(1)
    return counted.count


def python_calls(case: Case) -> int:
    """Count calls of functions of this package, without comprehensions and steps of generators."""
    folder, count = str(Path(popart.__file__).parent / "_")[:-1], 0

    def note(frame: Any, event: str, _: Any) -> None:
        nonlocal count
        inner = frame.f_code.co_name in ("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>")
        count += event == "call" and frame.f_code.co_filename.startswith(folder) and not inner

    sys.setprofile(note)
    try:
        case.run(1)
    finally:
        sys.setprofile(None)
    return count


def counts(case: Case, device: str) -> tuple[str, str]:
    module, mode, *_, what = case.labels
    if not mode.startswith("eager"):
        return "", ""
    calls = f"{python_calls(case)}" if what.startswith("popart") else ""
    return calls, f"{operations(case, device)}" if module == "torch" else ""


def main(path: Path, device: str, seconds: float, only: Sequence[str] = ()) -> None:
    if device == "cpu":
        jax.config.update("jax_platforms", "cpu")
    rows = []
    for cases in track(groups(device), description="Measuring", total=30):
        if only and not any(", ".join(case.labels).startswith(tuple(only)) for case in cases):
            continue
        for case, times in zip(cases, compare(cases, seconds, turn=0.02), strict=True):
            found = f"{1e6 * times.seconds:.2f}", f"{times.ratio:.3f}", times.quartiles
            rows.append((*case.labels, *found, *counts(case, device)))
    rows.sort(key=lambda row: (*row[:2], int(row[2]), row[3]))
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    times = "µs per update", "ratio to first", "quartiles"
    header = ("module", "mode", "batch", "head", "what", *times, "calls", "operations")
    publish(path, header, rows, "statistics", name, sections=4, jax_device=jax.default_backend())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Path("runs/benchmarks/statistics.csv")
    parser.add_argument("path", nargs="?", type=Path, default=default, metavar="CSV")
    found = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=["cpu", "cuda"], default=found, help="default: cuda if available")
    parser.add_argument("--seconds", type=float, default=5, help="for each group (default 5)")
    parser.add_argument(
        "--only", nargs="+", default=[], help="measure groups whose labels begin so (default: all)"
    )
    arguments = parser.parse_args()
    main(arguments.path, arguments.device, arguments.seconds, arguments.only)
