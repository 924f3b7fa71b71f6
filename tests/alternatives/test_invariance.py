"""Which methods are free of scale: the same tests for all, from one table."""

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from torch import Tensor

import popart.jax
from popart.alternatives import ReturnScaling
from tests.alternatives.methods import METHODS

STEPS, BATCH = 25, 16


def stream() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Features; and rewards, discounts and returns, which grow."""
    rng = np.random.default_rng(0)
    h = rng.normal(size=(STEPS, BATCH, 6)).astype(np.float32)
    size = np.linspace(1, 9, STEPS)[:, None, None]
    y = (3 + h[..., :2] + rng.normal(size=(STEPS, BATCH, 2))) * size
    reward = rng.normal(size=y.shape) * size
    discount = np.where(rng.random(y.shape) < 0.2, 0.0, 0.99)
    return h, reward.astype(np.float32), discount.astype(np.float32), y.astype(np.float32)


def needs_rewards(art: Any) -> bool:
    return isinstance(art, ReturnScaling)


def learned_in_torch(name: str, k: int) -> dict[str, np.ndarray]:
    torch.manual_seed(1)
    body, head = torch.nn.Linear(6, 6), METHODS[name].torch()
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], 1e-2)
    targets: list[Tensor] = []
    data = [torch.asarray(x) for x in stream()]
    for h, reward, discount, y in zip(*data, strict=True):
        reward, y, h = reward * 2.0**k, y * 2.0**k, body(h).relu()
        if needs_rewards(head.art):
            t = head.update(torch.stack((reward, discount, y), -1), optimizer=optimizer)[..., -1]
            loss = (head.normalized(h) - t).square().mean()
        else:
            targets.append(head.normalize(y) if hasattr(head, "normalize") else head.affine.normalize(y))
            loss = head.loss(h, y, optimizer=optimizer)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = {f"body.{key}": x for key, x in body.named_parameters()}
    found |= {"weight": head.weight, "bias": head.bias, "outputs": head(body(data[0][0]).relu()) * 2.0**-k}
    found |= {"targets": torch.stack(targets)} if targets else {}
    return {key: x.detach().numpy() for key, x in found.items()}


def learned_in_jax(name: str, k: int) -> dict[str, np.ndarray]:
    data = tuple(map(jnp.asarray, stream()))
    return jax.tree.map(np.asarray, jax_program(name)(jnp.float32(2.0**k), data))


@lru_cache
def jax_program(name: str) -> Any:
    """Return the compiled training with targets of some scale."""
    method = METHODS[name].jax
    key = jax.random.key(1)
    head = {"w": jax.random.normal(key, (6, 2 * method.width)), "b": jnp.zeros(2 * method.width)}
    start = {"body": jnp.eye(6), "head": head}
    optimizer = popart.jax.rescale_optimizer(optax.adam(1e-2), lambda p: p["head"])

    def learn(scale: jax.Array, data: Any) -> Any:
        def step(carry: Any, batch: Any) -> Any:
            state, params, memory = carry
            x, reward, discount, y = batch
            reward, y = scale * reward, scale * y
            triple = needs_rewards(method.art)
            given = jnp.stack((reward, discount, y), -1) if triple else y
            state, head, t, change = method.step(state, params["head"], given)
            t = t[..., -1] if triple else t
            params = {**params, "head": head}

            def loss(params: Any) -> jax.Array:
                return method.loss(params["head"], jax.nn.relu(x @ params["body"]), t).mean()

            updates, memory = optimizer.update(jax.grad(loss)(params), memory, params, change=change)
            return (state, optax.apply_updates(params, updates), memory), t

        carry = method.init(head), start, optimizer.init(start)
        (state, params, _), targets = jax.lax.scan(step, carry, data)
        outputs = method.values(state, params["head"], jax.nn.relu(data[0][0] @ params["body"])) / scale
        return {"body": params["body"], **params["head"], "targets": targets, "outputs": outputs}

    return jax.jit(learn)


@pytest.mark.parametrize("learned", [learned_in_torch, learned_in_jax])
@pytest.mark.parametrize("name", METHODS)
def test_targets_times_a_power_of_two_change_no_bit_or_the_table_says_so(name: str, learned: Any) -> None:
    one = learned(name, 0)
    assert all(np.isfinite(x).all() for x in one.values())
    others = [learned(name, k) for k in (-40, 40)]
    same = all(np.array_equal(one[key], other[key]) for key in one for other in others)
    assert same == METHODS[name].is_scale_free
