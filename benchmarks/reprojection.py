"""Errors of a categorical head whose bins follow scale and shift.

A head with bins in normalised units has learned a distribution for each of many inputs: HL-Gauss targets
around random values. Then its units change, and the logits are interpolated. Reported is by how much outputs
change, in units of the old scale (root mean square and largest, over inputs):

- once: the scale changes by a factor, or the shift by a number of scales, in one step;
- many: the units wander over 10,000 updates as those of `popart.Moments(1e-3)` do on a stream of normal
  targets, and bins follow at every update (slack 0) or beyond a slack, without any training in between.

Pop-Art's linear head is beside it, through the same changes.

    python -m benchmarks.reprojection [CSV]
"""

import argparse
from pathlib import Path

import numpy as np

import popart
from benchmarks.tables import publish
from popart import Affine
from popart.alternatives import Histogram, HLGauss, Identity, Symlog
from popart.alternatives.supports import following, interpolation

INPUTS, UPDATES = 500, 10_000
BINS: dict[str, Histogram] = {
    "51 bins to 53 scales (symlog)": HLGauss(-4, 4, 51, Symlog()),
    "101 bins to 53 scales (symlog)": HLGauss(-4, 4, 101, Symlog()),
    "101 bins to 5 scales": HLGauss(-5, 5, 101, Identity()),
}
ONCE = {
    "scale × 1.01": Affine(1.01, 0.0),
    "scale × 1.25": Affine(1.25, 0.0),
    "scale × 2": Affine(2.0, 0.0),
    "scale × 10": Affine(10.0, 0.0),
    "scale × 10⁴": Affine(1e4, 0.0),
    "scale / 2": Affine(0.5, 0.0),
    "shift + 0.25 scales": Affine(1.0, 0.25),
    "shift + 1 scale": Affine(1.0, 1.0),
}


def learned(histogram: Histogram) -> tuple[np.ndarray, np.ndarray]:
    """Return the logits of a head that has learned random values, and these values."""
    y = np.random.default_rng(0).normal(size=INPUTS)
    return np.log(histogram.encode(y) + 1e-9), y


def outputs(histogram: Histogram, logits: np.ndarray, units: Affine) -> np.ndarray:
    p = np.exp(logits - logits.max(-1, keepdims=True))
    return units.denormalize(histogram.decode(p / p.sum(-1, keepdims=True)))


def once(histogram: Histogram, new: Affine) -> np.ndarray:
    """Return by how much outputs change."""
    logits, _ = learned(histogram)
    old, new = Affine(np.float64(1), np.float64(0)), Affine(*map(np.float64, new))
    moved = logits @ interpolation(histogram, old, new).T
    return outputs(histogram, moved, new) - outputs(histogram, logits, old)


def many(histogram: Histogram, slack: float) -> tuple[np.ndarray, int]:
    """Return by how much outputs change over a stream of targets, and how often bins moved."""
    rng, art = np.random.default_rng(1), popart.Moments(1e-3)
    state = art.update(art.init(), rng.normal(size=10_000))
    first = units = art.affine(state)
    logits, _ = learned(histogram)
    start, count = outputs(histogram, logits, units), 0
    for _ in range(UPDATES):
        state = art.update(state, rng.normal(size=32))
        new, moved = following(units, art.affine(state), slack)
        if moved:
            logits, count = logits @ interpolation(histogram, units, new).T, count + 1
        units = new
    return (outputs(histogram, logits, units) - start) / first.scale, count


def linear(new: Affine) -> np.ndarray:
    """Return by how much the outputs of a linear head with Pop-Art change, in float64."""
    h = np.random.default_rng(0).normal(size=(INPUTS, 8))
    W, b = np.ones((1, 8)) / 8, np.zeros(1)
    old, new = Affine(np.float64(1), np.float64(0)), Affine(*map(np.float64, new))
    V, c = popart.preserve(W, b, old, new)
    return new.denormalize(h @ V.T + c) - old.denormalize(h @ W.T + b)


def row(head: str, change: str, error: np.ndarray, moves: int = 1) -> tuple[str, ...]:
    return head, change, str(moves), f"{np.sqrt(np.mean(error**2)):.2g}", f"{np.abs(error).max():.2g}"


def main(path: Path) -> None:
    rows = [row("Pop-Art, linear", change, linear(new)) for change, new in ONCE.items()]
    for name, histogram in BINS.items():
        rows += [row(name, change, once(histogram, new)) for change, new in ONCE.items()]
        for slack in (0.0, 0.05, 0.25):
            error, moves = many(histogram, slack)
            rows.append(row(name, f"10,000 updates, slack {slack:g}", error, moves))
    header = ("head", "change of units", "moves", "root mean square", "largest")
    publish(path, header, rows, "reprojection", "CPU", sections=1, inputs=INPUTS, updates=UPDATES)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Path("runs/benchmarks/reprojection.csv")
    parser.add_argument("path", nargs="?", type=Path, default=default, metavar="CSV")
    main(parser.parse_args().path)
