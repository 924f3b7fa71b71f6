"""What a Pop-Art head adds to a training step, beside peers, in one run.

A Nature-DQN-sized network (Mnih et al., 2015) takes steps of Double Q-learning with Adam, on transitions
drawn from a replay memory of random frames: with a plain linear head, with ours, with rlax's Pop-Art, and
with TorchRL's value norm, which preserves no outputs. JAX jitted, one step or 16 in a call; PyTorch eager,
compiled and, on a GPU, as a CUDA graph. All take turns. Reported are the least time of each, its ratio to
the least time of the plain head, and the quartiles over rounds of the ratio within a round.

    python -m benchmarks.head [CSV] [--batch 32] [--seconds 20]
"""

import argparse
import copy
import functools
import os
import time
from collections.abc import Callable
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
from benchmarks.tables import publish

ACTIONS, DISCOUNT, RATE = 18, 0.99, 1e-4
SCAN, FRAMES = 16, 10_000
ART = popart.Moments(beta=1e-4)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Case(NamedTuple):
    """Something to time: a call that takes so many steps and returns when they are done."""

    module: str
    mode: str
    head: str
    steps: Callable[[int], Any]
    at_once: int = 1


def replay() -> tuple[np.ndarray, ...]:
    """Frames, actions and rewards, one after the other."""
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (FRAMES, 84, 84), np.uint8)
    return frames, rng.integers(0, ACTIONS, FRAMES), rng.normal(size=FRAMES).astype(np.float32)


class Body(nn.Sequential):
    """The Nature network below its last layer."""

    def __init__(self) -> None:
        convolutions = nn.Conv2d(4, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3)
        layers = *convolutions, nn.Flatten(), nn.Linear(3136, 512)
        super().__init__(*(part for layer in layers for part in (layer, nn.ReLU())))

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return super().forward(input / 255)


def torch_loss(kind: str, body: Body, head: Any, norm: Any, target: Any) -> Callable[..., Tensor]:
    """The loss of a step; for Pop-Art, and for TorchRL's norm, with an update of the statistics."""
    old_body, old_head = target

    def loss(frames: Tensor, actions: Tensor, rewards: Tensor, at: Tensor, optimizer: Any) -> Tensor:
        stack = frames[at[:, None] + torch.arange(5, device=at.device)]
        s, s_next, a, r = stack[:, :-1], stack[:, 1:], actions[at + 3], rewards[at + 3]
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


def torch_case(kind: str, mode: str, batch: int) -> Case:
    torch.manual_seed(0)
    norm = None
    if kind == "TorchRL PopArtValueNorm":
        from torchrl.modules import PopArtValueNorm

        norm = PopArtValueNorm(shape=1, device=DEVICE)
    body = Body().to(DEVICE)
    head = popart.torch.PopArt(512, ACTIONS, ART) if kind == "popart" else nn.Linear(512, ACTIONS)
    head.to(DEVICE)
    target = copy.deepcopy(body), copy.deepcopy(head)
    parameters = [*body.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, RATE, capturable=DEVICE.type == "cuda")
    loss = torch_loss(kind, body, head, norm, target)
    apply: Any = optimizer.step
    if mode != "eager":
        loss, apply = torch.compile(loss, fullgraph=norm is None), torch.compile(optimizer.step)
    data = [torch.asarray(x, device=DEVICE) for x in replay()]

    def step() -> None:
        optimizer.zero_grad()
        loss(*data, torch.randint(FRAMES - 4, (batch,), device=DEVICE), optimizer).backward()
        apply()

    if mode == "CUDA graph":
        step = captured(step)

    def steps(n: int) -> None:
        for _ in range(n):
            step()
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()

    return Case("torch", mode, kind, steps)


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
    optimizer = popart.jax.rescale_moments(adam, lambda p: p["head"]) if kind == "popart" else adam
    statistics, update = jax_update(kind)
    data = tuple(jnp.asarray(x) for x in replay())

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

    return Case("jax", mode, kind, steps, many)


def measure(cases: list[Case], seconds: float) -> list[list[float]]:
    """Milliseconds per step of each case in each round, of a tenth of a second or so per case."""
    for case in cases:
        case.steps(3)
    start = time.perf_counter()
    for case in cases:
        case.steps(3 * case.at_once)
    per_call = (time.perf_counter() - start) / 3 / len(cases)
    n = max(1, round(0.1 / per_call)) * cases[0].at_once
    rounds: list[list[float]] = []
    end = time.perf_counter() + seconds
    while len(rounds) < 10 or time.perf_counter() < end:
        times = []
        order = 1 if len(rounds) % 2 else -1
        for case in cases[::order]:
            start = time.perf_counter()
            case.steps(n)
            times.append(1e3 * (time.perf_counter() - start) / n)
        rounds.append(times[::order])
    return rounds


def main(path: Path, batch: int, seconds: float) -> None:
    jax_kinds, torch_kinds = ["linear", "popart"], ["linear", "popart"]
    for name, kind, kinds in (
        ("rlax", "rlax", jax_kinds),
        ("torchrl", "TorchRL PopArtValueNorm", torch_kinds),
    ):
        try:
            __import__(name)
            kinds.append(kind)
        except ImportError:
            print(f"{name} is not installed: left out")
    modes = ["eager", "compiled", *(["CUDA graph"] if DEVICE.type == "cuda" else [])]
    groups = [[jax_case(kind, mode, batch) for kind in jax_kinds] for mode in ("jit", "jit, in a scan")]
    groups += [[torch_case(kind, mode, batch) for kind in torch_kinds] for mode in modes]
    rows = []
    for cases in track(groups, description="Measuring"):
        times = np.array(measure(cases, seconds))
        best = times.min(0)
        for i, case in enumerate(cases):
            low, high = np.percentile(times[:, i] / times[:, 0], (25, 75))
            rows.append((*case[:3], f"{best[i]:.4g}", f"{best[i] / best[0]:.3f}", f"{low:.3f} to {high:.3f}"))
    name = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU"
    header = ("module", "mode", "head", "ms per step", "ratio to linear", "quartiles")
    publish(path, header, rows, "head", name, batch=batch)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", nargs="?", type=Path, default=Path("runs/benchmarks/head.csv"), metavar="CSV")
    parser.add_argument("--batch", type=int, default=32, help="transitions per step (default 32)")
    parser.add_argument("--seconds", type=float, default=20, help="for each group (default 20)")
    arguments = parser.parse_args()
    main(arguments.path, arguments.batch, arguments.seconds)
