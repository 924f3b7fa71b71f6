"""Several tasks learned by one network: a task alone is the plain agent, and tasks do not disturb others."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from popart.lab.dqn import learner
from popart.lab.dqn.config import AgentConfig
from popart.lab.dqn.learner import Learner
from popart.lab.dqn.methods import config_of
from popart.lab.dqn.networks import MLP
from popart.lab.dqn.replay import Transitions
from popart.lab.dqn.tasks import BATCH, TasksMLP, config_of_tasks, joined, padded, params_of
from tests.lab.dqn.test_learner import transitions

TASKS = TasksMLP(3, 2, hidden=(8,), tasks=2)
SAMPLES = [transitions(BATCH, seed) for seed in (1, 2)]
"""A sample of each of two tasks, for one update."""

update = jax.jit(learner.learn, static_argnums=(0, 1))


def learned(method: str, *samples: Transitions) -> Learner:
    config = config_of_tasks(method, len(samples))
    network = replace(TASKS, tasks=len(samples))
    agent = learner.init(config, network, jax.random.key(0))
    for _ in range(3):
        agent, _ = update(config, network, agent, joined(samples, 1, 3))
    return agent


@pytest.mark.parametrize("method", ["popart", "clipped"])
def test_one_task_is_learned_as_by_the_plain_agent(method: str) -> None:
    config: AgentConfig = config_of(method, 10.0)
    network = MLP(3, 2, hidden=(8,))
    first = learner.init(config_of_tasks(method, 1), replace(TASKS, tasks=1), jax.random.key(0)).params
    params = params_of(first, 0)
    agent = learner.init(config, network, jax.random.key(0))
    optimizer = learner._optimizer(config).init(params)  # pyright: ignore[reportPrivateUsage]
    agent = agent._replace(params=params, target_params=params, optimizer=optimizer)
    for _ in range(3):
        agent, _ = update(config, network, agent, jax.tree.map(lambda x: x[None], SAMPLES[0]))
    mine = params_of(learned(method, SAMPLES[0]).params, 0)
    assert not np.allclose(mine["head"]["w"], params["head"]["w"], atol=1e-3)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), mine, agent.params)


def test_the_size_of_one_tasks_rewards_changes_no_parameter_with_popart_alone() -> None:
    larger = SAMPLES[1]._replace(reward=2.0**30 * SAMPLES[1].reward)

    def same(method: str) -> bool:
        one, other = learned(method, *SAMPLES), learned(method, SAMPLES[0], larger)
        pairs = zip(*(jax.tree.leaves(x.params) for x in (one, other)), strict=True)
        return all(np.array_equal(a, b) for a, b in pairs)

    assert [same(method) for method in ("popart", "art", "one_statistic", "unclipped")] == [
        True,
        True,
        False,
        False,
    ]


def test_statistics_are_per_task_or_of_all_targets() -> None:
    rewards = [jnp.full(BATCH, 5.0), jnp.linspace(-3e4, 1e4, BATCH)]
    samples = [
        x._replace(reward=reward, terminal=jnp.ones(BATCH, bool))
        for x, reward in zip(SAMPLES, rewards, strict=True)
    ]
    each, one = (
        config_of_tasks(method, 2).head(2).affine(learned(method, *samples).statistics)
        for method in ("popart", "one_statistic")
    )
    np.testing.assert_allclose(each.shift, [float(x.mean()) for x in rewards], rtol=1e-5)
    np.testing.assert_allclose(each.scale, [0.0, float(rewards[1].std())], rtol=1e-5)
    together = np.asarray(rewards)
    np.testing.assert_allclose([float(x) for x in one], (together.std(), together.mean()), rtol=1e-5)


def test_a_target_has_no_action_that_the_game_has_not() -> None:
    """The best action of both rows is the last, which the first task does not have."""
    batch = jax.tree.map(lambda x: x[:2], SAMPLES[0])._replace(
        task=jnp.array([0, 1]), reward=jnp.zeros(2), terminal=jnp.zeros(2, bool)
    )
    values = jnp.array([[1.0, 2.0, 3.0]] * 2)
    found = learner.targets(AgentConfig("unclipped"), batch, values, values, jnp.array([2, 3]))
    np.testing.assert_allclose(found, [0.99 * 2, 0.99 * 3])


def test_batches_have_equally_many_transitions_of_each_task() -> None:
    short = SAMPLES[0]._replace(observation=jnp.ones((BATCH, 1, 1)), next_observation=jnp.ones((BATCH, 1, 1)))
    found: Any = joined([short, SAMPLES[1]], 2, 3)
    half = BATCH // 2
    assert found.observation.shape == (2, BATCH, 3)
    np.testing.assert_array_equal(found.task, [[0] * half + [1] * half] * 2)
    np.testing.assert_array_equal(found.observation[:, :half], np.broadcast_to([1, 0, 0], (2, half, 3)))
    np.testing.assert_array_equal(found.next_observation[1, half:], SAMPLES[1].next_observation[half:, :, 0])
    np.testing.assert_array_equal(
        found.action[0], jnp.concatenate((short.action[:half], SAMPLES[1].action[:half]))
    )


def test_padding_changes_no_feature() -> None:
    body = TASKS.init(jax.random.key(1))["body"]
    x = jax.random.normal(jax.random.key(2), (4, 2, 1))
    np.testing.assert_array_equal(TASKS.features(body, x), TASKS.features(body, padded(x, 3)))


def test_output_layers_of_tasks_begin_differently() -> None:
    first, second = TASKS.init(jax.random.key(0))["head"]["w"]
    assert not np.array_equal(first, second)


def test_methods_with_bins_are_refused() -> None:
    with pytest.raises(ValueError, match="method is 'hl_gauss'; it must have a linear head"):
        config_of_tasks("hl_gauss", 2).head(3)
