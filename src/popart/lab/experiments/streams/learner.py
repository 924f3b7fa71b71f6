"""Running regression: each target is predicted, then learned, in one compiled program for a whole stream."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import popart.jax
from popart import Affine
from popart.jax.alternatives import Head
from popart.lab.experiments.streams.config import WINDOWS
from popart.lab.experiments.streams.data import INPUTS, Data
from popart.lab.experiments.streams.methods import METHODS

HIDDEN = 32
OPTIMIZERS: dict[str, Any] = {"sgd": optax.sgd, "adam": optax.adam}


class Errors(NamedTuple):
    """Errors of the predictions of streams."""

    windows: Any
    """Root mean square of the error in each window, in units of the size of targets at the time."""

    diverged: Any
    """Whether a prediction was not finite."""


@partial(jax.jit, static_argnums=(0, 1))
def learn(method: str, optimizer: str, data: Data, rate: Any, beta: Any, seed: Any) -> Errors:
    """Learn streams, each with its learning rate, step size and random seed; all have a leading axis."""
    return jax.vmap(partial(_learn, method, optimizer))(data, rate, beta, seed)


def _learn(method: str, optimizer: str, data: Data, rate: Any, beta: Any, seed: Any) -> Errors:
    how = METHODS[method]
    head = how.head(beta)
    units = _standard(data.y[: len(data.y) // WINDOWS]) if how.once else Affine(jnp.ones(()), jnp.zeros(()))
    params = _network(jax.random.key(seed), head.width)
    rule = popart.jax.rescale_optimizer(OPTIMIZERS[optimizer](rate), lambda params: params["head"])
    state = params, head.init(params["head"]), rule.init(params)
    step = partial(_step, head, rule, {"max_norm": how.max_norm} if how.max_norm else {})
    predictions = jax.lax.scan(step, state, (data.x, units.normalize(data.y)))[1]
    error = (units.denormalize(predictions) - data.mean) / data.size
    windows = jnp.sqrt((error.reshape(WINDOWS, -1) ** 2).mean(1))
    return Errors(windows, ~jnp.isfinite(predictions).all())


def _step(
    head: Head, rule: Any, options: dict[str, Any], state: Any, sample: tuple[jax.Array, jax.Array]
) -> tuple[Any, jax.Array]:
    params, statistics, moments = state
    x, y = (z[None] for z in sample)
    prediction = head.values(statistics, params["head"], _features(params["body"], x))[0, 0]
    found = head.step(statistics, params["head"], y, **options)
    params = {**params, "head": found.head}

    def loss(params: Any) -> jax.Array:
        return head.loss(params["head"], _features(params["body"], x), found.targets[:, None]).sum()

    gradient = jax.grad(loss)(params)
    changes, moments = rule.update(gradient, moments, params, change=found.change)
    return (optax.apply_updates(params, changes), found.state, moments), prediction


def _network(key: jax.Array, outputs: int) -> Any:
    """Initialise two hidden layers; the last layer is 0, so that all methods begin with the same outputs."""

    def layer(key: jax.Array, inputs: int) -> dict[str, jax.Array]:
        return {
            "kernel": jax.random.normal(key, (inputs, HIDDEN)) / jnp.sqrt(inputs),
            "bias": jnp.zeros(HIDDEN),
        }

    first, second = jax.random.split(key)
    last = {"kernel": jnp.zeros((HIDDEN, outputs)), "bias": jnp.zeros(outputs)}
    return {"body": [layer(first, INPUTS), layer(second, HIDDEN)], "head": last}


def _features(body: Any, x: jax.Array) -> jax.Array:
    for layer in body:
        x = jnp.tanh(x @ layer["kernel"] + layer["bias"])
    return x


def _standard(y: jax.Array) -> Affine:
    """Return mean and standard deviation of targets."""
    return Affine(y.std(), y.mean())
