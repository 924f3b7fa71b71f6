"""Targets whose size jumps over eight orders of magnitude, with and without Pop-Art.

A small network learns the same function five times over, while the targets are multiplied by 10⁻⁴,
10⁻², 1, 10² and 10⁴, as values are that grow with the policy. SGD, Art (normalisation alone) and
Pop-Art each have the best of 21 learning rates. The figure shows the error divided by the size of the
targets, and the scale that was learned.

    python examples/magnitudes.py [--falling] [FOLDER]

With --falling the sizes come in reverse order, which is harder for Pop-Art: preserved outputs are then too
large and have to be unlearned.
"""

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from rich.progress import Progress

import popart

SIZES = (1e-4, 1e-2, 1.0, 1e2, 1e4)
PHASE = 1500
BETA = 0.1
ALPHAS = 10.0 ** np.arange(-10, 0.5, 0.5)
SEEDS = 20
INPUTS, HIDDEN = 4, 20
COLOURS = {"SGD": "tab:red", "Art": "tab:blue", "Pop-Art": "forestgreen"}


class Result(NamedTuple):
    """Errors before each update relative to the targets' size, (alphas, seeds, time), and scales."""

    errors: Any
    scales: Any


def learn(method: str, sizes: tuple[float, ...], progress: Progress) -> Result:
    """Learn with all learning rates and seeds at once: each has its own statistics and its own head."""
    rng = np.random.default_rng(0)
    runs = (len(ALPHAS), SEEDS)
    alpha = np.broadcast_to(ALPHAS[:, None], runs)[..., None]
    teacher = rng.normal(size=(SEEDS, INPUTS))
    A = rng.normal(size=(SEEDS, HIDDEN, INPUTS)) / INPUTS**0.5 + np.zeros((*runs, 1, 1))
    W, b = np.zeros((*runs, 1, HIDDEN)), np.zeros((*runs, 1))

    art = popart.Moments(beta=BETA) if method != "SGD" else popart.Fixed()
    state: Any = art.init((*runs, 1))
    errors, scales = [], []
    task = progress.add_task(method, total=len(sizes) * PHASE)
    for t in range(len(sizes) * PHASE):
        size = sizes[t // PHASE]
        x = rng.normal(size=(SEEDS, INPUTS))
        y = np.broadcast_to(size * (1 + np.tanh((teacher * x).sum(-1)))[:, None], (*runs, 1))

        h = np.tanh((A * x[:, None, :]).sum(-1))
        old = art.affine(state)
        errors.append((old.denormalize((W * h[..., None, :]).sum(-1) + b) - y)[..., 0] / size)
        state = art.update(state, y)
        new = art.affine(state)
        if method == "Pop-Art":
            W, b = popart.preserve(W, b, old, new)
        scales.append(new.scale[..., 0])

        delta = (W * h[..., None, :]).sum(-1) + b - new.normalize(y)
        slope = (W[..., 0, :] * delta) * (1 - h**2)
        A -= (alpha * slope)[..., None] * x[:, None, :]
        W -= (alpha * delta)[..., None] * h[..., None, :]
        b -= alpha * delta
        progress.advance(task)
    return Result(np.stack(errors, -1), np.stack(scales, -1))


def rmse(errors: Any) -> Any:
    """Return the root mean square of each 25 samples; NaN, after divergence, counts as infinite."""
    squares = np.nan_to_num(errors**2, nan=np.inf, posinf=np.inf)
    return np.sqrt(squares.reshape(*errors.shape[:-1], -1, 25).mean(-1))


def best(result: Result) -> int:
    """Return the index of the learning rate with the least area under the median curve, on a log scale."""
    return int(np.log(np.median(rmse(result.errors), axis=1).clip(1e-6, 1e12)).mean(-1).argmin())


def draw(results: dict[str, Result], sizes: tuple[float, ...], folder: Path) -> Path:
    mpl.use("agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(6.3, 4.6), sharex=True, height_ratios=(3, 2))
    time = (np.arange(len(sizes) * PHASE // 25) + 0.5) * 25
    for method, result in results.items():
        i = best(result)
        low, median, high = np.percentile(rmse(result.errors[i]).clip(1e-3, 1e12), (10, 50, 90), axis=0)
        label = f"{method}, α = 10$^{{{np.log10(ALPHAS[i]):g}}}$"
        top.plot(time, median, color=COLOURS[method], lw=1.2, label=label)
        top.fill_between(time, low, high, color=COLOURS[method], alpha=0.2, lw=0)
    spread = np.repeat(sizes, PHASE) * float(np.std(np.tanh(np.random.default_rng(1).normal(0, 2, 10_000))))
    bottom.plot(spread, color="0.85", lw=5, label="spread of the targets")
    scale = np.median(results["Pop-Art"].scales[best(results["Pop-Art"])], axis=0)
    bottom.plot(scale, color=COLOURS["Pop-Art"], lw=1, label="scale σ that was learned")
    for t, size in enumerate(sizes):
        where = {"transform": top.get_xaxis_transform(), "ha": "center", "va": "bottom", "fontsize": 8}
        top.text((t + 0.5) * PHASE, 1.01, f"targets × 10$^{{{np.log10(size):g}}}$", **where)
        for axes in (top, bottom):
            axes.axvline(t * PHASE, color="0.85", lw=0.8, zorder=0)
    top.set(yscale="log", ylabel="RMSE / size of the targets", xlim=(0, len(sizes) * PHASE))
    top.legend(
        frameon=False, fontsize=8, ncols=3, loc="lower left", bbox_to_anchor=(0, 1.07), borderaxespad=0
    )
    bottom.set(yscale="log", ylabel="units of the targets", xlabel="samples")
    bottom.legend(frameon=False, fontsize=8, loc="best")
    figure.align_ylabels()
    figure.tight_layout()
    folder.mkdir(parents=True, exist_ok=True)
    for suffix in ("svg", "png"):
        figure.savefig(folder / f"magnitudes.{suffix}", dpi=200)
    return folder / "magnitudes.png"


def main() -> None:
    parser = argparse.ArgumentParser(description="Targets of eight orders of magnitude, learned three ways.")
    parser.add_argument("folder", nargs="?", default="runs/magnitudes", type=Path, help="for the figure")
    parser.add_argument("--falling", action="store_true", help="from the largest targets to the smallest")
    arguments = parser.parse_args()
    sizes = SIZES[::-1] if arguments.falling else SIZES

    np.seterr(all="ignore")  # SGD with too large a learning rate diverges, and the figure shows it.
    with Progress() as progress:
        results = {method: learn(method, sizes, progress) for method in COLOURS}
    print("Median RMSE over the last 250 samples at each size of targets, divided by that size:")
    print(f"{'':8} {'α':>8} " + "".join(f"{size:>10.0e}" for size in sizes))
    for method, result in results.items():
        i = best(result)
        ends = np.median(rmse(result.errors[i]), axis=0).reshape(len(sizes), -1)[:, -10:].mean(-1)
        print(f"{method:8} {ALPHAS[i]:8.1e} " + "".join(f"{end:10.2g}" for end in ends))
    print(f"\nThe figure is in {draw(results, sizes, arguments.folder)}")


if __name__ == "__main__":
    main()
