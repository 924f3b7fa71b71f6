"""What an optimizer remembers means the same after the head was rescaled, in PyTorch and in Optax."""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
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
def test_rescaled_moments_are_those_of_a_history_in_the_new_units(name: str, per_output: bool) -> None:
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


def test_moments_can_be_kept_or_reset() -> None:
    for moments in ("keep", "reset"):
        head = PopArt(4, 2, ART)
        optimizer = torch.optim.Adam(head.parameters(), 0.1)
        head.update(torch.arange(8.0))
        follow(head, optimizer, torch.ones(2))
        before = optimizer.state[head.weight]["exp_avg"].clone()
        head.update(100 * torch.arange(8.0), optimizer=optimizer, moments=moments)
        after = optimizer.state[head.weight]["exp_avg"]
        torch.testing.assert_close(after, before if moments == "keep" else torch.zeros_like(before))


def test_moments_are_not_touched_where_the_first_targets_are_adopted() -> None:
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
    with pytest.raises(ValueError, match="moments is 'forget'; it may be 'rescale', 'keep' or 'reset'"):
        head.update(torch.arange(3.0), optimizer=torch.optim.SGD(head.parameters()), moments="forget")  # pyright: ignore
    assert head.state.counts[0] == 0


def test_an_optimizer_of_unknown_moments_is_named_and_nothing_is_lost() -> None:
    head = PopArt(4, 2, ART)
    optimizer = torch.optim.Adadelta(head.parameters())
    head.update(torch.arange(8.0))
    follow(head, optimizer, torch.ones(2))
    weight = head.weight.detach().clone()
    with pytest.raises(
        ValueError, match=r"Adadelta, whose 'square_avg' has unknown units.*'keep' or 'reset'"
    ):
        head.update(torch.arange(8.0), optimizer=optimizer)
    torch.testing.assert_close(head.weight, weight, rtol=0, atol=0)
    assert head.state.counts[0] == 1
    head.update(torch.arange(8.0), optimizer=optimizer, moments="reset")
    assert not optimizer.state[head.weight]["square_avg"].any()


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
    "with hyperparameters": optax.inject_hyperparams(optax.adam)(0.1, eps=0.0),
    "clipped": optax.chain(optax.clip_by_global_norm(1e9), optax.adam(0.1, eps=0.0)),
    "two of them": optax.multi_transform(
        {"a": optax.adam(0.1, eps=0.0), "b": optax.sgd(0.1, 0.9)}, {"body": "b", "head": "a"}
    ),
    "accumulated": optax.MultiSteps(optax.adam(0.1, eps=0.0), 3).gradient_transformation(),
}


@pytest.mark.parametrize("name", OPTAX)
def test_rescaled_moments_in_optax_are_those_of_a_history_in_the_new_units(name: str) -> None:
    optimizer = popart.jax.rescale_moments(OPTAX[name], head=lambda params: params["head"])
    head = {"kernel": jnp.ones((4, 2)), "bias": jnp.zeros(2)}
    params = {"body": {"kernel": jnp.ones((3, 4))}, "head": head}
    y = jnp.asarray(np.random.default_rng(0).normal(size=8), jnp.float32)
    state, head, _, _ = popart.jax.step(ART, popart.jax.init(ART, head), head, y)
    old = ART.affine(state).scale
    state, _, _, change = popart.jax.step(ART, state, head, 1e3 * y + 5)
    F = old / ART.affine(state).scale
    unit = popart.jax.step(ART, state, head, y[:0]).change  # no targets, no change

    def history(F: Any) -> Any:
        memory = optimizer.init(params)
        for gradient, bias in zip(GRADIENTS, BIASES, strict=True):
            layer = {"kernel": F * gradient.T, "bias": F * bias}
            gradients = {"body": {"kernel": jnp.ones((3, 4))}, "head": layer}
            _, memory = optimizer.update(gradients, memory, params, change=unit)
        return memory

    zero = jax.tree.map(jnp.zeros_like, params)
    _, rescaled = optimizer.update(zero, history(1.0), params, change=change)
    _, expected = optimizer.update(zero, history(F), params, change=unit)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5), rescaled, expected)


def test_in_optax_moments_can_be_kept_or_reset() -> None:
    params = {"w": jnp.ones((4, 2)), "b": jnp.zeros(2)}
    state, head, _, _ = popart.jax.step(ART, popart.jax.init(ART, params), params, jnp.arange(4.0))
    change = popart.jax.step(ART, state, head, 100 * jnp.arange(4.0)).change
    cases: list[tuple[Literal["keep", "reset"], float]] = [("keep", 0.9), ("reset", 0.0)]
    for moments, factor in cases:
        optimizer = popart.jax.rescale_moments(optax.adam(0.1), lambda p: p, moments)
        memory: Any = optimizer.init(params)
        _, memory = optimizer.update(params, memory, params, change=change)
        after: Any
        _, after = optimizer.update(jax.tree.map(jnp.zeros_like, params), memory, params, change=change)
        np.testing.assert_allclose(after[0].mu["w"], factor * memory[0].mu["w"], rtol=1e-6)


def test_in_optax_unknown_moments_are_named() -> None:
    params = {"w": jnp.ones((4, 2)), "b": jnp.zeros(2)}
    change = popart.jax.step(ART, popart.jax.init(ART, params), params, jnp.arange(4.0)).change
    optimizer = popart.jax.rescale_moments(optax.adadelta(0.1), lambda p: p)
    with pytest.raises(
        ValueError, match=r"ScaleByAdaDeltaState, whose 'e_g' has unknown units.*'keep' or 'reset'"
    ):
        optimizer.update(params, optimizer.init(params), params, change=change)
    with pytest.raises(ValueError, match="change is missing"):
        optimizer.update(params, optimizer.init(params), params)
    with pytest.raises(ValueError, match="moments is 'forget'"):
        popart.jax.rescale_moments(optax.adam(0.1), lambda p: p, "forget")  # pyright: ignore
    reset = popart.jax.rescale_moments(optax.adadelta(0.1), lambda p: p, "reset")
    _, memory = reset.update(params, reset.init(params), params, change=change)
    assert jax.tree.leaves(memory)
