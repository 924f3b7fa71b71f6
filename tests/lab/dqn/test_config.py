"""Hyperparameters: the published values, and when to explore, to learn and to copy."""

import jax.numpy as jnp
import pytest

import popart
from popart.lab.dqn.config import (
    ATARI_SCHEDULE,
    SMALL_SCHEDULE,
    AgentConfig,
    AgentName,
    Schedule,
    published_learning_rate,
)


def test_defaults_are_those_of_the_tuned_double_dqn() -> None:
    assert Schedule(50_000, 1_000_000, 0.01, 30_000, steps_per_update=4) == ATARI_SCHEDULE
    config = AgentConfig()
    assert (config.batch, config.discount, config.beta) == (32, 0.99, 1e-4)
    assert (config.optimizer, config.initial_weights) == ("rmsprop", "dqn")


@pytest.mark.parametrize(
    ("agent", "optimizer", "rate"),
    [
        ("clipped", "rmsprop", 2.5e-4),
        ("unclipped", "rmsprop", 1e-4),
        ("popart", "rmsprop", 1e-4),
        ("clipped", "adam", 6.25e-5),
        ("popart", "adam", 6.25e-5),
    ],
)
def test_learning_rates_are_the_published_ones(agent: AgentName, optimizer: str, rate: float) -> None:
    assert published_learning_rate(agent, optimizer) == rate


def test_epsilon_falls_from_1_to_its_final_value_after_the_warm_up() -> None:
    for steps, epsilon in ((0, 1.0), (50_000, 1.0), (550_000, 0.505), (1_050_000, 0.01), (2e6, 0.01)):
        assert float(ATARI_SCHEDULE.epsilon_at(jnp.float32(steps))) == pytest.approx(epsilon, abs=1e-5)


def test_without_exploration_epsilon_has_its_final_value_after_the_warm_up() -> None:
    schedule = Schedule(warm_up=10, exploration=0, epsilon=0.2, copy_every=4)
    assert [float(schedule.epsilon_at(jnp.float32(x))) for x in (10, 11)] == pytest.approx([1.0, 0.2])


def test_updates_are_due_once_for_every_fourth_step() -> None:
    assert SMALL_SCHEDULE.updates_due(0, 400) == 100
    assert [SMALL_SCHEDULE.updates_due(n, n + 1) for n in range(8)] == [0, 0, 0, 1, 0, 0, 0, 1]
    assert sum(SMALL_SCHEDULE.updates_due(n, n + 3) for n in range(0, 300, 3)) == 75


def test_the_target_network_is_copied_after_at_least_one_update() -> None:
    assert ATARI_SCHEDULE.updates_per_copy == 7500
    assert Schedule(0, 0, 0.1, copy_every=1).updates_per_copy == 1


def test_only_popart_has_statistics_and_only_clipped_clips() -> None:
    assert AgentConfig("popart", beta=0.5).art == popart.Moments(0.5)
    assert [AgentConfig(name).art for name in ("clipped", "unclipped")] == [popart.Fixed()] * 2
    assert [AgentConfig(name).clips for name in ("clipped", "unclipped", "popart")] == [True, False, False]
