"""One Q-learning run, target network and Adam included, as NumPy, PyTorch and JAX would each write it.

The NumPy one spells out the gradients, the optimizer and what Pop-Art does to its moments; the others use
the heads as their users do.
"""

import copy
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from torch import nn

import popart
import popart.jax
import popart.torch

ART = popart.Moments(beta=0.01)
ALPHA, DISCOUNT, COPY_EVERY = 3e-3, 0.9, 10
FEATURES, HIDDEN, ACTIONS = 6, 8, 3


class Data(NamedTuple):
    """Transitions, `(steps, batch, ...)`."""

    s: Any
    a: Any
    r: Any
    s_next: Any


class Trace(NamedTuple):
    """A run: normalised targets and greedy actions of each step, and parameters at the end."""

    targets: np.ndarray
    actions: np.ndarray
    parameters: dict[str, np.ndarray]
    values: np.ndarray


def data(steps: int, batch: int = 8, seed: int = 0, scale: float = 1.0) -> Data:
    """Rewards that depend on the state and action, and grow and shrink by orders of magnitude."""
    rng = np.random.default_rng(seed)
    s = rng.normal(size=(steps + 1, batch, FEATURES))
    a = rng.integers(0, ACTIONS, (steps, batch))
    size = 10 ** np.sin(np.arange(steps) / 50)[:, None]
    r = np.float32(scale) * (size * (s[:-1, :, 0] * (a - 1) + 0.5)).astype(np.float32)
    return Data(s[:-1].astype(np.float32), a, r, s[1:].astype(np.float32))


def parameters(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "V": rng.normal(size=(HIDDEN, FEATURES)).astype(np.float32) / 2,
        "c": np.zeros(HIDDEN, np.float32),
        "W": rng.normal(size=(ACTIONS, HIDDEN)).astype(np.float32) / 2,
        "b": np.zeros(ACTIONS, np.float32),
    }


def run_numpy(data: Data) -> Trace:
    p = {name: x.astype(float) for name, x in parameters().items()}
    m = {name: np.zeros_like(x) for name, x in p.items()}
    v = {name: np.zeros_like(x) for name, x in p.items()}
    state = ART.init()
    target, target_state = dict(p), state
    targets, actions = [], []

    def q(p: dict[str, np.ndarray], state: Any, s: np.ndarray) -> np.ndarray:
        return ART.affine(state).denormalize(np.tanh(s @ p["V"].T + p["c"]) @ p["W"].T + p["b"])

    for t, (s, a, r, s_next) in enumerate(zip(*data, strict=True)):
        if t % COPY_EVERY == 0:
            target, target_state = dict(p), state
        rows = np.arange(len(a))
        best = q(p, state, s_next.astype(float)).argmax(1)
        y = r.astype(float) + DISCOUNT * q(target, target_state, s_next.astype(float))[rows, best]
        old, state = ART.affine(state), ART.update(state, y)
        new = ART.affine(state)
        p["W"], p["b"] = popart.preserve(p["W"], p["b"], old, new)
        F = old.scale / new.scale if old.scale else 1.0
        for name in ("W", "b"):
            m[name], v[name] = F * m[name], F**2 * v[name]
        y = new.normalize(y)
        h = np.tanh(s @ p["V"].T + p["c"])
        g = h @ p["W"].T + p["b"]
        delta = np.zeros_like(g)
        delta[rows, a] = 2 * (g[rows, a] - y) / len(a)
        down = (delta @ p["W"]) * (1 - h**2)
        gradient = {"V": down.T @ s, "c": down.sum(0), "W": delta.T @ h, "b": delta.sum(0)}
        for name, x in gradient.items():
            m[name] = 0.9 * m[name] + 0.1 * x
            v[name] = 0.999 * v[name] + 0.001 * x**2
            step = m[name] / (1 - 0.9 ** (t + 1)) / (np.sqrt(v[name] / (1 - 0.999 ** (t + 1))) + 1e-8)
            p[name] = p[name] - ALPHA * step
        targets.append(y)
        actions.append(best)
    return Trace(np.array(targets), np.array(actions), p, q(p, state, data.s[0].astype(float)))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh())
        self.head = popart.torch.PopArt(HIDDEN, ACTIONS, ART)
        with torch.no_grad():
            for parameter, x in zip(self.trained(), parameters().values(), strict=True):
                parameter.copy_(torch.asarray(x))

    def trained(self) -> list[nn.Parameter]:
        """All parameters but the head's scale and shift."""
        return [p for p in self.parameters() if p.requires_grad]

    def forward(self, s: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(s))


class TorchRun:
    """The run in PyTorch, so that a test can stop it and go on."""

    def __init__(
        self, dtype: torch.dtype = torch.float32, compiled: bool = False, device: str = "cpu"
    ) -> None:
        self.online = Network().to(device, dtype)
        self.target = copy.deepcopy(self.online)
        self.optimizer = torch.optim.Adam(self.online.parameters(), ALPHA)
        self.device, self.dtype, self.t = device, dtype, 0
        self.loss = torch.compile(self._loss, fullgraph=True) if compiled else self._loss

    def _loss(self, s: Any, a: Any, r: Any, s_next: Any) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            best = self.online(s_next).argmax(1)
            y = r + DISCOUNT * self.target(s_next).gather(1, best[:, None])[:, 0]
            y = self.online.head.update(y, optimizer=self.optimizer)
        g = self.online.head.normalized(self.online.body(s), index=a)
        return (g - y).square().mean(), y, best

    def steps(self, data: Data) -> Trace:
        targets, actions = [], []
        for s, a, r, s_next in zip(*data, strict=True):
            if self.t % COPY_EVERY == 0:
                self.target.load_state_dict(self.online.state_dict())
            floats = [torch.asarray(x, dtype=self.dtype, device=self.device) for x in (s, r, s_next)]
            action = torch.asarray(a, device=self.device)
            loss, y, best = self.loss(floats[0], action, floats[1], floats[2])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            targets.append(y.cpu().numpy())
            actions.append(best.cpu().numpy())
            self.t += 1
        return Trace(np.array(targets), np.array(actions), self.parameters(), self.values(data.s[0]))

    def parameters(self) -> dict[str, np.ndarray]:
        return dict(zip("VcWb", (x.detach().cpu().numpy() for x in self.online.trained()), strict=True))

    def values(self, s: np.ndarray) -> np.ndarray:
        return self.online(torch.asarray(s, dtype=self.dtype, device=self.device)).detach().cpu().numpy()


class JaxState(NamedTuple):
    params: Any
    optimizer: Any
    art: Any
    target: Any
    t: Any


OPTIMIZER = popart.jax.rescale_optimizer(optax.adam(ALPHA), head=lambda params: params["head"])


def jax_start(dtype: Any = jnp.float32) -> JaxState:
    V, c, W, b = (jnp.asarray(x, dtype) for x in parameters().values())
    params = {"body": {"weight": V, "bias": c}, "head": {"weight": W, "bias": b}}
    state = popart.jax.init(ART, params["head"])
    return JaxState(params, OPTIMIZER.init(params), state, (params, state), jnp.zeros((), jnp.int32))


def _features(params: Any, s: Any) -> Any:
    return jnp.tanh(s @ params["body"]["weight"].T + params["body"]["bias"])


def _q(params: Any, state: Any, s: Any) -> Any:
    return popart.jax.values(ART, state, params["head"], _features(params, s))


def jax_step(run: JaxState, batch: Any) -> tuple[JaxState, Any]:
    s, a, r, s_next = batch
    params, state = run.params, run.art
    copied = run.t % COPY_EVERY == 0
    target = jax.tree.map(lambda new, old: jnp.where(copied, new, old), (params, state), run.target)
    best = _q(params, state, s_next).argmax(1)
    y = r + DISCOUNT * jnp.take_along_axis(_q(target[0], target[1], s_next), best[:, None], 1)[:, 0]
    state, head, y, change = popart.jax.step(ART, state, params["head"], y)
    params = {**params, "head": head}

    def loss(params: Any) -> Any:
        g = popart.jax.normalized(params["head"], _features(params, s))
        return jnp.square(jnp.take_along_axis(g, a[:, None], 1)[:, 0] - y).mean()

    updates, optimizer = OPTIMIZER.update(jax.grad(loss)(params), run.optimizer, params, change=change)
    return JaxState(optax.apply_updates(params, updates), optimizer, state, target, run.t + 1), (y, best)


@jax.jit
def jax_steps(run: JaxState, data: Data) -> tuple[JaxState, Any]:
    with jax.default_matmul_precision("highest"):
        return jax.lax.scan(jax_step, run, data)


def run_jax(data: Data, dtype: Any = jnp.float32) -> Trace:
    batches = Data(*(jnp.asarray(x, dtype if x.dtype == np.float32 else None) for x in data))
    run, (targets, actions) = jax_steps(jax_start(dtype), batches)
    leaves = [run.params[part][name] for part in ("body", "head") for name in ("weight", "bias")]
    values = _q(run.params, run.art, batches.s[0])
    return Trace(
        np.asarray(targets),
        np.asarray(actions),
        dict(zip("VcWb", map(np.asarray, leaves), strict=True)),
        np.asarray(values),
    )
