"""Double DQN: targets computed by hand, the optimizer, and what the three agents differ in."""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import popart
import popart.jax
from popart.lab.dqn import learner
from popart.lab.dqn.config import AGENTS, AgentConfig, AgentName
from popart.lab.dqn.learner import Learner
from popart.lab.dqn.networks import MLP, Nature, Network
from popart.lab.dqn.replay import Transitions
from popart.lab.train.fleet import CONCURRENT

values = jax.jit(learner.values, static_argnums=(0, 1))
act = jax.jit(learner.act, static_argnums=0)
learn = jax.jit(learner.learn, static_argnums=(0, 1))

NET = MLP(inputs=3, actions=2, hidden=(8,))
CLIPPED, UNCLIPPED = (AgentConfig(name, learning_rate=0.01) for name in ("clipped", "unclipped"))
POPART = AgentConfig("popart", learning_rate=0.01, beta=0.01)
"""Tests share these settings, and thereby the compiled programs."""

PADDED = MLP(inputs=3, actions=5, hidden=(8,))
"""For a game with two actions, in a fleet with one that has five."""


def transitions(batch: int, seed: int = 0, scale: float = 1.0) -> Transitions:
    rng = np.random.default_rng(seed)
    return Transitions(
        jnp.asarray(rng.normal(size=(batch, 3, 1)), jnp.float32),
        jnp.asarray(rng.integers(0, 2, batch)),
        jnp.asarray(scale * 3 * rng.normal(size=batch).astype(np.float32)),
        jnp.asarray(rng.random(batch) < 0.2),
        jnp.asarray(rng.normal(size=(batch, 3, 1)), jnp.float32),
        jnp.ones(batch),
    )


def stacked(batches: list[Transitions]) -> Transitions:
    return jax.tree.map(lambda *x: jnp.stack(x), *batches)


def target_values(config: AgentConfig, agent: Learner, batch: Transitions, net: Network = NET) -> jax.Array:
    """Return the target network's values in the units of the rewards."""
    return values(config, net, agent.target_params, agent.target_statistics, batch.next_observation)


@partial(jax.jit, static_argnums=(0, 3, 4))
def targets(
    config: AgentConfig, agent: Learner, batch: Transitions, net: Network = NET, actions: int | None = None
) -> jax.Array:
    online = popart.jax.normalized(
        agent.params["head"], net.features(agent.params["body"], batch.next_observation)
    )
    return learner.targets(config, batch, online, target_values(config, agent, batch, net), actions)


@partial(jax.jit, static_argnums=0)
def update(config: AgentConfig, agent: Learner, batch: Transitions) -> tuple[Learner, Any]:
    return learner.update(config, NET, agent, batch, target_values(config, agent, batch))


def first_update(config: AgentConfig, batch: Transitions) -> tuple[Learner, Any]:
    return update(config, learner.init(config, NET, jax.random.key(1)), batch)


class Tabular(NamedTuple):
    """A network whose features are its observation, so that Q is a table: the weights of the head."""

    actions: int = 2

    def init(self, key: jax.Array) -> Any:
        return {"body": [], "head": {"w": jnp.zeros((2, 2)), "b": jnp.zeros(2)}}

    def features(self, body: Any, observations: jax.Array) -> jax.Array:
        return observations[..., 0]


@pytest.mark.parametrize("name", AGENTS)
def test_targets_equal_those_computed_by_hand_from_a_table(name: AgentName) -> None:
    """Two states, one feature each. The online network prefers action 1 in the first, 0 in the second."""
    config = AgentConfig(name, discount=0.5)
    online = {"body": [], "head": {"w": jnp.array([[1.0, 2.0], [5.0, 3.0]]), "b": jnp.zeros(2)}}
    target = {"body": [], "head": {"w": jnp.array([[10.0, 20.0], [30.0, 40.0]]), "b": jnp.zeros(2)}}
    agent = learner.init(config, Tabular(), jax.random.key(0))
    art, statistics = config.art, agent.statistics
    scale, shift = 1.0, 0.0
    if name == "popart":  # the statistics of the target network, which differ from those of the online one
        statistics = art.update(art.init((), like=jnp.zeros(())), jnp.array([1.0, 5.0]))
        scale, shift = 2.0, 3.0
    agent = agent._replace(params=online, target_params=target, target_statistics=statistics)
    first, second = jnp.array([[1.0], [0.0]]), jnp.array([[0.0], [1.0]])
    batch = Transitions(
        jnp.stack((first, first, second)),
        jnp.zeros(3, int),
        jnp.array([7.0, -9.0, 0.25]),
        jnp.array([False, True, False]),
        jnp.stack((first, second, second)),
        jnp.ones(3),
    )
    rewards = [1.0, -1.0, 0.25] if name == "clipped" else [7.0, -9.0, 0.25]
    expected = [rewards[0] + 0.5 * (scale * 20 + shift), rewards[1], rewards[2] + 0.5 * (scale * 30 + shift)]
    np.testing.assert_allclose(targets(config, agent, batch, Tabular()), expected, rtol=1e-6)


def squared_loss(
    params: Any, config: AgentConfig, agent: Learner, batch: Transitions, y: jax.Array
) -> jax.Array:
    q = values(config, NET, params, agent.statistics, batch.observation)
    return ((q[jnp.arange(len(y)), batch.action] - y) ** 2 / 2).mean()


gradient_of = jax.jit(jax.grad(squared_loss), static_argnums=1)


@pytest.mark.parametrize("epsilon", [None, 1e-4])
def test_rmsprop_is_centred_with_epsilon_inside_the_root(epsilon: float | None) -> None:
    config = UNCLIPPED if epsilon is None else replace(UNCLIPPED, rmsprop_epsilon=epsilon)
    agent = learner.init(config, NET, jax.random.key(0))
    g = s = np.zeros((8, 2))
    w = np.asarray(agent.params["head"]["w"], float)
    for i in range(5):
        batch = transitions(32, i)
        y = targets(config, agent, batch)
        gradient = np.asarray(gradient_of(agent.params, config, agent, batch, y)["head"]["w"], float)
        g, s = 0.95 * g + 0.05 * gradient, 0.95 * s + 0.05 * gradient**2
        w = w - 0.01 * gradient / np.sqrt(s - g**2 + (epsilon or 0.01) / 32**2)
        agent, _ = update(config, agent, batch)
        np.testing.assert_allclose(agent.params["head"]["w"], w, rtol=1e-4, atol=1e-6)


def test_all_agents_have_the_same_initial_parameters() -> None:
    params = [learner.init(AgentConfig(name), NET, jax.random.key(1)).params for name in AGENTS]
    for other in params[1:]:
        jax.tree.map(np.testing.assert_array_equal, params[0], other)


def test_clipped_and_unclipped_differ_only_in_rewards_and_errors_beyond_one() -> None:
    start = learner.init(CLIPPED, NET, jax.random.key(1))
    params = jax.tree.map(lambda x: np.asarray(x) / 10, start.params)
    start = start._replace(params=params, target_params=params)
    for scale, same in ((0.05, True), (10.0, False)):
        (a, _), (b, _) = (update(each, start, transitions(32, scale=scale)) for each in (CLIPPED, UNCLIPPED))
        pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
        assert all(np.allclose(x, y, rtol=1e-5, atol=1e-7) for x, y in pairs) == same


def test_clipped_errors_give_gradients_of_at_most_one_times_the_features() -> None:
    batch = transitions(32, scale=1e6)._replace(terminal=jnp.ones(32, bool))
    _, clipped = first_update(CLIPPED, batch)
    _, unclipped = first_update(UNCLIPPED, batch)
    h = np.asarray(NET.features(NET.init(jax.random.key(1))["body"], batch.observation))
    assert float(clipped.head_norm) <= np.sqrt((h**2).sum(1) + 1).mean() * (1 + 1e-5)
    assert float(unclipped.head_norm) > 1e5


def test_popart_with_fixed_statistics_equals_the_unclipped_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """They differ in nothing but the statistics. No other test compiles for this β."""
    config = replace(POPART, beta=0.123)
    unclipped, _ = first_update(UNCLIPPED, transitions(32))
    monkeypatch.setattr(AgentConfig, "art", property(lambda self: popart.Fixed()))
    fixed, _ = first_update(config, transitions(32))
    jax.tree.map(np.testing.assert_array_equal, unclipped, fixed)


def test_popart_preserves_q_while_the_scale_changes() -> None:
    config = replace(POPART, learning_rate=0.0, optimizer="adam")
    agent, metrics = first_update(config, transitions(32))
    x, scale = transitions(32, 5).observation, float(metrics.scale)
    before = values(config, NET, agent.params, agent.statistics, x)
    for factor in (10.0, 100.0, 0.1):
        agent, metrics = update(config, agent, transitions(32, scale=factor))
    after = values(config, NET, agent.params, agent.statistics, x)
    assert float(metrics.scale) > 2 * scale
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("k", [-60, -7, 13, 60])
@pytest.mark.parametrize("optimizer", ["rmsprop", "adam"])
def test_scaling_rewards_by_a_power_of_two_changes_no_bit_of_popart(k: int, optimizer: Any) -> None:
    config = replace(POPART, optimizer=optimizer)
    agents = [learner.init(config, NET, jax.random.key(1))] * 2
    for i in range(30):
        for j, scale in enumerate((1.0, 2.0**k)):
            agents[j], _ = update(config, agents[j], transitions(32, i, scale))
            if i % 10 == 9:
                agents[j] = learner.copy_target(agents[j])
    for a, b in zip(*(jax.tree.leaves((agent.params, agent.optimizer)) for agent in agents), strict=True):
        np.testing.assert_array_equal(a, b)
    q = [values(config, NET, a.params, a.statistics, transitions(32).observation) for a in agents]
    np.testing.assert_array_equal(2.0**k * np.asarray(q[0]), q[1])


def test_transitions_with_weight_0_have_no_effect() -> None:
    batch = transitions(32)
    half = batch._replace(weight=jnp.asarray(np.arange(32) < 16, jnp.float32))
    garbage = half._replace(reward=jnp.asarray(np.where(half.weight, half.reward, 1e30), jnp.float32))
    (a, _), (b, _) = (first_update(POPART, x) for x in (half, garbage))
    jax.tree.map(np.testing.assert_array_equal, a, b)


def norm(tree: Any) -> float:
    return np.sqrt(sum((np.asarray(x, float) ** 2).sum() for x in jax.tree.leaves(tree)))


def test_metrics_have_the_norms_of_the_gradient() -> None:
    batch = transitions(32)
    agent = learner.init(UNCLIPPED, NET, jax.random.key(1))
    gradient = gradient_of(agent.params, UNCLIPPED, agent, batch, targets(UNCLIPPED, agent, batch))
    _, metrics = update(UNCLIPPED, agent, batch)
    np.testing.assert_allclose(metrics.gradient_norm, norm(gradient), rtol=1e-5)
    np.testing.assert_allclose(metrics.body_norm, norm(gradient["body"]), rtol=1e-5)
    np.testing.assert_allclose(metrics.head_norm, norm(gradient["head"]), rtol=1e-5)


def test_the_target_network_changes_only_when_it_is_copied() -> None:
    agent = learner.init(POPART, NET, jax.random.key(1))
    target = agent.target_params, agent.target_statistics
    for i in range(3):
        agent, _ = update(POPART, agent, transitions(32, i))
    jax.tree.map(np.testing.assert_array_equal, target, (agent.target_params, agent.target_statistics))
    agent = learner.copy_target(agent)
    jax.tree.map(np.testing.assert_array_equal, agent.target_params, agent.params)
    jax.tree.map(np.testing.assert_array_equal, agent.target_statistics, agent.statistics)


def test_learning_from_several_batches_equals_one_update_after_the_other() -> None:
    batches = [transitions(32, i) for i in range(5)]
    one = start = learner.init(POPART, NET, jax.random.key(1))
    norms = []
    for batch in batches:
        one, metrics = update(POPART, one, batch)
        norms.append(float(metrics.gradient_norm))
    for due in (None, True):
        together, metrics = learn(POPART, NET, start, stacked(batches), None, due)
        np.testing.assert_allclose(metrics.gradient_norm, norms, rtol=1e-4)
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-5), one.params, together.params
        )


def test_an_agent_that_is_not_due_does_not_change() -> None:
    agent = learner.init(POPART, NET, jax.random.key(1))
    batches = stacked([transitions(32, i) for i in range(5)])
    idle, _ = learn(POPART, NET, agent, batches, None, False)
    jax.tree.map(np.testing.assert_array_equal, idle, agent)


def test_epsilon_is_the_probability_of_a_random_action() -> None:
    params = PADDED.init(jax.random.key(0))
    x = jnp.broadcast_to(transitions(1).observation, (20_000, 3, 1))
    best = int(act(PADDED, params, x, 0.0, jax.random.key(0))[0])
    for epsilon in (0.0, 0.1, 1.0):
        actions = np.asarray(act(PADDED, params, x, epsilon, jax.random.key(1)))
        assert abs((actions != best).mean() - epsilon * 4 / 5) < 0.015


def with_preferred_padding(agent: Learner) -> Learner:
    """Make padded actions look best to both networks."""
    bias = np.where(np.arange(PADDED.actions) < 2, 0, 1e6).astype(np.float32)

    def preferring(params: Any) -> Any:
        return {**params, "head": {**params["head"], "b": np.asarray(params["head"]["b"]) + bias}}

    return agent._replace(params=preferring(agent.params), target_params=preferring(agent.target_params))


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0])
def test_padded_actions_are_never_chosen(epsilon: float) -> None:
    agent = with_preferred_padding(learner.init(AgentConfig(), PADDED, jax.random.key(0)))
    x = transitions(20_000).observation
    chosen = np.asarray(act(PADDED, agent.params, x, epsilon, jax.random.key(1), 2))
    assert set(chosen.tolist()) == {0, 1}
    unmasked = np.asarray(act(PADDED, agent.params, x, epsilon, jax.random.key(1)))
    assert unmasked.max() > 1


@pytest.mark.parametrize("name", AGENTS)
def test_padded_actions_are_in_no_target(name: AgentName) -> None:
    """Whatever their values are, the targets are the same."""
    config, batch = AgentConfig(name), transitions(32)
    agent = learner.init(config, PADDED, jax.random.key(0))
    if name == "popart":  # without statistics, all of its values are 0
        art = config.art
        statistics = art.update(art.init((), like=jnp.zeros(())), jnp.array([1.0, 5.0]))
        agent = agent._replace(target_statistics=statistics)
    preferred = with_preferred_padding(agent)
    masked, others = (targets(config, each, batch, PADDED, 2) for each in (agent, preferred))
    np.testing.assert_array_equal(masked, others)
    assert (np.asarray(targets(config, preferred, batch, PADDED)) > 1e5).any()


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="there is no GPU here")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_concurrent_kernels_on_a_gpu_change_no_bit(dtype: str) -> None:
    """Parts of an update that run at the same time must not read what others have not written yet."""
    config, net = AgentConfig(optimizer="adam"), Nature(6, dtype)
    rng = np.random.default_rng(0)
    draw = partial(rng.integers, dtype=np.uint8)
    batches = Transitions(
        jnp.asarray(draw(0, 256, (16, 32, 84, 84, 4))),
        jnp.asarray(rng.integers(0, 6, (16, 32))),
        jnp.asarray(100 * rng.normal(size=(16, 32)).astype(np.float32)),
        jnp.asarray(rng.random((16, 32)) < 0.2),
        jnp.asarray(draw(0, 256, (16, 32, 84, 84, 4))),
        jnp.ones((16, 32)),
    )
    ended = []
    for options in ({}, CONCURRENT):
        agent = learner.init(config, net, jax.random.key(0))
        run = jax.jit(partial(learner.learn, config, net), compiler_options=options)
        for _ in range(50):
            agent, _ = run(agent, batches)
        ended.append(agent)
    jax.tree.map(np.testing.assert_array_equal, *ended)
