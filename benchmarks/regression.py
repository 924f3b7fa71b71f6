"""Updates per second of the regression experiment (Section 3), beside two ways to write it plainly.

- PyTorch: one run, a network, an optimizer and a loop, as one would write it.
- rlax: one run with `jax.grad` and rlax's `popart`, a `lax.scan` over samples and a `vmap` over runs, in one
  jitted call or one per core, of as many runs as suit it best.
- popart: what `popart regression` does.

All in one process, one after the other, the best of several rounds. Ratios are to PyTorch's and rlax's rate.
"""

import argparse
import functools
import itertools
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from rich.progress import track

from benchmarks.tables import publish
from popart.lab.experiments.regression.methods import METHODS
from popart.lab.experiments.regression.sweep import Data, Setting, learn
from popart.lab.experiments.regression.task import SIZES, digits, stack
from popart.lab.machine import cores

with warnings.catch_warnings(action="ignore"):
    import rlax

ALPHA, BETA = {"sgd": 10**-3.5, "art": 10**-2.5, "popart": 10**-2.5}, 0.3
SAMPLES = 5000


def torch_loop(method: str, updates: int) -> float:
    """Return the seconds that a number of updates of one run takes."""
    torch.manual_seed(0)
    layers = []
    for inputs, outputs in itertools.pairwise(SIZES):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.Tanh()]
    net = torch.nn.Sequential(*layers[:-1])
    last = layers[-2]
    optimizer = torch.optim.SGD(net.parameters(), ALPHA[method])
    n = stack(0, [0], updates)[0][:, 0]
    x = torch.asarray(np.asarray(digits(n)).T)  # pyright: ignore[reportArgumentType]
    y = torch.asarray(n.astype(np.float32))
    mu, nu, sigma, errors = 0.0, 1.0, 1.0, []
    start = time.perf_counter()
    for i in range(updates):
        target = y[i].item()
        g = net(x[i])
        errors.append(abs(sigma * g.item() + mu - target))
        if method != "sgd":
            mu_new, nu = (1 - BETA) * mu + BETA * target, (1 - BETA) * nu + BETA * target**2
            sigma_new = max(nu - mu_new**2, 1e-8) ** 0.5
            if method == "popart":
                with torch.no_grad():
                    last.weight.mul_(sigma / sigma_new)
                    last.bias.mul_(sigma).add_(mu - mu_new).div_(sigma_new)
                g = net(x[i])
            mu, sigma = mu_new, sigma_new
        loss = 0.5 * (g - (target - mu) / sigma).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return time.perf_counter() - start


def plain_run(method: str, layers: Any, alpha: jax.Array, beta: jax.Array, n: jax.Array) -> jax.Array:
    """The errors of one run, with rlax's functions."""
    init, update = rlax.popart(1, beta, 1e-4, 1e6)  # pyright: ignore[reportArgumentType]
    task = jnp.zeros((), jnp.int32)

    def g(layers: Any, x: jax.Array) -> jax.Array:
        *hidden, (W, b) = layers
        for V, c in hidden:
            x = jnp.tanh(V @ x + c)
        return (W @ x + b)[0]

    def step(carry: Any, n: jax.Array) -> Any:
        layers, state = carry
        x, y = digits(n), n.astype(jnp.float32)
        error = jnp.abs(rlax.unnormalize(state, g(layers, x), task) - y)
        target = y
        if method != "sgd":
            *hidden, (W, b) = layers
            head, state = update({"w": W.T, "b": b}, state, y[None], task[None])
            if method == "popart":
                layers = [*hidden, (head["w"].T, head["b"])]
            target = rlax.normalize(state, y, task)
        gradient = jax.grad(lambda layers: 0.5 * (g(layers, x) - target) ** 2)(layers)
        return (jax.tree.map(lambda w, d: w - alpha * d, layers, gradient), state), error

    return jax.lax.scan(step, (list(layers), init()), n)[1]


def vmapped(method: str, runs: int) -> tuple[Any, tuple[Any, ...]]:
    n, layers = stack(0, [r % 50 for r in range(runs)], SAMPLES)
    first = jax.tree.map(lambda x: jnp.asarray(np.moveaxis(x, -1, 0)), layers)
    arguments = (first, jnp.full(runs, ALPHA[method]), jnp.full(runs, BETA), jnp.asarray(n.T))
    f = jax.jit(jax.vmap(functools.partial(plain_run, method)))
    return f.lower(*arguments).compile(), arguments


def best_of(rounds: int, f: Callable[[], Any]) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        f()
        times.append(time.perf_counter() - start)
    return min(times)


def on_all_cores(f: Callable[[], Any]) -> Callable[[], Any]:
    def many() -> None:
        with ThreadPoolExecutor(cores()) as pool:
            for done in [pool.submit(f) for _ in range(cores())]:
                done.result()

    return many


def rlax_rate(method: str, rounds: int) -> tuple[float, str]:
    """Return the best rate over numbers of runs, in one call or in one call per core."""
    found = []
    for runs in (64, 550, 2200):
        f, arguments = vmapped(method, runs)

        def call(f: Any = f, arguments: Any = arguments) -> None:
            jax.block_until_ready(f(*arguments))

        call()
        found.append((runs * SAMPLES / best_of(rounds, call), f"{runs} runs in one call"))
        rate = cores() * runs * SAMPLES / best_of(rounds, on_all_cores(call))
        found.append((rate, f"{runs} runs in each of {cores()} calls"))
    return max(found)


def popart_rate(method: str, rounds: int) -> float:
    data = Data(0, 50, SAMPLES)
    beta = BETA if METHODS[method].rule else None
    row = [Setting(method, ALPHA[method], beta) for _ in range(22)]
    learn(row[:1], data)
    seconds = best_of(rounds, on_all_cores(lambda: learn(row, data)))
    return cores() * len(row) * data.repetitions * SAMPLES / seconds


def main(path: Path, rounds: int) -> None:
    torch.set_num_threads(1)  # its best: the work of an update is too small for two
    rows = []
    for method in track(list(ALPHA), description="Measuring"):
        torch_loop(method, 100)
        loop = 2000 / best_of(rounds, functools.partial(torch_loop, method, 2000))
        plain, how = rlax_rate(method, rounds)
        ours = popart_rate(method, rounds)
        label = METHODS[method].label
        for name, rate, note in (
            ("PyTorch loop", loop, "1 run"),
            ("vmap with rlax", plain, how),
            ("popart", ours, f"144 runs in each of {cores()} calls"),
        ):
            rows.append((label, name, note, f"{rate:.3g}", f"{rate / loop:.3g}", f"{rate / plain:.3g}"))
    header = ("method", "", "how", "updates/s", "to PyTorch", "to rlax")
    device = jax.devices()[0]
    name = f"{cores()} CPU cores" if device.platform == "cpu" else device.device_kind
    publish(path, header, rows, "regression", name, rounds=rounds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Path("runs/benchmarks/regression.csv")
    parser.add_argument("path", nargs="?", type=Path, default=default, metavar="CSV")
    parser.add_argument("--rounds", type=int, default=3, help="of which the best counts (default 3)")
    arguments = parser.parse_args()
    main(arguments.path, arguments.rounds)
