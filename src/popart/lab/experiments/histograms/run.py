"""Normalise targets with several β and s, and measure their distribution, variance and bound."""

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import popart
import popart.correspondence
from popart.lab.budget import check_memory
from popart.lab.experiments.histograms.config import Histograms
from popart.lab.experiments.histograms.theory import expected_variance
from popart.lab.runs import Run

MEAN, STD = 1.0, 2.0
EXAMPLES = ((0.1, 1.0), (0.5, 1.0), (0.1, 1 / 3))
"""Pairs of β and s whose histograms are in the figure."""

BINS = np.arange(-8, 8.01, 0.2)
BETA = 0.01
"""The step size while s varies."""

BOUNDS = tuple(np.geomspace(0.1, 10, 21).tolist())
"""Values of the bound at which the variance is measured."""

BURN_IN = 500
"""Targets at the beginning that are left out: the first target has a weight of (1 - β)^t at time t."""

BYTES_PER_TARGET = 8 * 2 * len(BOUNDS)
"""Each target is normalised with every β, and measured in double precision."""

Row = dict[str, Any]


def run(settings: Histograms) -> Path:
    check_memory("targets", settings.targets, BYTES_PER_TARGET)
    with Run("histograms", "Histograms of normalised targets (appendix, Fig. 3)", settings) as run:
        if not run.finished:
            y = targets(settings)
            run.write_table("variances", variances(y))
            examples = {(beta, s): normalized(y, beta, s)[BURN_IN:] for beta, s in EXAMPLES}
            variance = [{"beta": b, "s": s, "variance": float(z.var())} for (b, s), z in examples.items()]
            run.write_table("examples", variance)
            raw = densities(None, None, y)
            run.write_table(
                "densities", raw + [row for (b, s), z in examples.items() for row in densities(b, s, z)]
            )
            run.finish()
    return run.folder


def targets(settings: Histograms) -> np.ndarray:
    """Draw the targets."""
    rng = np.random.default_rng(settings.seed)
    return rng.normal(MEAN, STD, settings.targets).astype(np.float32)


def normalized(y: np.ndarray, beta: Any, s: float = 1.0) -> np.ndarray:
    """Normalise each target right after the update with it, (targets, *shape of beta)."""
    return np.asarray(_normalized(jnp.asarray(y), jnp.asarray(beta, jnp.float32), s))


@functools.partial(jax.jit, static_argnums=2)
def _normalized(y: jax.Array, beta: jax.Array, s: float) -> jax.Array:
    art = popart.Moments(popart.constant(beta), std=s)  # pyright: ignore[reportArgumentType]

    def step(state: Any, y: jax.Array) -> tuple[Any, jax.Array]:
        y = jnp.broadcast_to(y, beta.shape)
        state = art.update(state, y)
        return state, art.affine(state).normalize(y)

    return jax.lax.scan(step, art.init(beta.shape, like=y), y)[1]


def beta_of(bound: float) -> float:
    """Return the step size with this bound for s = 1, in float32: Proposition 2, solved for β."""
    return float(np.float32(1 / (1 + bound**2)))


def variances(y: np.ndarray) -> list[Row]:
    """Measure the variance for each bound, set by β and set by s."""
    betas = [beta_of(bound) for bound in BOUNDS]
    by_beta = normalized(y, betas)[BURN_IN:]
    unit = normalized(y, BETA)[BURN_IN:]
    rows = [_row("beta", beta, 1.0, by_beta[:, i]) for i, beta in enumerate(betas)]
    return rows + [
        _row("s", BETA, s, unit * s) for s in (bound / popart.correspondence.bound(BETA) for bound in BOUNDS)
    ]


def _row(changed: str, beta: float, s: float, z: np.ndarray) -> Row:
    bound = s * popart.correspondence.bound(beta)
    expected = expected_variance(beta)
    return {
        "changed": changed,
        "beta": beta,
        "s": s,
        "bound": bound,
        "largest": float(np.abs(z).max()),
        "variance": float(z.var(dtype=np.float64)),
        "expected": None if expected is None else s**2 * expected,
    }


def densities(beta: float | None, s: float | None, z: np.ndarray) -> list[Row]:
    """Return the histogram of normalised targets, or of targets as they are for beta = None."""
    density, edges = np.histogram(z, BINS, density=True)
    return [
        {"beta": beta, "s": s, "from": left, "to": right, "density": height}
        for left, right, height in zip(edges[:-1].tolist(), edges[1:].tolist(), density.tolist(), strict=True)
    ]
