"""How far outputs drift over many updates of the statistics in float32, when nothing is learned.

python -m benchmarks.drift [CSV]
"""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.progress import track

import popart
from benchmarks.tables import publish

BETAS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
BATCHES = (1, 32)
UPDATES = (1_000, 10_000, 100_000, 1_000_000)
OUTPUTS, FEATURES, INPUTS = 4, 64, 32


def drift(beta: float, updates: tuple[int, ...], batch: int = 1) -> list[float]:
    """Return the largest change of any output, relative to the largest, after each number of updates."""
    rule = popart.Moments(beta=beta)
    rng = np.random.default_rng(0)
    W = jnp.asarray(rng.normal(size=(OUTPUTS, FEATURES)), jnp.float32)
    b = jnp.asarray(rng.normal(size=OUTPUTS), jnp.float32)
    h = rng.normal(size=(FEATURES, INPUTS))

    def step(carry: Any, key: Any) -> tuple[Any, None]:
        state, W, b = carry
        new = rule.update(state, 3 + 5 * jax.random.normal(key, (batch,)))
        return (new, *popart.preserve(W, b, rule.affine(state), rule.affine(new))), None

    def outputs(state: Any, W: Any, b: Any) -> np.ndarray:
        """Compute in float64, so that only the layer's own rounding is measured."""
        scale, shift = (np.asarray(x, float) for x in rule.affine(state)[:2])
        return scale * (np.asarray(W, float) @ h + np.asarray(b, float)[:, None]) + shift

    run = jax.jit(lambda carry, keys: jax.lax.scan(step, carry, keys)[0])
    state = rule.update(rule.init(like=W), jnp.asarray(rng.normal(3, 5, 256), jnp.float32))
    carry, key, done, found = (state, W, b), jax.random.key(0), 0, []
    first = outputs(*carry)
    for n in updates:
        key, part = jax.random.split(key)
        carry, done = run(carry, jax.random.split(part, n - done)), n
        found.append(float(np.abs(outputs(*carry) - first).max() / np.abs(first).max()))
    return found


def main(path: Path) -> None:
    cases = [(batch, beta) for batch in BATCHES for beta in BETAS]
    rows = [
        (str(batch), f"{beta:.0e}", *(f"{x:.2g}" for x in drift(beta, UPDATES, batch)))
        for batch, beta in track(cases, description="Measuring")
    ]
    header = ("targets per update", "beta", *(f"after {n:,} updates" for n in UPDATES))
    publish(path, header, rows, "drift", "CPU", sections=1)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/benchmarks/drift.csv"))
