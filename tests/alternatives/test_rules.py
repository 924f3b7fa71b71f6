"""Rules without a shift, against independent formulas."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import popart
import popart.torch
from popart.alternatives import PercentileSpan, ReturnScaling

RNG = np.random.default_rng(4)
MODULES = {"numpy": np.asarray, "torch": torch.asarray, "jax": lambda x: jnp.asarray(np.float32(x))}


def transitions(n: int) -> np.ndarray:
    """Rewards, discounts and returns."""
    discounts = np.where(RNG.random(n) < 0.1, 0.0, 0.99)
    return np.stack((RNG.normal(1, 2, n), discounts, RNG.normal(30, 10, n)), -1)


@pytest.mark.parametrize("module", MODULES)
def test_return_scaling_is_the_formula_over_all_data(module: str) -> None:
    batches = [transitions(16) for _ in range(20)]
    art, make = ReturnScaling(), MODULES[module]
    state = art.init(like=make(np.zeros(())))
    for batch in batches:
        state = art.update(state, make(batch))
    r, discount, g = np.concatenate(batches).T
    expected = np.sqrt(r.var() + discount.var() * np.mean(g**2))
    scale, shift = art.affine(state)
    np.testing.assert_allclose(scale, expected, rtol=1e-12 if module != "jax" else 1e-5)
    assert shift == 0


def test_return_scaling_works_in_a_head() -> None:
    head = popart.torch.PopArt(3, 1, ReturnScaling())
    h = torch.randn(5, 3)
    head.update(torch.asarray(transitions(64), dtype=torch.float32))
    before = head(h)
    y = transitions(64).astype(np.float32)
    normalized = head.update(torch.asarray(y))[..., -1]
    torch.testing.assert_close(head(h), before, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(normalized, torch.asarray(y[:, -1]) / head.sigma)


def test_return_scaling_refuses_targets_alone() -> None:
    with pytest.raises(ValueError, match=r"targets have shape \(8,\).*stacked on a last axis of 3"):
        ReturnScaling().update(ReturnScaling().init(), np.ones(8))


@pytest.mark.parametrize("module", MODULES)
def test_percentile_span_is_dreamers(module: str) -> None:
    make, art = MODULES[module], PercentileSpan(beta=popart.constant(0.01))
    state = art.init(like=make(np.zeros(())))
    spans = []
    for _ in range(30):
        y = RNG.normal(5, 20, 37)
        spans.append(np.quantile(y, 0.95) - np.quantile(y, 0.05))
        state = art.update(state, make(y))
    expected = spans[0]
    for span in spans[1:]:
        expected = 0.99 * expected + 0.01 * span
    np.testing.assert_allclose(art.affine(state).scale, expected, rtol=1e-12 if module != "jax" else 1e-5)


@pytest.mark.parametrize("module", MODULES)
def test_percentile_span_leaves_out_what_does_not_count(module: str) -> None:
    make, art = MODULES[module], PercentileSpan(floor=0.0)
    y = np.concatenate((RNG.normal(size=20), [1e9, np.nan]))
    mask = np.arange(22) != 20
    state = art.update(
        art.init(like=make(np.zeros(()))), make(y), mask=make(mask) if module != "jax" else mask
    )
    expected = np.quantile(y[:20], 0.95) - np.quantile(y[:20], 0.05)
    np.testing.assert_allclose(art.affine(state).scale, expected, rtol=1e-5)
    assert state.counts[1] == 1


def test_percentile_span_per_task_is_that_of_its_targets() -> None:
    y, index = RNG.normal(size=50), RNG.integers(0, 3, 50)
    art = PercentileSpan(floor=0.0)
    scale, _ = art.affine(art.update(art.init((3,)), y, index=index))
    for task in range(3):
        mine = y[index == task]
        np.testing.assert_allclose(scale[task], np.quantile(mine, 0.95) - np.quantile(mine, 0.05))


def test_a_span_below_the_floor_is_the_floor() -> None:
    art = PercentileSpan()
    assert art.affine(art.init()).scale == 0
    assert art.affine(art.update(art.init(), 1e-3 * RNG.normal(size=50))).scale == 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PercentileSpan(low=0.9, high=0.1), "low is 0.9 and high is 0.1"),
        (lambda: PercentileSpan(floor=-1.0), "floor is -1.0"),
        (lambda: PercentileSpan(symmetric=False), "symmetric is False"),
        (lambda: ReturnScaling(symmetric=False), "symmetric is False"),
    ],
)
def test_wrong_settings_are_named(make: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()  # pyright: ignore
