"""The alternatives to Pop-Art in the training step of `benchmarks/head.py`, for PyTorch and for JAX.

In PyTorch they are trained with `head.loss`, which also leaves out what is not finite, and so is Pop-Art here
once more. In JAX they are the methods of `popart scale`, all with Adam.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch import Tensor, nn

import popart
from benchmarks.timing import Case
from popart.alternatives import H, HLGauss, PercentileSpan, ReturnScaling, Symlog, TwoHot
from popart.lab.dqn import learner
from popart.lab.dqn.methods import config_of
from popart.lab.dqn.networks import MLP
from popart.lab.dqn.replay import Transitions
from popart.lab.experiments.reward_scale.config import METHODS
from popart.torch import PopArt
from popart.torch.alternatives import Art, Categorical, Transformed

MOMENTS = popart.Moments(beta=1e-4)
BINS = HLGauss(-4, 4, 51, Symlog())

HEADS: dict[str, Callable[[int, int], Any]] = {
    "popart, head.loss": lambda n, k: PopArt(n, k, MOMENTS),
    "Art without Pop": lambda n, k: Art(n, k, MOMENTS),
    "scale only": lambda n, k: PopArt(n, k, popart.Moments(1e-4, symmetric=True)),
    "return-based scaling": lambda n, k: PopArt(n, k, ReturnScaling()),
    "percentile span": lambda n, k: PopArt(n, k, PercentileSpan()),
    "h(x)": lambda n, k: Transformed(n, k, transform=H()),
    "symlog": lambda n, k: Transformed(n, k, transform=Symlog()),
    "two-hot, 255 bins": lambda n, k: Categorical(n, k, TwoHot()),
    "HL-Gauss, 51 bins": lambda n, k: Categorical(n, k, HLGauss()),
    "HL-Gauss, 51 normalised bins": lambda n, k: Categorical(n, k, BINS, MOMENTS),
}

IN_JAX = ("unclipped", "popart", "art", "scale_only", "return_scaling", "percentile_span", "h", "symlog")
IN_JAX += ("two_hot", "hl_gauss", "adaptive_bins")
"""The methods that differ in their heads; the first has a plain linear one."""


def jax_case(name: str, batch: int, many: int) -> Case:
    """Return many steps of a small network in one call."""
    network = MLP(4, 2)
    config = replace(config_of(name, reach=10.0), optimizer="adam", batch=batch)
    keys = jax.random.split(jax.random.key(0), 4)
    observations, following = jax.random.normal(keys[0], (2, many, batch, 4))
    flags, size = jnp.zeros((many, batch), bool), (many, batch)
    batches = Transitions(
        observations,
        jax.random.randint(keys[1], size, 0, 2),
        jax.random.normal(keys[2], size),
        flags,
        following,
        jnp.ones(size),
    )
    agent = learner.init(config, network, keys[3])
    call = jax.jit(lambda agent, batches: learner.learn(config, network, agent, batches)[0])

    def steps(n: int) -> None:
        nonlocal agent
        for _ in range(-(-n // many)):
            agent = call(agent, batches)
        jax.block_until_ready(agent)

    return Case(("small", "jax", "jit, in a scan", METHODS[name]), steps, many)


def loss_of(stack: int, discount: float, body: nn.Module, head: Any) -> Callable[..., Tensor]:
    """Return the loss of a step of Double Q-learning, with an update of the head."""
    by_returns = isinstance(head.art, ReturnScaling)
    first = torch.randn(32, 3) if by_returns else torch.randn(32)
    head.update(first.to(head.weight.device))  # a target network's head has seen targets
    old_body, old_head = copy.deepcopy(body), copy.deepcopy(head)

    def loss(frames: Tensor, actions: Tensor, rewards: Tensor, at: Tensor, optimizer: Any) -> Tensor:
        seen = frames[at[:, None] + torch.arange(stack + 1, device=at.device)]
        s, s_next, a, r = seen[:, :-1], seen[:, 1:], actions[at + stack - 1], rewards[at + stack - 1]
        with torch.no_grad():
            best = head.normalized(body(s_next)).argmax(1, keepdim=True)
            y = r + discount * old_head(old_body(s_next)).gather(1, best)[:, 0]
        if not by_returns:
            return head.loss(body(s), y, index=a, optimizer=optimizer)
        measured = torch.stack((r, torch.full_like(r, discount), y), -1)
        y = head.update(measured, optimizer=optimizer)[:, -1]
        return (head.normalized(body(s), index=a) - y).square().mean()

    return loss
