"""Mistakes of other implementations, numbered as in `docs/explanation/pitfalls.md`."""

import copy
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import popart
import popart.jax
import popart.torch
from tests.backends import Backend

F32 = np.float32
LARGE = float(F32(1e38))


ALPHA, H, Y = 0.05, np.array([1.0, 2.0]), 40.0


def after_a_step_of_sgd(before: float) -> float:
    """Return an output, in true units, after a step of SGD on half the squared error in normalised units.

    With an error of (before - Y) / scale, W changes by -ALPHA times the error times h, and b by -ALPHA times
    the error. The output is scale times (W h + b) plus shift, so that no scale is left in its change.
    """
    return before - ALPHA * float(H @ H + 1) * (before - Y)


def test_pitfall_1_the_update_goes_to_the_preserved_weights() -> None:
    """A step of SGD from the preserved weights moves the output from where it was towards the target."""
    rule = popart.Moments(beta=0.5)
    state = rule.update(rule.init(), [0.0, 2.0])
    new_state = rule.update(state, [Y, 3 * Y])
    old, new = rule.affine(state), rule.affine(new_state)
    W, b = np.array([[0.3, 0.7]]), np.array([0.1])
    before = old.denormalize(W @ H + b).item()
    W_new, b_new = popart.preserve(W, b, old, new)
    error = W_new @ H + b_new - new.normalize(Y)
    step_W, step_b = -ALPHA * np.outer(error, H), -ALPHA * error
    after = new.denormalize((W_new + step_W) @ H + b_new + step_b).item()
    assert after == pytest.approx(after_a_step_of_sgd(before))
    thrown_away = new.denormalize((W + step_W) @ H + b + step_b).item()
    assert abs(thrown_away - after) > 10


def test_pitfall_1_in_pytorch() -> None:
    head = popart.torch.PopArt(2, 1, popart.Moments(beta=0.5))
    optimizer = torch.optim.SGD(head.parameters(), ALPHA)
    h = torch.asarray(H, dtype=torch.float32)
    head.update(torch.tensor([0.0, 2.0]), optimizer=optimizer)
    before = head(h).item()
    head.update(torch.tensor([Y, 3 * Y]), optimizer=optimizer)
    (head.normalized(h) - head.normalize(torch.tensor([Y]))).square().sum().div(2).backward()
    optimizer.step()
    assert head(h).item() == pytest.approx(after_a_step_of_sgd(before), rel=1e-5)


def test_pitfall_1_in_jax() -> None:
    art, h = popart.Moments(beta=0.5), jnp.asarray(H)
    head = {"w": jnp.asarray([[0.3], [0.7]]), "b": jnp.asarray([0.1])}
    state, head, _, _ = popart.jax.step(art, popart.jax.init(art, head), head, jnp.asarray([0.0, 2.0]))
    before = popart.jax.values(art, state, head, h).item()
    state, head, y, _ = popart.jax.step(art, state, head, jnp.asarray([Y, 3 * Y]))
    gradient = jax.grad(lambda head: ((popart.jax.normalized(head, h) - y[0]) ** 2).sum() / 2)(head)
    head = jax.tree.map(lambda x, g: x - ALPHA * g, head, gradient)
    assert popart.jax.values(art, state, head, h).item() == pytest.approx(
        after_a_step_of_sgd(before), rel=1e-5
    )


def test_pitfall_2_a_large_batch_takes_one_step_not_one_per_target(single: Backend) -> None:
    rule = popart.Moments(beta=popart.constant(1e-3))

    def f(few: Any, many: Any) -> Any:
        start = rule.update(rule.init(like=few), few * 0)
        return rule.affine(rule.update(start, few)), rule.affine(rule.update(start, many))

    few, many = single.call(f, np.full(4, 8.0, F32), np.full(65_536, 8.0, F32))
    assert few.shift == many.shift == pytest.approx(8e-3)
    np.testing.assert_allclose(few.scale, many.scale, rtol=1e-6)


def test_pitfall_3_variance_does_not_cancel(single: Backend) -> None:
    y = np.random.default_rng(0).normal(1e4, 1, (50, 64)).astype(F32)
    rule = popart.Moments(beta=0.01)

    def step(state: Any, y: Any) -> Any:
        state = rule.update(state, y)
        return state, rule.affine(state).scale

    scales = np.array(single.run(step, rule.init(like=F32(0)), list(y))[1])
    np.testing.assert_allclose(scales, 1, atol=0.2)
    naive = (y[0] ** 2).mean() - y[0].mean() ** 2
    assert abs(naive - 1) > 1


def test_pitfall_4_normalizing_without_preserving_changes_every_output() -> None:
    rng = np.random.default_rng(1)
    W, b, h = rng.normal(size=(2, 8)), rng.normal(size=2), rng.normal(size=(8, 100))
    old, new = popart.Affine(1.0, 0.0), popart.Affine(7.0, -3.0)
    before = old.denormalize((W @ h).T + b)
    W_new, b_new = popart.preserve(W, b, old, new)
    np.testing.assert_allclose(new.denormalize((W_new @ h).T + b_new), before, rtol=1e-12, atol=1e-12)
    assert (np.abs(new.denormalize((W @ h).T + b) - before) > 1e-3).all()


def test_pitfall_5_prediction_and_target_are_normalized_by_the_same_map() -> None:
    """Error times scale is the error in real units, which it is for no mixture of old and new."""
    rule = popart.Moments(beta=0.3)
    state = rule.update(rule.init(), [1.0, 3.0])
    new_state = rule.update(state, [50.0, 90.0])
    old, new = rule.affine(state), rule.affine(new_state)
    W, b, h, Y = np.ones((1, 2)), np.ones(1), np.array([0.3, -0.4]), 50.0
    W_new, b_new = popart.preserve(W, b, old, new)
    error = W_new @ h + b_new - new.normalize(Y)
    np.testing.assert_allclose(new.scale * error, old.denormalize(W @ h + b) - Y)


def test_pitfall_6_a_state_is_all_there_is_to_save(tmp_path: Any) -> None:
    rule = popart.Moments(beta=0.1)
    y = np.random.default_rng(2).normal(size=(20, 8)).astype(F32)
    state = rule.init(like=F32(0))
    for batch in y[:10]:
        state = rule.update(state, batch)
    np.savez(tmp_path / "state.npz", **state._asdict())
    with np.load(tmp_path / "state.npz") as saved:
        loaded = type(state)(**saved)
    for batch in y[10:]:
        state, loaded = rule.update(state, batch), rule.update(loaded, batch)
    for a, b in zip(state, loaded, strict=True):
        np.testing.assert_array_equal(a, b)


def test_pitfall_7_the_old_statistics_are_not_overwritten_by_the_new(single: Backend) -> None:
    rule = popart.Moments(beta=0.5)

    def f(y: Any) -> Any:
        state = rule.update(rule.init(like=y), y)
        old = rule.affine(state)
        new = rule.affine(rule.update(state, y + 100))
        return old, new

    old, new = single.call(f, np.array([1.0, 3.0], F32))
    assert (float(old.shift), float(old.scale)) == pytest.approx((2, 1), rel=1e-6)
    assert new.shift > 30


def test_pitfall_8_outputs_are_kept_when_the_scale_is_at_its_floor() -> None:
    rule = popart.Moments(beta=0.9, epsilon=4.0)
    W, b, h = np.ones((1, 2)), np.ones(1), np.array([0.3, -0.4])
    state = rule.update(rule.init(), [0.0, 20.0])
    first = rule.affine(state).denormalize(W @ h + b)
    for y in (3.0, 3.0, 3.0, 3.0, 3.0):
        new = rule.update(state, y)
        W, b = popart.preserve(W, b, rule.affine(state), rule.affine(new))
        state = new
    assert rule.affine(state).scale == 2
    np.testing.assert_allclose(rule.affine(state).denormalize(W @ h + b), first, rtol=1e-12)


def test_pitfall_10_the_variance_between_batches_counts() -> None:
    rule = popart.Moments(beta=popart.harmonic())
    state = rule.init()
    for level in (-5.0, 5.0, -5.0, 5.0):
        state = rule.update(state, np.full(16, level))
    assert rule.affine(state).scale == pytest.approx(5)


@settings(max_examples=30)
@given(
    stream=hnp.arrays(
        F32, (12, 3), elements=st.floats(-LARGE, LARGE, width=32) | st.sampled_from([np.nan, np.inf])
    )
)
def test_pitfall_11_no_stream_whatever_gives_nan(stream: Any) -> None:
    """Any float32 there is but those within a factor of three of overflow."""
    rules: list[popart.Rule[Any]] = [popart.Moments(beta=0.1), popart.Percentiles()]
    for rule in (*rules, popart.Expectiles(), popart.Extremes()):
        state = rule.init(like=F32(0))
        for y in stream:
            state = rule.update(state, y)
            affine = rule.affine(state)
            assert np.isfinite(affine.scale)
            assert affine.scale >= 0
            assert np.isfinite(affine.shift) or state.counts[0] == 0  # NaN: nothing is known


def test_pitfall_12_rare_large_targets_are_not_clamped() -> None:
    rule = popart.Moments(beta=popart.constant(1e-6))
    state = rule.update(rule.init(), np.random.default_rng(3).normal(size=1000))
    normalized = rule.affine(rule.update(state, 1e5)).normalize(1e5)
    assert normalized > 500
    assert rule.affine(state).denormalize(rule.affine(state).normalize(1e9)) == pytest.approx(1e9)


def test_pitfall_13_a_target_counts_when_update_is_called_and_only_then() -> None:
    rule = popart.Moments(beta=0.1)
    state = rule.update(rule.init(), [1.0, 3.0])
    new = rule.affine(state)
    for _ in range(5):
        new.normalize([100.0])
        new.denormalize([100.0])
    assert rule.affine(state).shift == 2
    head = popart.torch.PopArt(2, 1, rule)
    head.update(torch.tensor([1.0, 3.0]))
    for _ in range(5):
        head(torch.full((4, 2), 100.0)).sum().backward()
        head.normalize(torch.tensor([100.0]))
    assert head.affine.shift == 2


def test_pitfall_14_replicas_agree_and_do_not_freeze() -> None:
    """Four replicas follow a change of level as fast as one process with all of their targets."""
    art, head = popart.Moments(beta=0.1), {"w": jnp.ones((2, 1)), "b": jnp.zeros(1)}
    rng = np.random.default_rng(4)
    alone = popart.jax.init(art, head)
    replicas = jax.tree.map(lambda x: jnp.stack([x] * 4), (alone, head))
    step: Any = jax.jit(popart.jax.step, static_argnums=0)

    def replica(state: Any, head: Any, y: Any) -> Any:
        return popart.jax.step(art, state, head, y, "replicas")[:2]

    together: Any = jax.jit(jax.vmap(replica, axis_name="replicas"))
    for level in np.repeat([0.0, 1000.0], 50):
        y = jnp.asarray(rng.normal(level, 1, (4, 8)), jnp.float32)
        replicas = together(*replicas, y)
        alone, head = step(art, alone, head, y.ravel())[:2]
    affine = jax.vmap(art.affine)(replicas[0])
    np.testing.assert_array_equal(affine.shift, affine.shift[0])
    np.testing.assert_array_equal(affine.scale, affine.scale[0])
    np.testing.assert_allclose(affine.shift[0], art.affine(alone).shift, rtol=1e-5)
    np.testing.assert_allclose(affine.scale[0], art.affine(alone).scale, rtol=1e-5)
    np.testing.assert_allclose(replicas[1]["w"][0], head["w"], rtol=1e-4)
    assert affine.shift[0] > 990


@pytest.mark.parametrize("size", [1e-4, 1e-12, 1e-30])
def test_pitfall_17_small_targets_do_not_look_constant(size: float, single: Backend) -> None:
    y = (size * np.random.default_rng(5).normal(3, 1, 256)).astype(F32)
    rule = popart.Moments()

    def f(y: Any) -> Any:
        return rule.affine(rule.update(rule.init(like=y), y)).normalize(y)

    normalized = single.call(f, y)
    np.testing.assert_allclose(normalized.std(), 1, rtol=1e-5)
    np.testing.assert_allclose(normalized.mean(), 0, atol=1e-5)


def test_pitfall_6_statistics_are_in_every_checkpoint_and_converted_parameters_are_still_trained() -> None:
    network = torch.nn.Sequential(torch.nn.Linear(4, 8), popart.torch.PopArt(8, 2))
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    network.double()
    head: Any = network[1]
    assert network.state_dict().keys() > dict(network.named_parameters()).keys()
    assert any(p is head.weight for group in optimizer.param_groups for p in group["params"])
    head.update(torch.arange(8.0), optimizer=optimizer)
    before = head.weight.detach().clone()
    x = torch.ones(3, 4, dtype=torch.float64)
    network(x).sum().backward()
    optimizer.step()
    assert not torch.equal(head.weight, before)
    other = torch.nn.Sequential(torch.nn.Linear(4, 8), popart.torch.PopArt(8, 2)).double()
    other.load_state_dict(network.state_dict())
    torch.testing.assert_close(other(x), network(x), rtol=0, atol=0)


def test_pitfall_9_statistics_are_of_the_targets_and_not_of_the_rewards() -> None:
    """Rewards of 1 with a discount of 0.9 have returns of 10."""
    head = popart.torch.PopArt(1, 1, popart.Moments(beta=0.05))
    optimizer = torch.optim.SGD(head.parameters(), 0.1)
    h = torch.ones(4, 1)
    for _ in range(500):
        with torch.no_grad():
            y = torch.rand(4) + 0.5 + 0.9 * head(h)[:, 0]
        t = head.update(y, optimizer=optimizer)
        optimizer.zero_grad()
        (head.normalized(h)[:, 0] - t).square().mean().backward()
        optimizer.step()
    assert float(head.affine.shift) == pytest.approx(10, rel=0.1)


def test_pitfall_15_bootstrapped_values_are_in_true_units() -> None:
    """TD learning of a chain of three states with a reward of a million at its end."""
    head = popart.torch.PopArt(3, 1, popart.Moments(beta=0.05))
    optimizer = torch.optim.SGD(head.parameters(), 0.2)
    states = torch.eye(3)
    rewards = torch.tensor([0.0, 0.0, 1e6])
    for _ in range(400):
        with torch.no_grad():
            following = torch.cat((head(states)[1:, 0], torch.zeros(1)))
        t = head.update(rewards + 0.5 * following, optimizer=optimizer)
        optimizer.zero_grad()
        (head.normalized(states)[:, 0] - t).square().mean().backward()
        optimizer.step()
    values = head(states)[:, 0].detach()
    torch.testing.assert_close(values, torch.tensor([0.25e6, 0.5e6, 1e6]), rtol=1e-2, atol=1e4)


def test_pitfall_16_heads_are_found_by_what_they_are_and_not_by_their_names() -> None:
    class Agent(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.critic_output = torch.nn.ModuleList([popart.torch.PopArt(2, 1), popart.torch.PopArt(2, 1)])

    online: Any = Agent()
    target = copy.deepcopy(online)
    for i, head in enumerate(online.critic_output):
        head.update(10.0**i * torch.arange(4.0))
    popart.torch.polyak_(target, online, 1.0)
    h = torch.ones(1, 2)
    for mine, theirs in zip(target.critic_output, online.critic_output, strict=True):
        torch.testing.assert_close(mine(h), theirs(h))
    layer = {"any": {"name": {"kernel": jnp.ones((2, 1)), "bias": jnp.zeros(1)}}}
    art = popart.Moments()
    layer = popart.jax.step(art, popart.jax.init(art, layer), layer, jnp.arange(4.0)).head
    assert layer["any"]["name"]["kernel"].shape == (2, 1)


@pytest.mark.parametrize("k", [-40, 0, 40])
def test_pitfall_18_values_are_clipped_in_normalised_units(k: int) -> None:
    """PPO's clipped value loss: old values are kept in true units and normalised when they are used."""

    def gradient(scale: float) -> torch.Tensor:
        torch.manual_seed(0)
        head = popart.torch.PopArt(4, 1, popart.Moments(beta=0.1))
        h = torch.randn(16, 4)
        head.update(scale * torch.randn(16))
        old_values = head(h)[:, 0].detach()
        returns = head.update(scale * (torch.randn(16) + 1))
        old = head.normalize(old_values)
        values = head.normalized(h + 0.5)[:, 0]
        clipped = old + (values - old).clamp(-0.2, 0.2)
        loss = torch.maximum((values - returns).square(), (clipped - returns).square()).mean()
        loss.backward()
        assert head.weight.grad is not None
        return head.weight.grad

    torch.testing.assert_close(gradient(2.0**k), gradient(1.0), rtol=0, atol=0)


PEERS = (
    "rlax",
    "TorchRL",
    "stable-baselines DDPG",
    "MAPPO's on-policy",
    "DI-engine",
    "seed_rl",
    "Stable-Baselines3",
    "skrl",
    "tianshou",
    "rl_games",
    "rsl_rl",
    "OpenAI Baselines",
    "RLlib",
)
"""Implementations whose sources or issues were read."""


def test_every_pitfall_has_an_entry_with_tests_and_a_peer_or_says_that_there_is_none() -> None:
    page = (Path(__file__).parents[1] / "docs" / "explanation" / "pitfalls.md").read_text("utf-8")
    sections = re.split(r"^## (\d+)\. ", page, flags=re.MULTILINE)[1:]
    numbers = [int(number) for number in sections[::2]]
    assert numbers == list(range(1, len(numbers) + 1))
    entries = dict(zip(numbers, sections[1::2], strict=True))
    named = {number: set(re.findall(r"`(test_\w+)`", text)) for number, text in entries.items()}
    tests = [name for name in globals() if name.startswith("test_pitfall_")]
    assert named == {n: {name for name in tests if name.startswith(f"test_pitfall_{n}_")} for n in numbers}
    assert set().union(*named.values()) == set(tests)
    assert all(named.values())
    for text in entries.values():
        seen = re.search(r"^Seen in: (.+?)\n\n", text, re.MULTILINE | re.DOTALL)
        if seen is None:
            assert "\nWe cannot name a published implementation with this mistake." in text
        else:
            assert any(peer in seen[1] for peer in PEERS), seen[1]
