"""Normalized SGD (Algorithm 2) beside Pop-Art SGD (Prop. 3), and Deep Pop-Art, in PyTorch and in JAX."""

import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from torch import nn

import popart
import popart.correspondence
import popart.deep
import popart.jax as pj
from popart.torch import NormalizedLinear, NormalizeGradient, PopArt, backpropagated_targets

ALPHA, STEPS = 0.02, 25
RULES: dict[str, tuple[Any, bool]] = {
    "one scale": (popart.Moments(beta=0.05, nu0=1.0), False),
    "per output": (popart.Moments(beta=0.05, nu0=1.0), True),
    "dense": (popart.Covariance(beta=0.05, nu0=1.0), True),
}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(STEPS, 4, 3))
Y = 1 + 3 * np.stack((X[..., 0] + X[..., 1], X[..., 0] * X[..., 2]), -1)


def body() -> nn.Sequential:
    """Not one layer but any network."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 5), nn.Tanh()).double()


def head(kind: type[Any], rule: str) -> Any:
    torch.manual_seed(1)
    art, per_output = RULES[rule]
    return kind(5, 2, art, per_output=per_output, dtype=torch.float64)


def targets(y: Any, rule: str) -> Any:
    """Return targets for the statistics of a rule; a single scale measures all numbers together."""
    return y if RULES[rule][1] else y.reshape(-1)


@pytest.mark.parametrize("rule", RULES)
def test_normalized_sgd_is_pop_art_sgd_in_pytorch(rule: str) -> None:
    theta, theta_n = body(), body()
    pop, plain = head(PopArt, rule), head(NormalizedLinear, rule)
    optimizers = [
        torch.optim.SGD([*b.parameters(), *h.parameters()], ALPHA)
        for b, h in ((theta, pop), (theta_n, plain))
    ]
    for x, y in zip(torch.asarray(X), torch.asarray(Y), strict=True):
        for optimizer in optimizers:
            optimizer.zero_grad()
        normalized = pop.update(targets(y, rule)).reshape(y.shape)
        ((pop.normalized(theta(x)) - normalized).square().sum() / 2).backward()
        plain.update(targets(y, rule))
        ((plain(theta_n(x)) - y).square().sum() / 2).backward()
        for optimizer in optimizers:
            optimizer.step()
        for p, q in zip(theta.parameters(), theta_n.parameters(), strict=True):
            torch.testing.assert_close(q, p, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(plain(theta_n(x)), pop(theta(x)), rtol=1e-9, atol=1e-10)


def jax_body(params: Any, x: Any) -> Any:
    for W, b in params:
        x = jnp.tanh(x @ W.T + b)
    return x


def jax_start(rule: str) -> tuple[Any, Any]:
    layers = [m for m in body() if isinstance(m, nn.Linear)]
    params = [(jnp.asarray(m.weight.detach().numpy()), jnp.asarray(m.bias.detach().numpy())) for m in layers]
    top = head(PopArt, rule)
    assert top.bias is not None
    weights = {
        "weight": jnp.asarray(top.weight.detach().numpy()),
        "bias": jnp.asarray(top.bias.detach().numpy()),
    }
    return {"body": params, "head": weights}, RULES[rule][0].init(top.affine.shift.shape, like=params[0][0])


def moved(params: Any, gradients: Any, affine: popart.Affine | None = None) -> Any:
    """A step of SGD, or of the transformation that normalises it."""
    if affine is None:
        optimizer, extra = optax.with_extra_args_support(optax.sgd(ALPHA)), {}
    else:
        optimizer, extra = pj.normalized_sgd(ALPHA, head=lambda params: params["head"]), {"affine": affine}
    updates, _ = optimizer.update(gradients, optimizer.init(params), params, **extra)
    return optax.apply_updates(params, updates)


@pytest.mark.parametrize("rule", RULES)
def test_normalized_sgd_is_pop_art_sgd_in_jax(rule: str) -> None:
    art = RULES[rule][0]
    with jax.enable_x64(True):
        params, state = jax_start(rule)
        plain = scaled = params

        def pop_loss(params: Any, x: Any, y: Any) -> Any:
            return jnp.square(pj.normalized(params["head"], jax_body(params["body"], x)) - y).sum() / 2

        def plain_loss(params: Any, x: Any, y: Any, affine: Any) -> Any:
            return (
                jnp.square(
                    pj.normalized_linear(params["head"], jax_body(params["body"], x), affine) - y
                ).sum()
                / 2
            )

        @jax.jit
        def step(state: Any, params: Any, plain: Any, scaled: Any, x: Any, y: Any) -> tuple[Any, ...]:
            state, top, normalized, _ = pj.step(art, state, params["head"], targets(y, rule))
            params = {**params, "head": top}
            gradients = jax.grad(pop_loss)(params, x, normalized.reshape(y.shape))
            params = moved(params, gradients)
            affine = art.affine(state)
            gradients = jax.grad(plain_loss)(plain, x, y, affine)
            plain = moved(plain, gradients)
            if rule == "one scale":
                gradients = jax.grad(pop_loss)(scaled, x, y)
                scaled = moved(scaled, gradients, affine)
            return state, params, plain, scaled

        for x, y in zip(jnp.asarray(X), jnp.asarray(Y), strict=True):
            state, params, plain, scaled = step(state, params, plain, scaled, x, y)
        outputs = pj.values(art, state, params["head"], jax_body(params["body"], X[0]))
        for other in (plain, scaled) if rule == "one scale" else (plain,):
            for p, q in zip(jax.tree.leaves(params["body"]), jax.tree.leaves(other["body"]), strict=True):
                np.testing.assert_allclose(q, p, rtol=1e-9, atol=1e-11)
            theirs = pj.normalized(other["head"], jax_body(other["body"], X[0]))
            np.testing.assert_allclose(theirs, outputs, rtol=1e-9)


def test_normalized_sgd_takes_one_step_as_algorithm_2_prints_it() -> None:
    from popart.reference import Parameters, normalized_sgd

    layer = head(NormalizedLinear, "dense")
    layer.update(torch.asarray(Y[0]))
    scale = layer.affine.scale.numpy()
    theta, x, y = RNG.normal(size=(5, 3)), X[0, 0], Y[0, 0]
    assert layer.bias is not None
    start = Parameters(
        theta.reshape(-1), layer.weight.detach().numpy().copy(), layer.bias.detach().numpy().copy()
    )
    expected = normalized_sgd(
        start,
        lambda theta, x: np.tanh(theta.reshape(5, 3) @ x),
        lambda theta, x: np.kron(np.diag(1 - np.tanh(theta.reshape(5, 3) @ x) ** 2), x[:, None]).astype(
            float
        ),
        x,
        y,
        scale,
        ALPHA,
    )
    parameter = torch.asarray(theta).clone().requires_grad_()
    optimizer = torch.optim.SGD([parameter, *layer.parameters()], ALPHA)
    h = torch.tanh(parameter @ torch.asarray(x))
    ((layer(h[None])[0] - torch.asarray(y)).square().sum() / 2).backward()
    optimizer.step()
    np.testing.assert_allclose(parameter.detach().numpy().reshape(-1), expected.theta, rtol=1e-12)
    np.testing.assert_allclose(layer.weight.detach().numpy(), expected.W, rtol=1e-12)
    np.testing.assert_allclose(layer.bias.detach().numpy(), expected.b, rtol=1e-12)


def test_a_scale_per_output_is_refused_by_the_transformation_with_what_to_use() -> None:
    optimizer = pj.normalized_sgd(0.1, head=lambda params: params)
    params = {"w": jnp.ones((2, 2)), "b": jnp.zeros(2)}
    with pytest.raises(ValueError, match=r"affine.scale has shape \(2,\).*normalized_linear"):
        optimizer.update(
            params, optimizer.init(params), params, affine=popart.Affine(jnp.ones(2), jnp.zeros(2))
        )
    with pytest.raises(ValueError, match="affine is missing"):
        optimizer.update(params, optimizer.init(params), params)


LABELS = torch.asarray(RNG.integers(0, 3, 16))
FEATURES = torch.asarray(RNG.normal(size=(16, 5)))


def cross_entropy(z: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(z, LABELS, reduction="none")


def test_targets_by_back_propagation_are_back_propagation() -> None:
    """Without normalisation, the squared loss towards them has the gradients of the loss itself."""
    layer = nn.Linear(5, 3).double()
    plain = copy.deepcopy(layer)
    pop = PopArt.from_linear(layer, popart.Fixed())
    targets, losses = backpropagated_targets(cross_entropy, pop(FEATURES))
    targets = pop.update(targets)
    ((pop.normalized(FEATURES) - targets).square().sum() / 2).backward()
    expected = cross_entropy(plain(FEATURES))
    expected.sum().backward()
    torch.testing.assert_close(losses, expected.detach())
    torch.testing.assert_close(pop.weight.grad, plain.weight.grad)


def test_a_hidden_layer_with_pop_art_is_trained_with_what_is_above_it() -> None:
    torch.manual_seed(0)
    below = nn.Sequential(nn.Linear(5, 16), nn.Tanh()).double()
    hidden = PopArt(16, 8, popart.Moments(beta=0.05), per_output=True, dtype=torch.float64)
    above = nn.Sequential(nn.Tanh(), nn.Linear(8, 3)).double()
    optimizer = torch.optim.SGD([*below.parameters(), *hidden.parameters(), *above.parameters()], 0.02)
    history = []
    for _ in range(300):
        optimizer.zero_grad()
        h = below(FEATURES)
        targets, losses = backpropagated_targets(lambda z: cross_entropy(above(z)), hidden(h))
        targets = hidden.update(targets)
        ((hidden.normalized(h) - targets).square().sum() / 2).backward()
        optimizer.step()
        history.append(float(losses.mean()))
    assert history[-1] < 0.1 * history[0]


@pytest.mark.parametrize("xp", [np, jnp, torch], ids=["numpy", "jax", "torch"])
def test_targets_by_inversion_give_back_the_probabilities(xp: Any) -> None:
    p = xp.asarray(np.array([[0.7, 0.2, 0.1], [1e-6, 0.5, 0.5 - 1e-6]], np.float32))
    z = popart.deep.softmax_targets(p)
    e = xp.exp(z)
    np.testing.assert_allclose(e / e.sum(-1)[:, None], p, rtol=1e-5)
    np.testing.assert_allclose(z.mean(-1), 0, atol=1e-6)


def test_a_probability_of_0_needs_smoothing() -> None:
    labels = np.eye(3)
    with pytest.raises(ValueError, match=r"probabilities reach down to 0.0.*give some smoothing"):
        popart.deep.softmax_targets(labels)
    with pytest.raises(ValueError, match="smoothing is 1"):
        popart.deep.softmax_targets(labels, smoothing=1)
    z = popart.deep.softmax_targets(labels, smoothing=0.3)
    np.testing.assert_allclose(np.exp(z[0, 0] - z[0, 1]), 0.8 / 0.1)
    assert jnp.isfinite(jax.jit(popart.deep.softmax_targets)(jnp.eye(3))).all()


GRADIENTS = RNG.normal(size=(5, 6, 4)).astype(np.float32) * 10.0 ** np.arange(5)[:, None, None].astype(
    np.float32
)


def torch_gradients(normalize: NormalizeGradient, scale: float = 1.0) -> np.ndarray:
    out = []
    for gradient in GRADIENTS:
        x = torch.zeros(6, 4, requires_grad=True)
        y = normalize(x)
        assert torch.equal(y, x)
        y.backward(scale * torch.asarray(gradient))
        assert x.grad is not None
        out.append(x.grad.numpy())
    return np.array(out)


def test_normalized_gradients_have_the_size_that_is_asked_for() -> None:
    gradients = torch_gradients(NormalizeGradient(weight=0.5))
    assert np.sqrt(np.mean(gradients[0] ** 2)) == pytest.approx(0.5, rel=1e-5)
    np.testing.assert_allclose(gradients[0] / GRADIENTS[0], (gradients[0] / GRADIENTS[0])[0, 0], rtol=1e-5)
    bound = popart.correspondence.bound(1e-2)
    assert np.abs(gradients).max() < bound


@pytest.mark.parametrize("k", [-60, 3, 60])
def test_the_size_of_gradients_does_not_matter_to_the_bit(k: int) -> None:
    one = torch_gradients(NormalizeGradient())
    np.testing.assert_array_equal(torch_gradients(NormalizeGradient(), 2.0**k), one)


def test_jax_and_pytorch_normalize_gradients_alike() -> None:
    art = popart.Moments(1e-2, symmetric=True)
    state, x = art.init(like=jnp.zeros(())), jnp.zeros((6, 4))
    expected = torch_gradients(NormalizeGradient(0.5, art))

    @jax.jit
    def backward(state: Any, gradient: Any) -> Any:
        def loss(x: Any, probe: Any) -> Any:
            return (pj.normalize_gradient(x, art, state, probe, weight=0.5) * gradient).sum()

        normalized, seen = jax.grad(loss, argnums=(0, 1))(x, jnp.zeros_like(x))
        return art.update(state, seen), normalized

    for gradient, wanted in zip(GRADIENTS, expected, strict=True):
        state, normalized = backward(state, gradient)
        np.testing.assert_allclose(normalized, wanted, rtol=1e-5)
    with pytest.raises(ValueError, match="would shift gradients"):
        pj.normalize_gradient(x, popart.Moments(), popart.Moments().init())


def test_no_source_drowns_out_another_and_their_sum_is_normalised_again() -> None:
    sources = [NormalizeGradient(), NormalizeGradient(weight=2.0)]
    meet = NormalizeGradient()
    x = torch.zeros(6, 4, requires_grad=True)
    h = meet(x)
    a, b = (torch.asarray(RNG.normal(size=(6, 4)).astype(np.float32)) for _ in range(2))
    ((sources[0](h) * a).sum() + 1e6 * (sources[1](h) * b).sum()).backward()
    merged = a / a.square().mean().sqrt() + 2 * b / b.square().mean().sqrt()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, merged / merged.square().mean().sqrt(), rtol=1e-5, atol=1e-6)


def test_statistics_of_gradients_travel_with_the_module() -> None:
    one = NormalizeGradient()
    torch_gradients(one)
    other = NormalizeGradient()
    other.load_state_dict(one.state_dict())
    np.testing.assert_array_equal(torch_gradients(other), torch_gradients(one))
    with pytest.raises(RuntimeError, match="needs moments_counts"):
        NormalizeGradient().load_state_dict({}, strict=False)


# PyTorch's compiler does what PyTorch warns of.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_gradients_are_normalized_in_a_compiled_full_graph_too() -> None:
    torch.compiler.reset()
    eager, compiled = NormalizeGradient(), NormalizeGradient()
    forward = torch.compile(lambda x: (3 * compiled(x)).sum(), fullgraph=True)
    for i in range(3):
        x, y = (torch.full((4,), float(i), requires_grad=True) for _ in range(2))
        forward(x).backward()
        (3 * eager(y)).sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
        assert compiled.state.counts[0] == i + 1
