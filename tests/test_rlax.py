"""rlax's own Pop-Art tests, run against `popart.jax` through an adapter, and how the two differ.

rlax's `popart` has one statistic per output, which targets choose by an index. The adapter translates its
settings. Differences in meaning, each with a test:

1. One step per batch. Our step size β is that of the whole batch. rlax adds up a step for each target, so
   that n targets of an output take a step of nβ. The adapter gives ours n times the step size of rlax.
2. Adoption. Ours adopts the first targets by default: they become the statistics, and outputs are preserved
   from then on. rlax begins with a mean of 0 and a second moment of 1, and preserves outputs from the first
   update on. The adapter gives `nu0=1`, which is the same start.
3. Bounds. `epsilon` is the square of rlax's lower bound of the scale, and 0 by default. There is no upper
   bound.
4. Replicas. Ours merge their parts into one batch, which takes one step. rlax adds up their steps.
"""

import types
import unittest
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import popart
import popart.jax as pj

with warnings.catch_warnings(action="ignore"):
    import rlax
    from rlax._src import pop_art_test as theirs


class State(NamedTuple):
    """The state of rlax, and ours beside it where there is one."""

    shift: Any
    scale: Any
    second_moment: Any
    ours: Any = None


class Output(NamedTuple):
    """The chosen outputs in both units."""

    normalized: Any
    unnormalized: Any


def normalize(state: State, unnormalized: Any, indices: Any) -> Any:
    return popart.Affine(state.scale, state.shift).select(indices).normalize(unnormalized)


def unnormalize(state: State, normalized: Any, indices: Any) -> Any:
    return popart.Affine(state.scale, state.shift).select(indices).denormalize(normalized)


def unnormalize_linear(state: State, inputs: Any, indices: Any) -> Any:
    """Return the chosen outputs of a linear layer: ours computes these from its inputs, here an identity."""
    outputs = inputs.shape[-1]
    head = {"w": jnp.eye(outputs), "b": jnp.zeros(outputs)}
    art = popart.Fixed(tuple(map(float, state.scale)), tuple(map(float, state.shift)))
    statistics = pj.init(art, head, per_output=True)
    normalized = pj.normalized(head, jnp.asarray(inputs), index=indices)
    return Output(normalized, pj.values(art, statistics, head, jnp.asarray(inputs), index=indices))


def rule(step_size: float, scale_lb: float, targets: int) -> popart.Moments:
    """Return the rule that moves as rlax does with so many targets of each output."""
    return popart.Moments(popart.constant(step_size * targets), nu0=1.0, epsilon=scale_lb**2)


def adapted(num_outputs: int, step_size: float, scale_lb: float, scale_ub: float) -> Any:
    """Return what `rlax.popart` returns, made of `popart.jax.step`."""

    def initial_state() -> State:
        art = rule(step_size, scale_lb, 1)
        head = {"w": jnp.zeros((1, num_outputs)), "b": jnp.zeros(num_outputs)}
        return as_theirs(art, pj.init(art, head, per_output=True))

    def update(params: Any, state: State, targets: Any, indices: Any) -> Any:
        counts = np.bincount(np.ravel(indices), minlength=num_outputs)
        assert (counts == counts[0]).all(), "rlax has other step sizes for outputs with more targets"
        art = rule(step_size, scale_lb, int(counts[0]))
        head = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), dict(params))
        y = jnp.asarray(targets, jnp.float32)
        step = pj.step(art, state.ours, head, y, index=jnp.asarray(indices))
        new = as_theirs(art, step.state)
        assert (new.scale <= scale_ub).all(), "there is no upper bound"
        return step.head, new

    return initial_state, update


def as_theirs(art: popart.Moments, ours: Any) -> State:
    affine = art.affine(ours)
    return State(affine.shift, affine.scale, affine.scale**2 + affine.shift**2, ours)


ADAPTER = types.SimpleNamespace(
    PopArtState=State,
    normalize=normalize,
    unnormalize=unnormalize,
    unnormalize_linear=unnormalize_linear,
    popart=adapted,
)

TESTS = [
    name
    for name in unittest.TestLoader().getTestCaseNames(theirs.PopArtTest)
    if "cross_replica" not in name  # of a helper of rlax, which has no counterpart here
]


def test_rlax_has_the_tests_that_we_know() -> None:
    assert {
        "test_normalize_unnormalize_is_identity",
        "test_unnormalize_linear",
        "test_learn_scale_shift",
        "test_slow_update",
        "test_scale_bounded",
        "test_outputs_preserved",
    } <= set(TESTS)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Haiku uses what JAX deprecates
@pytest.mark.parametrize("name", TESTS)
def test_of_rlax(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(theirs, "pop_art", ADAPTER)
    theirs.PopArtTest(name).debug()


PARAMS = {"w": jnp.asarray([[0.5, -1.0], [2.0, 0.3]]), "b": jnp.asarray([0.1, -0.2])}
INDICES = jnp.asarray([0, 1, 1, 0, 0, 1])


def test_the_adapter_and_rlax_agree_update_by_update() -> None:
    rng = np.random.default_rng(0)
    settings = {"step_size": 0.05, "scale_lb": 1e-3, "scale_ub": 1e6}
    (init, update), (their_init, their_update) = adapted(2, **settings), rlax.popart(2, **settings)
    (params, state), (their_params, their_state) = (PARAMS, init()), (PARAMS, their_init())
    for t in range(100):
        y = jnp.asarray(rng.normal(3, 1 + t / 10, 6), jnp.float32)
        params, state = update(params, state, y, INDICES)
        their_params, their_state = their_update(their_params, their_state, y, INDICES)
        np.testing.assert_allclose(state.shift, their_state.shift, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(state.scale, their_state.scale, rtol=1e-4)
        np.testing.assert_allclose(params["w"], their_params["w"], rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(params["b"], their_params["b"], rtol=1e-3, atol=1e-3)


def test_a_batch_takes_one_step_here_and_one_per_target_in_rlax() -> None:
    """With 50 copies of a batch, rlax takes steps of more than 2 and diverges."""
    art, y = popart.Moments(popart.constant(0.05), nu0=1.0), jnp.asarray([2.0, 4.0])
    init, update = rlax.popart(1, step_size=0.05, scale_lb=1e-6, scale_ub=1e6)
    head = {"w": jnp.ones((2, 1)), "b": jnp.zeros(1)}
    for copies in (1, 2, 50):
        targets = jnp.tile(y, copies)
        ours = pj.step(art, pj.init(art, head), head, targets).state
        assert float(art.affine(ours).shift) == pytest.approx(0.05 * 3)
        _, state = update(head, init(), targets, jnp.zeros(2 * copies, int))
        assert float(state.shift[0]) == pytest.approx(0.05 * 2 * copies * 3, rel=1e-5)
        for _ in range(10):
            ours = pj.step(art, ours, head, targets).state
            _, state = update(head, state, targets, jnp.zeros(2 * copies, int))
        assert 0 < float(art.affine(ours).shift) < 3
        assert (abs(float(state.shift[0]) - 3) > 100) == (copies == 50)


def test_the_first_targets_are_adopted_here_and_one_step_towards_them_is_taken_in_rlax() -> None:
    art, h, y = popart.Moments(0.05), jnp.asarray([[1.0, 2.0]]), jnp.asarray([2.0, 4.0])
    head = {"w": jnp.ones((2, 1)), "b": jnp.zeros(1)}
    step = pj.step(art, pj.init(art, head), head, y)
    affine = art.affine(step.state)
    assert (float(affine.shift), float(affine.scale)) == (3, 1)
    np.testing.assert_array_equal(pj.values(art, pj.init(art, head), head, h), [[0.0]])
    np.testing.assert_array_equal(step.head["w"], head["w"])
    np.testing.assert_allclose(pj.values(art, step.state, step.head, h), [[3 + 1 * 3]])
    init, update = rlax.popart(1, step_size=0.05, scale_lb=1e-6, scale_ub=1e6)
    params, state = update(head, init(), y, jnp.zeros(2, int))
    assert float(state.shift[0]) == pytest.approx(2 * 0.05 * 3)
    np.testing.assert_allclose(
        state.scale * (h @ params["w"] + params["b"]) + state.shift, [[3.0]], rtol=1e-6
    )


def test_the_lower_bound_is_0_by_default() -> None:
    y, head = jnp.asarray([1.0, 1.0 + 1e-4]), {"w": jnp.ones((2, 1)), "b": jnp.zeros(1)}
    for art, expected in ((popart.Moments(), 5e-5), (popart.Moments(epsilon=1e-2**2), 1e-2)):
        affine = art.affine(pj.step(art, pj.init(art, head), head, y).state)
        assert float(affine.scale) == pytest.approx(expected, rel=1e-2)


def test_replicas_take_one_step_together_here_and_one_each_in_rlax() -> None:
    art, y = popart.Moments(popart.constant(0.05), nu0=1.0), jnp.asarray([[2.0], [4.0], [6.0]])
    head = {"w": jnp.ones((2, 1)), "b": jnp.zeros(1)}
    init, update = rlax.popart(1, step_size=0.05, scale_lb=1e-6, scale_ub=1e6, axis_name="i")

    def ours(y: Any) -> Any:
        return art.affine(pj.step(art, pj.init(art, head), head, y, "i").state).shift

    def rlaxs(y: Any) -> Any:
        return update(head, init(), y, jnp.zeros(1, int))[1].shift[0]

    np.testing.assert_allclose(jax.vmap(ours, axis_name="i")(y), 0.05 * 4, rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(rlaxs, axis_name="i")(y), 3 * 0.05 * 4, rtol=1e-6)
