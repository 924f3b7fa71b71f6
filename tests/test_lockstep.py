"""Every rule, in every way to run it, step by step beside NumPy in float64."""

from typing import Any

import numpy as np
import pytest

import popart
import popart.reference
from tests.backends import BACKENDS, FLOAT32, REFERENCE, Backend

FEATURES = 5

RULES = {
    "moments": popart.Moments(beta=0.05),
    "moments-literal": popart.Moments(beta=0.05, std=0.5, nu0=1.0),
    "moments-high": popart.Moments(beta=popart.constant(0.1), nu0=1e4, epsilon=1e-3),
    "moments-harmonic": popart.Moments(beta=popart.harmonic()),
    "covariance": popart.Covariance(beta=0.05),
    "covariance-literal": popart.Covariance(beta=0.05, std=0.5, nu0=1.0),
    "percentiles": popart.Percentiles(beta=0.1, p=0.9),
    "percentiles-literal": popart.Percentiles(beta=0.1, p=0.9, relative=False, nu0=1.0),
    "expectiles": popart.Expectiles(beta=0.1, p=0.9),
    "extremes": popart.Extremes(beta=0.1),
    "order-statistics": popart.reference.OrderStatistics(p=0.9, capacity=50),
    "fixed": popart.Fixed(scale=3.0, shift=-1.0),
}

VARIANTS = {"moments-literal", "moments-high", "moments-harmonic", "percentiles-literal"}
"""These differ from their rule in numbers only: they are run once in each module."""

CASES = [
    *((name, scenario) for name in RULES if "covariance" not in name for scenario in ("scalar", "per-task")),
    ("covariance", "per-output"),
    ("covariance-literal", "per-task"),
]
"""A covariance of fewer targets than outputs is singular, and what it does with rounding errors depends
on the precision; so the one that adopts its first batch gets one that is large enough."""


def worthwhile(name: str, scenario: str, backend: Backend) -> bool:
    """Return whether a slow case is tested: the cases per task cover the others.

    A scan in single precision compiles the same as `jit`: with one rule, and in double precision with all.
    """
    if name == "moments":
        return True
    if backend.mode == "scan" and not backend.x64:
        return False
    if name in VARIANTS or scenario != "per-task":
        return backend in FLOAT32 and backend.mode != "compile"
    return not (backend.mode == "eager" and backend.x64)


def stream(scenario: str, steps: int) -> list[dict[str, Any]]:
    """Batches of targets that grow and shift; where it is per task, with all that a batch can have."""
    rng = np.random.default_rng(0)
    batches = []
    for t in range(steps):
        size = 1 + 20 * t / steps
        if scenario == "scalar":
            batches.append({"targets": size * rng.normal(3, 1, 8)})
        elif scenario == "per-output":
            batches.append({"targets": size * rng.normal((3, -50, 0.1), (1, 20, 0.01), (8, 3))})
        else:
            targets = size * rng.normal(3, 1, (4, 2, 3)) * (1, 10, 100)
            if t % 5 == 3:
                targets[0, 0, 1], targets[1, 1, 2] = np.nan, np.inf
            batches.append(
                {
                    "targets": targets,
                    "mask": rng.random((4, 2)) < 0.8,
                    "weights": rng.integers(0, 4, (4, 2)).astype(float),
                    "index": rng.integers(0, 2 if t % 2 else 3, (4, 2)),
                }
            )
    return [{k: v.astype(np.float32) if v.dtype == float else v for k, v in b.items()} for b in batches]


def run(rule: popart.Rule[Any], scenario: str, backend: Backend, steps: int) -> list[Any]:
    shape = {"scalar": (), "per-output": (3,), "per-task": (4, 3)}[scenario]
    rng = np.random.default_rng(1)
    W = rng.normal(size=(*(shape or (1,)), FEATURES)).astype(np.float32)
    h = rng.normal(size=FEATURES).astype(np.float32)

    def step(carry: Any, batch: dict[str, Any]) -> tuple[Any, Any]:
        state, W, b, h = carry
        new = rule.update(state, **batch)
        old_map, new_map = rule.affine(state), rule.affine(new)
        W, b = popart.preserve(W, b, old_map, new_map)
        mine = new_map.select(batch["index"]) if "index" in batch else new_map
        f = new_map.denormalize((W * h).sum(-1) + b)
        out = mine.normalize(batch["targets"]), new_map.scale, new_map.shift, W, b, f
        return (new, W, b, h), (new.counts, out)

    with backend.active():
        state = rule.init(shape, like=backend.array(h))
    carry = (state, W, np.zeros(shape or (1,), np.float32), h)
    return backend.run(step, carry, stream(scenario, steps))[1]


@pytest.mark.parametrize(
    ("name", "scenario", "backend"),
    [
        pytest.param(name, scenario, backend, id=f"{name}-{scenario}-{backend.name}")
        for name, scenario in CASES
        for backend in BACKENDS
        if worthwhile(name, scenario, backend)
    ],
)
def test_every_rule_is_in_lockstep_with_numpy_float64(name: str, scenario: str, backend: Backend) -> None:
    steps = 100 if backend.mode == "compile" else 25
    reference = run(RULES[name], scenario, REFERENCE, steps)
    for (counts, out), (counts_ref, out_ref) in zip(
        run(RULES[name], scenario, backend, steps), reference, strict=True
    ):
        np.testing.assert_array_equal(counts, counts_ref)
        largest_term = np.nanmax(np.abs(out_ref[2])) + np.abs(out_ref[1]).max()
        for x, x_ref in zip(out, out_ref, strict=True):
            good = np.isfinite(x_ref)
            size = largest_term if x_ref is out_ref[-1] else np.abs(x_ref[good]).max()
            tolerance = (5000 if name.startswith("covariance") else 500) * backend.eps
            np.testing.assert_allclose(x[good], x_ref[good], rtol=tolerance, atol=tolerance * size)
