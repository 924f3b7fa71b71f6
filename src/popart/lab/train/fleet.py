"""The agents of a fleet: arrays with a leading axis of members, and the two programs that work on them.

Actions need not wait for updates, so observing and learning are programs of their own. A fleet of one runs
the programs of a single agent; several are a `vmap`. Random numbers of a member come from its own seed.

Games differ in their number of actions. Inside a fleet all networks have as many outputs as the largest
needs; outside (in checkpoints, in a policy) each has its own.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from popart.lab.dqn import acting, learner, replay
from popart.lab.dqn.config import AgentConfig, Schedule
from popart.lab.dqn.learner import Learner, Policy
from popart.lab.dqn.networks import Network, network_for
from popart.lab.dqn.replay import Replay
from popart.lab.envs.timestep import Spec, TimeStep
from popart.lab.lanes import mapped
from popart.lab.train.config import Member

CONCURRENT = {"xla_gpu_command_buffer_scheduling_mode": "CONCURRENT"}
"""On a GPU, independent parts of an update run at the same time: the same bits, sooner."""


class Acting(NamedTuple):
    """The state of choosing actions, besides the network: a PRNG key and the steps so far."""

    key: jax.Array
    steps: jax.Array


class Fleet:
    """The state of all members' agents on the device.

    Args:
        members: the members, which share a program.
        actions: number of actions of each member's game.
        spec: format of observations.
        size: number of environments per member and group.
    """

    def __init__(self, members: Sequence[Member], actions: Sequence[int], spec: Spec, size: int) -> None:
        self.members, self.spec, self.size = members, spec, size
        one = members[0]
        self.updates_per_call = max(1, one.schedule.updates_due(0, size))
        self.networks = [network_for(spec.shape, number, one.dtype) for number in actions]
        self.network = network_for(spec.shape, max(actions), one.dtype)
        self.actions = jnp.array(actions, jnp.int32)
        lanes, stack = len(members), spec.stack_size
        self._observe = compiled_observe(self.network, one.schedule, stack, one.reward_scale, lanes)
        self._learn = compiled_learn(
            one.agent, self.network, stack, self.updates_per_call, one.schedule.updates_per_copy, lanes
        )
        self.agent_shapes = [_agent_shape(one.agent, network) for network in self.networks]
        slots = one.replay_size // one.num_envs
        self._empty = partial(replay.init, one.num_envs, slots, spec.shape, spec.dtype)
        self.learner: Learner
        self.memory: Replay
        self.acting: Acting
        self.key: jax.Array

    def start(self, saved: Sequence[dict[str, Any] | None]) -> None:
        """Initialise each member, or restore what `arrays` returned for it."""
        states = [self._fresh(m) if one is None else one for m, one in enumerate(saved)]
        like = _agent_shape(self.members[0].agent, self.network)
        self.learner = _stack([padded(state["agent"], like) for state in states])
        acting_key, self.key, steps = _stack([state["playing"] for state in states])
        self.acting = Acting(jax.random.wrap_key_data(acting_key), steps)
        self.key = jax.random.wrap_key_data(self.key)
        self.memory = jax.vmap(lambda _: self._empty())(jnp.arange(len(states)))
        for m, state in enumerate(states):
            if "memory" in state:
                self.memory = _set_lane(self.memory, state.pop("memory"), m)

    def interrupt(self, member: int) -> None:
        """End the newest episodes in the replay buffer of a member whose environments were reset."""
        self.memory = _interrupt(self.memory, member)

    def observe(self, group: int, seen: TimeStep) -> jax.Array:
        """Store the time step of a group of environments, and choose actions, `(members, size)`."""
        first = jnp.int32(group * self.size)
        results = np.stack((seen.reward, seen.terminal, seen.first, seen.last), 1, dtype=np.float32)
        self.memory, self.acting, action = self._observe(
            self.memory, self.acting, self.learner.params, self.actions, seen.observation, results, first
        )
        return action

    def learn(self, due: np.ndarray) -> jax.Array:
        """Make one call's updates for members that are due; return metrics, (members, fields, updates)."""
        self.learner, self.key, metrics = self._learn(self.learner, self.key, self.memory, self.actions, due)
        return metrics

    def policy(self, member: int) -> Policy:
        """Return a copy of a member's policy."""
        agent, shape = self.learner, self.agent_shapes[member]
        lane, like = (Policy(each.params, each.statistics) for each in (agent, shape))
        return cut(jax.device_get(_lane(lane, member)), like)

    def snapshot(self, member: int) -> dict[str, Any]:
        """Return copies of a member's state: on the device, or on the host if it is the only member."""
        keys = (jax.random.key_data(key) for key in (self.acting.key, self.key))
        state = {"agent": self.learner, "playing": (*keys, self.acting.steps)}
        if self.members[member].save_replay:
            state["memory"] = self.memory
        if len(self.members) == 1:  # the device may have no memory for a second copy
            return jax.tree.map(lambda x: np.array(x)[0], state)
        return _lane(state, member)

    def arrays(self, member: int, snapshot: dict[str, Any]) -> dict[str, Any]:
        """Return the arrays of a checkpoint, from a snapshot."""
        state = jax.device_get(snapshot)
        return state | {"agent": cut(state["agent"], self.agent_shapes[member])}

    def shapes(self, member: int) -> dict[str, Any]:
        """Return the shapes and types of `arrays`."""
        key = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))
        step = jax.ShapeDtypeStruct((), jnp.int32)
        state = {"agent": self.agent_shapes[member], "playing": (key, key, step)}
        if self.members[member].save_replay:
            state["memory"] = jax.eval_shape(self._empty)
        return state

    def _fresh(self, member: int) -> dict[str, Any]:
        one = self.members[member]
        with _on_cpu():
            weights, *keys = jax.random.split(jax.random.key(one.seed), 3)
            agent = learner.init(one.agent, self.networks[member], weights)
            return {"agent": agent, "playing": (*map(jax.random.key_data, keys), jnp.int32(0))}


def padded(tree: Any, like: Any) -> Any:
    """Fill up arrays with zeros at their ends, to the shapes of `like`."""

    def pad(x: jax.Array, y: jax.Array) -> np.ndarray:
        missing = [(0, n - m) for m, n in zip(x.shape, y.shape, strict=True)]
        return np.asarray(x) if x.shape == y.shape else np.pad(x, missing)

    return jax.tree.map(pad, tree, like)


def cut(tree: Any, like: Any) -> Any:
    """Cut arrays at their ends, to the shapes of `like`."""
    return jax.tree.map(lambda x, y: x[tuple(slice(n) for n in y.shape)], tree, like)


def _stack(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *x: jnp.asarray(np.stack(x)), *trees)


def _on_cpu() -> AbstractContextManager[Any]:
    """Compute on the CPU, where there is nothing to wait for: a GPU would compile each small operation."""
    try:
        return jax.default_device(jax.devices("cpu")[0])
    except RuntimeError:  # JAX was told to use the GPU alone
        return nullcontext()


@lru_cache
def _agent_shape(config: AgentConfig, network: Network) -> Learner:
    return jax.eval_shape(partial(learner.init, config, network), jax.random.key(0))


@jax.jit
def _lane(tree: Any, lane: int) -> Any:
    return jax.tree.map(lambda x: x[lane], tree)


@partial(jax.jit, donate_argnums=0)
def _set_lane(all_: Any, one: Any, lane: int) -> Any:
    return jax.tree.map(lambda x, y: x.at[lane].set(y), all_, one)


@partial(jax.jit, donate_argnums=0)
def _interrupt(memory: Replay, lane: int) -> Replay:
    ended = replay.interrupt(jax.tree.map(lambda x: x[lane], memory))
    return memory._replace(last=memory.last.at[lane].set(ended.last))


@lru_cache(maxsize=8)
def compiled_observe(
    network: Network, schedule: Schedule, stack_size: int, reward_scale: float, lanes: int
) -> Callable[..., Any]:
    """Compile a turn of a group; runs in one process with the same settings share the program."""

    def observe(
        memory: Replay, state: Acting, params: Any, actions: Any, observation: Any, results: Any, first: Any
    ) -> tuple[Replay, Acting, jax.Array]:
        reward, terminal, begins, last = results
        seen = TimeStep(observation, reward_scale * reward, terminal > 0, begins > 0, last > 0)
        key, now = jax.random.split(state.key)
        epsilon = schedule.epsilon_at(state.steps)
        memory, action = acting.observe(
            network, params, memory, seen, epsilon, now, stack_size, first, actions
        )
        return memory, Acting(key, state.steps + (last == 0).sum()), action

    return jax.jit(mapped(observe, lanes, (0, 0, 0, 0, 0, 0, None)), donate_argnums=(0, 1))


@lru_cache(maxsize=8)
def compiled_learn(
    config: AgentConfig, network: Network, stack_size: int, updates: int, updates_per_copy: int, lanes: int
) -> Callable[..., Any]:
    """Compile some updates of all members; those that are not due do not change."""

    def learn(agent: Learner, key: jax.Array, memory: Replay, actions: jax.Array, due: jax.Array) -> Any:
        new_key, now = jax.random.split(key)
        due_or_all = due if lanes > 1 else None
        agent, metrics = acting.learn(
            config, network, agent, memory, now, updates, stack_size, updates_per_copy, actions, due_or_all
        )
        key = new_key if due_or_all is None else jnp.where(due, new_key, key)
        return agent, key, jnp.stack(metrics)

    options = CONCURRENT if jax.default_backend() == "gpu" else {}
    program = mapped(learn, lanes, (0, 0, 0, 0, 0))
    return jax.jit(program, donate_argnums=(0, 1), compiler_options=options)
