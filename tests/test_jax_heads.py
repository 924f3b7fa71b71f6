"""Promises of `popart.jax`: outputs of any library's layers are preserved, under JAX's transformations."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import popart
import popart.jax as pj

EPS = float(jnp.finfo(jnp.float32).eps)
ART = popart.Moments(beta=0.1)
KEY = jax.random.key(0)
H = jax.random.normal(KEY, (16, 6))


@pytest.fixture(autouse=True)
def all_bits() -> Iterator[None]:
    """On a GPU, JAX multiplies with ten bits unless told otherwise."""
    with jax.default_matmul_precision("highest"):
        yield


def linen() -> Any:
    import flax.linen as nn

    return nn.Dense(3).init(KEY, H)["params"]


def nnx() -> Any:
    from flax import nnx

    return nnx.state(nnx.Linear(6, 3, rngs=nnx.Rngs(0)))


def haiku() -> Any:
    import haiku as hk

    return hk.transform(lambda x: hk.Linear(3)(x)).init(KEY, H)


def equinox() -> Any:
    import equinox as eqx

    return eqx.nn.Linear(6, 3, key=KEY)


def dueling() -> Any:
    return {"value": {"w": jnp.ones((6, 1)), "b": jnp.zeros(1)}, "advantage": linen()}


LAYERS = {
    "Flax": linen,
    "Flax NNX": nnx,
    "Haiku": haiku,
    "Equinox": equinox,
    "dueling": dueling,
    "ensemble": lambda: {"kernel": jax.random.normal(KEY, (4, 6, 3)), "bias": jnp.ones((4, 3))},
    "shared bias": lambda: {"w": jax.random.normal(KEY, (6, 3)), "b": jnp.ones(1)},
}


def targets(shape: tuple[int, ...], seed: int, size: float = 1.0) -> Any:
    return size * (jax.random.normal(jax.random.key(seed), (16, *shape)) + 2)


def own_outputs(name: str, head: Any) -> Any:
    """The layer as its library computes it."""
    if name == "Flax":
        import flax.linen as nn

        return nn.Dense(3).apply({"params": head}, H)
    if name == "Haiku":
        import haiku as hk

        return hk.without_apply_rng(hk.transform(lambda x: hk.Linear(3)(x))).apply(head, H)
    if name == "Equinox":
        return jax.vmap(head)(H)
    if name == "Flax NNX":
        from flax import nnx

        layer = nnx.Linear(6, 3, rngs=nnx.Rngs(1))
        nnx.update(layer, head)
        return layer(H)
    return pj.normalized(head, H)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # what they import uses what JAX deprecates
@pytest.mark.parametrize(
    ("name", "per_output"),
    [
        (name, per)
        for name in LAYERS
        for per in (False, True)
        if not per or name in ("Flax", "Equinox", "ensemble")
    ],
)
def test_no_output_of_anyones_layer_changes(name: str, per_output: bool) -> None:
    head = LAYERS[name]()
    kind = jax.tree.structure(head)
    state = pj.init(ART, head, per_output=per_output)
    shape = ART.affine(state).shift.shape
    step = jax.jit(lambda *x: pj.step(ART, *x))
    state, head, _, _ = step(state, head, targets(shape, 0))
    np.testing.assert_allclose(own_outputs(name, head), pj.normalized(head, H), rtol=1e-5, atol=1e-5)
    for i, size in enumerate((1.0, 1e3, 1e-2)):
        before = pj.values(ART, state, head, H)
        state, head, _, _ = step(state, head, targets(shape, 1 + i, size))
        affine = ART.affine(state)
        term = float(affine.scale.max() * jnp.abs(pj.normalized(head, H)).max() + jnp.abs(affine.shift).max())
        after = pj.values(ART, state, head, H)
        assert float(jnp.abs(after - before).max()) <= 32 * EPS * max(term, float(jnp.abs(before).max()))
    assert jax.tree.structure(head) == kind


def test_a_layer_without_a_bias_has_no_shift() -> None:
    head = {"kernel": jax.random.normal(KEY, (6, 3))}
    with pytest.raises(ValueError, match=r"head has no bias.*give it symmetric=True"):
        pj.step(ART, pj.init(ART, head), head, targets((), 0))
    art = dataclasses.replace(ART, symmetric=True)
    state, head, _, _ = pj.step(art, pj.init(art, head), head, targets((), 0))
    before = pj.values(art, state, head, H)
    state, head, _, _ = pj.step(art, state, head, targets((), 1, 1e4))
    np.testing.assert_allclose(pj.values(art, state, head, H), before, rtol=1e-5, atol=1e-5)


def test_a_trained_layer_is_kept_from_the_start() -> None:
    art, head = dataclasses.replace(ART, keep=True), linen()
    state, before = pj.init(art, head), pj.normalized(head, H)
    np.testing.assert_array_equal(pj.values(art, state, head, H), before)
    for y in (jnp.asarray([5.0]), jnp.asarray([5.0, 7.0])):
        state, head, _, _ = pj.step(art, state, head, y)
        np.testing.assert_allclose(pj.values(art, state, head, H), before, atol=4e-6)


def test_targets_of_chosen_outputs_move_no_other() -> None:
    head = linen()
    state = pj.init(ART, head, per_output=True)
    y, index = jnp.asarray([1e3, 2e3, 3e3]), jnp.asarray([0, 2, 2])
    state, head, normalized, _ = pj.step(ART, state, head, y, index=index)
    np.testing.assert_array_equal(state.counts[0], [1, 0, 1])
    np.testing.assert_allclose(ART.affine(state).select(index).denormalize(normalized), y, rtol=1e-6)
    for whole, chosen in (
        (pj.normalized(head, H[:3]), pj.normalized(head, H[:3], index=index)),
        (pj.values(ART, state, head, H[:3]), pj.values(ART, state, head, H[:3], index=index)),
    ):
        np.testing.assert_array_equal(chosen, whole[jnp.arange(3), index])
    several = LAYERS["ensemble"]()
    np.testing.assert_array_equal(
        pj.normalized(several, H[:3], index=index), pj.normalized(several, H[:3])[jnp.arange(3), index]
    )
    shared = pj.init(ART, head)
    np.testing.assert_array_equal(
        pj.step(ART, shared, head, y, index=index).targets, pj.step(ART, shared, head, y).targets
    )


def test_in_compiled_code_an_index_out_of_range_chooses_nothing() -> None:
    head, index = linen(), jnp.asarray([0, 3, -1, 2])
    state, y = pj.init(ART, head, per_output=True), jnp.asarray([1.0, 2.0, 3.0, 4.0])
    unknown = np.asarray([False, True, True, False])
    state, head, normalized, _ = jax.jit(lambda index: pj.step(ART, state, head, y, index=index))(index)
    np.testing.assert_array_equal(np.isnan(normalized), unknown)
    np.testing.assert_array_equal(state.counts[0], [1, 0, 1])
    for chosen in (pj.normalized(head, H[:4], index=index), pj.values(ART, state, head, H[:4], index=index)):
        np.testing.assert_array_equal(np.isnan(chosen), unknown)
    with pytest.raises(ValueError, match="index reaches from -1 to 3"):
        pj.step(ART, state, head, y, index=index)


@pytest.mark.parametrize("name", ["Flax", "dueling", "ensemble"])
@pytest.mark.parametrize("tau", [0.0, 0.3, 1.0])
def test_a_polyak_average_is_of_the_functions(name: str, tau: float) -> None:
    head = LAYERS[name]()
    state = pj.init(ART, head)
    shape = ART.affine(state).shift.shape
    target = pj.step(ART, state, head, targets(shape, 0, 10.0))[:2]
    online = pj.step(ART, *target, targets(shape, 1, 1e3))[:2]
    online = online[0], jax.tree.map(lambda x: x + 0.5, online[1])
    expected = (1 - tau) * pj.values(ART, *target, H) + tau * pj.values(ART, *online, H)
    result = pj.polyak(ART, target, online, tau)
    scale = float(jnp.abs(pj.values(ART, *online, H)).max())
    np.testing.assert_allclose(pj.values(ART, *result, H), expected, rtol=1e-4, atol=1e-4 * scale)


@pytest.mark.parametrize("size", [1e4, 1e8, 1e37])
def test_a_polyak_average_with_a_tau_of_1_is_the_online_head(size: float) -> None:
    target, online = (
        pj.step(ART, pj.init(ART, linen()), linen(), targets((), i, x))[:2] for i, x in enumerate((size, 1.0))
    )
    result = pj.polyak(ART, target, online, 1.0)
    np.testing.assert_array_equal(pj.values(ART, *result, H), pj.values(ART, *online, H))


def test_several_heads_may_be_measured_with_dense_scales_without_saying_per_output() -> None:
    head = {"kernel": jnp.ones((3, 8, 2)), "bias": jnp.zeros((3, 2))}
    assert pj.init(popart.Covariance(), head).factor.shape == (3, 2, 2)


def test_a_polyak_average_with_a_head_that_knows_nothing_counts_it_as_0() -> None:
    head = linen()
    nothing = pj.init(ART, head), head
    online = pj.step(ART, *nothing, targets((), 0, 1e3))[:2]
    result = pj.polyak(ART, nothing, online, 0.25)
    expected = 0.25 * pj.values(ART, *online, H)
    np.testing.assert_allclose(pj.values(ART, *result, H), expected, rtol=1e-5, atol=1e-3)


def test_what_is_no_linear_layer_is_refused() -> None:
    linear = linen()
    for head in (
        {"kernel": jnp.ones((3, 3, 4, 8)), "bias": jnp.ones(8)},
        {"x": jnp.ones((3, 3))},
        [linear, linear],
    ):
        with pytest.raises(TypeError, match=r"head (is|has)"):
            pj.step(ART, ART.init(), head, targets((), 0))
    with pytest.raises(TypeError, match="must be the parameters of one linear layer"):
        pj.init(ART, {"first": linear, "second": linear})
    with pytest.raises(ValueError, match="per_output is True"):
        pj.init(ART, dueling(), per_output=True)


@pytest.mark.parametrize(
    ("kernel", "bias", "message"),
    [
        (jnp.ones((8, 2), int), jnp.zeros(2), "a weight of dtype int32; it must be of floats"),
        (jnp.ones((8, 2)), jnp.zeros(3), r"a bias of shape \(3,\) .* must have shape \(2,\)"),
        (jnp.ones((4, 8, 2)), jnp.zeros(2), r"a bias of shape \(2,\) .* must have shape \(4, 2\)"),
    ],
)
def test_parameters_that_are_no_head_are_named(kernel: jax.Array, bias: jax.Array, message: str) -> None:
    art, head = popart.Moments(0.1), {"kernel": kernel, "bias": bias}
    with pytest.raises(TypeError, match=message):
        pj.step(art, pj.init(art, head), head, jnp.arange(4.0))


def test_features_indices_and_averages_are_checked() -> None:
    art, head = popart.Moments(0.1), {"kernel": jnp.ones((8, 2)), "bias": jnp.zeros(2)}
    state, y = pj.init(art, head), jnp.arange(4.0)
    with pytest.raises(ValueError, match=r"h has shape \(4, 7\); its last axis must be of 8 features"):
        pj.normalized(head, jnp.ones((4, 7)))
    for index, message in (
        (jnp.zeros(3, int), r"index has shape \(3,\)"),
        (jnp.full(4, 2), "index reaches from 2 to 2; .* of tasks 0 to 1"),
        (jnp.zeros(4), "index has dtype float32"),
    ):
        with pytest.raises(ValueError, match=message):
            pj.step(art, state, head, y, index=index)
    with pytest.raises(ValueError, match=r"tau is 3; it must be in \[0, 1\]"):
        pj.polyak(art, (state, head), (state, head), 3)


def test_targets_of_the_wrong_shape_are_named() -> None:
    head = linen()
    with pytest.raises(ValueError, match=r"targets have shape \(16, 2\).*\(\*batch, 3\)"):
        pj.step(ART, pj.init(ART, head, per_output=True), head, targets((2,), 0))


@pytest.mark.parametrize("heads", [False, True])
def test_a_batch_as_long_as_the_number_of_outputs_needs_an_index(heads: bool) -> None:
    kernel = jnp.ones((4, 5, 1)) if heads else jnp.ones((5, 4))
    head = {"kernel": kernel, "bias": jnp.zeros((4, 1) if heads else 4)}
    art, y = popart.Moments(), jnp.arange(4.0)
    state = pj.init(art, head, per_output=not heads)
    with pytest.raises(ValueError, match=r"targets have shape \(4,\), which may be a batch or one target"):
        pj.step(art, state, head, y)
    as_batch = pj.step(art, state, head, y, index=jnp.zeros(4, int))
    assert as_batch.state.counts[0].tolist() == [1, 0, 0, 0]
    one = pj.step(art, state, head, y[None])
    assert one.state.counts[0].tolist() == [1, 1, 1, 1]


def test_no_gradient_goes_through_bootstrapped_targets() -> None:
    """The gradient is that of the squared loss for targets that are numbers, by hand."""
    head = linen()
    state, head, _, _ = pj.step(ART, pj.init(ART, head), head, targets((), 0))

    def loss(head: Any) -> Any:
        y = 1.0 + 0.9 * pj.values(ART, state, head, H[8:])[:, 0]
        new = pj.step(ART, state, head, y)
        return ((pj.normalized(new.head, H[:8])[:, 0] - new.targets) ** 2).mean() / 2

    gradient = jax.grad(loss)(head)["kernel"]
    y = 1.0 + 0.9 * pj.values(ART, state, head, H[8:])[:, 0]
    new = pj.step(ART, state, head, y)
    old, now = ART.affine(state), ART.affine(new.state)
    error = (np.asarray(pj.values(ART, state, head, H[:8])[:, 0], float) - np.asarray(y, float)) / float(
        now.scale
    )
    expected = float(old.scale / now.scale) * np.asarray(H[:8], float).T @ error / 8
    np.testing.assert_allclose(gradient[:, 0], expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(gradient[:, 1:], 0)
    through = jax.grad(lambda y: pj.step(ART, state, head, y).targets.sum())(y)
    np.testing.assert_array_equal(through, 0)


def test_heads_can_be_vmapped() -> None:
    heads = jax.tree.map(lambda x: jnp.stack((x, 2 * x)), linen())
    states = jax.vmap(lambda head: pj.init(ART, head))(heads)
    y = jnp.stack((targets((), 0), targets((), 1, 1e3)))
    result = jax.vmap(lambda *x: pj.step(ART, *x))(states, heads, y)
    alone = pj.step(ART, ART.init(like=H), jax.tree.map(lambda x: x[1], heads), y[1])
    np.testing.assert_allclose(result.targets[1], alone.targets, rtol=1e-6)


@pytest.mark.parametrize("art", [ART, popart.Percentiles(), popart.Covariance(beta=0.1)], ids=repr)
def test_a_compiled_step_computes_what_a_plain_one_does(art: Any) -> None:
    """On a CPU all of it but weights and targets is in the branch of a conditional; see `at_once`."""
    dense = art.event_axes > 0
    head, y = linen(), jax.random.normal(KEY, (8, 3) if dense else (8,))
    state = art.update(pj.init(art, head, per_output=dense), 3 * y + 1)

    def plain(state: Any, head: Any, y: Any) -> Any:
        return pj.step(art, state, head, y)

    compiled = jax.jit(plain)
    for mine, theirs in zip(
        jax.tree.leaves(compiled(state, head, y)), jax.tree.leaves(plain(state, head, y)), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=2e-6, atol=2e-6)
    if jax.default_backend() == "cpu":
        assert "stablehlo.case" in compiled.lower(state, head, y).as_text()
    many = jax.vmap(plain, (None, None, 0))(state, head, jnp.stack((y, 2 * y)))
    np.testing.assert_allclose(many.targets[0], plain(state, head, y).targets, rtol=1e-5, atol=1e-5)
