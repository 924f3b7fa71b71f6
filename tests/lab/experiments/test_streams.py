"""`popart stream`: running regression on targets whose size changes."""

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from popart.lab.cli import main
from popart.lab.experiments.streams import data
from popart.lab.experiments.streams.analysis import estimate
from popart.lab.experiments.streams.config import BETA, CAP, METHODS, QUICK, STREAMS, TUNING, WINDOWS, Stream
from popart.lab.experiments.streams.data import Data, make
from popart.lab.experiments.streams.learner import Errors, _network, learn
from popart.lab.experiments.streams.measures import curve, error, settled
from popart.lab.experiments.streams.methods import METHODS as HEADS
from popart.lab.experiments.streams.run import BLOCK, Cell, cells, choose
from popart.lab.files import read_table
from popart.lab.manifest import read_manifest
from tests.lab.processes import started

pytestmark = pytest.mark.xdist_group("stream")

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "results" / "lab"
PAGE = (ROOT / "docs" / "explanation" / "which-normalisation.md").read_text("utf-8")
SAMPLES = 400
SMALL = ["--samples", str(SAMPLES), "--seeds", "2", "--rates", "0.01", "0.03", "--betas", str(BETA)]
THREE = ["--streams", "prices", "spikes", "--methods", "sgd", "once", "popart"]
SCALE_FREE = set(METHODS) - {"sgd", "symlog"}


def learned(method: str, stream: str = "sensors", factor: float = 1.0, rate: float = 0.03) -> Errors:
    """Learn a short stream with its targets multiplied by a factor, with as many seeds as a block has."""
    many = [make(stream, seed, SAMPLES) for seed in range(BLOCK)]
    x, y, mean, size = (np.stack(column) for column in zip(*many, strict=True))
    scaled = Data(x, *(np.float32(factor) * each for each in (y, mean, size)))
    rates, betas = (np.full(BLOCK, z, np.float32) for z in (rate, BETA))
    return Errors(*map(np.asarray, learn(method, "sgd", scaled, rates, betas, np.arange(BLOCK))))


def residuals(stream: str, samples: int = 200_000) -> np.ndarray:
    found = make(stream, 0, samples)
    return (found.y.astype(float) - found.mean) / found.size


@pytest.mark.parametrize("stream", STREAMS)
def test_streams_are_a_signal_and_noise(stream: str) -> None:
    found = make(stream, 3, 8000)
    assert found.x.shape == (8000, data.INPUTS)
    assert {x.dtype for x in found} == {np.dtype(np.float32)}
    if stream != "tails":
        noise = (found.y.astype(float) - found.mean) / found.size
        usual = noise[found.size == 1] if stream == "spikes" else noise
        np.testing.assert_allclose(usual.std(), data.NOISE, rtol=0.05)
    again, other = make(stream, 3, 8000), make(stream, 4, 8000)
    np.testing.assert_array_equal(found.y, again.y)
    assert (found.y != other.y).all()


def test_the_signal_has_size_1_and_inputs_change_slowly() -> None:
    found = make("steady", 0, 200_000)
    np.testing.assert_allclose([found.mean.mean(), found.mean.std()], [0, 1], atol=1e-3)
    np.testing.assert_allclose(found.x.std(0), 1, rtol=0.02)
    for column in found.x.T:
        np.testing.assert_allclose(np.corrcoef(column[1:], column[:-1])[0, 1], data.MEMORY, atol=0.01)


def test_sensors_change_their_unit_by_the_stated_factors() -> None:
    quarters = make("sensors", 0, 200_000).y.astype(float).reshape(4, -1)
    for measure in (quarters.std(1), quarters.mean(1)):
        np.testing.assert_allclose(measure / measure[0], data.UNITS, rtol=0.05)


def test_prices_grow_by_the_stated_factor() -> None:
    found = make("prices", 0, 20_000)
    np.testing.assert_allclose(found.size[-1] / found.size[0], data.GROWTH, rtol=1e-4)
    level = np.median(found.y.reshape(100, -1), 1)
    steps = np.diff(np.log(level))
    assert 0.5 * data.GROWTH < level[-1] / level[0] < 2 * data.GROWTH
    assert (steps < 0).any()  # there are falls, too


def test_heavy_tails_have_the_stated_exponent() -> None:
    """Hill's estimator measures it, from the largest hundredth of the noise."""
    largest = np.sort(np.abs(residuals("tails")))[-2001:]
    exponent = 1 / np.log(largest[1:] / largest[0]).mean()
    np.testing.assert_allclose(exponent, data.EXPONENT, rtol=0.08)


def test_spikes_are_rare_large_and_announced() -> None:
    found = make("spikes", 0, 200_000)
    rare = found.x[:, 0] == 1
    np.testing.assert_allclose(rare.mean(), data.RARE, rtol=0.1)
    np.testing.assert_allclose(found.y[rare].mean() - found.y[~rare].mean(), data.LARGE, rtol=0.01)
    np.testing.assert_array_equal(found.size, np.where(rare, data.LARGE, 1))
    assert set(np.unique(found.x[:, 0])) == {0, 1}


def test_the_shift_drifts_up_and_down_by_the_stated_amount() -> None:
    level = make("drift", 0, 20_000).y.reshape(100, -1).mean(1)
    np.testing.assert_allclose([level.max(), level.min()], [data.DRIFT, -data.DRIFT], rtol=0.02)
    assert level.argmax() < level.argmin()


def test_sources_take_turns_and_are_told_apart() -> None:
    found = make("turns", 0, 20_000)
    np.testing.assert_array_equal(found.x[: 2 * data.TURN, 0], np.repeat([0, 1], data.TURN))
    small, large = (found.y[found.x[:, 0] == source].std() for source in (0, 1))
    np.testing.assert_allclose(large / small, data.SOURCES[1] / data.SOURCES[0], rtol=0.1)


@pytest.mark.parametrize("method", METHODS)
def test_methods_are_free_of_scale_or_not(method: str) -> None:
    """All targets times a power of two leave every error of a scale-free method the same to the bit."""
    one = learned(method)
    for k in (-20, 20):
        other = learned(method, factor=2.0**k)
        assert np.array_equal(one.windows, other.windows) == (method in SCALE_FREE)


def numpy_errors(zscore: bool, seed: int, rate: float) -> np.ndarray:
    """Learn in float64 with gradients by hand: no normalisation, or the z-score of all targets so far."""
    x, y, mean, size = (z.astype(float) for z in make("sensors", seed, SAMPLES))
    network = jax.tree.map(lambda z: np.asarray(z, float), _network(jax.random.key(seed), 1))
    layers = [(layer["kernel"], layer["bias"]) for layer in (*network["body"], network["head"])]
    found = []
    for t in range(SAMPLES):
        activations = [x[t]]
        for V, c in layers[:-1]:
            activations.append(np.tanh(activations[-1] @ V + c))
        g = (activations[-1] @ layers[-1][0] + layers[-1][1])[0]
        before, now = y[: max(t, 1)], y[: t + 1]
        known = 0.0 if t == 0 else before.std() * g + before.mean()
        found.append(((known if zscore else g) - mean[t]) / size[t])
        target = 0.0 if t == 0 else (y[t] - now.mean()) / now.std()
        delta = np.array([g - (target if zscore else y[t])])
        for i in (2, 1, 0):
            V, c = layers[i]
            layers[i] = V - rate * np.outer(activations[i], delta), c - rate * delta
            delta = V @ delta * (1 - activations[i] ** 2)
    return np.sqrt((np.array(found).reshape(WINDOWS, -1) ** 2).mean(1))


@pytest.mark.parametrize("method", ["sgd", "zscore"])
def test_errors_are_those_of_a_second_implementation(method: str) -> None:
    """Up to where units change by 1000, from which on rounding grows."""
    rate = 0.003
    found = learned(method, rate=rate).windows
    for seed in (0, 1):
        expected = numpy_errors(method == "zscore", seed, rate)
        np.testing.assert_allclose(found[seed, :25], expected[:25], rtol=1e-4)


def test_predictions_that_are_not_finite_are_counted() -> None:
    assert learned("sgd", rate=1e3).diverged.all()
    assert not learned("popart").diverged.any()


def test_errors_are_geometric_means_without_the_first_window() -> None:
    windows = np.full((2, WINDOWS), 0.5)
    windows[:, 0], windows[0, 1], windows[1, 1:] = 1e9, 2.0, np.nan
    np.testing.assert_allclose(error(windows), [0.5 * 4 ** (1 / 99), CAP])
    windows = np.tile(np.arange(1.0, 26), 4)[None]
    np.testing.assert_allclose(settled(windows), np.prod(np.arange(21.0, 26)) ** 0.2)
    points = curve(np.stack([np.full(WINDOWS, 1.0), np.full(WINDOWS, np.inf)]), SAMPLES)
    assert [points[0]["sample"], points[-1]["sample"]] == [4, SAMPLES]
    assert points[0]["high"] <= CAP


def test_settings_are_chosen_on_the_steady_stream_or_on_the_stream_itself() -> None:
    def row(stream: str, rate: float, beta: float, error: float, diverged: int = 0) -> dict[str, Any]:
        return {
            "stream": stream,
            "method": "art",
            "rate": rate,
            "beta": beta,
            "error": error,
            "diverged": diverged,
        }

    rows = [row("steady", 0.1, 0.1, 0.1), row("steady", 0.1, BETA, 0.3), row("steady", 0.2, BETA, 0.2)]
    rows += [row("prices", 0.1, 0.1, 0.5), row("prices", 0.1, BETA, 0.4, 1), row("prices", 0.2, BETA, 0.6)]
    rows += [{**row("prices", 0.2, BETA, 0.0), "method": "popart"}]
    assert choose(rows, ("prices", "art")) == {"steady": Cell(0.2, BETA), "own": Cell(0.1, 0.1)}


def test_only_methods_with_running_statistics_have_step_sizes_to_choose() -> None:
    settings = Stream()
    tried = {method: {cell.beta for cell in cells(settings, method)} for method in METHODS}
    have = {"adaptive_bins", "scale_only", "art", "popart", "popart_limited"}
    assert {method for method, betas in tried.items() if betas == set(settings.betas)} == have
    assert all(tried[method] == {None} for method in set(METHODS) - have)


def test_every_name_in_the_tables_has_an_entry() -> None:
    assert list(HEADS) == list(METHODS)
    assert all(callable(getattr(data, stream)) for stream in STREAMS)


def test_quick_is_small_and_changes_no_given_option() -> None:
    assert {name: getattr(Stream(quick=True), name) for name in QUICK} == QUICK
    assert Stream(quick=True, seeds=7).seeds == 7


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of three methods on two streams; the steady one is not among them."""
    out = tmp_path_factory.mktemp("stream") / "run"
    main(["stream", *THREE, *SMALL, "--out", str(out)])
    return out


def test_a_run_has_tables_figures_and_findings(small: Path) -> None:
    tuned, errors, points = (read_table(small / f"{name}.csv") for name in ("tuning", "errors", "curves"))
    assert len(tuned) == 3 * 3 * 2  # the steady stream is always tuned
    assert len(errors) == 2 * 3 * 2 * 2
    assert len(points) == 2 * 3 * 2 * WINDOWS
    assert {row["seed"] for row in errors} == {"0", "1"}
    assert all(0 < float(row["error"]) <= CAP for row in errors)
    manifest = read_manifest(small)
    shown = [each["name"] for each in manifest["shown"]]
    assert shown == ["stream-own", "stream-steady", "summary", "settled", "chosen", "errors", "tuning"]
    for name in shown[:2]:
        assert (small / f"{name}.png").stat().st_size > 10_000
    assert [finding["claim"].split(": ")[-1] for finding in manifest["findings"]] == [
        STREAMS["prices"],
        STREAMS["spikes"],
    ]


def test_an_interrupted_run_is_resumed_to_the_same_tables(small: Path, tmp_path: Path) -> None:
    """After one case of the last phase, with the curves of a second one already written."""
    out = shutil.copytree(small, tmp_path / "run")
    for name, cases in (("errors", 1), ("curves", 2)):
        lines = (out / f"{name}.csv").read_text("utf-8").splitlines(keepends=True)
        per_case = (len(lines) - 1) // 6
        (out / f"{name}.csv").write_text("".join(lines[: 1 + cases * per_case]), "utf-8")
    manifest = json.loads((out / "manifest.json").read_text("utf-8"))
    (out / "manifest.json").write_text(json.dumps(manifest | {"finished": None}), "utf-8")
    main(["stream", *THREE, *SMALL, "--out", str(out)])
    assert len(read_manifest(out)["resumed"]) == 1
    for name in ("tuning", "errors", "curves", "summary"):
        assert (out / f"{name}.csv").read_bytes() == (small / f"{name}.csv").read_bytes()


@pytest.mark.slow
def test_a_killed_run_is_resumed_to_the_same_tables(tmp_path: Path) -> None:
    """Killed in the first phase and in the second, in real processes."""
    arguments = ["stream", "--streams", "steady", "turns", "--methods", "sgd", "art", "popart", *SMALL]
    out, whole, said = tmp_path / "killed", tmp_path / "whole", tmp_path / "said"
    for table in ("tuning", "errors"):
        with started([*arguments, "--out", str(out)], said, cores=1) as process:
            while process.is_alive() and not (out / f"{table}.csv").exists():
                time.sleep(0.002)
    for folder in (out, whole):
        with started([*arguments, "--out", str(folder)], said, cores=1) as process:
            process.join()
            assert process.exitcode == 0, said.read_text("utf-8")
    for name in ("tuning", "errors", "curves"):
        assert (out / f"{name}.csv").read_bytes() == (whole / f"{name}.csv").read_bytes()
    assert read_manifest(out)["resumed"]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_the_steady_stream_with_adam(method: str) -> None:
    found = make("steady", 0, 8000)
    arrays = Data(*(x[None] for x in found))
    rate, beta = np.array([3e-3], np.float32), np.array([BETA], np.float32)
    windows = np.asarray(learn(method, "adam", arrays, rate, beta, np.array([0])).windows)
    assert windows[0, -20:].mean() < 0.5


def test_all_methods_can_be_asked_for_in_one_word() -> None:
    assert Stream(methods=("all",)) == Stream(methods=tuple(METHODS)) == Stream()
    assert Stream(methods=("all", "popart")) == Stream()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--streams", "price"], ["streams has 'price'; did you mean 'prices'?", "sensors"]),
        (["--methods", "popat"], ["did you mean 'popart'?"]),
        (["--rates", "0"], ["rates has 0.0"]),
        (["--betas", "0.1"], ["betas are (0.1,); they must contain 0.01"]),
        (["--betas", "0.01", "2"], ["betas has 2.0; values must be in (0, 1]"]),
        (["--samples", "1000"], ["samples is 1000; it must be a multiple of 400, 400 or more"]),
        (["--samples", "16000000"], ["samples is 16,000,000, which takes"]),
        (["--seeds", "0"], ["seeds is 0; it must be 1 or more"]),
        (["--seed", "995"], ["seed is 995; it must be 990 or less"]),
        (["--optimizer", "lion"], ["lion"]),
    ],
)
def test_wrong_settings_are_named(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: list[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["stream", *arguments])
    said = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert all(word in said for word in words)


def test_seeds_for_tuning_are_never_reported() -> None:
    last = replace(Stream(), seed=TUNING.start - 10)
    assert last.seed + last.seeds == TUNING.start


def rows_of(run: str, stream: str, method: str, choice: str) -> list[dict[str, str]]:
    key = stream, method, choice
    rows = read_table(RESULTS / run / "errors.csv")
    return [row for row in rows if (row["stream"], row["method"], row["choice"]) == key]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("run", "choice"), [("streams", "own"), ("streams", "steady"), ("streams-adam", "own")]
)
def test_the_tables_of_the_page_are_those_of_the_results(run: str, choice: str, method: str) -> None:
    cells = []
    for stream in STREAMS:
        rows = rows_of(run, stream, method, choice)
        assert {row["seed"] for row in rows} == set(map(str, range(10)))
        diverged = sum(int(row["diverged"]) for row in rows)
        words = f", {diverged} of 10 diverged" if diverged else ""
        cells.append(f"{estimate(rows).value:.2g}{words}")
    assert f"| {METHODS[method]} | {' | '.join(cells)} |" in PAGE


@pytest.mark.parametrize("method", METHODS)
def test_no_method_is_a_straw_man_on_the_steady_stream(method: str) -> None:
    plain, mine = (estimate(rows_of("streams", "steady", m, "own")).value for m in ("sgd", method))
    assert mine <= 1.25 * plain


@pytest.mark.parametrize(
    ("stream", "better", "worse"),
    [
        ("sensors", "popart_limited", "adaptive_bins"),
        ("sensors", "adaptive_bins", "art"),
        ("sensors", "art", "popart"),
        ("drift", "art", "popart"),
        ("tails", "hl_gauss", "popart"),
        ("spikes", "hl_gauss", "popart"),
        ("spikes", "popart", "art"),
        ("turns", "hl_gauss", "popart"),
        ("turns", "popart", "art"),
        ("prices", "popart", "hl_gauss"),
    ],
)
def test_methods_that_the_page_calls_better_have_intervals_below_the_others(
    stream: str, better: str, worse: str
) -> None:
    low, high = (estimate(rows_of("streams", stream, method, "own")) for method in (better, worse))
    assert low.high < high.low
