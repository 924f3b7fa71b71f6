"""The rule of the how-to page works as the page says."""

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import popart
import popart.torch

PAGE = (Path(__file__).parents[1] / "docs" / "how-to" / "own-rule.md").read_text("utf-8")


@pytest.fixture(scope="module")
def rule() -> popart.Rule[Any]:
    (block,) = (b for b in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "class MeanSize" in b)
    assert len(block[block.index("class SizeState") :].strip().splitlines()) <= 22
    names: dict[str, Any] = {"__name__": "own_rule"}
    exec(block, names)
    return names["MeanSize"](beta=0.1)


def test_a_rule_of_twenty_lines_has_masks_tasks_and_bad_targets(rule: popart.Rule[Any]) -> None:
    y, index = np.array([1.0, -3.0, 10.0, np.nan]), np.array([0, 0, 1, 1])
    state = rule.update(rule.init((3,)), y, index=index)
    np.testing.assert_allclose(rule.affine(state).scale, [2, 10, 0])
    np.testing.assert_array_equal(state.counts, [[1, 1, 0], [0, 1, 0]])
    state = rule.update(state, y, index=index, mask=y > 0)
    np.testing.assert_allclose(rule.affine(state).scale, [2 + 0.1 * (1 - 2), 10, 0])


def test_a_rule_of_twenty_lines_is_compiled_and_preserves_outputs(rule: popart.Rule[Any]) -> None:
    W, b, h = jnp.ones((1, 2)), jnp.zeros(1), jnp.array([0.5, 2.0])
    state = rule.update(rule.init(like=W), jnp.array([1.0, 2.0]))
    new = jax.jit(rule.update)(state, jnp.array([100.0, -300.0]))
    before, after = rule.affine(state), rule.affine(new)
    W_new, b_new = popart.preserve(W, b, before, after)
    np.testing.assert_allclose(after.denormalize(W_new @ h + b_new), before.denormalize(W @ h + b), rtol=1e-6)


def test_a_rule_of_twenty_lines_is_taken_by_a_head(rule: popart.Rule[Any]) -> None:
    head = popart.torch.PopArt(4, 2, rule)
    with torch.no_grad():
        for x in (head.weight, head.bias):  # of one sign, so that no sum cancels
            x.abs_()  # pyright: ignore[reportOptionalMemberAccess]
    head.update([1.0, -3.0])
    assert float(head.sigma) == 2
    before = head(torch.ones(4))
    head.update([100.0, 300.0])
    torch.testing.assert_close(head(torch.ones(4)), before, rtol=1e-6, atol=0)
