"""What a step size of 1/t averages, and what it does not, and the first step of a debiased average."""

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import popart

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "choosing-beta.md"
Y = np.sort(np.random.default_rng(0).gamma(1.0, 100.0, 104))
"""In order, so that batches differ."""


def after(rule: popart.Rule[Any], sizes: list[int], weighted: bool = False) -> popart.Affine:
    """Return the statistics of Y after batches of these sizes, also with their sizes as weights."""
    state, ends = rule.init(), np.cumsum([0, *sizes]).tolist()
    for first, last in pairwise(ends):
        n = last - first
        state = rule.update(state, Y[first:last], weights=np.full(n, float(n)) if weighted else None)
    return rule.affine(state)


def test_harmonic_steps_average_all_targets_of_batches_of_one_size() -> None:
    found = after(popart.Moments(beta=popart.harmonic()), [26] * 4)
    np.testing.assert_allclose([found.shift, found.scale], [Y.mean(), Y.std()], rtol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
def test_harmonic_steps_average_batches_where_their_sizes_differ(weighted: bool) -> None:
    """The mean and the mean square of the batches, each counted once, and not those of all targets."""
    found = after(popart.Moments(beta=popart.harmonic()), [32, 32, 32, 8], weighted)
    batches = np.split(Y, [32, 64, 96])
    mean, square = (np.mean([(y**n).mean() for y in batches]) for n in (1, 2))
    np.testing.assert_allclose([found.shift, found.scale], [mean, np.sqrt(square - mean**2)], rtol=1e-12)
    assert found.shift != pytest.approx(Y.mean(), rel=0.1)
    assert found.scale != pytest.approx(Y.std(), rel=0.1)


def test_the_steps_on_the_page_average_all_targets_of_batches_of_different_sizes() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (code,) = (c for c in blocks if "sizes.cumsum" in c)
    names: dict[str, Any] = {}
    exec(code, names)
    found = after(names["art"], names["sizes"].tolist())
    np.testing.assert_allclose([found.shift, found.scale], [Y.mean(), Y.std()], rtol=1e-12)


@pytest.mark.parametrize("convert", [float, int, np.float64, np.float32, jnp.float32, torch.tensor])
def test_the_first_debiased_step_is_exactly_one(convert: Callable[[float], Any]) -> None:
    """So that nothing remains of an initial value: 1 - 2⁻⁵³ of it would be a standard deviation of 10⁻⁸."""
    for beta in np.random.default_rng(0).uniform(0, 1, 1000).tolist():
        first, second = (float(popart.debiased(beta)(convert(t))) for t in (1, 2))
        assert first == 1 > second
