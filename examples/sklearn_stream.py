"""A stream of targets whose size changes by orders of magnitude, learned with scikit-learn's interface.

Rows of Friedman's function arrive in chunks of 50. Every 300 chunks the targets are multiplied by another
number, as when a sensor's unit or a currency changes. Each chunk is predicted, then learned with
`partial_fit`, by

- MLPRegressor with the targets as they are,
- MLPRegressor with targets standardised by the first chunk, as TransformedTargetRegressor would if it had
  `partial_fit`,
- PopArtRegressor,

all with the same network and learning rate. The figure shows the error relative to the size of the targets.

    python examples/sklearn_stream.py [FOLDER] [--seeds 5]
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from rich.progress import track
from sklearn.neural_network import MLPRegressor
from sklearn.preprocessing import StandardScaler

from popart.sklearn import PopArtRegressor

FACTORS = (1.0, 1e4, 1e8, 1e6, 1e2)
PHASE, ROWS = 300, 50
SETTINGS: dict[str, Any] = {"hidden_layer_sizes": (50,), "learning_rate_init": 0.01}
COLOURS = {"MLPRegressor": "tab:red", "standardised once": "tab:blue", "PopArtRegressor": "forestgreen"}


class StandardizedOnce:
    """MLPRegressor with targets standardised by the first chunk."""

    def __init__(self, **settings: Any) -> None:
        self.model: Any = MLPRegressor(**settings)
        self.scaler: Any = StandardScaler()

    def partial_fit(self, X: Any, y: Any) -> None:
        if not hasattr(self.model, "coefs_"):
            self.scaler.fit(y[:, None])
        self.model.partial_fit(X, self.scaler.transform(y[:, None])[:, 0])

    def predict(self, X: Any) -> Any:
        return self.scaler.inverse_transform(self.model.predict(X)[:, None])[:, 0]


METHODS: dict[str, Any] = {
    "MLPRegressor": MLPRegressor,
    "standardised once": StandardizedOnce,
    "PopArtRegressor": PopArtRegressor,
}


def chunks(seed: int) -> Iterator[tuple[Any, Any, float]]:
    """Yield features, targets and the number that these were multiplied by."""
    rng = np.random.default_rng(seed)
    for factor in np.repeat(FACTORS, PHASE):
        X = rng.uniform(-1, 1, (ROWS, 5))
        y = 10 * np.sin(np.pi * (X[:, 0] + 1) * (X[:, 1] + 1) / 4) + 5 * X[:, 2] ** 2 + 5 * X[:, 3]
        yield X, factor * (y + 2.5 * X[:, 4] + rng.normal(size=ROWS)), factor


def learn(method: str, seed: int) -> list[float]:
    """Return the error of each chunk but the first, relative to the standard deviation of targets."""
    model, errors = METHODS[method](random_state=seed, **SETTINGS), []
    for t, (X, y, factor) in enumerate(chunks(seed)):
        if t:
            errors.append(np.sqrt(np.mean((model.predict(X) - y) ** 2)) / (4.8 * factor))
        model.partial_fit(X, y)
    return errors


def draw(errors: dict[str, Any], folder: Path) -> Path:
    mpl.use("agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(figsize=(6.3, 3.2))
    time = np.arange(1, len(FACTORS) * PHASE)
    for method, found in errors.items():
        low, median, high = np.percentile(found, (0, 50, 100), axis=0)
        axes.plot(time, median, color=COLOURS[method], lw=1, label=method)
        axes.fill_between(time, low, high, color=COLOURS[method], alpha=0.2, lw=0)
    for t, factor in enumerate(FACTORS):
        where = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "bottom", "fontsize": 8}
        axes.text((t + 0.5) * PHASE, 1.01, f"targets × 10$^{{{np.log10(factor):g}}}$", **where)
        axes.axvline(t * PHASE, color="0.85", lw=0.8, zorder=0)
    axes.set(yscale="log", xlim=(0, len(FACTORS) * PHASE))
    axes.set(xlabel=f"calls of partial_fit, {ROWS} rows each", ylabel="RMSE / standard deviation of targets")
    axes.legend(
        frameon=False, fontsize=8, ncols=3, loc="lower left", bbox_to_anchor=(0, 1.08), borderaxespad=0
    )
    figure.tight_layout()
    folder.mkdir(parents=True, exist_ok=True)
    for suffix in ("svg", "png"):
        figure.savefig(folder / f"sklearn.{suffix}", dpi=200)
    return folder / "sklearn.png"


def main() -> None:
    parser = argparse.ArgumentParser(description="A stream whose targets change size, learned three ways.")
    parser.add_argument("folder", nargs="?", default="runs/sklearn", type=Path, help="for the figure")
    parser.add_argument("--seeds", default=5, type=int, help="number of runs of each method")
    arguments = parser.parse_args()
    seeds = range(arguments.seeds)
    runs = [(method, seed) for method in METHODS for seed in seeds]
    found = {run: learn(*run) for run in track(runs, "learning")}
    errors = {method: np.array([found[method, seed] for seed in seeds]) for method in METHODS}
    print("Median error over the last 50 calls with each size of targets, in standard deviations:")
    print(f"{'':18}" + "".join(f"{factor:>10.0e}" for factor in FACTORS))
    for method, each in errors.items():
        ends = [np.median(each[:, (t + 1) * PHASE - 51 : (t + 1) * PHASE - 1]) for t in range(len(FACTORS))]
        print(f"{method:18}" + "".join(f"{end:10.2g}" for end in ends))
    print(f"\nThe figure is in {draw(errors, arguments.folder)}")


if __name__ == "__main__":
    main()
