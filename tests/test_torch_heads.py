"""Promises of `popart.torch`: every kind of head preserves outputs, in every way that modules are used."""

import copy
import functools
import io
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import popart
import popart.correspondence
from popart.affine import Change, change_of
from popart.torch import DuelingPopArt, NormalizedLinear, PopArt, polyak_
from popart.torch.numbers import Near
from popart.torch.units import Far, _layer_change

EPS = float(torch.finfo(torch.float32).eps)
FAST = popart.Moments(beta=0.1)
H = torch.randn(16, 6, generator=torch.Generator().manual_seed(0))

HEADS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "one scale": (lambda: PopArt(6, 3, FAST), ()),
    "per output": (lambda: PopArt(6, 3, FAST, per_output=True), (3,)),
    "dense": (lambda: PopArt(6, 3, popart.Covariance(beta=0.1)), (3,)),
    "several heads": (lambda: PopArt(6, 3, FAST, heads=4), (4,)),
    "several heads per output": (lambda: PopArt(6, 3, FAST, heads=4, per_output=True), (4, 3)),
    "shared bias": (lambda: PopArt(6, 3, FAST, bias="shared"), ()),
    "several heads with shared biases": (lambda: PopArt(6, 3, FAST, heads=2, bias="shared"), (2,)),
    "no bias": (lambda: PopArt(6, 3, FAST, bias=False), ()),
    "percentiles": (lambda: PopArt(6, 3, popart.Percentiles(beta=0.1)), ()),
    "from a linear layer": (lambda: PopArt.from_linear(nn.Linear(6, 3), FAST), ()),
    "from a trained layer": (lambda: PopArt.from_linear(nn.Linear(6, 3), FAST, keep=True), ()),
    "from one without a bias": (lambda: PopArt.from_linear(nn.Linear(6, 3, bias=False), FAST), ()),
    "on top of a model": (lambda: PopArt.identity(6, FAST), ()),
    "on top of a trained model": (lambda: PopArt.identity(6, FAST, keep=True), ()),
    "dueling": (lambda: DuelingPopArt(6, 3, FAST), ()),
    "dueling from linear layers": (
        lambda: DuelingPopArt.from_linear(nn.Linear(6, 1), nn.Linear(6, 3), FAST),
        (),
    ),
}


@pytest.fixture(params=HEADS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def make(kind: str) -> tuple[Any, tuple[int, ...]]:
    torch.manual_seed(0)
    build, shape = HEADS[kind]
    return build(), shape


def targets(shape: tuple[int, ...], seed: int, size: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return size * (torch.randn((16, *shape), generator=generator) + 2)


def trained(module: nn.Module) -> list[nn.Parameter]:
    """All parameters but scales and shifts."""
    return [p for p in module.parameters() if p.requires_grad]


def largest_term(head: Any) -> float:
    """The size of what is added up in an output."""
    with torch.no_grad():
        scale, shift = head.affine[:2]
        biases = [b for _, b, _ in head._layers() if b is not None]
        g = max([float(head.normalized(H).abs().max()), *(float(b.abs().max()) for b in biases)])
        return float(scale.abs().max()) * g + float(shift.abs().max())


def test_no_output_changes(kind: str) -> None:
    head, shape = make(kind)
    head.update(targets(shape, 0))
    for i, size in enumerate((1.0, 1e3, 1e-2, 1e5, 1.0)):
        before, term = head(H).detach(), largest_term(head)
        head.update(targets(shape, 1 + i, size))
        term = max(term, largest_term(head))
        slack = 100 if kind == "dense" else 16
        assert float((head(H) - before).abs().max().detach()) <= slack * EPS * term


def test_two_thousand_updates_with_wild_targets_change_no_output_beyond_the_bound() -> None:
    torch.manual_seed(0)
    head = PopArt.from_linear(nn.Linear(6, 3), beta=1e-2, keep=True)
    start = head(H).detach().double()
    rng = np.random.default_rng(0)
    sizes = np.exp(rng.normal(0, 4, 2000))
    bound = 0.0
    for size in sizes:
        head.update(torch.asarray(size * rng.standard_cauchy(4), dtype=torch.float32))
        bound += 8 * EPS * largest_term(head)
    assert float((head(H).double() - start).abs().max().detach()) <= bound
    small = float(head.affine.scale) + float(head.affine.shift.abs())
    assert float((head(H).double() - start).abs().max().detach()) <= 1e-4 * (1 + small)


@pytest.mark.parametrize("kind", ["from a linear layer", "from one without a bias", "on top of a model"])
def test_wrapping_a_trained_network_changes_no_output(kind: str) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(6, 3, bias=kind != "from one without a bias")
    make = PopArt.identity if kind == "on top of a model" else PopArt.from_linear
    head = make(3 if kind == "on top of a model" else layer, keep=True)  # pyright: ignore
    wrapped = nn.Sequential(layer, head) if kind == "on top of a model" else head
    before = layer(H).detach()
    torch.testing.assert_close(wrapped(H), before, rtol=0, atol=0)
    head.update(torch.tensor([5.0]))  # a single target, which has no spread
    torch.testing.assert_close(wrapped(H), before, rtol=0, atol=4e-6)
    head.update(torch.tensor([5.0, 7.0]))
    torch.testing.assert_close(wrapped(H), before, rtol=0, atol=4e-6)
    assert float(head.update(torch.full((4,), 1e6)).abs().max()) <= popart.correspondence.bound(1e-4)


@pytest.mark.parametrize(
    "art", [popart.Moments(std=2.0), popart.Covariance(std=0.5), popart.Percentiles(beta=0.1)], ids=repr
)
def test_a_trained_layer_keeps_its_outputs_with_any_rule(art: popart.Rule[Any]) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(6, 3)
    before = layer(H).detach()
    head = PopArt.from_linear(layer, art, keep=True)
    torch.testing.assert_close(head(H), before, rtol=0, atol=0)
    for value in (5.0, 7.0):
        head.update(torch.full((1, 3) if art.event_axes else (1,), value))
        torch.testing.assert_close(head(H), before, rtol=0, atol=4e-6)


def test_an_optimizer_goes_on_training_a_wrapped_layer() -> None:
    layer = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    head = PopArt.from_linear(layer)
    assert head.weight is layer.weight
    head.update(targets((), 0), optimizer=optimizer)
    head.normalized(H).square().mean().backward()
    before = head.weight.detach().clone()
    optimizer.step()
    assert not torch.equal(head.weight, before)


@pytest.mark.parametrize("kind", [k for k in HEADS if "trained" not in k])
def test_before_any_target_the_output_is_0_and_the_first_are_adopted(kind: str) -> None:
    head, shape = make(kind)
    weights = [w.detach().clone() for w, _, _ in head._layers()]
    assert not head(H).any()
    normalized = head.update(targets(shape, 0, 1e6))
    assert all(torch.equal(w, before) for (w, _, _), before in zip(head._layers(), weights, strict=True))
    assert float(normalized.abs().max()) < 4


@pytest.mark.parametrize("power", [1, 2])
def test_rescaling_in_one_operation_does_what_the_general_way_does(power: int) -> None:
    rng = np.random.default_rng(0)
    old, new = (popart.Affine(*(1 + 0.1 * rng.random(2, np.float32))) for _ in range(2))
    change = change_of(old, new)
    near, far = _layer_change(change, H), Far(Change(*map(torch.as_tensor, change)))
    assert isinstance(near, Near)
    for x in (torch.randn(3, 6), torch.randn(3)):
        general, fast = x.clone(), x.clone()
        for way, y in ((far, general), (near, fast)):
            way.apply_([(y, power, x.ndim == 1)], [])
            if x.ndim == 1:
                way.apply_([], [y])
        torch.testing.assert_close(fast, general, rtol=4 * EPS, atol=EPS)


def test_normalize_and_denormalize_are_inverse(kind: str) -> None:
    head, shape = make(kind)
    y = targets(shape, 0, 1e3)
    normalized = head.update(y)
    ulps = 64 * EPS if kind == "dense" else 0  # NumPy and PyTorch solve linear systems differently
    torch.testing.assert_close(head.normalize(y), normalized, rtol=ulps, atol=ulps)
    torch.testing.assert_close(head.denormalize(normalized), y, rtol=1e-5, atol=1e-2)


def test_targets_of_chosen_actions_move_no_other_action() -> None:
    head = PopArt(6, 3, FAST, per_output=True)
    head.update(targets((3,), 0))
    before, action = head(H).detach(), torch.tensor([0, 2, 2])
    normalized = head.update(torch.tensor([1e3, 2e3, 3e3]), index=action)
    assert head.state.counts[0].tolist() == [2, 1, 2]
    torch.testing.assert_close(head(H), before, rtol=1e-4, atol=1e-3)
    h = H[:3]
    torch.testing.assert_close(head(h, index=action), head(h).gather(1, action[:, None])[:, 0])
    torch.testing.assert_close(head.denormalize(normalized, index=action), torch.tensor([1e3, 2e3, 3e3]))


def test_each_task_has_its_own_head_and_statistics() -> None:
    head = PopArt(6, 2, FAST, heads=3)
    task = torch.tensor([0, 0, 2, 2])
    y = torch.tensor([1.0, 2.0, 1e6, 2e6])
    normalized = head.update(y, index=task)
    torch.testing.assert_close(normalized, torch.tensor([-1.0, 1.0, -1.0, 1.0]))
    out = head(H[:4], index=task)
    assert out.shape == (4, 2)
    torch.testing.assert_close(out[2:], head(H[2:4])[:, 2])
    assert not head(H)[:, 1].any()


def test_dueling_streams_are_what_they_should_be() -> None:
    head = DuelingPopArt(6, 3, FAST)
    head.update(targets((), 0, 1e3))
    features = torch.randn(16, 6)
    v, a = head.value(H), head.advantage(features)
    torch.testing.assert_close(head.normalized(H, features), v + a - a.mean(1, keepdim=True))
    before = head(H, features).detach()
    head.update(targets((), 1, 1e4))
    torch.testing.assert_close(head(H, features), before, rtol=1e-4, atol=1e-2)


def test_statistics_travel_with_state_dict_and_copies(kind: str) -> None:
    head, shape = make(kind)
    head.update(targets(shape, 0, 1e3))
    file = io.BytesIO()
    torch.save(head.state_dict(), file)
    file.seek(0)
    loaded, _ = make(kind)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    copied = copy.deepcopy(head)
    before = head(H).detach()
    head.update(targets(shape, 1, 1e5))
    for other in (loaded, copied):
        torch.testing.assert_close(other(H), before, rtol=0, atol=0)


@pytest.mark.parametrize("strict", [True, False])
def test_a_checkpoint_without_statistics_is_refused(strict: bool) -> None:
    network = nn.Sequential(nn.Linear(4, 6), PopArt(6, 3))
    plain = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3)).state_dict()
    with pytest.raises(RuntimeError, match=r"1 needs moments_counts, moments_moments.*from_linear"):
        network.load_state_dict(plain, strict=strict)


def test_a_checkpoint_of_another_rule_is_refused() -> None:
    other = PopArt(6, 3, popart.Percentiles()).state_dict()
    with pytest.raises(RuntimeError, match="percentiles_counts"):
        PopArt(6, 3, popart.Expectiles()).load_state_dict(other)
    with pytest.raises(RuntimeError, match="was saved with keep=False and is loaded with keep=True"):
        PopArt.from_linear(nn.Linear(6, 3), keep=True).load_state_dict(
            PopArt(6, 3).state_dict(), strict=False
        )


def test_conversion_keeps_parameters_and_the_precision_of_statistics() -> None:
    head = PopArt(6, 3, FAST)
    head.update(targets((), 0, 1e30))
    weight, state = head.weight, [x.clone() for x in head.state]
    head.to(torch.bfloat16)
    assert head.weight is weight
    assert head.weight.dtype == torch.bfloat16
    assert [x.dtype for x in head.state] == [torch.int32, torch.float32]
    torch.testing.assert_close(list(head.state), state, rtol=0, atol=0)
    assert head(H.bfloat16()).isfinite().all()
    head.to(torch.float64)
    assert head.state.moments.dtype == torch.float64


def test_under_autocast_the_head_stays_in_float32() -> None:
    head, plain = PopArt(6, 3, FAST), PopArt(6, 3, FAST)
    plain.load_state_dict(head.state_dict())
    y = targets((), 0, 1e3)
    with torch.autocast("cpu", torch.bfloat16):
        h = nn.functional.linear(H, torch.eye(6))
        assert h.dtype == torch.bfloat16
        normalized = head.update(y)
        g = head.normalized(h)
        values = head(h)
    torch.testing.assert_close(normalized, plain.update(y), rtol=0, atol=0)
    torch.testing.assert_close(g, plain.normalized(H.bfloat16().float()), rtol=0, atol=0)
    assert values.dtype == torch.float32


@pytest.mark.parametrize("kind", [PopArt, NormalizedLinear])
@pytest.mark.parametrize("art", [FAST, popart.Covariance(beta=0.1)], ids=repr)
def test_under_autocast_outputs_and_gradients_have_the_bits_of_those_without(kind: Any, art: Any) -> None:
    head = kind(6, 3, art)
    head.update(targets((3,), 0, 1e3))
    found = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            h = H.clone().requires_grad_()
            values, g = head(h), head.normalized(h)
            linear = head.to_linear().weight if kind is PopArt else values
            outputs = [values, g, head.denormalize(g), linear]
        found.append([*outputs, *torch.autograd.grad(values.square().sum(), [h, head.weight])])
    for without, under in zip(*found, strict=True):
        assert torch.equal(without, under)


def test_normalized_linear_takes_features_without_a_batch() -> None:
    layer = NormalizedLinear(6, 3, FAST)
    layer.update(targets((), 0, 1e5))
    h = torch.randn(6)
    found = []
    for features in (h, h[None]):
        values = layer(features)
        trained = [x for x in layer.parameters() if x.requires_grad]
        found.append([values.flatten(), *torch.autograd.grad(values.sum(), trained)])
    for alone, in_batch in zip(*found, strict=True):
        torch.testing.assert_close(alone, in_batch)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_normalized_linear_in_half_precision_gives_values_in_float32(dtype: torch.dtype) -> None:
    layer = NormalizedLinear(6, 3, FAST, dtype=dtype)
    with torch.no_grad():
        layer.weight.fill_(3e4)
    layer.update(targets((), 0, 1e5))
    h = torch.ones(2, 6, dtype=dtype, requires_grad=True)
    values = layer(h)
    assert values.dtype == torch.float32
    assert values.isfinite().all()
    (values / 1e6).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == h.grad.dtype == dtype  # pyright: ignore[reportOptionalMemberAccess]
    assert layer(torch.ones(2, 6, dtype=torch.int64)).dtype == torch.float32


def test_normalized_linear_names_features_that_it_does_not_take() -> None:
    layer = NormalizedLinear(6, 3)
    with pytest.raises(TypeError, match=r"h is of torch.float64 and the head of torch.float32"):
        layer(H.double())
    with pytest.raises(ValueError, match=r"h has shape \(16, 5\); its last axis must be of 6 features"):
        layer(H[:, :5])


def test_gradient_accumulation_counts_each_target_once() -> None:
    """The statistics take the whole batch; then each part is normalised as it comes."""
    whole, parts = PopArt(6, 1, FAST), PopArt(6, 1, FAST)
    parts.load_state_dict(whole.state_dict())
    y = targets((1,), 0, 1e3)
    normalized = whole.update(y)
    (whole.normalized(H) - normalized).square().sum().backward()
    parts.update(y)
    for h, part in zip(H.split(4), y.split(4), strict=True):
        (parts.normalized(h) - parts.normalize(part)).square().sum().backward()
    assert whole.weight.grad is not None
    torch.testing.assert_close(parts.weight.grad, whole.weight.grad)
    assert parts.state.counts[0] == 1


def test_statistics_change_only_in_update() -> None:
    head = PopArt(6, 3, FAST)
    head.update(targets((), 0))
    before = [x.clone() for x in head.state]
    for mode in (head.train, head.eval):
        mode()
        for use in (head, head.normalized, head.normalize, head.denormalize):
            use(H)
    torch.testing.assert_close(list(head.state), before, rtol=0, atol=0)


def test_an_update_between_forward_and_backward_is_refused() -> None:
    for kind, h in itertools.product((PopArt, NormalizedLinear), (H, H.clone().requires_grad_())):
        head = kind(6, 1, FAST)
        head.update(targets((), 0))
        g = head.normalized(h)
        y = head.update(targets((), 1, 1e3))
        with pytest.raises(RuntimeError, match=r"Call update\(targets\) first"):
            (g[:, 0] - y).square().mean().backward()


@pytest.mark.parametrize("tau", [0.0, 0.3, 1.0])
def test_a_polyak_average_is_of_the_functions(kind: str, tau: float) -> None:
    online, shape = make(kind)
    online.update(targets(shape, 0, 10.0))
    target = copy.deepcopy(online)
    online.update(targets(shape, 1, 1e3))
    with torch.no_grad():
        for weight, *_ in online._layers():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    expected = (1 - tau) * target(H) + tau * online(H)
    target.polyak_(online, tau)
    scale = float(online(H).abs().max().detach())
    torch.testing.assert_close(target(H), expected, rtol=1e-4, atol=3e-4 * scale)


def test_a_polyak_average_with_a_tau_of_1_is_the_online_head() -> None:
    target, online = PopArt(6, 3), PopArt(6, 3)
    target.update(1e25 * torch.randn(32))
    online.update(1e-20 * torch.randn(32))
    expected = online(torch.ones(1, 6))
    target.polyak_(online, 1.0)
    assert torch.equal(target(torch.ones(1, 6)), expected)


def test_a_linear_layer_becomes_one_head() -> None:
    with pytest.raises(ValueError, match="heads is 3; a linear layer becomes one head"):
        PopArt.from_linear(torch.nn.Linear(6, 3), heads=3)


def test_a_polyak_average_with_a_head_that_knows_nothing_counts_it_as_0() -> None:
    online = PopArt(6, 3, FAST)
    target = copy.deepcopy(online)
    online.update(targets((), 0, 1e3))
    target.polyak_(online, 0.25)
    torch.testing.assert_close(target(H), 0.25 * online(H), rtol=1e-5, atol=1e-3)


def test_polyak_moves_shared_parameters_once_and_layers_that_are_not_normalised_as_they_are() -> None:
    online = nn.Sequential(nn.Linear(6, 6), NormalizedLinear(6, 3, FAST))
    online.append(nn.Linear(6, 6)).get_submodule("2").weight = online[0].weight
    target = copy.deepcopy(online)
    with torch.no_grad():
        for parameter in trained(online):
            parameter.add_(1)
    before = [p.clone() for p in trained(target)]
    online[1].update(targets((), 0, 1e3))  # pyright: ignore
    polyak_(target, online, 0.25)
    for parameter, old in zip(trained(target), before, strict=True):
        torch.testing.assert_close(parameter, old + 0.25)


def test_polyak_of_whole_networks_finds_heads_by_what_they_are() -> None:
    torch.manual_seed(0)
    online = nn.ModuleDict(
        {"any name": nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)), "x": PopArt(6, 3, FAST)}
    )
    target = copy.deepcopy(online)
    online["x"].update(targets((), 0, 1e3))  # pyright: ignore
    with torch.no_grad():
        online["any name"][0].weight.add_(1)  # pyright: ignore
    body = target["any name"][0].weight.clone()  # pyright: ignore
    polyak_(target, online, 0.5)
    torch.testing.assert_close(target["x"](H), 0.5 * online["x"](H))
    torch.testing.assert_close(target["any name"][0].weight, body + 0.5)  # pyright: ignore


def test_copied_targets_stay_put_while_the_online_head_moves(kind: str) -> None:
    online, shape = make(kind)
    online.update(targets(shape, 0))
    target = copy.deepcopy(online)
    before = target(H).detach()
    for i in range(5):
        online.update(targets(shape, i, 10.0**i))
    torch.testing.assert_close(target(H), before, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["per output", "dueling"])
def test_compiled_as_a_full_graph_it_does_the_same(kind: str) -> None:
    torch.compiler.reset()
    eager, shape = make(kind)
    compiled = copy.deepcopy(eager)
    update = torch.compile(compiled.update, fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):  # pyright: ignore
        for i in range(4):
            y = targets(shape, i, 10.0**i)
            torch.testing.assert_close(update(y), eager.update(y), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(compiled(H), eager(H), rtol=1e-4, atol=1e-3)


def test_masked_and_weighted_targets() -> None:
    head, other = PopArt(6, 3, FAST), PopArt(6, 3, FAST)
    y = torch.tensor([1.0, 2.0, 3.0, 1e9])
    head.update(y, mask=y < 1e8)
    other.update(y[:3])
    torch.testing.assert_close(list(head.state), list(other.state))
    head.update(y, weights=torch.tensor([1.0, 2.0, 0.0, 0.0]))
    other.update(torch.tensor([1.0, 2.0, 2.0]))
    torch.testing.assert_close(list(head.state), list(other.state))


def test_it_works_under_vmap_of_functional_calls() -> None:
    head = PopArt(6, 3, FAST)
    head.update(targets((), 0))
    stacked = {name: torch.stack((x, x)) for name, x in head.state_dict().items()}
    call = functools.partial(torch.func.functional_call, head)
    out = torch.vmap(lambda state: call(state, (H,)))(stacked)
    torch.testing.assert_close(out[1], head(H))


ERRORS: list[tuple[str, Callable[[], Any], type[Exception], str]] = [
    ("not linear", lambda: PopArt.from_linear(nn.Conv2d(3, 4, 2)), TypeError, "layer is a Conv2d.*identity"),  # pyright: ignore
    ("not a rule", lambda: PopArt(6, 3, "moments"), TypeError, "art is 'moments'; it must be a rule"),  # pyright: ignore
    ("no features", lambda: PopArt(0, 3), ValueError, "in_features is 0; it must be a positive integer"),
    ("no heads", lambda: PopArt(6, 3, heads=0), ValueError, "heads is 0"),
    ("a bias", lambda: PopArt(6, 3, bias="both"), ValueError, "bias is 'both'; it may be"),  # pyright: ignore
    ("biases", lambda: PopArt(6, 3, bias="shared", per_output=True), ValueError, "bias is 'shared'"),
    ("dueling", lambda: DuelingPopArt(6, 3, popart.Covariance()), ValueError, "share one scale"),
    ("value", lambda: DuelingPopArt.from_linear(nn.Linear(6, 2), nn.Linear(6, 3)), ValueError, "one output"),
    ("features", lambda: PopArt(6, 3)(torch.ones(2, 5)), ValueError, r"h has shape \(2, 5\).*of 6 features"),
    (
        "targets",
        lambda: PopArt(6, 3, per_output=True).update(torch.ones(4)),
        ValueError,
        r"targets have shape \(4,\); these statistics measure targets of shape \(\*batch, 3\)",
    ),
    (
        "index",
        lambda: PopArt(6, 3).update(torch.ones(4), index=torch.zeros(3, dtype=torch.int64)),
        ValueError,
        r"index has shape \(3,\); targets have shape \(4,\)",
    ),
    (
        "dense index",
        lambda: PopArt(6, 3, popart.Covariance()).update(
            torch.ones(3), index=torch.zeros(3, dtype=torch.int64)
        ),
        ValueError,
        "measured together",
    ),
    (
        "outputs",
        lambda: PopArt(6, 3)(H, index=torch.zeros(3, dtype=torch.int64)),
        ValueError,
        r"index has shape \(3,\); the batch has shape \(16,\)",
    ),
    ("Algorithm 2", lambda: NormalizedLinear(6, 3, heads=2), ValueError, "heads is 2; make one layer"),  # pyright: ignore
    ("tau", lambda: PopArt(6, 3).polyak_(PopArt(6, 3), 2.0), ValueError, "tau is 2.0"),
    ("unlike", lambda: PopArt(6, 3).polyak_(PopArt(6, 2), 0.5), ValueError, "only be averaged with its like"),
    ("networks", lambda: polyak_(nn.Linear(2, 2), nn.Linear(2, 2), -1), ValueError, "tau is -1"),
    ("kinds", lambda: polyak_(PopArt(6, 3), nn.Linear(6, 3), 0.1), ValueError, "they must be of one kind"),
]


@pytest.mark.parametrize(("call", "kind", "message"), [e[1:] for e in ERRORS], ids=[e[0] for e in ERRORS])
def test_bad_input_is_named(call: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()
