"""Eager updates on a device: in lockstep with NumPy, in few operations. They run on the CPU here."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import popart
from benchmarks.statistics import Operations
from popart.torch import DuelingPopArt, PopArt, checks, kernels, numbers

ART = popart.Moments(beta=0.05)


def batches(steps: int = 120) -> Iterator[np.ndarray[Any, np.dtype[np.float32]]]:
    """Targets that grow by ten orders of magnitude and fall again, with all that a batch can contain."""
    rng = np.random.default_rng(0)
    for t in range(steps):
        size = 10 ** (10 * math.sin(math.pi * t / steps))
        y = (size * rng.normal(3, 1, (8, 2))).astype(np.float32)
        if t in (0, 7):
            y[0, 0] = np.nan
        if t == 9:
            y[:] = (np.inf, -np.inf)
        if t in (20, 21):
            y[:] = y[0, 0]
        yield y


def on_device(art: popart.Moments, state: Any, units: Any, y: torch.Tensor) -> kernels.LayerUpdate:
    constants = kernels.constants(art, state, y)
    assert constants is not None
    return kernels.update_(art, state, units, y, constants)


@pytest.mark.parametrize("art", [ART, popart.Moments(beta=1e-4, std=0.5)], ids=repr)
def test_statistics_layer_and_targets_are_in_lockstep_with_numpy(art: popart.Moments) -> None:
    state, reference = art.init(like=torch.zeros(())), art.init(like=np.float64(0))
    W, b = np.ones((1, 1)), np.ones(1)
    units = torch.zeros(()), torch.zeros(())
    for y in batches():
        step = on_device(art, state, units, torch.asarray(y))
        after = art.update(reference, y.astype(np.float64))
        old, new = art.affine(reference), art.affine(after)
        reference = after
        assert state.counts.tolist() == after.counts.tolist()
        assert float(units[0]) == pytest.approx(float(new.scale), rel=2e-6)
        slack = 1e-6 * float(new.scale)
        assert float(units[1]) == pytest.approx(np.nan_to_num(float(new.shift)), rel=2e-6, abs=slack)
        W_new, b_new = popart.preserve(W, b, old, new)
        assert float(step.factor) == pytest.approx(W_new.item(), rel=2e-6)
        assert float(step.factor + step.moved) == pytest.approx(b_new.item(), rel=1e-5, abs=1e-5)
        np.testing.assert_allclose(step.targets.numpy(), new.normalize(y), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_targets_in_half_precision_are_normalised_in_that_of_the_statistics(dtype: torch.dtype) -> None:
    state, y = ART.init(like=torch.zeros(())), torch.linspace(1, 2, 32).to(dtype)
    step = on_device(ART, state, (torch.zeros(()), torch.zeros(())), y)
    expected = ART.affine(state).normalize(y)
    assert step.targets.dtype == expected.dtype == torch.float32
    torch.testing.assert_close(step.targets, expected)


def test_targets_of_one_value_have_no_spread() -> None:
    state = ART.init(like=torch.zeros(()))
    y = torch.full((32,), 0.1)
    y[0] = torch.nan
    for _ in range(3):
        units = torch.zeros(()), torch.tensor(0.1)
        step = on_device(ART, state, units, y)
        assert units[0] == 0
        assert units[1] == torch.tensor(0.1)
        assert step.targets[1:].eq(0).all()
        assert step.targets[0].isnan()
        assert (step.factor, step.moved) == (1, 0)


@pytest.mark.parametrize("k", [-100, -30, 30, 90])
def test_scaling_targets_by_a_power_of_two_changes_no_bit(k: int) -> None:
    rng, scale = np.random.default_rng(0), 2.0**k
    states = [ART.init(like=torch.zeros(())) for _ in range(2)]
    units = [(torch.zeros(()), torch.zeros(())) for _ in range(2)]
    for t in range(50):
        y = torch.asarray(1.2**t * rng.normal(3, 1, 32), dtype=torch.float32)
        steps = [on_device(ART, s, u, x) for s, u, x in zip(states, units, (y, scale * y), strict=True)]
        assert torch.equal(steps[0].targets, steps[1].targets)
        assert torch.equal(steps[0].factor, steps[1].factor)
        assert torch.equal(steps[0].moved, steps[1].moved)
        assert torch.equal(states[0].moments * scale, states[1].moments)
        assert torch.equal(torch.stack(units[0]) * scale, torch.stack(units[1]))


def test_weights_are_multiplied_by_a_factor_that_is_not_rounded_to_their_precision() -> None:
    """A rounded factor is an error that all weights have in common, and which adds up over updates."""
    W = torch.linspace(1, 2, 1000)
    squares = W.clone()
    factor = torch.tensor([1 + 0.4 * 2.0**-23], dtype=torch.float64)
    expected = [(W * factor).float(), (W * factor.square()).float()]
    assert not torch.equal(expected[0], W)
    kernels.LayerUpdate(factor, factor, W).apply_([(W, 1, False), (squares, 2, False)], [])
    assert torch.equal(W, expected[0])
    assert torch.equal(squares, expected[1])


@pytest.mark.parametrize("make", [PopArt, DuelingPopArt])
def test_heads_and_their_optimizers_are_in_lockstep_with_those_on_a_cpu(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads, optimizers = [], []
    for _ in range(2):
        torch.manual_seed(0)
        heads.append(make(16, 3, ART))
        optimizers.append(torch.optim.Adam(heads[-1].parameters(), 1e-3))
    rng = np.random.default_rng(1)
    for y in batches(60):
        h = torch.asarray(rng.normal(size=(8, 16)), dtype=torch.float32)
        for on_cpu, head, optimizer in zip((True, False), heads, optimizers, strict=True):
            with monkeypatch.context() as patch:
                if not on_cpu:
                    patch.setattr(checks, "is_eager_cpu", lambda x: False)
                    patch.setattr(numbers, "update", lambda *given: None)
                targets = head.update(y[:, 0], optimizer=optimizer)
            optimizer.zero_grad()
            (head.normalized(h)[:, 0] - targets.nan_to_num(0, 0, 0)).square().mean().backward()
            optimizer.step()
    for mine, theirs in zip(*(head.state_dict().values() for head in heads), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_an_update_takes_39_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    head = PopArt(16, 3, ART)
    monkeypatch.setattr(checks, "is_eager_cpu", lambda x: False)
    monkeypatch.setattr(numbers, "update", lambda *given: None)
    y = torch.randn(32)
    head.update(y)
    with Operations("cpu") as counted:
        head.update(y)
    assert counted.count == 39


def test_other_rules_and_settings_take_the_general_path() -> None:
    y = torch.zeros(4)
    others = [
        popart.Moments(nu0=1.0),
        popart.Moments(1.0),
        popart.Moments(popart.harmonic()),
        popart.Moments(symmetric=True),
    ]
    for art in (*others, popart.Moments(keep=True), popart.Moments(epsilon=1e-3)):
        assert kernels.constants(art, art.init(like=y), y) is None
    assert kernels.constants(popart.Percentiles(), popart.Percentiles().init(like=y), y) is None
    assert kernels.constants(ART, ART.init((3,), like=y), y) is None
    assert kernels.constants(ART, ART.init(like=y.double()), y.double()) is None
