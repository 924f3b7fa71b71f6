"""`popart.diagnose`: each measure is what its name says, and the advice follows from it."""

import math
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

import popart
from popart.diagnosis import Diagnosis
from popart.diagnosis.choice import follow
from popart.diagnosis.measures import FEWEST, measure
from popart.diagnosis.returns import discounted_returns
from popart.diagnosis.words import LARGE, SMALL, changes

N = 16_000


def normal(mean: float = 0.0, std: float = 1.0, n: int = N) -> np.ndarray:
    return np.random.default_rng(0).normal(mean, std, n)


STREAMS = {
    "normal": normal(),
    "offset": normal(1e4),
    "growing": normal(2.0) * 10 ** np.linspace(-2, 4, N),
    "falling": normal() * np.where(np.arange(N) < N // 2, 1000, 1),
    "sparse": (normal() > 3) * np.abs(normal(100, 30)),
    "heavy": np.exp(5 * normal()),
    "integers": np.round(3 * normal()),
}


@pytest.mark.parametrize(("name", "k"), [*zip(STREAMS, [100, -100] * 4, strict=False)])
def test_targets_times_a_power_of_two_have_the_same_rule_and_the_same_shape(name: str, k: int) -> None:
    one, other = popart.diagnose(STREAMS[name]), popart.diagnose(STREAMS[name] * 2.0**k)
    assert one.rule == other.rule
    assert one.reasons == other.reasons
    relative = "orders location_drift scale_drift scale_fall kurtosis tail_share bulk zeros longest_run"
    for field in relative.split():
        assert getattr(one, field) == getattr(other, field), field
    for field in ("mean", "std", "rms", "smallest", "largest"):
        assert getattr(one, field) * 2.0**k == getattr(other, field), field


@settings(max_examples=25)
@given(y=hnp.arrays(float, st.integers(1, 60), elements=st.floats(-1e250, 1e250, allow_subnormal=False)))
def test_any_finite_targets_have_a_diagnosis(y: np.ndarray) -> None:
    found = popart.diagnose(y, batch=8)
    assert found.count == y.size
    assert found.verdict in ("too large", "too small", "changing", "constant", "fine")
    assert found.answer in str(found).replace("\n  ", " ")
    assert 0 <= found.clipped <= 1
    assert -1e-9 <= found.clip_loss <= 1
    assert found.scale_drift >= 1 or found.count < FEWEST


def test_location_and_size_are_those_of_the_standard_library() -> None:
    y = STREAMS["growing"]
    found = popart.diagnose(y)
    assert found.mean == pytest.approx(statistics.fmean(y), rel=1e-12)
    assert found.std == pytest.approx(statistics.pstdev(y), rel=1e-12)
    assert found.rms == pytest.approx(math.sqrt(statistics.fmean(x * x for x in y)), rel=1e-12)


def test_orders_of_magnitude_are_of_the_targets_that_are_not_zero() -> None:
    y = np.concatenate((np.zeros(500), 10.0 ** np.linspace(-3, 4, 501)))
    found = popart.diagnose(y)
    assert found.orders == pytest.approx(0.98 * 7)
    assert (found.smallest, found.largest) == (1e-3, 1e4)
    assert popart.diagnose(normal(n=200_000)).orders == pytest.approx(
        math.log10(stats.halfnorm.ppf(0.99) / stats.halfnorm.ppf(0.01)), abs=0.02
    )


def test_drift_of_location_is_in_standard_deviations() -> None:
    """Ten levels, 3 apart, with a deviation of 2 around each."""
    y = np.repeat(3.0 * np.arange(10), 100) + np.tile([-2.0, 2.0], 500)
    assert popart.diagnose(y).location_drift == pytest.approx(27 / 2)


def test_drift_and_fall_of_scale_are_factors() -> None:
    scales = np.array([1, 2, 8, 40, 20, 10, 5, 50, 50, 5], float)
    y = np.repeat(scales, 100) * np.tile(np.linspace(-1, 1, 100), 10)
    found = popart.diagnose(y)
    assert found.scale_drift == pytest.approx(50)
    assert found.scale_fall == pytest.approx(10)
    assert popart.diagnose(y[::-1]).scale_fall == pytest.approx(50)


def test_drift_of_scale_is_not_seen_in_tails() -> None:
    heavy = STREAMS["heavy"].reshape(10, -1)
    assert popart.diagnose(heavy.ravel()).scale_drift < 5
    assert heavy.std(1).max() / heavy.std(1).min() > 10


@pytest.mark.parametrize("sample", ["standard_normal", "random", "laplace", "exponential"])
def test_short_streams_of_independent_targets_rarely_seem_to_change(sample: str) -> None:
    draw = getattr(np.random.default_rng(0), sample)
    for n in (20, 30, 99, FEWEST):
        found = [measure(draw(size=n), 0) for _ in range(400)]
        assert sum(changes(m) for m in found) <= 4
        assert all(math.isnan(m.scale_drift) for m in found) == (n < FEWEST)


@pytest.mark.parametrize("n", [1, 20, FEWEST - 1])
def test_too_few_targets_to_measure_drift_and_tails_are_told(n: int) -> None:
    found = popart.diagnose(normal(n=n) + 5 * np.arange(n))
    text = str(found).replace("\n  ", " ")
    for field in ("location_drift", "scale_drift", "scale_fall", "kurtosis", "tail_share"):
        assert math.isnan(getattr(found, field)), field
    assert "drift and tails      not measured: tenths of fewer than 100 targets" in text
    assert not any(word in text for word in ("nan", "kurtosis", "max_norm", "it does not change"))
    if n > 1:
        assert f"{n} targets are too few to say whether they change; give at least 100." in found.answer


def test_deviations_within_tenths_are_named() -> None:
    text = str(popart.diagnose(STREAMS["growing"])).replace("\n  ", " ")
    assert "range of means of tenths, in standard deviations within tenths" in text
    assert "of the variance within tenths" in text
    assert re.search(r"the mean by [\d.]+ standard deviations within tenths", text)


def test_a_single_update_compares_no_step_sizes() -> None:
    found = popart.diagnose(normal(n=20))
    assert "all targets are in the first update of 32" in found.reasons[1]
    assert not any("factor" in x or "1 updates" in x for x in found.reasons)


def test_tails_are_those_of_scipy() -> None:
    y = np.random.default_rng(1).standard_t(5, 5000)
    parts = y.reshape(10, 500)
    found = popart.diagnose(y)
    assert found.kurtosis == pytest.approx(np.mean(stats.kurtosis(parts, axis=1)))
    z = (parts - parts.mean(1, keepdims=True)) / parts.std(1, keepdims=True)
    squares = np.sort(z.ravel() ** 2)[::-1]
    assert found.tail_share == pytest.approx(squares[:50].sum() / squares.sum())
    assert found.bulk == pytest.approx(
        np.median([np.subtract(*np.percentile(p, [95, 5])) / 2 / np.std(p) for p in parts])
    )


def test_tails_of_normal_targets_are_those_of_the_normal_distribution() -> None:
    found = popart.diagnose(normal(7, 3, 200_000))
    z = stats.norm.ppf(0.995)
    assert found.tail_share == pytest.approx(2 * (z * stats.norm.pdf(z) + 0.005), abs=0.005)
    assert found.bulk == pytest.approx(stats.norm.ppf(0.95), abs=0.02)
    assert found.kurtosis == pytest.approx(0, abs=0.05)


def test_a_clip_cuts_what_is_beyond_one() -> None:
    found = popart.diagnose([0.5, -1.0, 3.0, -5.0])
    assert found.clipped == 0.5
    assert found.clip_loss == pytest.approx((2 + 4) / 9.5)
    assert "Do not clip to [-1, 1]: 50 % of the targets would become 1 or -1." in found.advice
    assert not any("clip" in x for x in popart.diagnose([0.5, -1.0]).advice)


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (100.0, 1.0), (1e4, 1.0), (1e-4, 1e-9)])
def test_cancellation_is_that_of_float32(mean: float, std: float) -> None:
    """Formed in exact arithmetic from correctly rounded terms; TorchRL reports 0.0032 for 10⁴ ± 1."""
    y = normal(mean, std, 4000)
    found = popart.diagnose(y)
    nu = float(np.float32(math.fsum(x * x for x in y) / y.size))
    mu = float(np.float32(math.fsum(y) / y.size))
    naive = float(np.float32(nu - float(np.float32(mu * mu))))
    assert found.cancellation == pytest.approx(abs(naive / float(np.var(y)) - 1), rel=1e-3, abs=1e-6)
    assert (found.cancellation > 0.1) == (mean >= 1e4 * std)
    assert any("E[y²] - E[y]²" in x for x in found.advice) == (found.cancellation > 0.1)


def test_squares_that_overflow_float32_are_told() -> None:
    found = popart.diagnose(normal(0, 1e25))
    assert found.cancellation == math.inf
    assert found.naive_std in (math.inf,) or math.isnan(found.naive_std)


def test_zeros_and_runs_of_equal_targets_are_counted() -> None:
    found = popart.diagnose([0, 0, 1, 1, 1, 1, 0, 2, 3, 3])
    assert (found.zeros, found.longest_run) == (0.3, 4)


def test_targets_that_are_not_finite_are_counted_and_left_out() -> None:
    y = normal()
    bad = np.insert(y, [3, 50, 700], [math.nan, math.inf, -math.inf])
    one, other = popart.diagnose(y), popart.diagnose(bad)
    assert (one.nonfinite, other.nonfinite) == (0, 3)
    assert (other.mean, other.count, other.rule) == (one.mean, one.count, one.rule)
    assert any("3 targets that are not finite" in x for x in other.advice)


@pytest.mark.parametrize(
    ("name", "rule", "betas"),
    [
        ("normal", popart.Moments, [1e-4]),
        ("offset", popart.Moments, [1e-4]),
        ("growing", popart.Moments, [1e-2, 1e-1]),
        ("falling", popart.Moments, [1e-1]),
        ("sparse", popart.Moments, [1e-4]),
        ("heavy", popart.Percentiles, [1e-3, 1e-2, 1e-1]),
    ],
)
def test_the_rule_and_its_step_size_follow_the_stream(name: str, rule: type, betas: list[float]) -> None:
    found = popart.diagnose(STREAMS[name])
    assert isinstance(found.rule, rule)
    assert found.beta in betas
    assert f"β = {found.beta:g}, because" in found.reasons[1]
    assert found.reasons[0].startswith(rule.__name__)


def test_the_recommended_rule_keeps_targets_near_one_where_a_slower_one_does_not() -> None:
    """The stream that grows by six orders of magnitude, with the rule of the library itself."""
    y = STREAMS["growing"].reshape(-1, 32)
    found = popart.diagnose(y.ravel())

    def last_sizes(beta: float) -> float:
        rule, sizes = popart.Moments(beta), []
        state = rule.init()
        for batch in y:
            sizes.append(np.sqrt(np.mean(rule.affine(state).normalize(batch) ** 2)))
            state = rule.update(state, batch)
        return float(np.median(sizes[-100:]))

    assert last_sizes(found.beta) < 2
    assert last_sizes(found.beta / 10) > 2


def test_long_streams_are_followed_in_few_updates_with_the_same_statistics() -> None:
    y = normal(5, 2, 200_000) * np.linspace(1, 10, 200_000)
    rule = popart.Moments(1e-3)
    track = follow(rule, y, 32)
    state = rule.init()
    for batch in y.reshape(-1, 32):
        state = rule.update(state, batch)
    assert len(track.scale) <= 1000
    assert track.shift[-1] == pytest.approx(float(rule.affine(state).shift), rel=2e-2)
    assert track.scale[-1] == pytest.approx(float(rule.affine(state).scale), rel=2e-2)


@pytest.mark.parametrize(
    ("y", "verdict", "words"),
    [
        (normal(0, 2 * LARGE), "too large", "Yes."),
        (normal(0, SMALL / 2), "too small", "No, too small."),
        (normal(), "fine", "A plain network learns them."),
        (normal() * np.geomspace(0.01, 10, N), "changing", "no fixed scale and shift fit"),
        (np.full(100, 0.1), "constant", "They are all 0.1"),
        (np.zeros(1), "constant", "They are all 0"),
    ],
)
def test_the_question_has_a_plain_answer(y: np.ndarray, verdict: str, words: str) -> None:
    found = popart.diagnose(y)
    assert found.verdict == verdict
    assert words in found.answer
    assert str(found).startswith("Are these targets too large? ")


def test_thresholds_are_those_that_were_measured() -> None:
    """From 0.1 to 10 every optimizer learned with at most 9 times its error at 1; beyond, some did not."""
    table = (Path(__file__).parents[1] / "results" / "target_size.csv").read_text().splitlines()[1:]
    errors: dict[str, dict[float, float]] = {}
    for row in table:
        optimizer, head, size, error = row.split(",")
        if head == "linear":
            errors.setdefault(optimizer, {})[float(size)] = float(error)
    assert len(errors) == 4
    for found in errors.values():
        assert max(found[LARGE], found[SMALL]) < 9 * found[1.0]
        assert found[0.0316] > 4 * found[1.0]
    assert sum(math.isinf(found[316.0]) for found in errors.values()) == 2


def test_falling_targets_get_the_advice_of_the_guide() -> None:
    assert any("max_norm=3.0" in x for x in popart.diagnose(STREAMS["falling"]).advice)
    assert not any("max_norm" in x for x in popart.diagnose(STREAMS["growing"]).advice)


def test_a_stretch_that_outlasts_the_memory_of_the_statistics_is_told() -> None:
    y = np.concatenate((normal(n=4000) * 1000, normal(n=4000), np.zeros(6400), normal(n=4000)))
    found = popart.diagnose(y)
    assert found.longest_run * found.beta > 32
    assert any("outlasts the memory" in x for x in found.advice)


def test_rewards_are_diagnosed_by_their_returns() -> None:
    """Rewards of 1 with a discount of 0.99 have returns of up to 100."""
    found = popart.diagnose(np.ones(5000), discount=0.99)
    assert found.largest == pytest.approx(100)
    assert found.verdict == "too large"
    assert popart.diagnose(np.ones(5000), discount=0.99, ends=np.arange(5000) % 5 == 4).largest < 5


def test_a_clip_is_one_of_rewards_where_rewards_are_given() -> None:
    found = popart.diagnose([0.5, 3.0, 0.0, -1.0], discount=0.5)
    assert (found.clipped, found.clip_loss) == (0.25, pytest.approx(2 / 4.5))
    np.testing.assert_allclose(found.after_clip, discounted_returns(np.array([0.5, 1.0, 0.0, -1.0]), 0.5))
    assert any("25 % of the rewards" in x for x in found.advice)


@pytest.mark.parametrize("shape", [(7,), (7, 3)])
def test_returns_are_sums_of_discounted_rewards_until_the_end_of_an_episode(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(2)
    rewards, ends = rng.normal(size=shape), rng.random(shape) < 0.3
    found = discounted_returns(rewards, 0.9, ends.astype(float)).reshape(7, -1)
    for t, j in np.ndindex(found.shape):
        expected, factor = 0.0, 1.0
        for s in range(t, 7):
            expected += factor * rewards.reshape(7, -1)[s, j]
            factor *= 0.9 * (not ends.reshape(7, -1)[s, j])
        assert found[t, j] == pytest.approx(expected)


def test_a_bad_reward_does_not_poison_the_returns_before_it() -> None:
    found = popart.diagnose([1.0, 1.0, math.nan, 1.0], discount=0.5)
    assert (found.count, found.nonfinite, found.largest) == (4, 1, 1.625)


@pytest.mark.parametrize(
    "make", [list, np.float32, torch.tensor, jnp.asarray, lambda y: torch.tensor(y).reshape(-1, 2)]
)
def test_arrays_of_all_frameworks_are_taken(make: Any) -> None:
    y = [1.0, 2.0, 4.0, 8.0]
    assert popart.diagnose(make(y)) == popart.diagnose(np.array(y))


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (([],), ValueError, "targets has no finite number"),
        (([math.nan],), ValueError, "targets has no finite number"),
        (("abc",), TypeError, "targets is of type str"),
        ((None,), TypeError, "targets is of type NoneType"),
        (([[1.0], [1.0, 2.0]],), TypeError, "targets has rows of different lengths"),
    ],
)
def test_what_cannot_be_diagnosed_is_named(arguments: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        popart.diagnose(*arguments)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch": 0}, "batch is 0; it must be at least 1"),
        ({"discount": 1.5}, r"discount is 1.5; it must be in \[0, 1\]"),
        ({"ends": [1, 0]}, "ends is given without discount"),
        ({"discount": 0.9, "ends": [1]}, r"ends has shape \(1,\); it must be that of targets, \(2,\)"),
    ],
)
def test_mistakes_in_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        popart.diagnose([1.0, 2.0], **settings)


def test_the_result_is_small_frozen_and_shows_its_fields() -> None:
    found = popart.diagnose(normal(n=100))
    assert isinstance(found, Diagnosis)
    assert "targets=" not in repr(found)
    with pytest.raises(AttributeError, match="cannot assign"):
        found.mean = 1.0  # pyright: ignore[reportAttributeAccessIssue]
    for finding in found.findings():
        assert finding.name in str(found)


def test_the_figure_is_the_same_for_the_same_targets(tmp_path: Path) -> None:
    found = popart.diagnose(STREAMS["growing"])
    first, second = (found.plot(tmp_path / f"{i}.svg").read_bytes() for i in range(2))
    assert first == second
    for colour in (b"#228b22", b"#1f5fd0"):
        assert colour in first


def test_figures_of_a_single_target_of_extremes_and_of_sparse_targets_are_drawn(tmp_path: Path) -> None:
    for i, y in enumerate(([0.0], [1e-30, -1e30], STREAMS["sparse"])):
        assert popart.diagnose(y).plot(tmp_path / f"{i}.png").stat().st_size > 10_000


def test_a_figure_of_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(".png")):
        popart.diagnose([1.0, 2.0]).plot(tmp_path / "figure.xyz")


def test_without_matplotlib_only_the_figure_is_missing() -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "import popart; found = popart.diagnose([1.0, 2.0]); str(found)\n"
        "assert not {'torch', 'jax', 'scipy'} & set(sys.modules)\n"
        "try: found.figure()\n"
        "except ImportError as error: assert 'pip install matplotlib' in str(error)\n"
        "else: raise AssertionError"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
