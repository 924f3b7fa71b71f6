"""Double DQN: targets by hand, the optimizer by a reference, and what the three agents differ in."""

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
from popart.lab.dqn.learner import AgentName, Learner, Settings
from popart.lab.dqn.networks import MLP, Nature, Network
from popart.lab.dqn.replay import Transitions
from popart.lab.train.training import AT_ONCE

AGENTS: tuple[AgentName, ...] = ("clipped", "unclipped", "popart")
NET = MLP(inputs=3, actions=2, hidden=(8,))


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


def later_values(settings: Settings, agent: Learner, batch: Transitions, net: Network = NET) -> jax.Array:
    """Of the target network, in the units of the rewards."""
    return learner.values(settings, net, agent.target_params, agent.target_statistics, batch.later)


def targets(settings: Settings, agent: Learner, batch: Transitions, net: Network = NET) -> jax.Array:
    online = popart.jax.normalized(agent.params["head"], net.features(agent.params["body"], batch.later))
    return learner.targets(settings, batch, online, later_values(settings, agent, batch, net))


def update(settings: Settings, agent: Learner, batch: Transitions) -> tuple[Learner, Any]:
    return learner.update(settings, NET, agent, batch, later_values(settings, agent, batch))


class Table(NamedTuple):
    """A network whose features are its observation, so that Q is what the head says."""

    actions: int = 2

    def init(self, key: jax.Array) -> Any:
        return {"body": [], "head": {"w": jnp.zeros((2, 2)), "b": jnp.zeros(2)}}

    def features(self, body: Any, observations: jax.Array) -> jax.Array:
        return observations[..., 0]


@pytest.mark.parametrize("agent", AGENTS)
def test_targets_are_those_of_a_table_by_hand(agent: AgentName) -> None:
    """Two states, one feature each. The online network prefers action 1 in the first, 0 in the second."""
    settings = Settings(agent, discount=0.5)
    online = {"body": [], "head": {"w": jnp.array([[1.0, 2.0], [5.0, 3.0]]), "b": jnp.zeros(2)}}
    target = {"body": [], "head": {"w": jnp.array([[10.0, 20.0], [30.0, 40.0]]), "b": jnp.zeros(2)}}
    start = learner.init(settings, Table(), jax.random.key(0))
    art = settings.art
    statistics = start.statistics
    scale, shift = 1.0, 0.0
    if agent == "popart":  # the target network has a scale of 2 and a shift of 3, the online one another
        statistics = art.update(art.init((), like=jnp.zeros(())), jnp.array([1.0, 5.0]))
        scale, shift = 2.0, 3.0
    agent_state = start._replace(params=online, target_params=target, target_statistics=statistics)
    first, second = jnp.array([[1.0], [0.0]]), jnp.array([[0.0], [1.0]])
    batch = Transitions(
        jnp.stack((first, first, second)),
        jnp.zeros(3, int),
        jnp.array([7.0, -9.0, 0.25]),
        jnp.array([False, True, False]),
        jnp.stack((first, second, second)),
        jnp.ones(3),
    )
    rewards = [1.0, -1.0, 0.25] if agent == "clipped" else [7.0, -9.0, 0.25]
    expected = [rewards[0] + 0.5 * (scale * 20 + shift), rewards[1], rewards[2] + 0.5 * (scale * 30 + shift)]
    np.testing.assert_allclose(targets(settings, agent_state, batch, Table()), expected, rtol=1e-6)


def squared_loss(
    params: Any, settings: Settings, agent: Learner, batch: Transitions, y: jax.Array
) -> jax.Array:
    q = learner.values(settings, NET, params, agent.statistics, batch.observation)
    return ((q[jnp.arange(len(y)), batch.action] - y) ** 2 / 2).mean()


def test_the_centred_rmsprop_has_its_epsilon_inside_the_root() -> None:
    settings = Settings("unclipped", step_size=0.01)
    agent = learner.init(settings, NET, jax.random.key(0))
    g = s = np.zeros((8, 2))
    w = np.asarray(agent.params["head"]["w"], float)
    for i in range(5):
        batch = transitions(32, i)
        y = targets(settings, agent, batch)

        gradient = np.asarray(
            jax.grad(squared_loss)(agent.params, settings, agent, batch, y)["head"]["w"], float
        )
        g, s = 0.95 * g + 0.05 * gradient, 0.95 * s + 0.05 * gradient**2
        w = w - 0.01 * gradient / np.sqrt(s - g**2 + 0.01 / 32**2)
        agent, _ = update(settings, agent, batch)
        np.testing.assert_allclose(agent.params["head"]["w"], w, rtol=1e-4, atol=1e-6)


def one_update(settings: Settings, batch: Transitions, start: Learner | None = None) -> tuple[Learner, Any]:
    start = learner.init(settings, NET, jax.random.key(1)) if start is None else start
    return update(settings, start, batch)


def test_agents_start_alike() -> None:
    starts = [learner.init(Settings(a), NET, jax.random.key(1)).params for a in AGENTS]
    for other in starts[1:]:
        jax.tree.map(np.testing.assert_array_equal, starts[0], other)


def test_clipping_is_all_that_clipped_and_unclipped_differ_in() -> None:
    """With rewards and errors within [-1, 1] they are the same; beyond, they are not."""
    start = learner.init(Settings("clipped"), NET, jax.random.key(1))
    params = jax.tree.map(lambda x: x / 10, start.params)
    start = start._replace(params=params, target_params=params)
    for scale, same in ((0.05, True), (10.0, False)):
        batch = transitions(32, scale=scale)
        (a, _), (b, _) = (one_update(Settings(name), batch, start) for name in ("clipped", "unclipped"))
        pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
        assert all(np.allclose(x, y, rtol=1e-5, atol=1e-7) for x, y in pairs) == same


def test_clipped_errors_have_gradients_within_one() -> None:
    batch = transitions(1, scale=1e6)._replace(terminal=jnp.array([True]))
    _, clipped = one_update(Settings("clipped"), batch)
    _, free = one_update(Settings("unclipped"), batch)
    h = NET.features(learner.init(Settings(), NET, jax.random.key(1)).params["body"], batch.observation)
    assert float(clipped.head_norm) <= float(jnp.sqrt((h**2).sum() + 1)) * (1 + 1e-5)
    assert float(free.head_norm) > 1e5


def test_popart_with_a_known_normalisation_is_the_unclipped_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics are all that they differ in: with a scale of 1 and a shift of 0 nothing is left."""
    batch = transitions(32)
    unclipped, _ = one_update(Settings("unclipped"), batch)
    monkeypatch.setattr(Settings, "art", property(lambda self: popart.Fixed()))
    known, _ = one_update(Settings("popart"), batch)
    jax.tree.map(np.testing.assert_array_equal, unclipped, known)


def test_popart_keeps_q_while_the_scale_moves() -> None:
    settings = Settings("popart", step_size=0.0, optimizer="adam")
    agent, _ = one_update(settings, transitions(32))
    x = transitions(100, 5).observation
    before = learner.values(settings, NET, agent.params, agent.statistics, x)
    for scale in (10.0, 100.0, 0.1):
        agent, metrics = one_update(settings, transitions(32, scale=scale), agent)
    after = learner.values(settings, NET, agent.params, agent.statistics, x)
    assert float(metrics.scale) > 0
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("k", [-60, -7, 13, 60])
@pytest.mark.parametrize("optimizer", ["rmsprop", "adam"])
def test_rewards_times_a_power_of_two_change_no_bit_of_popart(k: int, optimizer: Any) -> None:
    settings = Settings("popart", optimizer=optimizer, step_size=1e-2, beta=1e-2)
    step = jax.jit(lambda agent, batch: update(settings, agent, batch))
    agents = [learner.init(settings, NET, jax.random.key(1))] * 2
    for i in range(30):
        for j, scale in enumerate((1.0, 2.0**k)):
            agents[j], _ = step(agents[j], transitions(32, i, scale))
            if i % 10 == 9:
                agents[j] = learner.copy_target(agents[j])
    for a, b in zip(*(jax.tree.leaves((agent.params, agent.moments)) for agent in agents), strict=True):
        np.testing.assert_array_equal(a, b)
    q = [learner.values(settings, NET, a.params, a.statistics, transitions(9).observation) for a in agents]
    np.testing.assert_array_equal(2.0**k * q[0], q[1])


def test_weights_of_0_do_not_count() -> None:
    settings = Settings("popart")
    batch = transitions(32)
    half = batch._replace(weight=(jnp.arange(32) < 16).astype(jnp.float32))
    garbage = half._replace(reward=jnp.where(half.weight > 0, half.reward, 1e30))
    (a, _), (b, _) = (one_update(settings, x) for x in (half, garbage))
    jax.tree.map(np.testing.assert_array_equal, a, b)


def norm(tree: Any) -> float:
    return np.sqrt(sum((np.asarray(x, float) ** 2).sum() for x in jax.tree.leaves(tree)))


def test_norms_are_those_of_the_gradient() -> None:
    settings = Settings("unclipped", step_size=1.0, optimizer="adam")
    batch = transitions(32)
    start = learner.init(settings, NET, jax.random.key(1))
    y = targets(settings, start, batch)

    gradient = jax.grad(squared_loss)(start.params, settings, start, batch, y)
    _, metrics = one_update(settings, batch, start)
    np.testing.assert_allclose(metrics.gradient_norm, norm(gradient), rtol=1e-5)
    np.testing.assert_allclose(metrics.body_norm, norm(gradient["body"]), rtol=1e-5)
    np.testing.assert_allclose(metrics.head_norm, norm(gradient["head"]), rtol=1e-5)


def test_the_target_network_changes_only_when_copied() -> None:
    settings = Settings("popart")
    agent = learner.init(settings, NET, jax.random.key(1))
    target = agent.target_params, agent.target_statistics
    for i in range(3):
        agent, _ = one_update(settings, transitions(32, i), agent)
    jax.tree.map(np.testing.assert_array_equal, target, (agent.target_params, agent.target_statistics))
    agent = learner.copy_target(agent)
    jax.tree.map(np.testing.assert_array_equal, agent.target_params, agent.params)
    jax.tree.map(np.testing.assert_array_equal, agent.target_statistics, agent.statistics)


def test_updates_of_many_batches_are_updates_one_after_the_other() -> None:
    settings = Settings("popart")
    batches = [transitions(32, i) for i in range(5)]
    one = start = learner.init(settings, NET, jax.random.key(1))
    norms = []
    for batch in batches:
        one, metrics = update(settings, one, batch)
        norms.append(float(metrics.gradient_norm))
    all_at_once, metrics = learner.learn(
        settings, NET, start, jax.tree.map(lambda *x: jnp.stack(x), *batches)
    )
    np.testing.assert_allclose(metrics.gradient_norm, norms, rtol=1e-5)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6), one.params, all_at_once.params
    )


def test_epsilon_is_the_part_of_random_actions() -> None:
    net = MLP(3, 4, (8,))
    params = net.init(jax.random.key(0))
    x = jnp.broadcast_to(transitions(1).observation, (20_000, 3, 1))
    best = int(learner.act(net, params, x[:1], 0.0, jax.random.key(0))[0])
    for epsilon in (0.0, 0.1, 1.0):
        actions = np.asarray(learner.act(net, params, x, epsilon, jax.random.key(1)))
        assert abs((actions != best).mean() - epsilon * 3 / 4) < 0.015


def test_convolutions_by_patches_are_convolutions() -> None:
    net = Nature(actions=6)
    params = net.init(jax.random.key(0))
    frames = jnp.asarray(np.random.default_rng(0).integers(0, 256, (2, 84, 84, 4)), jnp.uint8)
    x = frames.astype(jnp.float32) / 255
    for layer, (width, stride, out) in zip(params["body"], Nature.CONVOLUTIONS, strict=False):
        across, channels = width // stride, x.shape[-1]
        kernel = layer["w"].reshape(across, across, stride, stride, channels, out)
        kernel = kernel.transpose(0, 2, 1, 3, 4, 5).reshape(width, width, channels, out)
        names = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(x, kernel, (stride, stride), "VALID", dimension_numbers=names)
        x = jax.nn.relu(x + layer["b"])
    assert x.shape == (2, 7, 7, 64)
    dense = params["body"][3]
    expected = jax.nn.relu(x.reshape(2, -1) @ dense["w"] + dense["b"])
    np.testing.assert_allclose(net.features(params["body"], frames), expected, rtol=1e-4, atol=1e-5)


def test_the_nature_network_has_its_number_of_parameters() -> None:
    sizes = jax.tree.map(jnp.size, Nature(actions=18).init(jax.random.key(0)))
    assert sum(jax.tree.leaves(sizes)) == 1_693_362
    half = replace(Nature(actions=18), dtype="bfloat16")
    h = half.features(half.init(jax.random.key(0))["body"], jnp.zeros((1, 84, 84, 4), jnp.uint8))
    assert h.dtype == jnp.float32


@pytest.mark.parametrize(("start", "passed_on"), [("dqn", 1 / 6), ("he", 1.0)])
def test_how_much_each_layer_passes_on_at_first(start: Any, passed_on: float) -> None:
    net = MLP(400, 2, (2000, 2000))
    params = learner.init(Settings(start=start), net, jax.random.key(0)).params
    x = np.random.default_rng(0).normal(size=(100, 400)).astype(np.float32)
    for layer in params["body"]:
        h = jax.nn.relu(x @ layer["w"])
        np.testing.assert_allclose(jnp.square(h).mean() / jnp.square(x).mean(), passed_on, rtol=0.05)
        x = np.asarray(h)
    assert (start == "he") == all(not layer["b"].any() for layer in params["body"])
    jax.tree.map(np.testing.assert_array_equal, params["head"], net.init(jax.random.key(0))["head"])


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="there is no GPU here")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_on_a_gpu_what_is_computed_at_once_changes_no_bit(dtype: str) -> None:
    """Parts of an update that run at the same time must not read what others have not written yet."""
    settings, net = Settings(optimizer="adam"), Nature(6, dtype)
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
    for options in ({}, AT_ONCE):
        agent = learner.init(settings, net, jax.random.key(0))
        learn = jax.jit(partial(learner.learn, settings, net), compiler_options=options)
        for _ in range(50):
            agent, _ = learn(agent, batches)
        ended.append(agent)
    jax.tree.map(np.testing.assert_array_equal, *ended)
