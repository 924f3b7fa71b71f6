"""How far outputs drift over many updates of the statistics in float32, when nothing is learned.

python benchmarks/drift.py [CSV]
"""

import csv
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import popart

BETAS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
UPDATES = (1_000, 10_000, 100_000, 1_000_000)
OUTPUTS, FEATURES, INPUTS = 4, 64, 32


def drift(beta: float, updates: tuple[int, ...]) -> list[float]:
    """Return the largest change of any output, relative to the largest output, after a number of updates."""
    rule = popart.Moments(beta=beta)
    rng = np.random.default_rng(0)
    W = jnp.asarray(rng.normal(size=(OUTPUTS, FEATURES)), jnp.float32)
    b = jnp.asarray(rng.normal(size=OUTPUTS), jnp.float32)
    h = rng.normal(size=(FEATURES, INPUTS))

    def step(carry: Any, key: Any) -> tuple[Any, None]:
        state, W, b = carry
        new = rule.update(state, 3 + 5 * jax.random.normal(key, ()))
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
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["beta", *(f"after {n} updates" for n in UPDATES)])
        print(f"{'beta':>8}" + "".join(f"{n:>12,}" for n in UPDATES))
        for beta in BETAS:
            found = drift(beta, UPDATES)
            writer.writerow([beta, *(f"{x:.2g}" for x in found)])
            print(f"{beta:8.0e}" + "".join(f"{x:12.1e}" for x in found), flush=True)
    print(f"Written to {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/benchmarks/drift.csv"))
