"""The scikit-learn estimator: its conventions, any scale of targets, streams, and resuming."""

import pickle
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_diabetes, make_friedman1, make_regression
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from popart.affine import Affine, change_of
from popart.sklearn import PopArtRegressor
from popart.sklearn.network import ACTIVATIONS, Adam, Network, rescale_head

ROOT = Path(__file__).parents[1]

Floats = NDArray[Any]

ONCE = {"tol": 0.0, "n_iter_no_change": np.inf}
"""Settings for a fixed number of epochs."""


def fitted(model: Any, *data: Any, **weights: Any) -> Any:
    """Fit a model, and expect the warning that it could learn for longer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(*data, **weights)


def friedman(rows: int = 400, seed: int = 0) -> tuple[Floats, Floats]:
    X, y = make_friedman1(rows, n_features=6, noise=0.5, random_state=seed)
    return StandardScaler().fit_transform(X), y


def short(**settings: Any) -> PopArtRegressor:
    return PopArtRegressor(**{"hidden_layer_sizes": (20,), "max_iter": 20, "random_state": 0, **settings})


@pytest.mark.filterwarnings("ignore:max_iter=:sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks([PopArtRegressor()])
def test_the_estimator_passes_every_check_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:max_iter=:sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(
    [
        PopArtRegressor(hidden_layer_sizes=(), learning_rate_init=0.01),
        PopArtRegressor(hidden_layer_sizes=(20, 10), activation="tanh", max_norm=None),
    ]
)
def test_other_settings_pass_every_check_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize("power", [-30, -15, 15, 30])
def test_r2_is_the_same_at_every_scale_of_the_targets(power: int) -> None:
    X, y = friedman()
    expected = fitted(short(max_iter=100), X, y).score(X, y)
    assert expected > 0.8
    for dtype in (np.float64, np.float32):
        factor = dtype(10.0**power)
        found = fitted(short(max_iter=100), X, factor * y.astype(dtype)).score(X, factor * y.astype(dtype))
        assert abs(found - expected) < 1e-3


@pytest.mark.parametrize("power", [-900, -100, 100, 900])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_scaling_targets_by_a_power_of_two_changes_no_bit(power: int, dtype: Any) -> None:
    X, y = friedman(100)
    X, Y = X.astype(dtype), np.column_stack((y, y**2 - 300))
    weight = np.random.default_rng(0).integers(0, 3, 100)

    def train(factor: float) -> PopArtRegressor:
        model = fitted(short(batch_size=30), X, factor * Y, sample_weight=weight)
        return model.partial_fit(X, 16 * factor * Y).partial_fit(X, factor * Y / 32)

    usual, scaled = train(1.0), train(2.0**power)
    np.testing.assert_array_equal(scaled.predict(X), 2.0**power * usual.predict(X))
    np.testing.assert_array_equal(scaled.scale_, 2.0**power * usual.scale_)
    assert scaled.loss_curve_ == usual.loss_curve_
    for ours, theirs in zip(
        usual.coefs_ + usual.intercepts_, scaled.coefs_ + scaled.intercepts_, strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
        assert ours.dtype == dtype


def test_early_stopping_does_not_depend_on_the_scale() -> None:
    X, y = friedman()
    usual, tiny = (fitted(short(max_iter=60, early_stopping=True), X, f * y) for f in (1.0, 2.0**-700))
    assert usual.validation_scores_ == tiny.validation_scores_
    assert usual.best_validation_score_ == max(usual.validation_scores_)
    assert usual.best_loss_ is None


def test_early_stopping_restores_the_best_parameters() -> None:
    """With pure noise, the score on the validation set is best in one of the first epochs."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(100, 5)), rng.normal(size=100)
    model: Any = PopArtRegressor(early_stopping=True, learning_rate_init=0.01, random_state=0).fit(X, y)
    assert model.n_iter_ < 100
    _, held = train_test_split(np.arange(100), test_size=0.1, random_state=_after_initial_weights(5))
    assert model.score(X[held], y[held]) == pytest.approx(model.best_validation_score_, abs=1e-12)
    assert model.best_validation_score_ > model.validation_scores_[-1]


def _after_initial_weights(features: int) -> np.random.RandomState:
    """Return the random numbers of seed 0 after the default network was initialised."""
    rng = np.random.RandomState(0)
    Network((features, 100, 1), "relu", np.float64, rng)
    return rng


def test_statistics_are_those_of_the_targets_for_each_output() -> None:
    X, y = friedman()
    Y = np.column_stack((y, 1e12 * y - 7e14, 1e-9 * y**2))
    model = fitted(short(max_iter=200, learning_rate_init=0.01), X, Y)
    np.testing.assert_allclose(model.shift_, Y.mean(0), rtol=1e-12)
    np.testing.assert_allclose(model.scale_, Y.std(0), rtol=1e-12)
    assert model.n_outputs_ == 3
    R2 = 1 - ((model.predict(X) - Y) ** 2).mean(0) / Y.var(0)
    assert (R2 > 0.9).all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("hidden", [(), (7,), (7, 5)])
def test_the_gradient_is_that_of_the_loss(activation: str, hidden: tuple[int, ...]) -> None:
    rng = np.random.RandomState(1)
    network = Network((4, *hidden, 2), activation, np.float64, rng)
    network.parameters[:] = rng.normal(size=network.parameters.shape)
    X, y, share = rng.normal(size=(9, 4)), rng.normal(size=(9, 2)), rng.uniform(0, 2, 9)
    gradient, scratch = np.empty((2, network.parameters.size))

    def loss(out: Floats) -> float:
        return network.loss_and_gradient(X, y, share, 0.3, activation, network.views(out))

    loss(gradient)
    for i in range(network.parameters.size):
        moved = []
        for step in (1e-6, -2e-6):
            network.parameters[i] += step
            moved.append(loss(scratch))
        network.parameters[i] += 1e-6
        assert (moved[0] - moved[1]) / 2e-6 == pytest.approx(gradient[i], rel=1e-5, abs=1e-7)


def test_without_hidden_layers_it_is_a_linear_model() -> None:
    data: Any = make_regression(300, 5, noise=5.0, random_state=0)
    X, y = data
    model = PopArtRegressor(hidden_layer_sizes=(), learning_rate_init=0.01, max_iter=300, random_state=0)
    model.set_params(batch_size=300, **ONCE)
    linear = LinearRegression().fit(X, y)
    np.testing.assert_allclose(fitted(model, X, y).predict(X), linear.predict(X), atol=0.01 * y.std())
    assert len(model.coefs_) == 1


def test_measuring_new_targets_preserves_predictions() -> None:
    """A warm start and partial_fit first change scale and shift, and no prediction, then learn."""
    X, y = friedman(100)
    model = fitted(short(max_norm=None), X, y)
    model.set_params(warm_start=True, max_iter=1, learning_rate_init=1e-300)
    before = model.predict(X)
    for factor, learn in ((1e3, model.partial_fit), (1e6, lambda *data: fitted(model, *data))):
        scale = model.scale_
        learn(X, factor * y - 5)
        assert model.scale_ > 100 * scale
        np.testing.assert_allclose(model.predict(X), before, rtol=0, atol=1e-14 * model.scale_[0])


def test_the_memory_of_adam_changes_units_with_the_last_layer() -> None:
    rng = np.random.RandomState(0)
    network = Network((3, 5, 1), "relu", np.float64, rng)
    network.layers[-1][...] = rng.normal(size=(6, 1))
    adam = Adam(network.parameters)
    adam.mean[:], adam.square[:] = rng.normal(size=26), rng.uniform(size=26)
    mean, square, X = adam.mean.copy(), adam.square.copy(), rng.normal(size=(7, 3))
    old, new = Affine(np.float64(8.0), np.float64(3.0)), Affine(np.float64(2.0), np.float64(-1.0))
    before = old.denormalize(network.outputs(X, "relu"))
    rescale_head(network, adam, change_of(old, new))
    np.testing.assert_allclose(new.denormalize(network.outputs(X, "relu")), before, rtol=1e-14)
    np.testing.assert_array_equal(adam.mean, np.append(mean[:20], 4 * mean[20:]))
    np.testing.assert_array_equal(adam.square, np.append(square[:20], 16 * square[20:]))


def test_two_warm_fits_are_one_of_their_length() -> None:
    X, y = friedman(150)
    once = fitted(short(batch_size=40, max_iter=10, **ONCE), X, y)
    twice = short(batch_size=40, max_iter=5, warm_start=True, **ONCE)
    fitted(twice, X, y)
    fitted(twice, X, y)
    np.testing.assert_allclose(twice.predict(X), once.predict(X), rtol=1e-12)
    np.testing.assert_allclose(twice.loss_curve_, once.loss_curve_, rtol=1e-12)
    assert len(once.loss_curve_) == 10
    assert twice.n_iter_ == 5


def test_partial_fit_after_fit_keeps_what_fit_measured() -> None:
    """A small batch is one step of size beta, not half of all that is known."""
    X, y = friedman()
    model = fitted(short(beta=0.2), X, y)
    mean = model.shift_
    model.partial_fit(X[:10], y[:10] + 1000)
    np.testing.assert_allclose(model.shift_, 0.8 * mean + 0.2 * (y[:10].mean() + 1000), rtol=1e-3)


def stream(seed: int, factors: tuple[float, ...] = (1.0, 1e3, 1e6, 1e4), calls: int = 150) -> Any:
    """Yield rows of a function whose targets are multiplied by another factor every so many calls."""
    rng = np.random.default_rng(seed)
    for factor in factors:
        for _ in range(calls):
            X = rng.uniform(-1, 1, (50, 5))
            yield X, factor * (np.tanh(2 * X[:, 0]) + X[:, 1] ** 2 - X[:, 2] + 3), factor


def stream_errors(model: Any, calls: int = 150) -> list[float]:
    """Return the relative error in the last 30 calls of each factor, of rows that are yet to be learned."""
    errors = []
    for t, (X, y, factor) in enumerate(stream(0, calls=calls)):
        if t % calls >= calls - 30:
            errors.append(np.sqrt(np.mean((model.predict(X) - y) ** 2)) / factor)
        model.partial_fit(X, y)
    return np.median(np.reshape(errors, (-1, 30)), axis=1).tolist()


def test_a_stream_whose_targets_change_size_is_learned_with_pop_art_alone() -> None:
    assert not hasattr(TransformedTargetRegressor(MLPRegressor()), "partial_fit")
    settings: dict[str, Any] = {"hidden_layer_sizes": (50,), "learning_rate_init": 0.01, "random_state": 0}
    pop_art = stream_errors(PopArtRegressor(**settings))
    plain = stream_errors(MLPRegressor(**settings))
    assert max(pop_art) < 0.4
    assert plain[0] < 0.4
    assert min(plain[1:]) > 1


def test_a_pickled_estimator_continues_in_a_new_process_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    code = """
import pickle, sys
from pathlib import Path
path = Path(sys.argv[1])
model, rows = pickle.loads(path.read_bytes())
for X, y, _ in rows:
    model.partial_fit(X, y)
path.write_bytes(pickle.dumps(model))
"""
    model, path = short(batch_size=20), tmp_path / "model.pickle"
    rows = list(stream(1, calls=5))
    for X, y, _ in rows[:10]:
        model.partial_fit(X, y)
    path.write_bytes(pickle.dumps((model, rows[10:])))
    subprocess.run([sys.executable, "-c", code, str(path)], cwd=ROOT, check=True)
    for X, y, _ in rows[10:]:
        model.partial_fit(X, y)
    resumed = pickle.loads(path.read_bytes())
    X, y, _ = rows[0]
    for _ in range(2):
        np.testing.assert_array_equal(resumed.predict(X), model.predict(X))
        assert resumed.loss_curve_ == model.loss_curve_
        assert resumed.t_ == model.t_
        resumed.partial_fit(X, y)
        model.partial_fit(X, y)


def test_it_works_in_pipelines_searches_and_cross_validation() -> None:
    data: Any = load_diabetes(return_X_y=True)
    X, y = data
    pipeline = make_pipeline(StandardScaler(), PopArtRegressor(early_stopping=True, random_state=0))
    assert cross_val_score(pipeline, X, 1e9 * y, cv=3).mean() > 0.3
    grid = {"popartregressor__alpha": [1e-4, 1e3], "popartregressor__hidden_layer_sizes": [(), (20,)]}
    search = fitted(GridSearchCV(pipeline, grid, cv=3), X, y)
    assert search.best_params_["popartregressor__alpha"] == 1e-4
    weighted = fitted(clone(pipeline), X, y, popartregressor__sample_weight=np.ones(len(y)))
    np.testing.assert_allclose(weighted.predict(X), fitted(clone(pipeline), X, y).predict(X), rtol=1e-6)


def test_weights_count_as_repeated_rows_in_statistics_and_in_the_loss() -> None:
    X, y = friedman(60)
    weight = np.random.default_rng(1).integers(0, 4, 60)
    weighted = fitted(short(batch_size=1000), X, y, sample_weight=weight)
    repeated = fitted(short(batch_size=1000), X.repeat(weight, 0), y.repeat(weight))
    np.testing.assert_allclose(weighted.scale_, repeated.scale_, rtol=1e-12)
    np.testing.assert_allclose(weighted.loss_curve_, repeated.loss_curve_, rtol=1e-9)
    np.testing.assert_allclose(weighted.predict(X), repeated.predict(X), rtol=1e-9)


def test_rows_without_weight_take_no_place_in_a_minibatch() -> None:
    X, y = friedman(60)
    weight = np.arange(60) % 3
    kept = weight > 0
    with_them = fitted(short(batch_size=10), X, y, sample_weight=weight)
    without = fitted(short(batch_size=10), X[kept], y[kept], sample_weight=weight[kept])
    np.testing.assert_array_equal(with_them.predict(X), without.predict(X))


def test_rows_of_heavy_batches_count_in_proportion_to_their_weight() -> None:
    """With batches of one row, weights would cancel if each batch had its own mean."""
    rng = np.random.default_rng(0)
    X, y = np.zeros((200, 1)), rng.normal(size=200) + 10
    weight = np.where(y > 10, 9.0, 1.0)
    model = PopArtRegressor(
        (), batch_size=1, learning_rate_init=1e-3, max_iter=60, n_iter_no_change=np.inf, random_state=0
    )
    found = fitted(model, X, y, sample_weight=weight).predict(X[:1])
    assert found == pytest.approx(np.average(y, weights=weight), abs=0.1)
    assert abs(found - y.mean()) > 0.3


def test_sparse_features_give_the_same_predictions() -> None:
    X, y = friedman(100)
    X = np.where(X > 0, X, 0)
    dense, sparse = fitted(short(), X, y), fitted(short(), scipy.sparse.csr_array(X), y)
    np.testing.assert_allclose(sparse.predict(scipy.sparse.csc_array(X)), dense.predict(X), rtol=1e-9)
    coded = make_pipeline(OneHotEncoder(), short())
    assert fitted(coded, X.round(), y).score(X.round(), y) > 0


def test_constant_targets_are_predicted_exactly() -> None:
    X, _ = friedman(50)
    assert (fitted(short(), X, np.full(50, 0.1)).predict(X) == 0.1).all()
    model = short().partial_fit(X, np.zeros(50))
    assert not model.predict(X).any()
    model.partial_fit(X, np.arange(50.0))
    assert np.isfinite(model.predict(X)).all()


def test_predictions_have_the_axes_of_the_targets() -> None:
    X, y = friedman(50)
    assert fitted(short(), X, y).predict(X).shape == (50,)
    assert fitted(short(), X, y[:, None]).predict(X).shape == (50, 1)
    assert fitted(short(), X, np.column_stack((y, y))).predict(X).shape == (50, 2)


def test_clones_have_the_settings_and_nothing_learned() -> None:
    X, y = friedman(50)
    model = fitted(short(beta=0.5), X, y)
    copy: Any = clone(model)
    assert copy.get_params() == model.get_params()
    assert not hasattr(copy, "coefs_")
    assert not hasattr(copy, "scale_")
    with pytest.raises(NotFittedError):
        copy.predict(X)


def test_training_stops_when_the_loss_no_longer_improves() -> None:
    X, y = friedman(50)
    patient = short(max_iter=500, n_iter_no_change=3, tol=0.05)
    patient.fit(X, y)
    best = np.minimum.accumulate(patient.loss_curve_)
    assert patient.n_iter_ == len(best) < 500
    assert patient.best_loss_ == best[-1]
    assert (best[-5:-1] - np.array(patient.loss_curve_)[-4:] < 0.05).all()
    with pytest.warns(ConvergenceWarning, match="max_iter=2 epochs"):
        short(max_iter=2).fit(X, y)


def test_verbose_prints_a_line_per_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    X, y = friedman(50)
    fitted(short(max_iter=3, verbose=True, early_stopping=True), X, y)
    epochs = re.findall(r"^Epoch (\d+): loss ", capsys.readouterr().out, re.MULTILINE)
    assert epochs == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("hidden_layer_sizes", (10, 0)),
        ("hidden_layer_sizes", 2.5),
        ("activation", "swish"),
        ("beta", 0.0),
        ("beta", 2),
        ("max_norm", -1.0),
        ("alpha", -1e-4),
        ("batch_size", 0),
        ("batch_size", "all"),
        ("learning_rate_init", 0.0),
        ("max_iter", 1.5),
        ("shuffle", "yes"),
        ("tol", np.nan),
        ("verbose", -1),
        ("warm_start", 1),
        ("early_stopping", None),
        ("validation_fraction", 1.0),
        ("beta_1", 1.0),
        ("beta_2", -0.1),
        ("epsilon", 0.0),
        ("n_iter_no_change", 0),
    ],
)
def test_settings_that_are_not_allowed_are_named(setting: str, value: Any) -> None:
    X, y = friedman(10)
    model = PopArtRegressor(**{setting: value})
    for learn in (model.fit, model.partial_fit):
        with pytest.raises(ValueError, match=rf"The '{setting}' parameter of PopArtRegressor must be .* Got"):
            learn(X, y)


def test_data_that_is_not_allowed_is_refused() -> None:
    X, y = friedman(20)
    for bad in (np.nan, np.inf):
        with pytest.raises(ValueError, match=r"y contains|Input y"):
            short().fit(X, np.where(y > y.mean(), bad, y))
    with pytest.raises(ValueError, match="sample_weight has shape"):
        short().fit(X, y, sample_weight=np.ones(3))
    with pytest.raises(ValueError, match="sample_weight has a minimum of -1"):
        short().fit(X, y, sample_weight=-np.ones(20))
    with pytest.raises(ValueError, match="does not support early_stopping"):
        short(early_stopping=True).partial_fit(X, y)
    with pytest.raises(ValueError, match="validation set has 1 row"):
        short(early_stopping=True).fit(X[:5], y[:5])
    model = short().partial_fit(X, y)
    with pytest.raises(ValueError, match="continue a model of the same sizes"):
        model.partial_fit(X, np.column_stack((y, y)))


def test_the_settings_of_mlpregressor_have_its_names() -> None:
    ours, theirs = (set(kind().get_params()) for kind in (PopArtRegressor, MLPRegressor))
    assert ours - theirs == {"beta", "max_norm"}


@pytest.mark.slow
def test_r2_is_at_least_that_of_mlpregressor_with_standardised_targets() -> None:
    gains = []
    for seed in range(5):
        X, y = make_friedman1(500, noise=1.0, random_state=seed)
        X, X_test, y, y_test = train_test_split(StandardScaler().fit_transform(X), y, random_state=seed)
        peer = TransformedTargetRegressor(MLPRegressor(random_state=seed), transformer=StandardScaler())
        models = PopArtRegressor(random_state=seed), peer
        ours, theirs = (fitted(model, X, y).score(X_test, y_test) for model in models)
        gains.append(ours - theirs)
    assert np.mean(gains) > 0


def test_a_missing_scikit_learn_is_named_with_the_extra() -> None:
    code = (
        "import sys; sys.modules['sklearn'] = None\n"
        "try: import popart.sklearn\n"
        "except ModuleNotFoundError as error: print(error)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'popart-learn[sklearn]'" in result.stdout


def test_neither_torch_nor_jax_is_loaded() -> None:
    code = "import sys, popart.sklearn; print(sorted({'torch', 'jax', 'jaxlib'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_lines_of_the_how_to_page(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs/how-to/scikit-learn.md").read_text("utf-8")
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(code, names)
    r2, error = map(float, capsys.readouterr().out.split())
    assert r2 > 0.85
    assert error < 0.3
    assert np.isfinite(names["in_percent"].predict(names["X_test"])).all()


@pytest.mark.slow
def test_the_example_draws_a_stream_that_only_pop_art_follows(tmp_path: Path) -> None:
    command = [sys.executable, "examples/sklearn_stream.py", str(tmp_path), "--seeds", "1"]
    out = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout
    errors = {
        name: [float(x) for x in re.findall(rf"^{name} +(.*)$", out, re.MULTILINE)[0].split()]
        for name in ("MLPRegressor", "standardised once", "PopArtRegressor")
    }
    assert max(errors["PopArtRegressor"]) < 0.5
    assert min(errors["MLPRegressor"][1:]) > 1
    assert min(errors["standardised once"][1:]) > 1
    assert (tmp_path / "sklearn.png").stat().st_size > 10_000
