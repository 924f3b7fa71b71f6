"""Distributions over bins, against independent formulas."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from scipy.stats import norm

from popart import Affine
from popart.alternatives import H, Histogram, HLGauss, Identity, Symlog, TwoHot
from popart.alternatives.supports import following, interpolation

RNG = np.random.default_rng(5)
MODULES = {"numpy": np.asarray, "torch": torch.asarray, "jax": lambda x: jnp.asarray(np.float32(x))}


def dreamers_two_hot(y: float, bins: np.ndarray) -> np.ndarray:
    """The loop of the paper's definition: the weights of the bins k and k + 1 that y lies between."""
    p = np.zeros(len(bins))
    k = int(np.clip(np.searchsorted(bins, y, side="right") - 1, 0, len(bins) - 2))
    y = np.clip(y, bins[0], bins[-1])
    p[k] = (bins[k + 1] - y) / (bins[k + 1] - bins[k])
    p[k + 1] = (y - bins[k]) / (bins[k + 1] - bins[k])
    return p


@pytest.mark.parametrize("module", MODULES)
def test_two_hot_is_dreamers(module: str) -> None:
    y = np.concatenate((RNG.normal(size=20) * np.logspace(-3, 10, 20), [0.0]))
    symexp = np.sign(np.linspace(-20, 20, 255)) * np.expm1(np.abs(np.linspace(-20, 20, 255)))
    p = np.asarray(TwoHot().encode(MODULES[module](y)))
    expected = [dreamers_two_hot(float(x), symexp) for x in y]
    np.testing.assert_allclose(p, expected, atol=1e-9 if module != "jax" else 1e-4)


@pytest.mark.parametrize("module", MODULES)
def test_hl_gauss_is_a_difference_of_normal_distributions(module: str) -> None:
    y = RNG.uniform(-12, 12, 40)
    edges, inside = np.linspace(-10, 10, 52), np.clip(y, -10, 10)
    below = norm.cdf(edges, inside[:, None], 0.75 * 20 / 51)
    expected = np.diff(below) / (below[:, -1:] - below[:, :1])
    p = np.asarray(HLGauss().encode(MODULES[module](y)))
    np.testing.assert_allclose(p, expected, atol=1e-12 if module != "jax" else 2e-6)


@pytest.mark.parametrize("histogram", [TwoHot(), TwoHot(-9, 9, 31, Identity()), HLGauss()], ids=repr)
def test_the_mean_is_the_target_inside_of_the_support(histogram: Histogram) -> None:
    y = RNG.uniform(-8, 8, 50)
    np.testing.assert_allclose(histogram.decode(histogram.encode(y)), y, atol=3e-3)


@pytest.mark.parametrize("make", [np.asarray, torch.asarray, jnp.asarray])
@pytest.mark.parametrize("histogram", [TwoHot(), HLGauss(), HLGauss(-4, 4, 17, H())], ids=repr)
def test_integers_have_the_distributions_of_the_same_floats(histogram: Histogram, make: Any) -> None:
    y = np.array([0, 1, 5, 9], np.uint8)
    p, expected = histogram.encode(make(y)), histogram.encode(make(y.astype(np.float32)))
    np.testing.assert_allclose(np.asarray(p), np.asarray(expected), atol=1e-5)


def test_a_uniform_distribution_over_symlog_bins_has_a_mean_of_exactly_0() -> None:
    assert TwoHot().decode(torch.full((255,), 1 / 255)) == 0


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("histogram", [HLGauss(-4, 4, 17), HLGauss(-3, 3, 21, Symlog())], ids=repr)
def test_interpolated_logits_are_those_at_the_same_real_value(histogram: Histogram, module: str) -> None:
    old, new, make = Affine(2.0, 1.0), Affine(2.5, 1.7), MODULES[module]
    A = np.asarray(interpolation(histogram, *(Affine(*map(make, map(np.float64, x))) for x in (old, new))))
    logits = RNG.normal(size=17 if histogram.bins == 17 else 21)
    real = 2.5 * histogram.values + 1.7
    place = histogram.transform.apply((real - 1.0) / 2.0)
    expected = np.interp(place, histogram.places, logits)
    np.testing.assert_allclose(A @ logits, expected, atol=1e-12 if module != "jax" else 1e-5)


def test_units_follow_only_beyond_the_slack() -> None:
    units = Affine(np.float64(2), np.float64(10))
    for measured, moves in [((2.2, 10), False), ((2.6, 10), True), ((1.5, 10), True), ((2, 10.6), True)]:
        new, moved = following(units, Affine(*map(np.float64, measured)), 0.25)
        assert moved == moves
        assert new == (measured if moves else units)
    assert following(Affine(np.float64(0), np.float64(0)), units, 0.25)[1]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TwoHot(low=1, high=0), "low is 1 and high is 0"),
        (lambda: HLGauss(bins=1), "bins is 1"),
        (lambda: HLGauss(ratio=0.0), "ratio is 0.0"),
    ],
)
def test_wrong_settings_are_named(make: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()  # pyright: ignore
