"""`popart.testing` finds whether scale matters, in which step and leaf, and by how much."""

import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import popart.torch
from popart.testing import assert_scale_invariant, compare_scales
from tests.training import TorchRun, data, run_jax

STATISTICS = ("head.scale", "head.shift", "moments_moments")
"""Leaves of a network with a PopArt head in the units of the rewards."""


def torch_steps(scale: float) -> Iterator[Any]:
    """Yield the live parameters after each step, which the next one changes in place."""
    run, all_steps = TorchRun(), data(12, scale=scale)
    for t in range(12):
        run.steps(type(all_steps)(*(x[t : t + 1] for x in all_steps)))
        yield run.online.state_dict()


def test_a_pytorch_training_with_pop_art_passes_to_the_bit() -> None:
    report = assert_scale_invariant(torch_steps, [2.0**-60, 2.0**60], proportional=STATISTICS)
    assert report.is_invariant
    assert (report.steps, report.largest) == (12, 0.0)
    assert "Scale does not matter" in str(report)
    assert "to the bit" in str(report)


def test_a_jax_training_with_pop_art_passes_to_the_bit() -> None:
    report = assert_scale_invariant(lambda scale: run_jax(data(200, scale=scale)), proportional="values")
    assert (report.steps, report.leaves, report.largest) == (None, 7, 0.0)


def test_other_scales_pass_within_a_tolerance_that_is_reported() -> None:
    report = assert_scale_invariant(
        lambda scale: run_jax(data(200, scale=scale))._replace(actions=None),  # pyright: ignore[reportArgumentType]
        [1e-4, 1000.0],
        rtol=1e-2,
        proportional="values",
    )
    assert 1e-8 < report.largest < 1e-2
    assert f"{report.largest:.3g} of their size" in str(report)


def plain(scale: float, head: Callable[[], Any] = lambda: torch.nn.Linear(4, 1), start: int = 0) -> Any:
    """Yield the parameters of a plain network whose rewards are 0 before the step `start`."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), head())
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    for t in range(8):
        x = torch.randn(16, 3)
        y = (scale if t >= start else 0.0) * x.sum(1, keepdim=True)
        optimizer.zero_grad()
        (network(x) - y).square().mean().backward()
        optimizer.step()
        yield network


@pytest.mark.parametrize("start", [0, 5])
def test_a_plain_training_fails_in_the_first_step_with_a_reward(start: int) -> None:
    with pytest.raises(AssertionError) as caught:
        assert_scale_invariant(lambda scale: plain(scale, start=start))
    said = str(caught.value)
    assert said.startswith(
        "Scale matters: 2 of the scales 2^-20, 2^20 differ from scale 1 (4 leaves in 8 steps)"
    )
    assert f"scale 2^20, first at step {start}:" in said
    assert "0.weight: " in said
    assert "a clip of rewards" in said


def test_a_clipped_training_is_told_by_the_difference_of_its_parameters() -> None:
    def train(scale: float) -> dict[str, torch.Tensor]:
        w = torch.zeros(3)
        for t in range(10):
            w = w + 0.1 * torch.tensor(0.3 * t * scale).clamp(-1, 1)
        return {"w": w, "constant": torch.ones(2)}

    small, large = compare_scales(train, [0.5, 4.0]).divergences
    assert (small.scale, large.scale, small.step) == (0.5, 4.0, None)
    assert [d.leaf for d in small.differences] == ["w"]


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("module", ["numpy", "jax", "torch"])
def test_differences_are_absolute_relative_and_in_ulps_of_the_dtype(module: str, dtype: str) -> None:
    """One ulp above 1 beside a largest element of 8."""
    eps = float(torch.finfo(getattr(torch, dtype)).eps)

    def train(scale: float) -> Any:
        x = [1.0 if scale == 1 else 1 + eps, 8.0, 0.0]
        if module == "torch":
            return torch.tensor(x, dtype=getattr(torch, dtype))
        if module == "jax" or dtype == "bfloat16":
            with jax.enable_x64(dtype == "float64"):
                y = jnp.asarray(x, getattr(jnp, dtype))
                return y if module == "jax" else np.asarray(y)
        return np.array(x, dtype)

    (divergence,) = compare_scales(train, [2.0]).divergences
    (difference,) = divergence.differences
    assert (difference.absolute, difference.relative, difference.ulps) == (eps, eps / 8, 1.0)
    assert "1 of 3 elements differ" in difference.reason
    assert "at [0]" in difference.reason


def test_leaves_in_the_units_of_the_rewards_are_found_and_named() -> None:
    def train(scale: float) -> dict[str, Any]:
        return {"critic": {"shift": scale * np.arange(3.0), "norm": np.float32(scale) ** 2}, "action": 1}

    with pytest.raises(AssertionError, match=r"Exactly proportional to the scale: 'critic\.shift'"):
        assert_scale_invariant(train, ignore="norm")
    assert_scale_invariant(train, ignore="norm", proportional="shift")
    assert_scale_invariant(train, ignore=["nor*"], proportional=["critic.*"])
    assert_scale_invariant(train, ignore=lambda n: n == "critic.norm", proportional=lambda n: "shift" in n)
    with pytest.raises(AssertionError, match="norm: "):
        assert_scale_invariant(train, proportional="critic.*")


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclass
class Box:
    c: Any


@jax.tree_util.register_pytree_node_class
class Node:
    def __init__(self, d: Any) -> None:
        self.d = d

    def tree_flatten(self) -> tuple[Any, Any]:
        return (self.d,), None

    @classmethod
    def tree_unflatten(cls, _: Any, children: Any) -> "Node":
        return cls(*children)


@pytest.mark.parametrize(
    ("wrapped", "name"),
    [
        (lambda x: {"p": {"q": x}}, "p.q"),
        (lambda x: (0, {"w": x}), "1.w"),
        (lambda x: Pair(None, [x, x]), "b"),
        (lambda x: Box(x), "c"),
        (lambda x: {"n": Node((x, x))}, "n.0.0"),
        (lambda x: popart.Moments().update(popart.Moments().init(), [x, x + 1]), "moments"),
    ],
)
def test_leaves_are_named_in_any_tree(wrapped: Callable[[Any], Any], name: str) -> None:
    (divergence,) = compare_scales(lambda scale: wrapped(scale), [2.0]).divergences
    assert divergence.differences[0].leaf == name


def test_random_keys_of_jax_are_compared() -> None:
    assert_scale_invariant(lambda scale: {"key": jax.random.key(0)})
    with pytest.raises(AssertionError, match="key: "):
        assert_scale_invariant(lambda scale: {"key": jax.random.key(int(scale == 1))})


def test_actions_in_a_list_differ_at_their_step() -> None:
    actions = {1.0: [0, 1, 1, 0, 2], 2.0: [0, 1, 1, 2, 2], 4.0: [0, 1, 1, 0, 2]}
    (divergence,) = compare_scales(
        lambda scale: [np.array([a, 0]) for a in actions[scale]], [2, 4]
    ).divergences
    assert (divergence.scale, divergence.step) == (2, 3)
    assert divergence.differences[0].reason == "2 instead of 0 at [0]; 1 of 2 elements differ"


def test_actions_must_be_equal_whatever_the_tolerance() -> None:
    with pytest.raises(AssertionError, match=r"6 instead of 5 at \[1\]"):
        assert_scale_invariant(lambda scale: np.array([5, 5 + int(scale > 1)]), [10.0], rtol=0.5)


def test_episodes_of_another_length_differ() -> None:
    def episode(scale: float) -> Iterator[int]:
        yield from range({1.0: 5, 2.0: 3, 4.0: 9}[scale])

    short, long = compare_scales(episode, [2.0, 4.0]).divergences
    assert "ended after 3 steps instead of 5" in short.differences[0].reason
    assert "did not end after 5 steps" in long.differences[0].reason


def test_other_shapes_types_and_keys_are_differences() -> None:
    results: dict[float, dict[str, Any]] = {
        1.0: {"a": np.zeros(3), "b": np.zeros(2), "c": 1},
        2.0: {"a": np.zeros(4), "b": np.zeros(2, np.float32), "d": 1},
    }
    (divergence,) = compare_scales(results.__getitem__, [2.0]).divergences
    assert {d.leaf: d.reason for d in divergence.differences} == {
        "a": "has shape (4,) instead of (3,)",
        "b": "has dtype float32 instead of float64",
        "c": "exists only with scale 1",
        "d": "exists only with scale 2^1",
    }


def test_nan_with_a_scale_is_an_infinite_difference() -> None:
    def train(scale: float) -> np.ndarray:
        return np.array([1.0, math.nan if scale > 1 else 2.0], np.float32)

    (divergence,) = compare_scales(train, [2.0]).divergences
    assert divergence.differences[0].absolute == math.inf
    assert "nan instead of 2 at [1]" in divergence.differences[0].reason


def test_nan_with_scale_one_shows_nothing_and_is_refused() -> None:
    def train(scale: float) -> list[np.ndarray]:
        return [np.zeros(2), np.array([1.0, math.nan])]

    with pytest.raises(AssertionError, match="1 of 2 elements of the result are NaN at step 1"):
        assert_scale_invariant(train)
    assert assert_scale_invariant(train, equal_nan=True).is_invariant


def test_infinities_of_one_sign_are_equal_and_of_two_are_not() -> None:
    assert_scale_invariant(lambda scale: np.array([math.inf, -math.inf]))
    (divergence,) = compare_scales(lambda s: np.array([math.inf if s == 1 else -math.inf]), [2.0]).divergences
    assert divergence.differences[0].absolute == math.inf


def test_a_training_without_a_seed_is_told_as_such() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(AssertionError, match="Training is not deterministic"):
        assert_scale_invariant(lambda scale: rng.normal(size=3))
    assert compare_scales(lambda scale: rng.normal(size=3)).deterministic is False
    assert compare_scales(lambda scale: scale).deterministic is True


def test_a_training_stops_at_its_first_difference() -> None:
    taken = []

    def train(scale: float) -> Iterator[float]:
        for t in range(100):
            taken.append(scale)
            yield scale * max(t - 3, 0)

    compare_scales(train, [2.0])
    assert taken.count(2.0) == 5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scales": []}, "scales is empty"),
        ({"scales": [0.0]}, r"scales has 0.0; a scale must be positive, finite and not 1"),
        ({"scales": [1]}, "scales has 1;"),
        ({"scales": [math.inf]}, "scales has inf;"),
        ({"scales": [1000.0]}, r"1000.0, which is not a power of two.*the scale 1024.0"),
        ({"rtol": -1.0}, r"rtol is -1.0; it must be in \[0, 1\)"),
        (
            {"proportional": "weigth"},
            "proportional has 'weigth', which names no leaf; leaves are weight, bias",
        ),
        ({"ignore": "*"}, "train gave nothing to compare"),
    ],
)
def test_mistakes_in_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        assert_scale_invariant(lambda scale: {"weight": 1.0, "bias": 2.0}, **settings)


def test_objects_that_cannot_be_compared_are_named_with_their_place() -> None:
    with pytest.raises(TypeError, match=r"an object of type \w*Path at 'a\.b'"):
        assert_scale_invariant(lambda scale: {"a": {"b": Path()}})
    with pytest.raises(ValueError, match="train gave nothing to compare"):
        assert_scale_invariant(lambda scale: None)


def test_pytest_shows_where_scale_matters(tmp_path: Path) -> None:
    """The test runs in a process of its own, with NumPy alone."""
    test = tmp_path / "test_agent.py"
    test.write_text(
        "import sys\n"
        "import numpy as np\n"
        "from popart.testing import assert_scale_invariant\n"
        "def train(scale):\n"
        "    for t in range(4):\n"
        "        yield {'w': np.minimum(np.float32(scale * t), 2.5)}\n"
        "def test_scale():\n"
        "    assert not {'torch', 'jax'} & set(sys.modules)\n"
        "    assert_scale_invariant(train, [2.0])\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)]
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=alone, check=False)
    assert ended.returncode == 1
    assert "AssertionError: Scale matters" in ended.stdout
    assert "w: 2 instead of 1" in ended.stdout
    assert "first at step 1" in ended.stdout
