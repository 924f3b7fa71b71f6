"""Random calls of the core and the heads: a right result or an error that names the argument.

Never an error from inside, a state that is not finite, or a number that float64 contradicts.
`pytest tests/test_fuzz.py --fuzz 20000` tries more calls.
"""

import random
import re
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import popart
from popart.torch import PopArt

NAMED = re.compile(
    r"^(targets|mask|weights|index|beta|nu0|epsilon|std|p|scale|shift|shape|h|weight|bias|layout|new|tau|"
    r"these|statistics|discount|ends|batch|rewards|art|outputs)\b"
)
"""First words of a documented error: the name of an argument, or of the statistics."""

SHAPES = ((), (1,), (3,), (4, 2), (2, 3), (0,), (5, 1), (2, 2, 2))
DTYPES = ("float32", "float64", "float16", "int32", "bool", "uint8")
SPECIAL = (0.0, -0.0, 1.0, -1.0, 1e-30, 1e-45, 1e30, 3e38, 1e39, -1e300, np.nan, np.inf, -np.inf)
"""Those beyond float32 count as infinite where statistics are float32."""

FLOAT32_MAX = float(np.finfo(np.float32).max)


def array(rng: random.Random, shape: tuple[int, ...], dtype: str = "") -> np.ndarray:
    """Return an array of any dtype and with special values."""
    numbers = np.random.default_rng(rng.randrange(2**32))
    x = numbers.normal(scale=10.0 ** rng.uniform(-6, 6), size=shape)
    if x.size and rng.random() < 0.3:
        x.flat[rng.randrange(x.size)] = rng.choice(SPECIAL)
    with np.errstate(all="ignore"):
        return x.astype(dtype or rng.choice(DTYPES))


def rule_of(rng: random.Random) -> popart.Rule[Any]:
    beta = rng.choice((1e-4, 0.01, 0.5, 1.0))
    return rng.choice(
        (
            popart.Moments(beta),
            popart.Moments(beta, symmetric=True),
            popart.Percentiles(beta),
            popart.Expectiles(beta),
            popart.Extremes(beta),
            popart.Fixed(2.0),
        )
    )


def in_float64(affine: popart.Affine) -> popart.Affine:
    return popart.Affine(*map(np.float64, affine))


def documented(error: Exception) -> bool:
    return isinstance(error, ValueError | TypeError | FloatingPointError) and bool(NAMED.match(str(error)))


def attempt(seed: int, call: Any) -> Any:
    """Return the result; None if the call was refused as documented."""
    try:
        with np.errstate(all="raise", under="ignore", over="ignore", invalid="ignore", divide="ignore"):
            return call()
    except Exception as error:
        if documented(error):
            return None
        error.add_note(f"seed {seed}: no argument is named")
        raise


def as_float(x: Any) -> np.ndarray:
    return np.asarray(x.detach() if isinstance(x, torch.Tensor) else x, np.float64)


def test_updates_are_right_or_refused_by_name(fuzz: int) -> None:
    """Any shapes, types and values of targets, masks, weights and indices, in NumPy, PyTorch and JAX."""
    refused = 0
    for seed in range(fuzz):
        rng = random.Random(seed)
        rule, shape = rule_of(rng), rng.choice(SHAPES[:4])
        targets, options = array(rng, rng.choice((*SHAPES, (6, *shape), (6, *shape)))), {}
        batch = targets.shape[: targets.ndim - len(shape)]
        whole = "int" in str(targets.dtype)
        make = np.asarray if whole else rng.choice((np.asarray, torch.as_tensor, jnp.asarray))
        if rng.random() < 0.3:
            options["mask"] = array(rng, rng.choice((batch, targets.shape, (2,))), "bool")
        if rng.random() < 0.2:
            size = rng.choice((batch, (3,)))
            weight = rng.choice((0.0, 0.5, 2.0, 2.0, -1.0, np.inf, np.nan))
            options["weights"] = np.float32(weight) + np.zeros(size, np.float32)
        if rng.random() < 0.2:
            kind = rng.choice(("int64", "int32", "float32"))
            options["index"] = np.array(rng.choice((0, 1, -1, 99)), kind) + np.zeros(batch, kind)
        state = attempt(seed, lambda: rule.init(shape, like=make(np.zeros((), np.float32))))  # noqa: B023
        given: dict[str, Any] = {name: make(x) for name, x in options.items()}
        found = attempt(seed, lambda: rule.update(state, make(targets), **given))  # noqa: B023
        if found is None:
            refused += 1
            continue
        affine = rule.affine(found)
        scale, shift = as_float(affine.scale), as_float(affine.shift)
        assert np.isfinite(scale).all(), seed
        assert (scale >= 0).all(), seed
        with np.errstate(all="ignore"):
            wide = targets.astype(np.float32).astype(np.float64)
            exact = rule.update(rule.init(shape, like=np.zeros((), np.float64)), wide, **options)
        expected = rule.affine(exact)
        size = np.maximum(np.abs(as_float(expected.scale)), np.abs(as_float(expected.shift)))
        representable = np.nan_to_num(size, nan=0.0, posinf=np.inf) < 1e18  # squares fit into float32
        tolerance = 1e-2 if targets.dtype == np.float16 else 2e-3
        for mine, theirs in ((scale, expected.scale), (shift, expected.shift)):
            near = np.isclose(mine, as_float(theirs), rtol=tolerance, atol=1e-30, equal_nan=True)
            close = near | (np.abs(mine - as_float(theirs)) <= tolerance * size)
            assert (close | ~representable).all(), (seed, mine, theirs)
    assert 0.05 < refused / fuzz < 0.8


def terms(head: PopArt, h: torch.Tensor) -> float:
    """Return the largest sum of terms that an output is made of: beyond float32, so is the output."""
    with torch.no_grad():
        g = head.normalized(h.abs()).double().abs() + (h.abs() @ head.weight.abs().T).double()
        return float((g * head.scale.double() + head.shift.double().abs()).max())


def test_heads_preserve_their_outputs_or_refuse_by_name(fuzz: int) -> None:
    refused = 0
    for seed in range(fuzz // 3):
        rng = random.Random(seed)
        torch.manual_seed(seed)
        outputs = rng.choice((1, 3))
        rule = rng.choice((popart.Moments(0.1), popart.Percentiles(0.1)))
        head = PopArt(4, outputs, art=rule, per_output=rng.random() < 0.5)
        for _ in range(3):
            targets = torch.as_tensor(
                array(rng, rng.choice(((8, outputs), (8,), (outputs,), (2, 2))), "float32")
            )
            options: dict[str, Any] = {}
            if rng.random() < 0.3:
                kind = rng.choice((torch.int64, torch.float32))
                options["index"] = torch.full((8,), rng.choice((0, outputs - 1, outputs)), dtype=kind)
            h = torch.randn(5, rng.choice((4, 4, 4, 3)), dtype=rng.choice((torch.float32, torch.float32)))
            fresh = not bool((head.affine.scale > 0).all())
            before = attempt(seed, lambda: head(h).detach())  # noqa: B023
            done = attempt(seed, lambda: [head.update(targets, **options)])  # noqa: B023
            refused += done is None
            if before is None or fresh:  # the first targets are adopted
                continue
            if terms(head, h) > FLOAT32_MAX:
                break
            after = head(h).detach()
            size = before.abs().max() + head.affine.scale.abs().max() + 1e-30
            assert bool(torch.isfinite(after).all()), seed
            assert bool(((after - before).abs() <= 1e-3 * size).all()), (seed, before, after)
    assert refused > fuzz // 50


def test_diagnoses_are_right_or_refused_by_name(fuzz: int) -> None:
    for seed in range(fuzz // 30):
        rng = random.Random(seed)
        targets = array(rng, rng.choice(((100,), (20,), (0,), (5, 2), ())))
        found = attempt(seed, lambda: popart.diagnose(targets, batch=rng.choice((1, 8, 0))))  # noqa: B023
        if found is not None:
            assert found.answer, seed


@pytest.mark.parametrize("layout", ["out_in", "in_out", "other"])
def test_layers_are_rescaled_or_refused_by_name(fuzz: int, layout: Any) -> None:
    for seed in range(fuzz // 3):
        rng = random.Random(seed)
        weight, bias = array(rng, rng.choice(((3, 4), (4, 3), (3,))), "float32"), array(rng, (3,), "float32")
        old, new = (
            popart.Affine(
                np.float32(10.0 ** rng.uniform(-3, 3)), np.float32(rng.choice((0.0, 5.0, float("nan"))))
            )
            for _ in range(2)
        )
        if rng.random() < 0.2:
            new = new._replace(scale=np.float32(rng.choice((0.0, np.inf, np.nan))))
        found = attempt(seed, lambda: popart.preserve(weight, bias, old, new, layout=layout))  # noqa: B023
        finite = np.isfinite(weight).all() and np.isfinite(bias).all() and not np.isnan(new.shift)
        if found is None or not finite:
            continue
        old, new = map(in_float64, (old, new))
        exact = popart.preserve(weight.astype(float), bias.astype(float), old, new, layout=layout)
        if max(np.abs(x).max() for x in exact) > FLOAT32_MAX:
            continue
        assert all(np.isfinite(x).all() for x in found), seed
        x = np.ones(4, np.float64)
        rows = [w if layout == "out_in" else w.T for w in (weight, found[0])]
        outputs = [
            a.scale * (w.astype(np.float64) @ x + b) + np.nan_to_num(a.shift)
            for a, w, b in ((old, rows[0], bias), (new, rows[1], found[1]))
        ]
        if not np.isnan(old.shift):
            size = np.abs(outputs[0]).max() + abs(old.shift) + abs(new.shift)
            size += old.scale * np.abs(rows[0]).sum(1, dtype=float).max()
            np.testing.assert_allclose(outputs[1], outputs[0], rtol=0, atol=1e-4 * size, err_msg=str(seed))
