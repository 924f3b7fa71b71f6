"""Heads in other people's programs: target networks, losses, existing networks, checkpoints and mistakes."""

import copy
import dataclasses
import io
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.utils import parametrizations, parametrize
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import popart
from popart.alternatives import H as Root
from popart.alternatives import HLGauss, Symlog, TwoHot
from popart.torch import DuelingPopArt, NormalizedLinear, NormalizeGradient, PopArt, polyak_, wrap
from popart.torch.alternatives import Art, Categorical, Transformed

FAST = popart.Moments(beta=0.1)
H = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
KINDS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "one scale": (lambda: PopArt(8, 3, FAST), ()),
    "per output": (lambda: PopArt(8, 3, FAST, per_output=True), (3,)),
    "dense": (lambda: PopArt(8, 3, popart.Covariance(beta=0.1)), (3,)),
    "several heads": (lambda: PopArt(8, 3, FAST, heads=2), (2,)),
    "dueling": (lambda: DuelingPopArt(8, 3, FAST), ()),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def make(kind: str) -> tuple[Any, tuple[int, ...]]:
    torch.manual_seed(0)
    build, shape = KINDS[kind]
    return build(), shape


def targets(shape: tuple[int, ...] = (), seed: int = 0, size: float = 1.0) -> torch.Tensor:
    return size * (torch.randn((32, *shape), generator=torch.Generator().manual_seed(seed)) + 2)


def drift(head: Any, shape: tuple[int, ...], steps: int = 20, growth: float = 1.0) -> Any:
    """Train a while on targets whose size changes slowly; yields after each step."""
    optimizer = torch.optim.SGD(head.parameters(), 0.01)
    for i in range(steps):
        y = head.update(targets(shape, i, 10 * growth**i), optimizer=optimizer)
        optimizer.zero_grad()
        (head.normalized(H).mean() - y.mean()).square().backward()
        optimizer.step()
        yield i


# Copies of target networks


def copy_parameters(target: nn.Module, online: nn.Module) -> None:
    for theirs, mine in zip(target.parameters(), online.parameters(), strict=True):
        theirs.data.copy_(mine.data)


def stable_baselines(target: nn.Module, online: nn.Module, tau: float = 1.0) -> None:
    """`polyak_update` of Stable-Baselines3."""
    for mine, theirs in zip(online.parameters(), target.parameters(), strict=True):
        theirs.data.mul_(1 - tau)
        torch.add(theirs.data, mine.data, alpha=tau, out=theirs.data)


def clean_rl(target: nn.Module, online: nn.Module, tau: float = 1.0) -> None:
    for theirs, mine in zip(target.parameters(), online.parameters(), strict=True):
        theirs.data.copy_(tau * mine.data + (1.0 - tau) * theirs.data)


def parameters_and_buffers(target: nn.Module, online: nn.Module, tau: float = 1.0) -> None:
    clean_rl(target, online, tau)
    for theirs, mine in zip(target.buffers(), online.buffers(), strict=True):
        theirs.data.copy_(tau * mine.data + (1 - tau) * theirs.data)


def state_dicts(target: nn.Module, online: nn.Module) -> None:
    target.load_state_dict(online.state_dict())


HARD = [copy_parameters, stable_baselines, clean_rl, parameters_and_buffers, state_dicts]


@pytest.mark.parametrize("copied", HARD, ids=lambda f: f.__name__)
def test_a_hard_copy_has_the_same_outputs_to_the_bit(kind: str, copied: Callable[..., None]) -> None:
    online, shape = make(kind)
    target = copy.deepcopy(online)
    for _ in drift(online, shape):
        pass
    copied(target, online)
    assert online(H).any()
    assert torch.equal(target(H), online(H))


def test_averages_of_parameters_are_near_the_average_of_functions(kind: str) -> None:
    """Over 100 steps in which the scale grows by some per cent."""
    online, shape = make(kind)
    online.art = dataclasses.replace(online.art, beta=0.02)
    for _ in drift(online, shape):
        pass
    before = online.sigma.abs().max()
    exact, *targets = (copy.deepcopy(online) for _ in range(4))
    averages = [
        AveragedModel(online, multi_avg_fn=get_ema_multi_avg_fn(0.95), use_buffers=use)
        for use in (False, True)
    ]
    for average in averages:
        average.update_parameters(online)
    for _ in drift(online, shape, 100, 1.001):
        exact.polyak_(online, 0.05)
        for target, average in zip(
            targets, (stable_baselines, clean_rl, parameters_and_buffers), strict=True
        ):
            average(target, online, 0.05)
        for average in averages:
            average.update_parameters(online)
    assert online.sigma.abs().max() > 1.02 * before
    size = float(online.sigma.abs().max() + online.mu.abs().max())
    assert float((online(H) - exact(H)).abs().max().detach()) > 1e-3 * size
    for target in (*targets, *averages):
        assert float((target(H) - exact(H)).abs().max().detach()) < 1e-3 * size


def test_an_average_of_parameters_is_right_to_second_order_in_the_difference_of_scales(kind: str) -> None:
    def error(growth: float) -> float:
        torch.manual_seed(0)
        online, shape = make(kind)
        online.double()
        y = targets(shape).double()
        online.update(y)
        target = copy.deepcopy(online)
        exact = copy.deepcopy(online)
        online.update((1 + growth) * y)
        clean_rl(target, online, 0.5)
        exact.polyak_(online, 0.5)
        return float((target(H.double()) - exact(H.double())).abs().max().detach())

    assert 3.5 < error(0.02) / error(0.01) < 4.5


def test_an_update_of_a_head_without_its_statistics_is_refused() -> None:
    online = PopArt(8, 3, FAST)
    target = copy.deepcopy(online)
    online.update(targets(size=100.0))
    copy_parameters(target, online)
    with pytest.raises(RuntimeError, match=r"only the parameters of this head were copied.*load_state_dict"):
        target.update(targets())
    target.load_state_dict(online.state_dict())
    target.update(targets())


def test_scale_and_shift_are_not_trained_even_where_somebody_unfreezes_them() -> None:
    head = PopArt(8, 3, FAST)
    head.update(targets())
    head.requires_grad_(True)
    head(H).sum().backward()
    assert head.weight.grad is not None
    assert head.scale.grad is None
    assert head.shift.grad is None


def test_an_older_checkpoint_without_scale_and_shift_derives_them(kind: str) -> None:
    head, shape = make(kind)
    head.update(targets(shape, size=100.0))
    newer = ("scale", "shift", "_extra_state")
    old = {name: x for name, x in head.state_dict().items() if name not in newer}
    other, _ = make(kind)
    other.load_state_dict(old)
    tolerance = 1e-5 if kind == "dense" else 0  # NumPy and PyTorch factorise matrices differently
    torch.testing.assert_close(other(H), head(H), rtol=tolerance, atol=0)


# Units and losses


def test_in_normalized_units_forward_answers_in_them(kind: str) -> None:
    head, shape = make(kind)
    head.update(targets(shape, size=100.0))
    with head.in_normalized_units(), head.in_normalized_units():
        torch.testing.assert_close(head(H), head.normalized(H), rtol=0, atol=0)
    assert not torch.equal(head(H), head.normalized(H))


@pytest.mark.parametrize("loss", [nn.functional.huber_loss, nn.HuberLoss(reduction="none"), None])
def test_the_loss_is_update_then_normalise_then_compare(loss: Any) -> None:
    one, other = PopArt(8, 3, FAST), PopArt(8, 3, FAST)
    other.load_state_dict(one.state_dict())
    action = torch.arange(32) % 3
    options = {} if loss is None else {"loss": loss}
    function = nn.functional.mse_loss if loss is None else nn.functional.huber_loss
    got = expected = torch.tensor(0.0)
    for i in range(3):
        y = targets((), i, 10.0**i)
        got = one.loss(H, y, index=action, **options)
        t = other.update(y, index=action)
        expected = function(other.normalized(H, index=action), t)
        torch.testing.assert_close(got, expected)
    got.backward()
    expected.backward()
    torch.testing.assert_close(one.weight.grad, other.weight.grad)


def test_the_loss_of_every_kind_of_head_falls(kind: str) -> None:
    head, shape = make(kind)
    y = targets(shape if shape[-1:] == (3,) else (*shape, 3), size=1e4)
    if kind == "several heads":
        head = PopArt(8, 1, FAST, heads=2)
        y = targets((2,), size=1e4)
    optimizer = torch.optim.SGD(head.parameters(), 0.1)
    losses = []
    for _ in range(50):
        optimizer.zero_grad()
        losses.append(head.loss(H, y, optimizer=optimizer))
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("kind", ["one scale", "per output", "dense", "dueling"])
def test_targets_that_are_not_finite_or_masked_are_left_out_of_the_loss(kind: str) -> None:
    head, shape = make(kind)
    other = copy.deepcopy(head)
    y = targets(shape or (3,), size=100.0)
    y[3, 0], y[5] = torch.nan, torch.inf
    mask = torch.arange(32) > 1
    loss = head.loss(H, y, mask=mask)
    loss.backward()
    layer = head.advantage if kind == "dueling" else head
    assert layer.weight.grad.isfinite().all()
    t = other.update(y, mask=mask if shape else mask[:, None].expand(32, 3))
    assert t[3, 0].isnan()
    kept = t.isfinite() & mask[:, None]
    torch.testing.assert_close(loss, (other.normalized(H) - t)[kept].square().mean())


@pytest.mark.parametrize("build", [*(build for build, _ in KINDS.values()), lambda: Categorical(8, 3)])
def test_targets_beyond_float32_are_left_out_of_the_loss_as_of_the_statistics(build: Any) -> None:
    head, other = build(), build()
    other.load_state_dict(head.state_dict())
    shape = (2, 3) if head.state.counts.shape[1:] == (2,) else (3,)
    y = targets(shape, size=100.0).double()
    y[3] = 1e100
    mask = torch.arange(32) != 3
    torch.testing.assert_close(head.loss(H, y), other.loss(H, torch.where(y < 1e99, y, 0.0), mask=mask))
    wide = build().double()
    assert wide.loss(H.double(), y).isfinite()
    assert not wide.state.counts[1].any()


def test_weights_count_in_the_loss_as_copies_do() -> None:
    head, other = PopArt(8, 1, FAST), PopArt(8, 1, FAST)
    other.load_state_dict(head.state_dict())
    y, weights = targets((1,)), torch.arange(32) % 3
    h, copies = H.repeat_interleave(weights, 0), y.repeat_interleave(weights, 0)
    torch.testing.assert_close(head.loss(H, y, weights=weights[:, None].float()), other.loss(h, copies))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_targets_in_double_precision_have_a_loss_in_the_precision_of_the_head(dtype: torch.dtype) -> None:
    head = PopArt(8, 1, FAST, dtype=dtype)
    loss = head.loss(H.to(dtype), targets((1,)).double())
    loss.backward()
    assert loss.dtype == torch.float32
    assert head.weight.grad is not None


@pytest.mark.parametrize("loss", [None, nn.functional.huber_loss])
def test_the_loss_is_the_same_number_with_a_mask_of_all_targets(loss: Any) -> None:
    head, _ = make("one scale")
    options = {} if loss is None else {"loss": loss}
    copied = copy.deepcopy(head)
    one = head.loss(H, targets(), index=torch.arange(len(H)) % 3, **options)
    mask = torch.ones(len(H), dtype=torch.bool)
    other = copied.loss(H, targets(), index=torch.arange(len(H)) % 3, mask=mask, **options)
    assert one.item() == other.item() != 0


@pytest.mark.parametrize("per_output", [False, True])
@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_the_loss_of_several_heads_takes_targets_of_the_shape_of_the_outputs(
    outputs: int, per_output: bool
) -> None:
    head = PopArt(8, outputs, FAST, heads=3, per_output=per_output)
    other = copy.deepcopy(head)
    y = targets((3, outputs), size=100.0) * torch.tensor([1.0, 1e3, 1e6])[:, None]
    mask, weights, task = torch.arange(32) > 1, torch.rand(32, 3), torch.arange(32) % 3
    loss = head.loss(H, y, mask=mask, weights=weights)
    scale, shift = (x if per_output else x[:, None] for x in (head.sigma, head.mu))
    each = (head.normalized(H) - (y - shift) / scale).square()
    w = (mask[:, None] * weights)[..., None].expand(y.shape)
    torch.testing.assert_close(loss, (each * w).sum() / w.sum())
    for i in range(3):  # the statistics of a head are those of its targets alone
        one = PopArt(8, outputs, FAST, per_output=per_output)
        part = y[:, i] if per_output else y[:, i].reshape(-1)
        w = weights[:, i] if per_output else weights[:, i].repeat_interleave(outputs)
        one.update(part, mask=mask if per_output else mask.repeat_interleave(outputs), weights=w)
        torch.testing.assert_close((head.sigma[i], head.mu[i]), (one.sigma, one.mu))
    loss = other.loss(H, y[torch.arange(32), task], index=task)
    scale, shift = (x[task] if per_output else x[task, None] for x in (other.sigma, other.mu))
    t = (y[torch.arange(32), task] - shift) / scale
    torch.testing.assert_close(loss, (other.normalized(H, index=task) - t).square().mean())


def test_heads_of_one_output_may_leave_out_its_axis() -> None:
    task = torch.arange(32) % 3
    for settings in ({}, {"per_output": True}):
        for y, index in ((targets((3,)), None), (targets(), task)):
            one = PopArt(8, 1, FAST, heads=3, **settings)  # pyright: ignore[reportArgumentType]
            other = copy.deepcopy(one)
            assert torch.equal(one.loss(H, y, index=index), other.loss(H, y[..., None], index=index))
            assert torch.equal(one.sigma, other.sigma)


def test_a_target_of_one_of_several_outputs_of_a_head_is_refused_with_a_hint() -> None:
    head, task = PopArt(8, 2, FAST, heads=3), torch.arange(32) % 3
    for y, index, outputs in ((targets((3,)), None, r"\(32, 3, 2\)"), (targets(), task, r"\(32, 2\)")):
        with pytest.raises(ValueError, match=rf"the outputs have shape {outputs}.*several-tasks.md"):
            head.loss(H, y, index=index)
    with pytest.raises(ValueError, match=r"index has shape \(3,\); the batch has shape \(32,\)"):
        head.loss(H, targets((2,)), index=torch.arange(3))


def test_a_loss_without_targets_is_0() -> None:
    head = PopArt(8, 1, FAST)
    loss = head.loss(H, torch.full((32, 1), torch.nan))
    loss.backward()
    assert loss == 0


def test_a_loss_of_other_shapes_is_refused_and_nothing_is_updated() -> None:
    head = PopArt(8, 1)
    with pytest.raises(ValueError, match=r"y has shape \(32,\) and the outputs have shape \(32, 1\)"):
        head.loss(H, targets())
    with pytest.raises(ValueError, match=r"y has shape \(32, 1\) and the outputs have shape \(32,\)"):
        head.loss(H, targets((1,)), index=torch.zeros(32, dtype=torch.int64))
    assert head.state.counts[0] == 0
    with pytest.raises(ValueError, match="it must return one loss per element"):
        head.loss(H, targets((1,)), loss=lambda g, t: (g - t).square().mean())


# Existing networks


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
        self.alias = self.q_net[2]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.q_net(x)


@pytest.mark.parametrize("by_name", [False, True])
def test_wrap_puts_a_head_in_place_of_a_layer_that_the_optimizer_still_trains(by_name: bool) -> None:
    network = Network().eval()
    layer, before = network.q_net[2], network(H).detach()
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    head = wrap(network, "q_net.2" if by_name else layer, beta=0.1, keep=True)
    assert network.q_net[2] is network.alias is head
    assert head.weight is layer.weight
    assert head.bias is layer.bias
    assert not head.training
    assert torch.equal(network(H), before)
    head.update(targets(size=100.0), optimizer=optimizer)
    torch.testing.assert_close(network(H), before, rtol=1e-4, atol=1e-4)
    weight = head.weight.detach().clone()
    network(H).sum().backward()
    optimizer.step()
    assert not torch.equal(head.weight, weight)


def test_several_heads_are_not_one_linear_layer() -> None:
    with pytest.raises(ValueError, match="heads is 2"):
        PopArt(8, 3, heads=2).to_linear()


@pytest.mark.parametrize("kind", ["one scale", "per output", "dense", "dueling"])
def test_to_linear_has_the_same_outputs(kind: str) -> None:
    head, shape = make(kind)
    head.update(targets(shape, size=1e3))
    layer = head.to_linear()
    assert type(layer) is nn.Linear
    torch.testing.assert_close(layer(H), head(H), rtol=1e-5, atol=1e-2)
    head.update(targets(shape, 1, 1e5))
    torch.testing.assert_close(layer(H), head(H), rtol=1e-4, atol=1e-1)


@pytest.mark.parametrize("bias", ["shared", False])
def test_to_linear_with_other_biases(bias: Any) -> None:
    head = PopArt(8, 3, FAST, bias=bias)
    head.update(targets(size=100.0))
    torch.testing.assert_close(head.to_linear()(H), head(H), rtol=1e-5, atol=1e-3)


def test_beta_is_short_for_moments_and_logs_are_copies() -> None:
    head = PopArt(8, 3, beta=0.1)
    assert head.art == FAST
    assert DuelingPopArt(8, 3, beta=0.1).art == FAST
    head.update(targets())
    mu, sigma, affine = head.mu, head.sigma, head.affine
    expected = popart.Moments(0.1).update(popart.Moments(0.1).init(), targets())
    torch.testing.assert_close((mu, sigma), (expected.mu, expected.sigma))
    before = [x.clone() for x in (mu, sigma, *affine[:2])]
    head.update(targets(size=100.0))
    for x, old in zip((mu, sigma, *affine[:2]), before, strict=True):
        assert torch.equal(x, old)
    with pytest.raises(ValueError, match=r"art is Moments.* and beta is 0.1; give one of them"):
        PopArt(8, 3, FAST, beta=0.1)


def test_normalized_linear_is_no_pop_art_head() -> None:
    layer = NormalizedLinear(8, 3)
    assert not isinstance(layer, PopArt)
    for name in ("loss", "in_normalized_units", "to_linear"):
        assert not hasattr(layer, name)
    assert isinstance(NormalizedLinear.from_linear(nn.Linear(8, 3)), NormalizedLinear)


# Defects of the first release


def test_sizes_may_be_of_any_integer_type() -> None:
    head = PopArt(np.int64(8), np.int32(3), heads=torch.tensor(2))  # pyright: ignore
    assert (head.in_features, head.out_features, head.heads) == (8, 3, 2)
    assert PopArt.identity(np.int64(3)).out_features == 3  # pyright: ignore
    DuelingPopArt(np.int64(8), np.int64(3))  # pyright: ignore
    for size in (0, -1, 1.5, "8", None):
        with pytest.raises(ValueError, match=r"in_features is .*; it must be a positive integer"):
            PopArt(size, 3)  # pyright: ignore


@pytest.mark.parametrize("identity", [False, True])
@pytest.mark.parametrize(
    ("size", "optimizer"),
    [(0.1, lambda p: torch.optim.SGD(p, 0.1)), (1e-6, lambda p: torch.optim.Adam(p, 1e-2))],
    ids=["SGD, targets of 0.1", "Adam, targets of a millionth"],
)
def test_small_targets_do_not_make_an_untrained_layer_explode(
    identity: bool, size: float, optimizer: Any
) -> None:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    layer = body.pop(2) if not identity else None
    head = PopArt.identity(1) if layer is None else PopArt.from_linear(layer)  # pyright: ignore
    trainer = optimizer([*body.parameters(), *head.parameters()])
    y = size * (H[:, :1] + H[:, 1:2])
    for _ in range(300):
        trainer.zero_grad()
        head.loss(body(H), y, optimizer=trainer).backward()
        trainer.step()
    error = (head(body(H)) - y).square().mean().sqrt() / y.std()
    assert error < 0.3


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize(
    "parametrized",
    [
        parametrizations.weight_norm,
        parametrizations.spectral_norm,
        parametrizations.orthogonal,
        torch.nn.utils.weight_norm,
        torch.nn.utils.spectral_norm,
    ],
)
def test_parametrized_weights_are_refused(parametrized: Any) -> None:
    with pytest.raises(ValueError, match="parametrized weight"):
        PopArt.from_linear(parametrized(nn.Linear(8, 3)))
    with pytest.raises(ValueError, match="parametrized weight"):
        wrap(nn.Sequential(parametrized(nn.Linear(8, 3))), "0")
    head = PopArt(8, 3)
    parametrized(head)
    with pytest.raises(ValueError, match="parametrized weight"):
        head.update(targets())
    dueling = DuelingPopArt(8, 3)
    parametrized(dueling.advantage)
    with pytest.raises(ValueError, match="parametrized weight"):
        dueling.update(targets())


def test_a_parametrized_bias_is_refused() -> None:
    head = PopArt(8, 3)
    parametrize.register_parametrization(head, "bias", nn.Tanh())
    with pytest.raises(ValueError, match="parametrized weight or bias"):
        head.update(targets())


@pytest.mark.parametrize("kind", ["one scale", "per output", "dueling"])
def test_an_index_out_of_range_is_refused_everywhere(kind: str) -> None:
    head, _ = make(kind)
    uses = [
        lambda i: head.update(targets(), index=i),
        lambda i: head.normalize(targets(), index=i),
        lambda i: head.denormalize(targets(), index=i),
        lambda i: head.normalized(H, index=i),
        lambda i: head(H, index=i),
        lambda i: head.loss(H, targets(), index=i),
    ]
    good = torch.arange(32) % 3
    for use in uses:
        for bad in (good + 5, good - 1):
            with pytest.raises(ValueError, match=r"index reaches from .* it must be from 0 to 2"):
                use(bad)
        with pytest.raises(ValueError, match="it must be of integers"):
            use(good.float())
        assert torch.equal(use(good), use(good.int()))


@pytest.mark.parametrize("kind", ["one scale", "several heads", "dueling", "categorical"])
def test_an_index_out_of_range_is_refused_in_compiled_code_too(kind: str) -> None:
    head = Categorical(8, 3) if kind == "categorical" else make(kind)[0]
    good = torch.arange(len(H)) % (2 if kind == "several heads" else 3)
    function = torch.compile(lambda i: head.normalized(H, index=i), backend="eager")
    torch.testing.assert_close(function(good), head.normalized(H, index=good), rtol=0, atol=0)
    for bad in (good + 1, good - 1):
        with pytest.raises((RuntimeError, IndexError), match="out of bounds"):
            function(bad)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (lambda p: torch.optim.LBFGS(p), "LBFGS, whose state is of all parameters"),
        (lambda p: torch.optim.Adafactor(p), "Adafactor, whose state has unknown units"),
        (lambda p: torch.optim.Adadelta(p), "Adadelta, whose state has unknown units"),
        (lambda p: torch.optim.Rprop(p), "Rprop, whose state has unknown units"),
    ],
    ids=["LBFGS", "Adafactor", "Adadelta", "Rprop"],
)
@pytest.mark.parametrize("bias", [False, True])
def test_an_unknown_optimizer_is_refused_at_the_first_update(
    optimizer: Any, message: str, bias: bool
) -> None:
    head = PopArt(8, 3, bias=bias)
    with pytest.raises(ValueError, match=message):
        head.update(targets(), optimizer=optimizer(head.parameters()))
    assert head.state.counts[0] == 0
    head.update(targets(), optimizer=optimizer(head.parameters()), optimizer_state="keep")


def test_a_reset_forgets_state_of_any_shape() -> None:
    head = PopArt(8, 3, bias=False)
    optimizer = torch.optim.Adafactor(head.parameters())
    head.update(targets())
    head.normalized(H).square().mean().backward()
    optimizer.step()
    head.update(targets(size=100.0), optimizer=optimizer, optimizer_state="reset")
    assert not optimizer.state[head.weight]["row_var"].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_head_in_half_precision_gives_values_in_float32(kind: str, dtype: torch.dtype) -> None:
    head, shape = make(kind)
    head.to(dtype)
    head.update(targets(shape, size=1e6))
    out = head(H.to(dtype))
    assert head.scale.dtype == head.shift.dtype == out.dtype == torch.float32
    assert out.isfinite().all()
    assert out.abs().max() > 1e6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["one scale", "per output", "dense", "dueling"])
def test_normalised_outputs_in_half_precision_are_denormalised_in_float32(
    kind: str, dtype: torch.dtype
) -> None:
    head, shape = make(kind)
    head.to(dtype)
    head.update(targets(shape, size=1e6))
    h = H.to(dtype)
    torch.testing.assert_close(head.denormalize(head.normalized(h)), head(h))


def test_a_conversion_to_half_precision_loses_nothing_of_scale_and_shift() -> None:
    head = PopArt(8, 3, FAST)
    head.update(targets(size=1e6))
    before = head.affine
    head.half().float()
    assert torch.equal(head.scale, before.scale)
    assert torch.equal(head.shift, before.shift)


OTHER_SETTINGS = [
    (popart.Moments(), popart.Moments(std=2.0), "std"),
    (popart.Moments(), popart.Moments(epsilon=1e-2), "epsilon"),
    (popart.Percentiles(), popart.Percentiles(p=0.5), "p"),
]


@pytest.mark.parametrize(("saved", "loaded", "name"), OTHER_SETTINGS, ids=[x[2] for x in OTHER_SETTINGS])
def test_a_checkpoint_of_other_settings_is_refused(saved: Any, loaded: Any, name: str) -> None:
    network = nn.Sequential(nn.Linear(8, 8), PopArt(8, 3, saved))
    file = io.BytesIO()
    torch.save(network.state_dict(), file)
    file.seek(0)
    checkpoint = torch.load(file, weights_only=True)
    other = nn.Sequential(nn.Linear(8, 8), PopArt(8, 3, loaded))
    with pytest.raises(RuntimeError, match=rf"1 was saved with {name}=.* and is loaded with {name}="):
        other.load_state_dict(checkpoint)
    network.load_state_dict(checkpoint)


OTHER_KINDS: list[tuple[Callable[[], Any], Callable[[], Any], str]] = [
    (lambda: NormalizedLinear(8, 3), lambda: PopArt(8, 3), "kind=NormalizedLinear .* with kind=PopArt"),
    (
        lambda: Transformed(8, 3, transform=Root()),
        lambda: Transformed(8, 3, transform=Symlog()),
        r"transform=H\(.* and is loaded with transform=Symlog",
    ),
    (
        lambda: Categorical(8, 3, TwoHot(bins=51)),
        lambda: Categorical(8, 3, HLGauss(bins=51)),
        "histogram=TwoHot.* and is loaded with histogram=HLGauss",
    ),
]


@pytest.mark.parametrize(("saved", "loaded", "message"), OTHER_KINDS)
def test_a_checkpoint_of_another_kind_is_refused(saved: Any, loaded: Any, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        loaded().load_state_dict(dict(saved().state_dict()))
    saved().load_state_dict(dict(saved().state_dict()))
    Art(8, 3).load_state_dict(PopArt(8, 3).state_dict())  # the same outputs


def in_a_file_of_safetensors(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return safetensors.torch.load(safetensors.torch.save(state))


def soft_update(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: 0.005 * x + 0.995 * x for name, x in state.items()}


def mean_of_three(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: (x + x + x) / 3 for name, x in state.items()}


def in_half_precision(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: x.bfloat16() for name, x in state.items()}


FORMS = [dict, in_a_file_of_safetensors, soft_update, mean_of_three, in_half_precision]


@pytest.mark.parametrize("form", FORMS)
def test_the_settings_of_a_checkpoint_are_checked_in_every_form_of_it(form: Callable[..., Any]) -> None:
    def network(std: float) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 8), PopArt(8, 3, popart.Moments(std=std)))

    state = form(network(2.0).state_dict())
    network(np.float64(2)).load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"1 was saved with std=2.0 and is loaded with std=1.0"):
        network(1.0).load_state_dict(state)


def test_a_checkpoint_without_values_is_loaded_without_a_check_of_its_settings() -> None:
    """Programs that plan memory load checkpoints on the device "meta", or in `FakeTensorMode`."""
    state = {name: x.to("meta") for name, x in PopArt(8, 3, FAST).state_dict().items()}
    with torch.device("meta"):
        head = PopArt(8, 3, FAST)
    head.load_state_dict(state, assign=True)
    with FakeTensorMode():
        head = PopArt(8, 3, FAST)
        head.load_state_dict(head.state_dict())


@pytest.mark.parametrize("number", [0.0, 0.7, -3.0, 1e9, math.inf, math.nan])
def test_a_checkpoint_of_numbers_of_another_program_is_loaded(number: float) -> None:
    """Stable-Baselines3's tests put random numbers into all tensors of a checkpoint."""
    head = PopArt(8, 3, FAST)
    state = {name: torch.full(x.shape, number) for name, x in head.state_dict().items()}
    head.load_state_dict(state)
    torch.testing.assert_close(head.weight.detach(), state["weight"], equal_nan=True)


@pytest.mark.parametrize("use_buffers", [False, True])
def test_the_average_of_a_network_can_be_saved_and_loaded(use_buffers: bool) -> None:
    online = PopArt(8, 3, FAST)
    average = AveragedModel(online, use_buffers=use_buffers)
    for _ in drift(online, ()):
        average.update_parameters(online)
    online.load_state_dict(average.module.state_dict())
    assert torch.equal(online(H), average(H))


def test_a_checkpoint_may_be_loaded_with_another_step_size_or_without_settings() -> None:
    head = PopArt(8, 3, FAST)
    head.update(targets())
    PopArt(8, 3, beta=0.01).load_state_dict(head.state_dict())
    old = {name: x for name, x in head.state_dict().items() if name != "_extra_state"}
    other = PopArt(8, 3, popart.Moments(std=2.0))
    other.load_state_dict(old)
    with pytest.raises(RuntimeError, match=r"Moments\(std=2.0\).*loaded from an old checkpoint"):
        other.update(targets())


@pytest.mark.parametrize("use", ["normalized", "forward"])
@pytest.mark.parametrize("body", [nn.Identity(), nn.Linear(8, 8)])
@pytest.mark.parametrize("kind", [PopArt, DuelingPopArt])
def test_the_wrong_order_is_explained_whatever_the_outputs_are(use: str, body: nn.Module, kind: Any) -> None:
    head = kind(8, 3, FAST)
    head.update(targets())
    outputs = getattr(head, use)(body(H))
    y = head.update(targets((), 1, 1e3))
    with pytest.raises(RuntimeError, match=r"Call update\(targets\) first"):
        (outputs[:, 0] - y).square().mean().backward()


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("use", ["normalized", "forward"])
@pytest.mark.parametrize("body", [nn.Identity(), nn.Linear(8, 8)])
def test_the_wrong_order_raises_in_a_compiled_function_too(
    use: str, fullgraph: bool, body: nn.Module
) -> None:
    torch.compiler.reset()
    head = PopArt(8, 1, FAST)
    head.update(targets((1,)))

    def wrong(h: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        outputs = getattr(head, use)(body(h))
        return (outputs - head.update(y)).square().mean()

    with pytest.raises(RuntimeError, match=r"Call update\(targets\) first|modified by an inplace operation"):
        torch.compile(wrong, fullgraph=fullgraph)(H, targets((1,), 1, 1e3)).backward()


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_the_wrong_order_raises_in_a_compiled_function_for_normalized_sgd_too() -> None:
    torch.compiler.reset()
    layer = NormalizedLinear(8, 1, FAST)

    def wrong(h: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        outputs = layer(h)
        layer.update(y)
        return (outputs - y).square().mean()

    with pytest.raises(RuntimeError, match=r"Call update\(targets\) first"):
        torch.compile(wrong, fullgraph=True, backend="eager")(H, targets((1,)))


def test_the_wrong_order_raises_where_only_the_network_is_compiled() -> None:
    torch.compiler.reset()
    head = PopArt(8, 1, FAST)
    head.update(targets((1,)))
    network = torch.compile(nn.Sequential(nn.Linear(8, 8), head), fullgraph=True)
    outputs = network(H)
    y = head.update(targets((1,), 1, 1e3))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (outputs - y).square().mean().backward()


def test_the_right_order_compiles_with_bootstrapped_targets_before_the_update() -> None:
    torch.compiler.reset()
    head, body = PopArt(8, 1, FAST), nn.Linear(8, 8)
    other, other_body = copy.deepcopy(head), copy.deepcopy(body)

    def right(head: Any, body: Any, h: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = y + 0.9 * head(body(h))
        return head.loss(body(h), y)

    compiled = torch.compile(right, fullgraph=True)
    for i in range(3):
        y = targets((1,), i, 10.0**i)
        torch.testing.assert_close(compiled(head, body, H, y), right(other, other_body, H, y))


def test_targets_that_do_not_fit_the_statistics_are_named_wherever_they_are_given() -> None:
    several = PopArt(8, 2, FAST, heads=3, per_output=True)
    index = torch.zeros(4, dtype=torch.int64)
    for head, shape, i, measured in (
        (several, (4,), None, r"\(\*batch, 3, 2\)"),
        (several, (4,), index, r"\(\*batch, 2\)"),
        (PopArt(8, 2, FAST, heads=3), (4, 3, 2), None, r"\(\*batch, 3\)"),
        (PopArt(8, 3, FAST, per_output=True), (4, 1), None, r"\(\*batch, 3\)"),
    ):
        for use in (head.update, head.normalize, head.denormalize):
            what = "outputs" if use == head.denormalize else "targets"
            with pytest.raises(ValueError, match=rf"{what} have shape .*measure targets of shape {measured}"):
                use(torch.ones(shape), index=i)


def test_an_identity_is_reset_to_an_identity() -> None:
    cases: list[dict[str, Any]] = [{}, {"heads": 2}, {"bias": False}]
    for settings in cases:
        head = PopArt.identity(3, FAST, **settings)
        head.update(targets(head.state.counts.shape[1:]))
        with torch.no_grad():
            head.weight.normal_()
        copied = copy.deepcopy(head)
        copied.reset_parameters()
        assert torch.equal(copied.weight, torch.eye(3).expand(copied.weight.shape))
        assert copied.bias is None or not copied.bias.any()
        assert not copied.state.counts.any()


def test_gradients_flow_through_normalize_and_not_through_update() -> None:
    """A loss of outputs in the targets' units, such as that of an actor, is normalised with `normalize`."""
    head = PopArt(8, 1, FAST)
    y = targets(size=100.0).requires_grad_()
    assert not head.update(y).requires_grad
    head.normalize(y).sum().backward()
    torch.testing.assert_close(y.grad, (1 / head.sigma).expand(32))


def test_targets_of_one_axis_are_refused_where_they_may_be_a_batch_or_outputs() -> None:
    for head in (PopArt(8, 3, per_output=True), PopArt(8, 1, heads=3), PopArt(8, 3, popart.Covariance())):
        for use in (head.update, head.normalize):
            with pytest.raises(
                ValueError, match=r"targets have shape \(3,\), which may be a batch or one target"
            ):
                use(torch.ones(3))
        head.update(torch.ones(1, 3))
    PopArt(8, 3, per_output=True).update(torch.ones(3), index=torch.arange(3))


def test_a_step_size_that_forgets_everything_warns_of_the_other_convention() -> None:
    for build in (
        lambda: PopArt(8, 3, beta=0.999),
        lambda: PopArt(8, 3, popart.Moments(0.999)),
        lambda: DuelingPopArt(8, 3, beta=0.999),
        lambda: PopArt.from_linear(nn.Linear(8, 3), beta=0.999, keep=True),
        lambda: PopArt(8, 3, beta=np.float32(0.999)),  # pyright: ignore[reportArgumentType]
        lambda: PopArt(8, 3, popart.Moments(popart.constant(0.999))),
        lambda: PopArt(8, 3, popart.Percentiles(popart.debiased(np.float64(0.999)))),
        lambda: NormalizedLinear(8, 3, beta=0.999),
        lambda: NormalizeGradient(art=popart.Moments(0.999, symmetric=True)),
        lambda: Categorical(8, 3, art=popart.Moments(0.999)),
    ):
        with pytest.warns(UserWarning, match=r"beta is 0.999.*TorchRL.*beta=0.001") as record:
            build()
        assert len(record) == 1


def test_a_head_that_is_never_updated_warns_once() -> None:
    head, updated = PopArt(8, 3), PopArt(8, 3)
    updated.update(targets())
    with torch.no_grad():
        for _ in range(999):
            head(H)
        with pytest.warns(UserWarning, match="called 1000 times and never updated"):
            head(H)
        for _ in range(1500):
            head(H)
            updated(H)


def test_calls_outside_of_a_compiled_network_do_not_recompile_it() -> None:
    torch.compiler.reset()
    head = PopArt(8, 3)
    head.update(targets())
    compiled = torch.compile(head, fullgraph=True)
    with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=True):  # pyright: ignore
        for _ in range(3):
            torch.testing.assert_close(compiled(H), head(H))


def test_one_compiled_function_updates_heads_with_different_step_sizes() -> None:
    """PyTorch's compiler makes a number that differs between calls a symbol, which is no constant."""
    torch.compiler.reset()
    update = torch.compile(lambda head, y: head.update(y))
    for beta in (1e-3, 1e-2, 1e-1):
        compiled, eager = PopArt(8, 3, beta=beta), PopArt(8, 3, beta=beta)
        for y in (targets((3,)), targets((3,), size=10.0)):
            torch.testing.assert_close(update(compiled, y), eager.update(y))
        torch.testing.assert_close(compiled.sigma, eager.sigma)


def test_targets_may_be_lists_and_arrays() -> None:
    y = targets((3,), size=100.0)
    head, *others = (PopArt(8, 3, FAST, per_output=True) for _ in range(3))
    expected = head.update(y)
    for other, form in zip(others, (y.tolist(), y.double().numpy()), strict=True):
        normalized = other.update(form)
        assert normalized.dtype == torch.float32
        torch.testing.assert_close(normalized, expected)
        torch.testing.assert_close(other.normalize(form), expected)
    head.update(y[:, 0].tolist(), index=[0, 1] * 16, mask=[True] * 32, weights=[1.0] * 32)  # pyright: ignore


def test_polyak_of_a_wrapped_network_says_how_to_unwrap_it() -> None:
    network = nn.Sequential(nn.Linear(8, 8), PopArt(8, 3))
    with pytest.raises(ValueError, match=r"DataParallel wraps the network: pass its .module"):
        polyak_(copy.deepcopy(network), nn.DataParallel(network), 0.5)
    with pytest.raises(ValueError, match=r"OptimizedModule wraps the network: pass its ._orig_mod"):
        polyak_(torch.compile(network), copy.deepcopy(network), 0.5)  # pyright: ignore
    head: Any = network[1]
    with pytest.raises(ValueError, match=r"pass its ._orig_mod"):
        copy.deepcopy(head).polyak_(torch.compile(head), 0.5)


def test_features_of_more_precision_than_the_head_are_refused() -> None:
    head = PopArt(8, 3)
    head.update(targets())
    with pytest.raises(TypeError, match=r"h is of torch.float64 and the head of torch.float32"):
        head(H.double())
    assert head(H.bfloat16()).dtype == torch.float32
    assert head.double()(H).dtype == torch.float64


@pytest.mark.parametrize("build", [lambda: KINDS["per output"][0](), lambda: KINDS["dueling"][0]()])
def test_reset_parameters_after_initialisation_on_the_meta_device(build: Any) -> None:
    with torch.device("meta"):
        head = build()
    head.to_empty(device="cpu")
    with torch.no_grad():
        for x in (*head.parameters(), *head.buffers()):
            x.fill_(7)
    head.reset_parameters()
    assert not head.state.counts.any()
    assert not head(H).any()
    shape = (3,) if head.scale.ndim else ()
    assert head.update(targets(shape, size=100.0)).abs().max() < 5
    assert all(weight.abs().max() < 1 for weight, *_ in head._layers())


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
def test_networks_with_heads_can_be_traced_and_exported(kind: str) -> None:
    head, shape = make(kind)
    head.update(targets(shape, size=100.0))
    network = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), head).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error", torch.jit.TracerWarning)  # pyright: ignore
        traced: Any = torch.jit.trace(network, H)
    torch.testing.assert_close(traced(H[:5]), network(H[:5]))
    batch = torch.export.Dim("batch")
    exported = torch.export.export(network, (H,), dynamic_shapes=({0: batch},)).module()
    torch.testing.assert_close(exported(H[:5]), network(H[:5]))


class AllKinds(nn.Module):
    """A network with a head of each kind, in evaluation after an update."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.heads = nn.ModuleList()
        for kind in KINDS:
            head, shape = make(kind)
            head.update(targets(shape, size=100.0))
            self.heads.append(head)
        self.eval()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = self.body(x)
        return tuple(head(h) for head in self.heads)


@pytest.mark.slow
@pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning")
def test_a_network_exported_to_onnx_has_the_outputs_of_every_head() -> None:
    """ONNX's own reference evaluates the graph, with a batch of another size."""
    from onnx.reference import ReferenceEvaluator

    network, batch = AllKinds(), torch.export.Dim("batch")
    exported = torch.onnx.export(
        network, (H,), dynamo=True, dynamic_shapes=({0: batch},), input_names=["x"], verbose=False
    )
    assert exported is not None
    graph = ReferenceEvaluator(exported.model_proto)
    outputs: Any = graph.run(None, {"x": H[:5].numpy()})
    for output, expected in zip(outputs, network(H[:5]), strict=True):
        np.testing.assert_allclose(output, expected.detach(), rtol=1e-5, atol=1e-3)


def test_a_pickled_head_has_the_same_outputs() -> None:
    head = PopArt(8, 3, FAST)
    head.update(targets(size=100.0))
    file = io.BytesIO()
    torch.save(head, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(H), head(H))


def test_dueling_streams_of_different_features_have_a_loss() -> None:
    head, other = DuelingPopArt(8, 3, FAST), DuelingPopArt(8, 3, FAST)
    other.load_state_dict(head.state_dict())
    y, action = targets(size=100.0), torch.arange(32) % 3
    loss = head.loss((H, H.flip(0)), y, index=action)
    t = other.update(y)
    torch.testing.assert_close(loss, (other.normalized(H, H.flip(0), index=action) - t).square().mean())


ENCODER: Any = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16))

NOT_WRAPPED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: wrap(Network(), "q_net.7"), ValueError, r"layer is 'q_net.7'; the linear layers .* 'q_net.0'"),
    (lambda: wrap(Network(), nn.Linear(8, 3)), ValueError, "it must be inside of model, a Network"),
    (lambda: wrap(Network(), "q_net.1"), TypeError, r"layer is a ReLU.*identity"),
    (lambda: wrap(ENCODER, "0.self_attn.out_proj"), ValueError, "MultiheadAttention, which reads"),
    (lambda: wrap(ENCODER, ENCODER[0].linear2), ValueError, "'0.linear2' of a TransformerEncoderLayer"),
    (
        lambda: wrap(nn.Sequential(NonDynamicallyQuantizableLinear(8, 3)), "0"),
        ValueError,
        r"PopArt.identity\(outputs\) on top",
    ),
    (lambda: wrap(nn.Linear(8, 3), ""), ValueError, "the linear layers of the model are none"),
]


@pytest.mark.parametrize(("call", "kind", "message"), NOT_WRAPPED)
def test_layers_that_cannot_be_wrapped_are_named(
    call: Callable[[], Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        call()
