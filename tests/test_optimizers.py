"""The state of an optimizer has the same meaning after the head was rescaled, in PyTorch and in Optax."""

import functools
import itertools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
import torch
from accelerate import Accelerator
from torch import nn

import popart
import popart.jax
from popart.torch import PopArt

ART = popart.Moments(beta=popart.constant(0.5))
H = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))

TORCH: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD with momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "SGD with Nesterov's": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "SGD": lambda p: torch.optim.SGD(p, 0.1),
    "Adam": lambda p: torch.optim.Adam(p, 0.1, eps=0.0),
    "AMSGrad": lambda p: torch.optim.Adam(p, 0.1, eps=0.0, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.1, eps=0.0, weight_decay=0.0),
    "NAdam": lambda p: torch.optim.NAdam(p, 0.1, eps=0.0),
    "RAdam": lambda p: torch.optim.RAdam(p, 0.1, eps=0.0),
    "Adamax": lambda p: torch.optim.Adamax(p, 0.1, eps=0.0),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.1, eps=0.0),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 0.1, eps=0.0),
    "centred RMSprop": lambda p: torch.optim.RMSprop(p, 0.1, eps=0.0, centered=True),
    "RMSprop with momentum": lambda p: torch.optim.RMSprop(p, 0.1, eps=0.0, momentum=0.9),
}

GRADIENTS = np.random.default_rng(0).normal(size=(4, 2, 4)).astype(np.float32) + 2
BIASES = np.random.default_rng(1).normal(size=(4, 2)).astype(np.float32) + 2


def follow(head: PopArt, optimizer: torch.optim.Optimizer, unit: Any) -> None:
    """Feed a history of gradients, in some unit."""
    for gradient, bias in zip(GRADIENTS, BIASES, strict=True):
        head.weight.grad = unit[:, None] * torch.asarray(gradient)
        assert head.bias is not None
        head.bias.grad = unit * torch.asarray(bias)
        optimizer.step()


@pytest.mark.parametrize("per_output", [False, True])
@pytest.mark.parametrize("name", TORCH)
def test_a_rescaled_state_is_that_of_a_history_in_the_new_units(name: str, per_output: bool) -> None:
    head, other = (PopArt(4, 2, ART, per_output=per_output) for _ in range(2))
    shape = (8, 2) if per_output else (8,)
    y = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    y = y * torch.tensor([1.0, 50.0]) if per_output else y
    optimizer, expected = TORCH[name](head.parameters()), TORCH[name](other.parameters())
    head.update(y)
    old = head.affine.scale
    one = torch.ones(2)
    follow(head, optimizer, one)
    head.update(1e3 * y + 5, optimizer=optimizer)
    follow(other, expected, one * old / head.affine.scale)
    for parameter, their in zip(head.parameters(), other.parameters(), strict=True):
        for key, x in expected.state[their].items():
            if isinstance(x, torch.Tensor):
                torch.testing.assert_close(optimizer.state[parameter][key], x, rtol=1e-5, atol=0, msg=key)


def test_a_dense_change_of_scale_rotates_averages() -> None:
    head = PopArt(4, 2, popart.Covariance(beta=popart.constant(0.5)))
    optimizer = torch.optim.SGD(head.parameters(), 0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(0)
    head.update(torch.randn(8, 2, generator=generator))
    old = head.affine.scale
    follow(head, optimizer, torch.ones(2))
    before = optimizer.state[head.weight]["momentum_buffer"].clone()
    head.update(10 * torch.randn(8, 2, generator=generator), optimizer=optimizer)
    expected = torch.linalg.solve(head.affine.scale, old @ before)
    torch.testing.assert_close(optimizer.state[head.weight]["momentum_buffer"], expected)


def test_the_optimizer_state_can_be_kept_or_reset() -> None:
    for change in ("keep", "reset"):
        head = PopArt(4, 2, ART)
        optimizer = torch.optim.Adam(head.parameters(), 0.1)
        head.update(torch.arange(8.0))
        follow(head, optimizer, torch.ones(2))
        before = optimizer.state[head.weight]["exp_avg"].clone()
        head.update(100 * torch.arange(8.0), optimizer=optimizer, optimizer_state=change)
        after = optimizer.state[head.weight]["exp_avg"]
        torch.testing.assert_close(after, before if change == "keep" else torch.zeros_like(before))


def test_the_optimizer_state_is_not_touched_where_the_first_targets_are_adopted() -> None:
    head = PopArt(4, 2, ART)
    optimizer = torch.optim.Adam(head.parameters(), 0.1)
    follow(head, optimizer, torch.ones(2))
    before = optimizer.state[head.weight]["exp_avg"].clone()
    head.update(1e6 * torch.arange(8.0), optimizer=optimizer)
    torch.testing.assert_close(optimizer.state[head.weight]["exp_avg"], before, rtol=0, atol=0)


def test_an_optimizer_that_is_not_this_heads_is_refused() -> None:
    head = PopArt(4, 2)
    with pytest.raises(ValueError, match=r"optimizer \(SGD\) does not hold this head's parameters"):
        head.update(torch.arange(3.0), optimizer=torch.optim.SGD(nn.Linear(2, 2).parameters(), 0.1))
    with pytest.raises(TypeError, match="optimizer is of type str"):
        head.update(torch.arange(3.0), optimizer="adam")  # pyright: ignore
    with pytest.raises(ValueError, match="is 'forget'; it may be 'rescale', 'keep' or 'reset'"):
        head.update(torch.arange(3.0), optimizer=torch.optim.SGD(head.parameters()), optimizer_state="forget")  # pyright: ignore
    assert head.state.counts[0] == 0


def test_an_optimizer_of_unknown_state_is_named_and_nothing_is_lost() -> None:
    head = PopArt(4, 2, ART)
    optimizer = torch.optim.Adadelta(head.parameters())
    head.update(torch.arange(8.0))
    follow(head, optimizer, torch.ones(2))
    weight = head.weight.detach().clone()
    with pytest.raises(ValueError, match=r"Adadelta, whose state has unknown units.*'keep' or 'reset'"):
        head.update(torch.arange(8.0), optimizer=optimizer)
    torch.testing.assert_close(head.weight, weight, rtol=0, atol=0)
    assert head.state.counts[0] == 1
    head.update(torch.arange(8.0), optimizer=optimizer, optimizer_state="reset")
    assert not optimizer.state[head.weight]["square_avg"].any()


def test_an_optimizer_that_wraps_another_is_refused_with_a_hint() -> None:
    head = PopArt(4, 2, ART)
    wrapper = Accelerator(cpu=True).prepare(torch.optim.Adam(head.parameters()))
    with pytest.raises(ValueError, match=r"AcceleratedOptimizer.*pass its \.optimizer"):
        head.update(torch.arange(8.0), optimizer=wrapper)
    head.update(torch.arange(8.0), optimizer=wrapper.optimizer)


OPTAX: dict[str, optax.GradientTransformation] = {
    "momentum": optax.sgd(0.1, 0.9),
    "sgd": optax.sgd(0.1),
    "adam": optax.adam(0.1, eps=0.0),
    "adamw": optax.adamw(0.1, eps=0.0, weight_decay=0.0),
    "amsgrad": optax.amsgrad(0.1, eps=0.0),
    "adabelief": optax.adabelief(0.1, eps=1e-30, eps_root=1e-30),
    "adagrad": optax.adagrad(0.1, initial_accumulator_value=0.0, eps=0.0),
    "rmsprop": optax.rmsprop(0.1, eps=0.0),
    "centred rmsprop": optax.rmsprop(0.1, eps=0.0, centered=True),
    "rmsprop with momentum": optax.rmsprop(0.1, eps=0.0, momentum=0.9),
    "lion": optax.lion(0.1),
    "adamax": optax.adamax(0.1, eps=0.0),
    "adamaxw": optax.adamaxw(0.1, eps=0.0, weight_decay=0.0),
    "nadam": optax.nadam(0.1, eps=0.0),
    "radam": optax.radam(0.1, eps=0.0, threshold=1.0),
    "yogi": optax.scale_by_yogi(eps=0.0, initial_accumulator_value=0.0),
    "lamb": optax.lamb(0.1, eps=0.0),
    "adan": optax.adan(0.1, eps=0.0, weight_decay=0.0),
    "adopt": optax.contrib.adopt(0.1, eps=1e-30, use_clipping=False),
    "acprop": optax.contrib.acprop(0.1, eps=1e-30),
    "adadelta": optax.adadelta(0.1, eps=1e-30),
    "rprop": optax.rprop(0.1),
    "signs": optax.sign_sgd(0.1),
    "signs of an average": optax.signum(0.1),
    "optimistic": optax.optimistic_gradient_descent(0.1),
    "momentum of optimistic gradients": optax.chain(optax.scale_by_optimistic_gradient(), optax.trace(0.9)),
    "optimistic adam": optax.optimistic_adam_v2(0.1, eps=0.0),
    "an average": optax.ema(0.9),
    "every third": optax.apply_every(3),
    "without NaN": optax.chain(optax.zero_nans(), optax.adam(0.1, eps=0.0)),
    "with hyperparameters": optax.inject_hyperparams(optax.adam)(0.1, eps=0.0),
    "adamax with hyperparameters": optax.inject_hyperparams(lambda a: optax.adamax(a, eps=0.0))(0.1),
    "clipped": optax.chain(optax.clip_by_global_norm(1e9), optax.adam(0.1, eps=0.0)),
    "named": optax.named_chain(("clip", optax.clip(1e9)), ("adam", optax.adam(0.1, eps=0.0))),
    "two of them": optax.multi_transform(
        {"a": optax.adam(0.1, eps=0.0), "b": optax.sgd(0.1, 0.9)}, {"body": "b", "head": "a"}
    ),
    "momentum of divided gradients, of weights only": optax.chain(
        optax.masked(optax.scale_by_rms(eps=0.0), {"body": True, "head": {"kernel": True, "bias": False}}),
        optax.trace(0.9),
    ),
    "accumulated": optax.MultiSteps(optax.adam(0.1, eps=0.0), 3).gradient_transformation(),
    "accumulated adamax": optax.MultiSteps(optax.adamax(0.1, eps=0.0), 3).gradient_transformation(),
}


@pytest.mark.parametrize("per_output", [False, True])
@pytest.mark.parametrize("name", OPTAX)
def test_a_rescaled_state_in_optax_is_that_of_a_history_in_the_new_units(name: str, per_output: bool) -> None:
    """They make the same next step, with a gradient in the new units."""
    optimizer = popart.jax.rescale_optimizer(OPTAX[name], head=lambda params: params["head"])
    head = {"kernel": jnp.ones((4, 2)), "bias": jnp.zeros(2)}
    params = {"body": {"kernel": jnp.ones((3, 4))}, "head": head}
    y = np.random.default_rng(0).normal(size=(8, 2) if per_output else 8)
    y = jnp.asarray(y * np.array([1.0, 50.0]) if per_output else y, jnp.float32)
    state = popart.jax.init(ART, head, per_output=per_output)
    state, head, _, _ = popart.jax.step(ART, state, head, y)
    old = ART.affine(state).scale
    state, _, _, change = popart.jax.step(ART, state, head, 1e3 * y + 5)
    F = old / ART.affine(state).scale
    unit = popart.jax.step(ART, state, head, y[:0]).change  # no targets, no change

    def gradients(F: Any, i: int) -> Any:
        layer = {"kernel": F * GRADIENTS[i].T, "bias": F * BIASES[i]}
        return {"body": {"kernel": jnp.ones((3, 4))}, "head": layer}

    def history(F: Any) -> Any:
        memory = optimizer.init(params)
        for i in range(4):
            _, memory = optimizer.update(gradients(F, i), memory, params, change=unit)
        return memory

    now = gradients(F, 0)
    rescaled = optimizer.update(now, history(1.0), params, change=change)
    expected = optimizer.update(now, history(F), params, change=unit)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5), rescaled, expected)


class ScaleByAdamState(NamedTuple):
    """A state that has the name of one of Optax's, and averages of its own."""

    mu: Any
    nu: Any


def state_of(state: Any) -> optax.GradientTransformation:
    return optax.GradientTransformation(state, lambda updates, state, params=None: (updates, state))


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "lbfgs": (lambda: optax.lbfgs(0.1, linesearch=None), "ScaleByLBFGSState, whose 'params'"),
    "adafactor": (lambda: optax.adafactor(0.1), "FactoredState, whose 'v_row'"),
    "sm3": (lambda: optax.sm3(0.1), "ScaleBySM3State, whose 'mu'"),
    "novograd": (lambda: optax.novograd(0.1), "ScaleByNovogradState, whose 'mu'"),
    "distances": (optax.scale_by_distance_over_gradients, "GradientsState, whose 'max_dist'"),
    "schedule-free": (lambda: optax.contrib.schedule_free_adamw(0.1), "ScheduleFreeState, whose 'z'"),
    "prodigy": (optax.contrib.prodigy, "ProdigyState, whose"),
    "muon": (lambda: optax.contrib.muon(0.1), "MuonState, whose 'mu'"),
    "ademamix": (lambda: optax.contrib.ademamix(0.1), "ScaleByAdemamixState, whose 'm1'"),
    "sam": (lambda: optax.contrib.sam(optax.sgd(0.1), optax.sgd(0.1)), "SAMState, whose 'cache'"),
    "another's": (lambda: state_of(lambda p: ScaleByAdamState(p, p)), "ScaleByAdamState, whose 'mu'"),
    "a class": (lambda: state_of(jax.tree_util.Partial(jax.tree_util.Partial, max)), "Partial, whose"),
    "lars": (lambda: optax.lars(0.1), "trace after scale_by_trust_ratio"),
    "momentum of signs": (
        lambda: optax.chain(optax.scale_by_sign(), optax.trace(0.9)),
        "trace after scale_by_sign",
    ),
    "lookahead": (lambda: optax.lookahead(optax.sgd(0.1), 5, 0.5), "inner is optax.lookahead"),
    "one vector": (lambda: optax.flatten(optax.adam(0.1)), r"'mu' is one array of shape \(10,\)"),
    "adam and adamax": (
        lambda: optax.multi_transform({"a": optax.adam(0.1), "b": optax.adamax(0.1)}, {"w": "a", "b": "b"}),
        "inner combines adamax and adam",
    ),
    "a named chain": (
        lambda: optax.named_chain(("rms", optax.scale_by_rms()), ("momentum", optax.trace(0.9))),
        r"named_chain in which \['rms', 'momentum'\] remember gradients",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_state_in_optax_that_cannot_be_rescaled_is_refused_by_init(name: str) -> None:
    params = {"w": jnp.ones((4, 2)), "b": jnp.zeros(2)}
    make, message = REFUSED[name]
    optimizer = popart.jax.rescale_optimizer(make(), lambda p: p)
    with pytest.raises(ValueError, match=message):
        optimizer.init(optax.LookaheadParams(params, params) if name == "lookahead" else params)


def test_in_optax_the_state_can_be_kept_or_reset() -> None:
    params = {"w": jnp.ones((4, 2)), "b": jnp.zeros(2)}
    state, head, _, _ = popart.jax.step(ART, popart.jax.init(ART, params), params, jnp.arange(4.0))
    change = popart.jax.step(ART, state, head, 100 * jnp.arange(4.0)).change
    cases: list[tuple[Literal["keep", "reset"], float]] = [("keep", 0.9), ("reset", 0.0)]
    for optimizer_state, factor in cases:
        optimizer = popart.jax.rescale_optimizer(optax.adam(0.1), lambda p: p, optimizer_state)
        memory: Any = optimizer.init(params)
        _, memory = optimizer.update(params, memory, params, change=change)
        after: Any
        _, after = optimizer.update(jax.tree.map(jnp.zeros_like, params), memory, params, change=change)
        np.testing.assert_allclose(after[0].mu["w"], factor * memory[0].mu["w"], rtol=1e-6)


@pytest.mark.parametrize("optimizer_state", ["rescale", "keep", "reset"])
@pytest.mark.parametrize("jitted", [False, True])
def test_in_optax_a_step_without_a_change_is_that_of_the_optimizer_alone(
    optimizer_state: Literal["rescale", "keep", "reset"], jitted: bool
) -> None:
    """PPO takes several gradient steps after one update; the state is rescaled, or reset, in the first."""
    params = {"w": jnp.ones((4, 2)), "b": jnp.zeros(2)}
    plain, optimizer = (
        optax.adam(0.1),
        popart.jax.rescale_optimizer(optax.adam(0.1), lambda p: p, optimizer_state),
    )
    state, head, _, _ = popart.jax.step(ART, popart.jax.init(ART, params), params, jnp.arange(4.0))
    change = popart.jax.step(ART, state, head, 100 * jnp.arange(4.0)).change
    gradients = [jax.tree.map(lambda x, i=i: x + i, params) for i in range(1, 4)]
    _, memory = optimizer.update(gradients[0], optimizer.init(params), params, change=change)
    update = functools.partial(optimizer.update, change=None)
    for g in gradients[1:]:
        found = (jax.jit(update) if jitted else update)(g, memory, params)
        expected = plain.update(g, memory, params)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), found, expected)
        _, memory = found


def test_in_optax_a_reset_state_has_its_initial_values() -> None:
    """These are not always 0: a step size of 0 would stay 0 in Rprop."""
    params = {"w": jnp.ones((4, 2)), "b": jnp.zeros(2)}
    optimizer = popart.jax.rescale_optimizer(optax.rprop(0.1), lambda p: p, "reset")
    change = popart.jax.step(ART, popart.jax.init(ART, params), params, jnp.arange(4.0)).change
    gradients = jax.tree.map(jnp.ones_like, params)
    memory: Any = optimizer.init(params)
    for _ in range(3):
        _, memory = optimizer.update(gradients, memory, params, change=change)
        np.testing.assert_array_equal(memory[0].step_sizes["w"], jnp.full((4, 2), 0.1))


def test_in_optax_wrong_arguments_are_named() -> None:
    params = {"w": jnp.ones((4, 2)), "b": jnp.zeros(2)}
    change = popart.jax.step(ART, popart.jax.init(ART, params), params, jnp.arange(4.0)).change
    optimizer = popart.jax.rescale_optimizer(optax.adam(0.1), lambda p: p)
    with pytest.raises(ValueError, match="change is missing"):
        optimizer.update(params, optimizer.init(params), params)
    with pytest.raises(ValueError, match="optimizer_state is 'forget'"):
        popart.jax.rescale_optimizer(optax.adam(0.1), lambda p: p, "forget")  # pyright: ignore
    cases: list[Literal["keep", "reset"]] = ["keep", "reset"]
    for optimizer_state, inner in itertools.product(
        cases, (optax.sm3(0.1), optax.lbfgs(0.1, linesearch=None))
    ):
        anything = popart.jax.rescale_optimizer(inner, lambda p: p, optimizer_state)
        _, memory = anything.update(params, anything.init(params), params, change=change)
        assert jax.tree.leaves(memory)
    packed = popart.jax.rescale_optimizer(optax.flatten(optax.adam(0.1)), lambda p: p, "reset")
    with pytest.raises(ValueError, match="'mu' is one array"):
        packed.update(params, packed.init(params), params, change=change)
