"""An ablation: should the optimizer's state of the head be rescaled, kept or reset with the head?

The paper's binary regression (Section 3), where every 1000th target is 65,535 and the others are below
1024, and a harder one with every 100th. The headline number is the area under the paper's curve: the mean
over all samples of the RMSE before learning from them, at the best α and β of a grid.

'keep' is the safe choice. Beside it 'rescale' makes no difference larger than that of seeds with RMSProp, on
the harder task, or while the statistics forget more slowly than the optimizer. On the paper's task momentum
and Adam do best with faster statistics, but then 'rescale' gives a rare gradient back the size that these
took from it, and ends 17% and 22% worse. 'reset' leaves the head no memory at all, as the scale changes with
every target: for Adam 9% better on the paper's task, and 2.4 times as bad on the harder one.

    python -m benchmarks.optimizer_state [CSV]
"""

import csv
import functools
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import optax
from rich.progress import track

import popart
from popart.jax import init, normalized, rescale_optimizer, step, values

STEPS, SEEDS = 5000, 20
ALPHAS = 10.0 ** np.arange(-5, 0.5, 0.5)
BETAS = (1e-4, 1e-3, 1e-2, 1e-1, 10**-0.5)
PERIODS = (1000, 100)
WIDTHS = (16, 10, 10, 10, 1)
OPTIMIZERS: dict[str, Callable[[Any], optax.GradientTransformation]] = {
    "Momentum": functools.partial(optax.sgd, momentum=0.9),
    "Adam": optax.adam,
    "AdamW": optax.adamw,
    "RMSProp": functools.partial(optax.rmsprop, decay=0.95),
    "Centred RMSProp": functools.partial(optax.rmsprop, decay=0.95, centered=True),
}
FORGETS = {"Momentum": 0.1, "Adam": 1e-3, "AdamW": 1e-3, "RMSProp": 0.05, "Centred RMSProp": 0.05}
LOOKS = {"rescale": ("forestgreen", "-"), "keep": ("tab:blue", "--"), "reset": ("tab:red", ":")}
ROWS = ((1000, "α", (100, 200, 500)), (1000, "β", (100, 150, 200)), (100, "α", (200, 500, 1000, 2000)))


class Case(NamedTuple):
    """How often a target is large, and how it was learned."""

    period: int
    optimizer: str
    optimizer_state: Any


class Sweep(NamedTuple):
    """Of each run, (alphas, betas, seeds): mean RMSE over all samples, mean over small targets after the
    first large one, and median over all samples, in the targets' units.
    """

    area: Any
    ordinary: Any
    middle: Any

    @property
    def best(self) -> tuple[int, int]:
        over_seeds = np.median(self.area, -1)
        alpha, beta = np.unravel_index(over_seeds.argmin(), over_seeds.shape)
        return int(alpha), int(beta)

    def at(self, alpha: int, beta: int) -> tuple[Any, ...]:
        """Over seeds: quartiles of the area, and medians of the others."""
        ordinary, middle = np.median(self.ordinary[alpha, beta]), np.median(self.middle[alpha, beta])
        return *quartiles(self.area[alpha, beta]), ordinary, middle


def quartiles(runs: Any) -> tuple[Any, Any, Any]:
    """Over seeds, of which some may have diverged: nothing is interpolated between these and others."""
    low, high = np.percentile(runs, (25, 75), axis=-1, method="nearest")
    return low, np.median(runs, -1), high


def network(key: Any) -> dict[str, Any]:
    sizes = zip(jax.random.split(key, 4), WIDTHS[:-1], WIDTHS[1:], strict=True)
    *body, head = ({"w": jax.random.normal(k, (i, o)) / i**0.5, "b": jnp.zeros(o)} for k, i, o in sizes)
    return {"body": body, "head": head}


def features(body: list[Any], x: Any) -> Any:
    for layer in body:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x


def samples(key: Any, period: Any) -> tuple[Any, Any]:
    """Sixteen bits and the number that they stand for; every so often, the largest there is."""
    y = jax.random.randint(key, (STEPS,), 0, 2**10)
    y = jnp.where((jnp.arange(STEPS) + 1) % period == 0, 2**16 - 1, y)
    bits = y[:, None] >> jnp.arange(16) & 1
    return bits.astype(jnp.float32), y.astype(jnp.float32)


def learn(optimizer: optax.GradientTransformationExtraArgs, beta: Any, key: Any, period: Any) -> Any:
    """The RMSE of each sample, which is an absolute error, before it is learned from."""
    # A float beta would have to be known before compilation, and every beta compiled apart.
    art = popart.Moments(beta=lambda t: jnp.minimum(-beta / jnp.expm1(t * jnp.log1p(-beta)), 1.0))

    def loss(params: Any, x: Any, y: Any) -> Any:
        return jnp.sum((normalized(params["head"], features(params["body"], x)) - y) ** 2) / 2

    def update(carry: Any, sample: Any) -> tuple[Any, Any]:
        params, state, memory = carry
        x, y = sample
        error = values(art, state, params["head"], features(params["body"], x))[0] - y
        state, head, y, change = step(art, state, params["head"], y)
        params = {**params, "head": head}
        updates, memory = optimizer.update(jax.grad(loss)(params, x, y), memory, params, change=change)
        return (optax.apply_updates(params, updates), state, memory), jnp.abs(error)

    for_network, for_samples = jax.random.split(key)
    params = network(for_network)
    carry = params, init(art, params["head"]), optimizer.init(params)
    return jax.lax.scan(update, carry, samples(for_samples, period))[1]


def compiled(optimizer: str, optimizer_state: Any) -> Callable[..., Any]:
    """Errors, (alphas, seeds, time), from alphas, a beta, seeds and a period."""

    def run(alpha: Any, beta: Any, seed: Any, period: Any) -> Any:
        inner = rescale_optimizer(
            OPTIMIZERS[optimizer](alpha), lambda params: params["head"], optimizer_state
        )
        return learn(inner, beta, jax.random.key(seed), period)

    over_seeds = jax.vmap(run, (None, None, 0, None))
    return jax.jit(jax.vmap(over_seeds, (0, None, None, None)))


def sweep(program: Callable[..., Any], period: int) -> Sweep:
    t = np.arange(STEPS) + 1
    small = (t > period) & (t % period > 0)
    found = []
    for beta in BETAS:
        errors = np.asarray(program(jnp.asarray(ALPHAS), beta, jnp.arange(SEEDS), period))
        errors = np.nan_to_num(errors, nan=np.inf)  # what is not a number any more has diverged
        found.append((errors.mean(-1), errors[..., small].mean(-1), np.median(errors, -1)))
    return Sweep(*(np.stack(x, axis=1) for x in zip(*found, strict=True)))


def write(results: dict[Case, Sweep], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        areas = ("area, lower quartile", "area", "area, upper quartile")
        writer.writerow([*Case._fields, "alpha", "beta", *areas, "ordinary", "middle"])
        for case, found in results.items():
            for (i, alpha), (j, beta) in itertools.product(enumerate(ALPHAS), enumerate(BETAS)):
                writer.writerow([*case, *(f"{x:.4g}" for x in (alpha, beta, *found.at(i, j)))])


def report(results: dict[Case, Sweep]) -> None:
    """Medians over seeds of each variant at its best, and of its area with the same alpha at any beta."""
    print("wins: seeds with less area than 'keep' at its best; under β=...: area there with the same α")
    print(f"{'period optimizer':22} state         α       β  area quartiles  wins ordinary middle", end=" ")
    print(*(f"{f'β={beta:.1g}':>8}" for beta in BETAS))
    for case, found in results.items():
        i, j = found.best
        low, area, high, ordinary, middle = found.at(i, j)
        kept = results[case._replace(optimizer_state="keep")]
        wins = (found.area[i, j] < kept.area[kept.best]).sum()
        print("{:6} {:15} {:7} {:7.1e} {:7.1e}".format(*case, ALPHAS[i], BETAS[j]), end=" ")
        print(f"{area:5.0f} {low:4.0f}-{high:4.0f} {wins:2}/{SEEDS} {ordinary:8.0f} {middle:6.0f}", end=" ")
        print(*(f"{x:8.0f}" for x in np.median(found.area[i], -1)))


def plot(axes: Any, sweeps: dict[str, Sweep], letter: str) -> None:
    """The area at each α with the best β for it, or the other way round."""
    sizes = ALPHAS if letter == "α" else BETAS
    for optimizer_state, found in sweeps.items():
        colour, line = LOOKS[optimizer_state]
        area = np.moveaxis(found.area, "αβ".index(letter), 0)
        tuned = np.median(area, -1).argmin(-1)
        low, middle, high = quartiles(area[np.arange(len(sizes)), tuned])
        axes.fill_between(sizes, low, high, color=colour, alpha=0.2, lw=0)
        axes.plot(sizes, middle, line, color=colour, lw=1.3, label=optimizer_state)
    axes.set(xscale="log", yscale="log", xlabel=f"step size {letter}")


def draw(results: dict[Case, Sweep], path: Path) -> None:
    mpl.use("agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False})
    figure, panels = plt.subplots(len(ROWS), len(OPTIMIZERS), figsize=(6.8, 5.2), sharex="row", sharey="row")
    for row, (period, letter, ticks) in zip(panels, ROWS, strict=True):
        for axes, name in zip(row, OPTIMIZERS, strict=True):
            plot(axes, {change: results[Case(period, name, change)] for change in LOOKS}, letter)
            if letter == "β":
                axes.axvline(FORGETS[name], color="0.6", lw=0.8, zorder=0, label="β = 1 − decay")
            axes.set_yticks(ticks, map(str, ticks))
            axes.set_ylim(0.9 * ticks[0], 1.2 * ticks[-1])
            axes.minorticks_off()
            axes.set_title(name if axes in panels[0] else "", fontsize=8)
        row[0].set_ylabel(f"1 in {period} is large")
    figure.supylabel("mean RMSE (units of the targets)", fontsize=8)
    figure.align_ylabels()
    figure.legend(*panels[1, 0].get_legend_handles_labels(), ncols=4, frameon=False, loc="upper center")
    figure.tight_layout(rect=(0, 0, 1, 0.95))
    for suffix in ("svg", "png"):
        figure.savefig(path.with_suffix(f".{suffix}"), dpi=200)


def main(path: Path) -> None:
    found: dict[Case, Sweep] = {}
    for optimizer, optimizer_state in track(list(itertools.product(OPTIMIZERS, LOOKS)), "Learning"):
        program = compiled(optimizer, optimizer_state)
        found |= {Case(period, optimizer, optimizer_state): sweep(program, period) for period in PERIODS}
    results = {case: found[case] for case in sorted(found, key=lambda case: -case.period)}
    write(results, path)
    draw(results, path)
    report(results)
    print(f"Written to {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/benchmarks/optimizer_state.csv"))
