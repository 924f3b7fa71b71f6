"""Training after targets become much smaller, and remedies for weights that preservation enlarges.

A network of 8 inputs, two hidden layers of 32 units and one output learns a function from minibatches of 32.
Targets have a size of about 1 for 2,000 updates and then fall by a factor of 10, 100 or 10⁴. In a fourth
stream they do not fall, but one minibatch in a thousand is 100 times as large. Each row has

- the share of 10 seeds that diverge: the relative error at the end is not finite, or larger than the factor
  by which targets fell (10 in the fourth stream),
- the median error over 100 updates, relative to the size of the targets: before the fall, and 1,000 and
  10,000 updates after it. An error that is not a number counts as infinite,
- the median norm of the head's weights at the end.

    python -m benchmarks.falling --path results/falling.csv
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.progress import track

import popart
import popart.jax
from benchmarks.tables import publish

INPUTS, HIDDEN, BATCH, SEEDS = 8, 32, 32, 10
BEFORE, AFTER, WINDOW = 2_000, (1_000, 10_000), 100
OUTLIERS = 0.0
"""The stream with outliers, in the list of factors by which targets fall."""

FALLS = (10.0, 100.0, 1e4, OUTLIERS)
BETAS = (1e-2, 1e-3, 1e-4)
OPTIMIZERS: dict[str, tuple[Callable[[Any], optax.GradientTransformation], tuple[float, ...]]] = {
    "SGD": (optax.sgd, (0.01, 0.03, 0.1)),
    "momentum": (partial(optax.sgd, momentum=0.9), (0.01, 0.03, 0.1)),
    "Adam": (optax.adam, (1e-3,)),
}

Tree = Any
Array = Any


class Learner(NamedTuple):
    """Statistics, parameters and optimizer, and the largest scale since targets were last adopted."""

    statistics: Any
    params: Tree
    opt_state: Any
    largest: Array


class Method(NamedTuple):
    """A head with a remedy: a limit on the weights, a limit on the gradients, or one of the rules below."""

    name: str
    pop_art: bool = True
    max_norm: float | None = None
    clip: float | None = None
    rule: str | None = None


PLAIN, PRESERVE, MAX_NORM = (
    Method("linear", pop_art=False),
    Method("Pop-Art"),
    Method("max_norm=3", max_norm=3.0),
)

REMEDIES = (
    Method("max_norm=1", max_norm=1.0),
    Method("max_norm=10", max_norm=10.0),
    Method("adopt after a fall by 10", rule="adopt"),
    Method("do not enlarge after a fall by 10", rule="hold"),
    Method("gradients below divided by the squared norm", rule="below"),
    Method("clip gradients to norm 1", clip=1.0),
)
"""Other remedies; compared for β = 0.01 alone."""


def init(key: Array) -> tuple[Tree, Array]:
    """Return the network's initial parameters, and those of the function that it learns."""
    *keys, teacher = jax.random.split(key, 4)
    sizes = ((INPUTS, HIDDEN, 2.0), (HIDDEN, HIDDEN, 2.0), (HIDDEN, 1, 1.0))
    layers = [
        {"w": (gain / i) ** 0.5 * jax.random.normal(key, (i, o)), "b": jnp.zeros(o)}
        for key, (i, o, gain) in zip(keys, sizes, strict=True)
    ]
    return {"body": layers[:-1], "head": layers[-1]}, jax.random.normal(teacher, (INPUTS, 1))


def features(body: Tree, x: Array) -> Array:
    for layer in body:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x


def size_at(t: Array, fall: Array) -> Array:
    fallen = jnp.where(t < BEFORE, 1.0, 1 / jnp.where(fall == OUTLIERS, 1.0, fall))
    return jnp.where((fall == OUTLIERS) & (t % 1000 == 500), 100.0, fallen)


def remedied(method: Method, old: Array, new: Array, head: Tree, largest: Array) -> tuple[Tree, Array]:
    """Return the head after a rule that compares the scale with the largest one before, and the latter."""
    largest = jnp.maximum(largest, new)
    fell = new * 10 < largest
    if method.rule == "adopt":
        k, largest = jnp.where(fell, new / largest, 1.0), jnp.where(fell, new, largest)
    elif method.rule == "hold":
        k = jnp.where(fell, jnp.minimum(1.0, new / old), 1.0)
    else:
        return head, largest
    return jax.tree.map(lambda x: k * x, head), largest


def norm(head: Tree) -> Array:
    return jnp.sqrt((head["w"] ** 2).sum())


def learn(
    method: Method,
    optimizer: str,
    beta: float,
    alpha: Array,
    fall: Array,
    seed: Array,
    updates: int = AFTER[-1],
) -> tuple[Array, Array]:
    """Return the relative error in each window of updates, and the norm of the head's weights at the end.

    There are `updates` updates after the fall.
    """
    art = popart.Moments(beta=beta) if method.pop_art else popart.Fixed()
    params, teacher = init(jax.random.key(seed))
    inner = OPTIMIZERS[optimizer][0](alpha)
    if method.clip is not None:
        inner = optax.chain(optax.clip_by_global_norm(method.clip), inner)
    optimize = popart.jax.rescale_optimizer(inner, head=lambda params: params["head"])

    def loss(params: Tree, x: Array, y: Array) -> Array:
        h = features(params["body"], x)
        if method.rule == "below":
            share = 1 / jnp.maximum(1.0, norm(params["head"]) ** 2)
            h = jax.lax.stop_gradient(h) + jax.lax.stop_gradient(share) * (h - jax.lax.stop_gradient(h))
        return 0.5 * jnp.mean((popart.jax.normalized(params["head"], h) - y) ** 2)

    def update(learner: Learner, t: Array) -> tuple[Learner, Array]:
        state, params, opt_state, largest = learner
        size = size_at(t, fall)
        x = jax.random.normal(jax.random.fold_in(jax.random.key(SEEDS + seed), t), (BATCH, INPUTS))
        targets = size * (1 + jnp.tanh(x @ teacher))
        outputs = popart.jax.values(art, state, params["head"], features(params["body"], x))
        error = jnp.mean(((outputs - targets) / size) ** 2)
        old = art.affine(state).scale
        state, head, y, change = popart.jax.step(
            art, state, params["head"], targets, max_norm=method.max_norm
        )
        head, largest = remedied(method, old, art.affine(state).scale, head, largest)
        params = params | {"head": head}
        gradients = jax.grad(loss)(params, x, y)
        updates, opt_state = optimize.update(gradients, opt_state, params, change=change)
        return Learner(state, optax.apply_updates(params, updates), opt_state, largest), error

    statistics = popart.jax.init(art, params["head"])
    learner = Learner(statistics, params, optimize.init(params), jnp.zeros(()))
    learner, errors = jax.lax.scan(update, learner, jnp.arange(BEFORE + updates))
    return jnp.sqrt(errors.reshape(-1, WINDOW).mean(-1)), norm(learner.params["head"])


def rows(method: Method, optimizer: str, beta: float, falls: tuple[float, ...]) -> Iterator[list[str]]:
    """Yield a row for each learning rate and stream. All seeds of these are one program."""
    alphas = OPTIMIZERS[optimizer][1]
    run = partial(learn, method, optimizer, beta)
    for axes in ((None, None, 0), (None, 0, None), (0, None, None)):
        run = jax.vmap(run, axes)
    found = jax.jit(run)(jnp.asarray(alphas), jnp.asarray(falls), jnp.arange(SEEDS))
    errors, norms = (np.nan_to_num(np.asarray(x), nan=np.inf) for x in found)
    marks = [(BEFORE + n) // WINDOW - 1 for n in (0, *AFTER)]
    for i, j in np.ndindex(len(alphas), len(falls)):
        diverged = ~(errors[i, j, :, -1] <= (10 if falls[j] == OUTLIERS else falls[j]))
        at_marks = (f"{np.median(errors[i, j, :, mark]):.3g}" for mark in marks)
        stream = "outliers" if falls[j] == OUTLIERS else f"fall by {falls[j]:g}"
        yield [
            stream,
            optimizer,
            f"{alphas[i]:g}",
            f"{beta:g}" if method.pop_art else "",
            method.name,
            f"{diverged.mean():.1f}",
            *at_marks,
            f"{np.median(norms[i, j]):.2g}",
        ]


def experiments() -> Iterator[tuple[Method, str, float, tuple[float, ...]]]:
    for optimizer in OPTIMIZERS:
        yield PLAIN, optimizer, BETAS[0], FALLS
        for beta in BETAS:
            yield PRESERVE, optimizer, beta, FALLS
            yield MAX_NORM, optimizer, beta, FALLS
        for method in REMEDIES:
            yield method, optimizer, BETAS[0], FALLS[1:]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--path", type=Path, default=Path("results/falling.csv"))
    options = parser.parse_args()
    found = [row for what in track(list(experiments()), "falling targets") for row in rows(*what)]
    streams = list(dict.fromkeys(row[0] for row in found))
    found.sort(key=lambda row: streams.index(row[0]))
    header = ["stream", "optimizer", "learning rate", "beta", "head", "diverged", "error before"]
    header += [*(f"error after {n}" for n in AFTER), "norm of weights"]
    device = jax.devices()[0]
    publish(
        options.path,
        header,
        found,
        "falling",
        "CPU" if device.platform == "cpu" else device.device_kind,
        sections=3,
        seeds=SEEDS,
        updates_before=BEFORE,
        batch=BATCH,
    )


if __name__ == "__main__":
    main()
