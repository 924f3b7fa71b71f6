"""The asymmetric least-squares rule that the paper suggests."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import expectile

import popart


@pytest.mark.parametrize("p", [0.5, 0.9, 0.99])
def test_bounds_converge_to_the_expectiles(p: float) -> None:
    """With all data in each batch, they are the expectiles of SciPy."""
    y = np.random.default_rng(0).gamma(2, 3, 500)
    rule = popart.Expectiles(beta=popart.constant(0.9), p=p)
    state = rule.init()
    for _ in range(3000):
        state = rule.update(state, y)
    tau = (1 + p) / 2
    np.testing.assert_allclose(state.high, expectile(y, tau), rtol=1e-3)
    np.testing.assert_allclose(state.low, expectile(y, 1 - tau), rtol=1e-3)


@given(
    stream=hnp.arrays(float, (20, 3), elements=st.floats(-1e6, 1e6)),
    beta=st.floats(1e-6, 1),
    p=st.floats(0.01, 1),
)
def test_bounds_stay_in_order_and_inside_the_range_seen(stream: Any, beta: float, p: float) -> None:
    rule = popart.Expectiles(beta=popart.constant(beta), p=p)
    state = rule.init()
    for t, y in enumerate(stream):
        state = rule.update(state, y)
        seen = stream[: t + 1]
        slack = 1e-12 * np.abs(seen).max()
        assert seen.min() - slack <= state.low <= state.high <= seen.max() + slack


def test_the_literal_update_for_one_target() -> None:
    rule = popart.Expectiles(beta=popart.constant(0.1), p=0.8, nu0=4.0)
    state = rule.update(rule.init(), 12.0)
    np.testing.assert_allclose(state.high, 2 + 0.1 * 10)
    np.testing.assert_allclose(state.low, -2 + 0.1 * (0.2 / 1.8) * 14)


def test_they_adapt_faster_than_percentiles_to_a_change_of_size() -> None:
    rng = np.random.default_rng(1)
    y = np.concatenate((rng.normal(size=(200, 8)), 1e6 * rng.normal(size=(200, 8))))
    scales = []
    for rule in (popart.Expectiles(beta=0.05, p=0.9), popart.Percentiles(beta=0.05, p=0.9)):
        state: Any = rule.init()
        for batch in y:
            state = rule.update(state, batch)
        scales.append(rule.affine(state).scale)
    assert scales[0] > 1e5 > scales[1]
