"""Errors of a plain network for targets of different sizes, with usual learning rates.

The network of `benchmarks.falling` (8 inputs, two hidden layers of 32 units, one output) learns the same
function with targets of every size from 10⁻⁴ to 10⁴, from minibatches of 32. Each row has the median error
over the last 100 of 5,000 updates, relative to the size of the targets, over 10 seeds; an error that is not
a number counts as infinite. The thresholds of `popart.diagnose` come from these rows.

    python -m benchmarks.target_size --path results/target_size.csv
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import popart
import popart.jax
from benchmarks.falling import BATCH, INPUTS, SEEDS, features, init
from benchmarks.tables import publish

UPDATES, WINDOW = 5_000, 100
SIZES = tuple(10.0 ** (k / 2) for k in range(-8, 9))
HEADS: dict[str, popart.Rule[Any]] = {"linear": popart.Fixed(), "Pop-Art": popart.Moments(1e-3)}
OPTIMIZERS = {
    "SGD 0.01": optax.sgd(0.01),
    "SGD 0.1": optax.sgd(0.1),
    "Adam 0.0003": optax.adam(3e-4),
    "Adam 0.001": optax.adam(1e-3),
}

Array = Any


def learn(art: popart.Rule[Any], optimizer: optax.GradientTransformation, size: Array, seed: Array) -> Array:
    """Return the relative error over the last updates."""
    params, teacher = init(jax.random.key(seed))
    optimize = popart.jax.rescale_optimizer(optimizer, head=lambda params: params["head"])

    def loss(params: Any, x: Array, y: Array) -> Array:
        return 0.5 * jnp.mean((popart.jax.normalized(params["head"], features(params["body"], x)) - y) ** 2)

    def update(learner: Any, t: Array) -> tuple[Any, Array]:
        state, params, opt_state = learner
        x = jax.random.normal(jax.random.fold_in(jax.random.key(SEEDS + seed), t), (BATCH, INPUTS))
        y = jnp.tanh(x @ teacher)
        outputs = popart.jax.values(art, state, params["head"], features(params["body"], x))
        error = jnp.mean((outputs / size - y) ** 2)
        state, head, targets, change = popart.jax.step(art, state, params["head"], size * y)
        params = params | {"head": head}
        gradients = jax.grad(loss)(params, x, targets)
        updates, opt_state = optimize.update(gradients, opt_state, params, change=change)
        return (state, optax.apply_updates(params, updates), opt_state), error

    start = (popart.jax.init(art, params["head"]), params, optimize.init(params))
    _, errors = jax.lax.scan(update, start, jnp.arange(UPDATES))
    return jnp.sqrt(errors[-WINDOW:].mean())


def errors_of(head: str, optimizer: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the median error for each size. All sizes and seeds are one program."""
    run = jax.vmap(jax.vmap(partial(learn, HEADS[head], OPTIMIZERS[optimizer]), (None, 0)), (0, None))
    found = np.asarray(jax.jit(run)(jnp.asarray(SIZES), jnp.arange(SEEDS)), float)
    return np.median(np.nan_to_num(found, nan=np.inf), axis=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--path", type=Path, default=Path("results/target_size.csv"))
    path = parser.parse_args().path
    rows = [
        [optimizer, head, f"{size:.3g}", f"{error:.3g}"]
        for optimizer in OPTIMIZERS
        for head in HEADS
        for size, error in zip(SIZES, errors_of(head, optimizer), strict=True)
    ]
    publish(
        path,
        ["optimizer", "head", "size", "relative error"],
        rows,
        "target_size",
        "CPU",
        sections=2,
        seeds=SEEDS,
        updates=UPDATES,
        batch=BATCH,
    )


if __name__ == "__main__":
    main()
