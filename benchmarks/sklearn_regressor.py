"""PopArtRegressor beside scikit-learn's MLPRegressor: R², time, scales of targets, and its default settings.

Four tables, each a part that can be run alone:

- `scores` (results/sklearn.csv): R² on test rows of scikit-learn's regression data sets with default
  settings, and the time of an epoch. Each seed has its own split and initial weights (and data, where it is
  generated). Peers are MLPRegressor with the targets as they are, and with standardised targets, as
  TransformedTargetRegressor makes them. Differences are between equal seeds, with 95 % intervals. Fits with
  the same number of epochs take turns to be timed.
- `scales` (results/sklearn_scales.csv): R² when all targets are multiplied by 10⁻³⁰ to 10³⁰.
- `rates` (results/sklearn_rates.csv): R² with other learning rates, from which the default was chosen. In the
  worst case of the data sets, it loses least to the learning rate that is best there.
- `streams` (results/sklearn_streams.csv): errors in streams with other `beta` and `max_norm`. Each chunk of
  rows is predicted and then learned with `partial_fit`. Errors are mean absolute errors of 100 rows, relative
  to the size of the targets, and their geometric mean over time. The defaults have the least error over all
  streams, among those settings that lose at most 5 % where the size of the targets is constant.

    python -m benchmarks.sklearn_regressor [PART ...]
"""

import argparse
import functools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import sklearn
from rich.progress import track
from scipy import stats
from sklearn import datasets
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.tables import publish
from benchmarks.timing import Case, compare
from popart.sklearn import PopArtRegressor

DATA: dict[str, Callable[[int], Any]] = {
    "diabetes": lambda seed: datasets.load_diabetes(return_X_y=True),
    "linnerud": lambda seed: datasets.load_linnerud(return_X_y=True),
    "regression": lambda seed: datasets.make_regression(
        500, 20, n_informative=10, noise=10.0, random_state=seed
    ),
    "friedman1": lambda seed: datasets.make_friedman1(1000, noise=1.0, random_state=seed),
    "friedman2": lambda seed: datasets.make_friedman2(1000, noise=50.0, random_state=seed),
    "friedman3": lambda seed: datasets.make_friedman3(1000, noise=0.1, random_state=seed),
    "sparse uncorrelated": lambda seed: datasets.make_sparse_uncorrelated(500, random_state=seed),
}
"""Data sets that come with scikit-learn, by seed of the generated ones."""

STREAM_SEEDS = 2
Make = Callable[..., Any]


def standardized(**settings: Any) -> Any:
    return TransformedTargetRegressor(MLPRegressor(**settings), transformer=StandardScaler())


METHODS: dict[str, Make] = {
    "PopArtRegressor": PopArtRegressor,
    "MLPRegressor": MLPRegressor,
    "MLPRegressor, standardised": standardized,
}


def split(name: str, seed: int, factor: float = 1.0) -> list[Any]:
    """Return features and targets to train on and to test with: X, X, y, y."""
    X, y = DATA[name](seed)
    return train_test_split(X, factor * y, random_state=seed)


@functools.cache
def score(method: str, name: str, seed: int, factor: float = 1.0, rate: float = 1e-3) -> float:
    """Return R² on the test rows."""
    X, X_test, y, y_test = split(name, seed, factor)
    model = METHODS[method](random_state=seed, learning_rate_init=rate)
    return make_pipeline(StandardScaler(), model).fit(X, y).score(X_test, y_test)


def interval(x: Any) -> tuple[float, float]:
    """Return the mean, and half of the width of its 95 % interval."""
    half = stats.t.ppf(0.975, len(x) - 1) * np.std(x, ddof=1) / len(x) ** 0.5
    return float(np.mean(x)), float(half)


def times(name: str, seconds: float) -> list[Any]:
    """Return the time of an epoch of each method, with the same data and the same number of epochs."""
    X, _, y, _ = split(name, 0)
    X, scaled = StandardScaler().fit_transform(X), StandardScaler().fit_transform(y.reshape(len(y), -1))
    targets = scaled if y.ndim == 2 else scaled[:, 0]

    def case(make: Make) -> Case:
        def run(epochs: int) -> None:
            make(max_iter=epochs, tol=0.0, n_iter_no_change=np.inf, random_state=0).fit(X, targets)

        return Case((make.__name__,), run)

    return compare([case(MLPRegressor), case(PopArtRegressor)], seconds, turn=0.2)


def scores(options: argparse.Namespace) -> Iterator[list[str]]:
    yield [
        "data",
        "rows",
        *(f"R² {method}" for method in METHODS),
        "more than MLPRegressor",
        "more than standardised",
        "µs per epoch",
        "µs MLPRegressor",
        "ratio",
        "quartiles",
    ]
    for name in track(list(DATA), "scores"):
        found = np.array([[score(m, name, seed) for m in METHODS] for seed in range(options.seeds)])
        differences = [interval(found[:, 0] - found[:, i]) for i in (1, 2)]
        peer, ours = times(name, options.seconds)
        yield [
            name,
            str(len(DATA[name](0)[1])),
            *(f"{r2:.3f}" for r2 in found.mean(0)),
            *(f"{mean:+.3f} ± {half:.3f}" for mean, half in differences),
            f"{1e6 * ours.seconds:.0f}",
            f"{1e6 * peer.seconds:.0f}",
            f"{ours.ratio:.2f}",
            ours.quartiles,
        ]


def scales(options: argparse.Namespace) -> Iterator[list[str]]:
    yield ["data", "targets times", *(f"R² {method}" for method in METHODS)]
    for name in ("diabetes", "friedman1"):
        for power in track(range(-30, 31, 10), f"scales of {name}"):
            factor = 10.0**power
            found = [np.mean([score(m, name, s, factor) for s in range(3)]) for m in METHODS]
            yield [name, f"1e{power}", *(f"{r2:.4g}" for r2 in found)]


def rates(options: argparse.Namespace) -> Iterator[list[str]]:
    names = [name for name in DATA if name != "linnerud"]  # 15 rows: R² is below 0 for all
    values = (3e-4, 1e-3, 3e-3, 1e-2)
    found = np.array(
        [
            [np.mean([score("PopArtRegressor", n, s, rate=r) for s in range(options.seeds)]) for n in names]
            for r in track(values, "learning rates")
        ]
    )
    yield ["learning_rate_init", *(f"R² {name}" for name in names), "largest loss to the best"]
    for rate, row in zip(values, found, strict=True):
        yield [f"{rate:g}", *(f"{r2:.3f}" for r2 in row), f"{(found.max(0) - row).max():.3f}"]


class Stream(NamedTuple):
    """Rows per call of `partial_fit`, and the factor of targets at a time from 0 to 1, for random numbers."""

    rows: int
    factor: Callable[[float, np.random.Generator, int], Any]


STREAMS = {
    "constant": Stream(32, lambda p, rng, n: 1.0),
    "up by 100, three times": Stream(32, lambda p, rng, n: 100.0 ** int(4 * p)),
    "down by 100, three times": Stream(32, lambda p, rng, n: 100.0 ** -int(4 * p)),
    "1, 10³, 10⁻², 10⁴": Stream(32, lambda p, rng, n: (1.0, 1e3, 1e-2, 1e4)[int(4 * p)]),
    "the same, single rows": Stream(1, lambda p, rng, n: (1.0, 1e3, 1e-2, 1e4)[int(4 * p)]),
    "1 row in 500 × 100": Stream(32, lambda p, rng, n: np.where(rng.random(n) < 0.002, 100.0, 1.0)),
    "9 of 10 single rows are 0": Stream(1, lambda p, rng, n: 1.0 * (rng.random(n) < 0.1)),
}


def chunks(name: str, seed: int, calls: int) -> Iterator[tuple[Any, Any, float]]:
    """Yield features, targets and their usual size."""
    rng, stream = np.random.default_rng(seed), STREAMS[name]
    for t in range(calls):
        X = rng.uniform(-1, 1, (stream.rows, 10))
        y = 2 * np.sin(np.pi * (X[:, 0] + 1) * (X[:, 1] + 1) / 4) + X[:, 2] ** 2 + X[:, 3] + X[:, 4] / 2
        factor = stream.factor(t / calls, rng, stream.rows)
        X = np.column_stack((X, factor == 0.0)) if name.endswith("are 0") else X
        usual = float(np.median(factor)) or 1.0
        yield X, factor * (y + 2 + 0.1 * rng.normal(size=stream.rows)), usual


def stream_error(name: str, seed: int, calls: int, settings: dict[str, Any]) -> float:
    """Return the geometric mean over time of mean absolute errors relative to the size of the targets."""
    model, errors = PopArtRegressor(random_state=seed, **settings), []
    for t, (X, y, size) in enumerate(chunks(name, seed, calls)):
        if t:
            errors.extend(np.abs(model.predict(X) - y) / size)
        model.partial_fit(X, y)
    rows = 100
    groups = np.array(errors[: len(errors) // rows * rows]).reshape(-1, rows)
    return float(np.exp(np.log(groups.mean(1)).mean()))


def streams(options: argparse.Namespace) -> Iterator[list[str]]:
    default = PopArtRegressor()
    grid = [{"beta": b, "max_norm": default.max_norm} for b in (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)]
    grid += [{"beta": default.beta, "max_norm": m} for m in (0.3, 1.0, 3.0, None) if m != default.max_norm]
    yield ["beta", "max_norm", *STREAMS, "geometric mean"]
    for settings in track(grid, "streams"):
        found = [
            np.exp(
                np.mean([np.log(stream_error(n, s, options.calls, settings)) for s in range(STREAM_SEEDS)])
            )
            for n in STREAMS
        ]
        cells = (f"{x:.3g}" for x in [*found, np.exp(np.mean(np.log(found)))])
        yield [*map(str, settings.values()), *cells]


PARTS = {"scores": scores, "scales": scales, "rates": rates, "streams": streams}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--folder", type=Path, default=Path("results"), help="for the tables")
    parser.add_argument("--seeds", type=int, default=10, help="seeds of the scores")
    parser.add_argument("--seconds", type=float, default=8.0, help="time to compare times per data set")
    parser.add_argument("--calls", type=int, default=600, help="calls of partial_fit per stream")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"{', '.join(sorted(unknown))}: the parts are {', '.join(PARTS)}")
    warnings.simplefilter("ignore", ConvergenceWarning)
    for part in options.parts:
        header, *rows = PARTS[part](options)
        name = "sklearn" if part == "scores" else f"sklearn_{part}"
        publish(
            options.folder / f"{name}.csv",
            header,
            rows,
            f"sklearn_regressor {part}",
            "CPU",
            scikit_learn=sklearn.__version__,
            seeds={"scales": 3, "streams": STREAM_SEEDS}.get(part, options.seeds),
        )


if __name__ == "__main__":
    main()
