"""Whole training runs: the frameworks beside the reference, any size of rewards, stopped and resumed."""

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import popart
import popart.jax
from tests import training
from tests.backends import sharing_what_is_compiled
from tests.resume import run_part
from tests.training import TorchRun, data, run_jax, run_numpy

STEPS = 1000


@pytest.fixture(scope="module")
def reference() -> training.Trace:
    return run_numpy(data(STEPS))


def assert_close(trace: training.Trace, reference: training.Trace, tolerance: float) -> None:
    np.testing.assert_allclose(trace.targets, reference.targets, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(trace.values, reference.values, rtol=tolerance, atol=tolerance * 10)
    for name, x in reference.parameters.items():
        np.testing.assert_allclose(trace.parameters[name], x, rtol=tolerance, atol=tolerance)


def test_pytorch_in_double_precision_follows_numpy_for_a_thousand_steps(reference: training.Trace) -> None:
    trace = TorchRun(torch.float64).steps(data(STEPS))
    assert_close(trace, reference, 1e-8)
    np.testing.assert_array_equal(trace.actions, reference.actions)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_pytorch_follows_numpy_for_a_thousand_steps(reference: training.Trace, compiled: bool) -> None:
    torch.compiler.reset()
    assert_close(TorchRun(compiled=compiled).steps(data(STEPS)), reference, 2e-3)


def test_jax_in_double_precision_follows_numpy_for_a_thousand_steps(reference: training.Trace) -> None:
    with jax.enable_x64(True):
        trace = run_jax(data(STEPS), jnp.float64)
    assert_close(trace, reference, 1e-8)
    np.testing.assert_array_equal(trace.actions, reference.actions)


def test_jax_follows_numpy_for_a_thousand_steps(reference: training.Trace) -> None:
    assert_close(run_jax(data(STEPS)), reference, 2e-3)


def test_jax_follows_rlax_where_they_mean_the_same() -> None:
    """Batches of one, and a biased average from a mean of 0 and a second moment of 1, one per task."""
    with warnings.catch_warnings(action="ignore"):  # what it imports uses what JAX deprecates
        import rlax
    rng = np.random.default_rng(0)
    tasks, art = 3, popart.Moments(beta=popart.constant(0.01), nu0=1.0)
    with jax.enable_x64(True):
        ys = jnp.asarray(rng.normal(2, 3, (STEPS, 1)))
        index = jnp.asarray(rng.integers(0, tasks, (STEPS, 1)))
        head = {"w": jnp.asarray(rng.normal(size=(4, tasks))), "b": jnp.asarray(rng.normal(size=tasks))}
        init, update = rlax.popart(tasks, 0.01, 1e-30, 1e30)
        start = init()
        theirs = (head, jax.tree.map(lambda x: x.astype(jnp.float64), start))
        ours = (popart.jax.init(art, head, per_output=True), head)

        def step(carry: Any, batch: Any) -> Any:
            (state, head), (their_head, their_state) = carry
            y, index = batch
            state, head, normalized, _ = popart.jax.step(art, state, head, y, index=index)
            their_head, their_state = update(their_head, their_state, y, index)
            return ((state, head), (their_head, their_state)), (
                normalized,
                rlax.normalize(their_state, y, index),
            )

        (ours, theirs), (mine, other) = jax.lax.scan(step, (ours, theirs), (ys, index))
    np.testing.assert_allclose(mine, other, rtol=1e-9)
    np.testing.assert_allclose(ours[1]["w"], theirs[0]["w"], rtol=1e-9)
    np.testing.assert_allclose(ours[1]["b"], theirs[0]["b"], rtol=1e-9)


def assert_identical(trace: training.Trace, other: training.Trace) -> None:
    np.testing.assert_array_equal(trace.targets, other.targets)
    np.testing.assert_array_equal(trace.actions, other.actions)
    for name, x in other.parameters.items():
        np.testing.assert_array_equal(trace.parameters[name], x)


def test_rewards_times_any_power_of_two_change_no_bit_in_jax() -> None:
    one = run_jax(data(200))
    for k in range(-60, 61):
        other = run_jax(data(200, scale=2.0**k))
        assert_identical(other, one)
        np.testing.assert_array_equal(other.values, np.float32(2.0**k) * one.values)


def test_rewards_times_any_power_of_two_change_no_bit_in_pytorch() -> None:
    one = TorchRun().steps(data(12))
    for k in range(-60, 61):
        other = TorchRun().steps(data(12, scale=2.0**k))
        assert_identical(other, one)
        np.testing.assert_array_equal(other.values, np.float32(2.0**k) * one.values)


@pytest.mark.parametrize("k", [-60, 7, 60])
def test_rewards_times_a_power_of_two_change_no_bit_of_a_long_run_in_pytorch(k: int) -> None:
    assert_identical(TorchRun().steps(data(300, scale=2.0**k)), TorchRun().steps(data(300)))


@pytest.mark.parametrize("module", ["torch", "jax"])
def test_a_run_that_was_stopped_goes_on_in_a_new_process_to_the_same_bits(
    tmp_path: Path, module: str
) -> None:
    file = tmp_path / "checkpoint"
    run_part(module, file, 0, 30)
    command = [sys.executable, "-m", "tests.resume", module, str(file), "30", "60"]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[1], env=sharing_what_is_compiled())
    whole = TorchRun().steps(data(60)) if module == "torch" else run_jax(data(60))
    ended = np.load(f"{file}.npz")
    for name, x in whole.parameters.items():
        np.testing.assert_array_equal(ended[name], x)
    np.testing.assert_array_equal(ended["values"], whole.values)
