"""Eager updates on a CPU with Python's numbers: in lockstep with the general path, which takes all others."""

import copy
import io
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils import parametrizations, vector_to_parameters

import popart
from popart.torch import DuelingPopArt, NormalizedLinear, PopArt, numbers, order

ART = popart.Moments(beta=0.05)


def made(make: Any, art: popart.Rule[Any] = ART, **settings: Any) -> tuple[Any, torch.optim.Optimizer]:
    torch.manual_seed(0)
    head = make(16, 3, art, **settings)
    return head, torch.optim.Adam(head.parameters(), 1e-3)


def batches(size: int, steps: int = 80) -> Any:
    """Targets that grow by ten orders of magnitude and fall again, with all that a batch can contain."""
    rng = np.random.default_rng(0)
    for t in range(steps):
        y = 10 ** (10 * math.sin(math.pi * t / steps)) * rng.normal(3, 1, (size, 3))
        if t in (0, 7):
            y[0, 0] = np.nan
        if t == 9:
            y[:] = np.inf
        if t in (20, 21):
            y[:] = y[0, 0]
        yield torch.asarray(y, dtype=torch.float32)


def quick_updates(patch: pytest.MonkeyPatch) -> list[bool]:
    """Note of each update from now on whether it was made with Python's numbers."""
    taken: list[bool] = []

    def noted(*given: Any, update: Any = numbers.update) -> Any:
        found = update(*given)
        taken.append(found is not None)
        return found

    patch.setattr(numbers, "update", noted)
    return taken


@pytest.mark.parametrize("size", [4, 8, 300])
@pytest.mark.parametrize("make", [PopArt, DuelingPopArt, NormalizedLinear])
@pytest.mark.parametrize("art", [ART, popart.Moments(beta=1e-4, std=0.5)], ids=repr)
def test_heads_and_optimizers_are_in_lockstep_with_the_general_path(
    art: popart.Moments, make: Any, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [made(make, art) for _ in range(2)]
    taken = quick_updates(monkeypatch)
    quick = numbers.update
    h = torch.randn(size, 16, generator=torch.Generator().manual_seed(1))
    for y in batches(size):
        targets = []
        for (head, optimizer), update in zip(pairs, (quick, lambda *given: None), strict=True):
            monkeypatch.setattr(numbers, "update", update)
            targets.append(head.update(y, optimizer=optimizer))
            optimizer.zero_grad()
            (head.normalized(h) - targets[-1].nan_to_num(0, 0, 0)).square().mean().backward()
            optimizer.step()
        torch.testing.assert_close(*targets, rtol=1e-6, atol=1e-6, equal_nan=True)
    assert taken.count(True) > 20
    for mine, theirs in zip(*(head.state_dict().values() for head, _ in pairs), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("k", [-90, 30, 90])
def test_scaling_targets_by_a_power_of_two_changes_no_bit(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = quick_updates(monkeypatch)
    (first, _), (second, _) = made(PopArt), made(PopArt)
    rng = np.random.default_rng(0)
    for t in range(50):
        y = torch.asarray(1.1**t * rng.normal(3, 1, 32), dtype=torch.float32)
        assert torch.equal(first.update(y), second.update(y * 2.0**k))
        assert torch.equal(first.weight, second.weight)
        assert torch.equal(first.bias, second.bias)
    assert torch.equal(first.sigma * 2.0**k, second.sigma)
    assert taken.count(True) > 80


@pytest.mark.parametrize(
    "targets",
    [
        torch.tensor([1.0, math.nan]),
        torch.tensor([1.0, math.inf]),
        torch.tensor([-math.inf, math.inf]),
        torch.zeros(0),
        torch.tensor([1e6, 2e6]),
        torch.tensor([1.0, 2.0], dtype=torch.float64),
    ],
    ids=str,
)
def test_unusual_targets_take_the_general_path(targets: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    head, _ = made(PopArt)
    head.update(torch.randn(32))
    taken = quick_updates(monkeypatch)
    head.update(targets)
    assert taken == [False]


@pytest.mark.parametrize(
    "art",
    [
        popart.Moments(nu0=1.0),
        popart.Moments(1.0),
        popart.Moments(popart.harmonic()),
        popart.Moments(symmetric=True),
        popart.Moments(keep=True),
        popart.Moments(epsilon=1e-3),
        popart.Percentiles(),
    ],
    ids=repr,
)
def test_other_rules_and_settings_take_the_general_path(art: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = quick_updates(monkeypatch)
    head, _ = made(PopArt, art)
    for _ in range(3):
        head.update(torch.randn(32))
    assert not any(taken)


@pytest.mark.parametrize("settings", [{"per_output": True}, {"heads": 2}, {"dtype": torch.bfloat16}], ids=str)
def test_other_heads_take_the_general_path(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = quick_updates(monkeypatch)
    head, _ = made(PopArt, **settings)
    for _ in range(3):
        head.update(torch.randn(32, *head.state.moments.shape[1:]))
    assert not any(taken)


def swapped_data(head: PopArt) -> PopArt:
    """Move the parameters to other memory with `vector_to_parameters`, and return the head."""
    vector_to_parameters(torch.cat([p.detach().reshape(-1) for p in head.parameters()]), head.parameters())
    return head


def with_other_parameters(head: PopArt) -> PopArt:
    head.weight = torch.nn.Parameter(head.weight.detach().clone())
    return head


def saved_and_loaded(head: PopArt) -> PopArt:
    file = io.BytesIO()
    torch.save(head, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def converted_and_back(head: PopArt) -> PopArt:
    return head.double().float()


@pytest.mark.parametrize(
    "change",
    [copy.deepcopy, swapped_data, with_other_parameters, saved_and_loaded, converted_and_back],
)
def test_what_was_looked_up_is_never_used_for_other_memory(
    change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    y = torch.randn(20, 32, generator=torch.Generator().manual_seed(0))
    (head, _), (reference, _) = made(PopArt), made(PopArt)
    for part in y[:10]:
        head.update(part)
        reference.update(part)
    taken = quick_updates(monkeypatch)
    old, head = head, change(head)
    before = copy.deepcopy(old.state_dict())
    for part in y[10:]:
        head.update(part)
        reference.update(part)
    assert all(taken)
    for mine, theirs in zip(head.state_dict().values(), reference.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)
    if old is not head:
        assert all(torch.equal(x, before[name]) for name, x in old.state_dict().items())


def loaded(head: PopArt, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return optimizer


def without_state_of_the_weight(head: PopArt, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    del optimizer.state[head.weight]
    return optimizer


def another(head: PopArt, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    return torch.optim.SGD(head.parameters(), 1e-3, momentum=0.9)


@pytest.mark.parametrize("change", [loaded, without_state_of_the_weight, another])
def test_state_of_an_optimizer_that_is_replaced_is_rescaled_too(
    change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [made(PopArt) for _ in range(2)]
    taken = quick_updates(monkeypatch)
    quick = numbers.update
    y = torch.randn(20, 32, generator=torch.Generator().manual_seed(0))
    h = torch.randn(32, 16, generator=torch.Generator().manual_seed(1))
    for t, part in enumerate(y):
        for i, update in enumerate((quick, lambda *given: None)):
            head, optimizer = pairs[i]
            if t == 10:
                optimizer = change(head, optimizer)
                pairs[i] = head, optimizer
            monkeypatch.setattr(numbers, "update", update)
            targets = head.update((1 + t) * part, optimizer=optimizer)
            optimizer.zero_grad()
            (head.normalized(h) - targets[:, None]).square().mean().backward()
            optimizer.step()
    assert taken.count(True) > 15
    for one, other in zip(*(optimizer.state.values() for _, optimizer in pairs), strict=True):
        for name in one:
            torch.testing.assert_close(one[name], other[name], rtol=1e-5, atol=1e-6)


def test_settings_that_change_later_are_heeded() -> None:
    (head, adam), (reference, _) = made(PopArt), made(PopArt, popart.Moments(beta=0.5))
    head.update(torch.zeros(2).normal_())
    head.update(torch.zeros(2).normal_(), optimizer=adam)
    reference.load_state_dict(head.state_dict())
    head.art = reference.art
    y = torch.randn(32)
    assert torch.equal(head.update(y), reference.update(y))
    assert torch.equal(head.sigma, reference.sigma)
    with pytest.raises(ValueError, match="does not hold this head's parameters"):
        head.update(y, optimizer=torch.optim.Adam(torch.nn.Linear(1, 1).parameters()))
    parametrizations.weight_norm(head)
    with pytest.raises(ValueError, match="parametrized"):
        head.update(y)


def test_the_wrong_order_raises_also_after_the_first_outputs() -> None:
    """The first outputs have our message; later ones have PyTorch's, if features require gradients."""
    head, _ = made(PopArt)
    for requires_grad in (True, False):
        h = torch.randn(4, 16, requires_grad=requires_grad)
        head.update(torch.randn(32))
        for _ in range(order.FIRST + 2):
            g = head.normalized(h)
            head.update(torch.randn(32))
            message = "updated after these outputs|inplace operation" if requires_grad else order.MESSAGE[:40]
            with pytest.raises(RuntimeError, match=message):
                g.sum().backward()
