"""What a Pop-Art head adds to a training step, beside peers, in one run.

A network takes steps of Double Q-learning with Adam, on transitions drawn from a replay buffer of random
observations: with a plain linear head, with ours, with rlax's Pop-Art, and with TorchRL's value norm, which
preserves no outputs. All take turns. Reported are the least time of each, its ratio to the least time of the
plain head, and the quartiles over rounds of the ratio within a round. There are two networks:

- nature: the size of the Nature DQN (Mnih et al., 2015). JAX jitted, one step or 16 in a call; PyTorch eager,
  compiled and, on a GPU, as a CUDA graph.
- small: 4→64→64→2, the size of Stable-Baselines3's DQN on CartPole. PyTorch eager; JAX with 16 steps in a
  call, given random transitions.

PyTorch's eager mode has a row for each head of `popart.torch.alternatives`, too, and the small network in JAX
one for each method of `popart scale` that has a head of its own.

    python -m benchmarks.head [CSV] [--network nature small] [--batch 32] [--seconds 20]
"""

import argparse
import copy
import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from rich.progress import track
from torch import Tensor, nn

import popart
import popart.jax
import popart.torch
from benchmarks import head_alternatives
from benchmarks.head_alternatives import HEADS, IN_JAX, loss_of
from benchmarks.tables import installed, publish
from benchmarks.timing import Case, compare

ACTIONS, DISCOUNT, RATE = 18, 0.99, 1e-4
SCAN, FRAMES = 16, 10_000
TURNS = {"nature": 0.1, "small": 0.02}
"""Seconds that a case runs in each round."""
ART = popart.Moments(beta=1e-4)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Body(nn.Sequential):
    """The Nature network below its last layer."""

    def __init__(self) -> None:
        convolutions = nn.Conv2d(4, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3)
        layers = *convolutions, nn.Flatten(), nn.Linear(3136, 512)
        super().__init__(*(part for layer in layers for part in (layer, nn.ReLU())))

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return super().forward(input / 255)


class Network(NamedTuple):
    """A network below its head, its sizes, and the observations that it sees, `stack` at a time."""

    body: Callable[[], nn.Module]
    features: int
    actions: int
    stack: int
    observations: Callable[[np.random.Generator], np.ndarray]


def small_body() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())


NETWORKS = {
    "nature": Network(Body, 512, ACTIONS, 4, lambda rng: rng.integers(0, 256, (FRAMES, 84, 84), np.uint8)),
    "small": Network(small_body, 64, 2, 1, lambda rng: rng.normal(size=(FRAMES, 4)).astype(np.float32)),
}


def replay(network: Network) -> tuple[np.ndarray, ...]:
    """Return observations, actions and rewards of consecutive steps."""
    rng = np.random.default_rng(0)
    observations = network.observations(rng)
    return observations, rng.integers(0, network.actions, FRAMES), rng.normal(size=FRAMES).astype(np.float32)


def torch_loss(
    kind: str, stack: int, body: nn.Module, head: Any, norm: Any, target: Any
) -> Callable[..., Tensor]:
    """Return the loss of a step; for Pop-Art and TorchRL's norm, after an update of the statistics."""
    old_body, old_head = target

    def loss(frames: Tensor, actions: Tensor, rewards: Tensor, at: Tensor, optimizer: Any) -> Tensor:
        seen = frames[at[:, None] + torch.arange(stack + 1, device=at.device)]
        s, s_next, a, r = seen[:, :-1], seen[:, 1:], actions[at + stack - 1], rewards[at + stack - 1]
        g = head.normalized if kind == "popart" else head
        with torch.no_grad():
            best = g(body(s_next)).argmax(1, keepdim=True)
            bootstrap = old_head(old_body(s_next)).gather(1, best)[:, 0]
            y = r + DISCOUNT * (norm.denormalize(bootstrap[:, None])[:, 0] if norm else bootstrap)
            if kind == "popart":
                y = head.update(y, optimizer=optimizer)
            elif norm is not None:
                norm.update(y[:, None])
                y = norm.normalize(y[:, None])[:, 0]
        return (g(body(s)).gather(1, a[:, None])[:, 0] - y).square().mean()

    return loss


def torch_case(name: str, kind: str, mode: str, batch: int) -> Case:
    torch.manual_seed(0)
    network = NETWORKS[name]
    norm = None
    if kind == "TorchRL PopArtValueNorm":
        from torchrl.modules import PopArtValueNorm

        norm = PopArtValueNorm(shape=1, device=DEVICE)
    body = network.body().to(DEVICE)
    make: Any = functools.partial(popart.torch.PopArt, art=ART) if kind == "popart" else nn.Linear
    make = HEADS.get(kind, make)
    head = make(network.features, network.actions).to(DEVICE)
    if kind == "popart":  # A target network is copied from a head that has seen targets.
        head.update(torch.randn(batch, device=DEVICE))
    target = copy.deepcopy(body), copy.deepcopy(head)
    parameters = [*body.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, RATE, capturable=DEVICE.type == "cuda")
    if kind in HEADS:
        loss = loss_of(network.stack, DISCOUNT, body, head)
    else:
        loss = torch_loss(kind, network.stack, body, head, norm, target)
    apply: Any = optimizer.step
    if mode != "eager":
        loss, apply = torch.compile(loss, fullgraph=norm is None), torch.compile(optimizer.step)
    data = [torch.asarray(x, device=DEVICE) for x in replay(network)]

    def step() -> None:
        optimizer.zero_grad()
        loss(*data, torch.randint(FRAMES - network.stack, (batch,), device=DEVICE), optimizer).backward()
        apply()

    if mode == "CUDA graph":
        step = captured(step)

    def steps(n: int) -> None:
        for _ in range(n):
            step()
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()

    return Case((name, "torch", mode, kind), steps)


def captured(step: Callable[[], None]) -> Callable[[], None]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(4):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay(kept: Any = step) -> None:
        """The graph reads and writes what the step holds on to."""
        graph.replay()

    return replay


def init_body(key: jax.Array) -> list[tuple[jax.Array, jax.Array]]:
    shapes = [(8, 8, 4, 32), (4, 4, 32, 64), (3, 3, 64, 64), (3136, 512)]
    keys = jax.random.split(key, len(shapes))
    return [
        (jax.random.normal(k, s) / np.prod(s[:-1]) ** 0.5, jnp.zeros(s[-1]))
        for k, s in zip(keys, shapes, strict=True)
    ]


def features(body: Any, s: jax.Array) -> jax.Array:
    x = s.astype(jnp.float32) / 255
    *convolutions, (W, b) = body
    for (k, c), stride in zip(convolutions, (4, 2, 1), strict=True):
        x = jax.lax.conv_general_dilated(
            x, k, (stride, stride), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jax.nn.relu(x + c)
    return jax.nn.relu(x.reshape(len(x), -1) @ W + b)


def linear(head: Any, h: jax.Array) -> jax.Array:
    return h @ head["w"] + head["b"]


class Agent(NamedTuple):
    params: Any
    optimizer: Any
    statistics: Any
    key: jax.Array


def jax_update(kind: str) -> tuple[Any, Callable[..., tuple[Any, Any, jax.Array, Any]]]:
    """The initial statistics; and from them, the head and targets: new ones, and normalised targets."""
    if kind == "linear":
        return (), lambda statistics, head, y: (statistics, head, y, None)
    if kind == "rlax":
        import rlax

        init, rlax_update = rlax.popart(ACTIONS, 1e-4, 1e-6, 1e6)

        def theirs(statistics: Any, head: Any, y: jax.Array, a: jax.Array) -> Any:
            head, statistics = rlax_update(head, statistics, y, a)
            return statistics, head, rlax.normalize(statistics, y, a), None

        return init(), theirs
    return ART.init(like=jnp.zeros(())), lambda s, head, y: popart.jax.step(ART, s, head, y)


def jax_case(kind: str, mode: str, batch: int) -> Case:
    key = jax.random.key(0)
    head = {"w": jax.random.normal(key, (512, ACTIONS)) / 512**0.5, "b": jnp.zeros(ACTIONS)}
    params = {"body": init_body(key), "head": head}
    adam = optax.adam(RATE)
    optimizer = popart.jax.rescale_optimizer(adam, lambda p: p["head"]) if kind == "popart" else adam
    statistics, update = jax_update(kind)
    data = tuple(jnp.asarray(x) for x in replay(NETWORKS["nature"]))

    def q(params: Any, statistics: Any, s: jax.Array) -> jax.Array:
        h = features(params["body"], s)
        if kind == "popart":
            return popart.jax.values(ART, statistics, params["head"], h)
        if kind == "rlax":
            import rlax

            return jnp.asarray(rlax.unnormalize(statistics, linear(params["head"], h), jnp.arange(ACTIONS)))
        return linear(params["head"], h)

    def step(agent: Agent, target: Any, data: Any) -> Agent:
        frames, actions, rewards = data
        key, draw = jax.random.split(agent.key)
        at = jax.random.randint(draw, (batch,), 0, FRAMES - 4)
        stack = jnp.moveaxis(frames[at[:, None] + jnp.arange(5)], 1, -1)
        s, s_next, a, r = stack[..., :-1], stack[..., 1:], actions[at + 3], rewards[at + 3]
        best = greedy(agent, s_next).argmax(1)
        y = r + DISCOUNT * jnp.take_along_axis(q(target[0], target[1], s_next), best[:, None], 1)[:, 0]
        chosen = (a,) if kind == "rlax" else ()
        statistics, head, y, change = update(agent.statistics, agent.params["head"], y, *chosen)

        def loss(params: Any) -> jax.Array:
            g = linear(params["head"], features(params["body"], s))
            return jnp.square(jnp.take_along_axis(g, a[:, None], 1)[:, 0] - y).mean()

        params = {**agent.params, "head": head}
        extra = {"change": change} if kind == "popart" else {}
        updates, state = optimizer.update(jax.grad(loss)(params), agent.optimizer, params, **extra)
        return Agent(optax.apply_updates(params, updates), state, statistics, key)

    def greedy(agent: Agent, s: jax.Array) -> jax.Array:
        """Outputs that share a scale and shift need not be denormalised to be compared; rlax has several."""
        if kind == "rlax":
            return q(agent.params, agent.statistics, s)
        return linear(agent.params["head"], features(agent.params["body"], s))

    many = SCAN if mode == "jit, in a scan" else 1

    @functools.partial(jax.jit, donate_argnums=0)
    def call(agent: Agent, target: Any, data: Any) -> Agent:
        if many == 1:
            return step(agent, target, data)
        return jax.lax.scan(lambda agent, _: (step(agent, target, data), None), agent, None, many)[0]

    agent = Agent(params, optimizer.init(params), statistics, key)
    target = jax.tree.map(jnp.copy, (params, statistics))

    def steps(n: int) -> None:
        nonlocal agent
        for _ in range(-(-n // many)):
            agent = call(agent, target, data)
        jax.block_until_ready(agent)

    return Case(("nature", "jax", mode, kind), steps, many)


def groups(networks: Sequence[str], batch: int) -> list[list[Case]]:
    """Return the cases that are compared with each other, the plain head first."""
    jax_kinds = ["linear", "popart", *installed("rlax", "rlax")]
    torch_kinds = ["linear", "popart", *installed("torchrl", "TorchRL PopArtValueNorm")]
    found = []
    if "nature" in networks:
        found += [[jax_case(kind, mode, batch) for kind in jax_kinds] for mode in ("jit", "jit, in a scan")]
        modes = ["eager", "compiled", *(["CUDA graph"] if DEVICE.type == "cuda" else [])]
        kinds = {"eager": [*torch_kinds, *HEADS]}
        found += [
            [torch_case("nature", kind, mode, batch) for kind in kinds.get(mode, torch_kinds)]
            for mode in modes
        ]
    if "small" in networks:
        found.append([torch_case("small", kind, "eager", batch) for kind in (*torch_kinds, *HEADS)])
        found.append([head_alternatives.jax_case(name, batch, SCAN) for name in IN_JAX])
    return found


def main(path: Path, networks: Sequence[str], batch: int, seconds: float) -> None:
    rows = []
    for cases in track(groups(networks, batch), description="Measuring"):
        for case, times in zip(cases, compare(cases, seconds, turn=TURNS[cases[0].labels[0]]), strict=True):
            rows.append((*case.labels, f"{1e3 * times.seconds:.4g}", f"{times.ratio:.3f}", times.quartiles))
    name = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU"
    header = ("network", "module", "mode", "head", "ms per step", "ratio to linear", "quartiles")
    publish(path, header, rows, "head", name, sections=3, batch=batch)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", nargs="?", type=Path, default=Path("runs/benchmarks/head.csv"), metavar="CSV")
    parser.add_argument(
        "--network", nargs="+", choices=list(NETWORKS), default=list(NETWORKS), help="networks (default: all)"
    )
    parser.add_argument("--batch", type=int, default=32, help="transitions per step (default 32)")
    parser.add_argument("--seconds", type=float, default=20, help="for each group (default 20)")
    arguments = parser.parse_args()
    main(arguments.path, arguments.network, arguments.batch, arguments.seconds)
