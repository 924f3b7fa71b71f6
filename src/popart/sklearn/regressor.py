"""The estimator: a multi-layer perceptron with Pop-Art on its last layer."""

import warnings
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import r2_score
from sklearn.model_selection import train_test_split
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from popart.affine import Affine, change_of, limited
from popart.moments import Moments, MomentsState
from popart.rules import COUNT_MAX
from popart.sklearn.network import Adam, Features, Network, rescale_head
from popart.sklearn.settings import check_settings, layer_sizes

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Data:
    """Rows to learn from: features, targets `(rows, outputs)` in their own units, and weights or None."""

    X: Features
    y: Floats
    weight: Floats | None

    def __len__(self) -> int:
        return self.y.shape[0]

    def rows(self, which: Any) -> "Data":
        return Data(self.X[which], self.y[which], None if self.weight is None else self.weight[which])


class Stopping:
    """A check whether scores still improve, which holds the parameters with the best score."""

    def __init__(self, tol: float, patience: float) -> None:
        self.tol, self.patience = tol, patience
        self.scores: list[float] = []
        self.best, self.waited = -np.inf, 0

    def is_due(self, score: float, parameters: NDArray[Any]) -> bool:
        self.scores.append(score)
        self.waited = 0 if score >= self.best + self.tol else self.waited + 1
        if score > self.best or len(self.scores) == 1:
            self.best, self.best_parameters = score, parameters.copy()
        return self.waited > self.patience


class PopArtRegressor(RegressorMixin, BaseEstimator):
    r"""Regression for targets of any size: a multi-layer perceptron with Pop-Art on its last layer.

    The network learns normalised targets, and predicts in the targets' own units. Multiplying all targets by
    a constant multiplies all predictions by it, and nothing has to be set for their size. Each output has
    its own scale and shift.

    `fit` knows all targets, and measures them at once. `partial_fit` measures each minibatch with step size
    `beta`. Whenever scale and shift change, the last layer is rescaled so that no prediction changes: targets
    of a stream may become larger or smaller by orders of magnitude.

    Features are not normalised. Put a `StandardScaler` before the regressor in a `Pipeline`.

    Settings that `sklearn.neural_network.MLPRegressor` also has mean the same here, except that errors, `tol`
    and the losses are in units of the targets' standard deviation. The optimizer is Adam and the loss is the
    squared error.

    Args:
        hidden_layer_sizes: Number of units of each hidden layer; `()` is a linear model.
        activation: Activation of the hidden layers: 'relu', 'tanh', 'logistic' or 'identity'.
        beta: Step size of the statistics in `partial_fit`, per minibatch. They follow the last 1 / `beta`
            minibatches.
        max_norm: Limit of the norm of an output's weights, for targets that become much smaller. Beyond it,
            outputs shrink towards the new mean instead of being preserved. None is no limit.
        alpha: Strength of the L2 penalty on weights, which is divided by the number of rows of a minibatch.
        batch_size: Rows of a minibatch; 'auto' is 200, or all rows if there are fewer.
        learning_rate_init: Learning rate of Adam, which is constant.
        max_iter: Largest number of epochs of a `fit`.
        shuffle: Whether rows are shuffled before each epoch.
        random_state: Seed, `RandomState` or None, for initial weights, shuffling and the validation set. It
            is read when a model is initialised; `partial_fit` and a warm start continue the sequence.
        tol: Smallest improvement of the loss (or of the validation score) that counts.
        verbose: Whether to print the loss of each epoch.
        warm_start: Whether `fit` continues with the present model instead of a new one. Its predictions are
            preserved when the new targets are measured.
        early_stopping: Whether `fit` sets rows aside and stops when R² on them no longer improves. The best
            parameters are restored.
        validation_fraction: Part of the rows that early stopping sets aside.
        beta_1: Decay of Adam's average of gradients.
        beta_2: Decay of Adam's average of squared gradients.
        epsilon: Number that Adam adds to the root of the average of squared gradients.
        n_iter_no_change: Number of epochs without an improvement after which `fit` stops.

    Attributes:
        scale_: Standard deviation of the targets of each output, as measured.
        shift_: Mean of the targets of each output, as measured.
        coefs_: Weights of each layer, `(inputs, outputs)`; those of the last layer are in normalised units.
        intercepts_: Biases of each layer; those of the last layer are in normalised units.
        loss_: Loss of the last epoch: half of the mean squared error in normalised units, and the penalty.
        best_loss_: Least loss of an epoch of the last `fit`.
        loss_curve_: Loss of each epoch of `fit`, and of each call of `partial_fit`.
        validation_scores_: R² on the validation set after each epoch of the last `fit`, if stopping early.
        best_validation_score_: Largest of the validation scores.
        n_iter_: Number of epochs of the last `fit`; 1 after `partial_fit`.
        t_: Number of rows that the model was trained on, counted once per epoch.
        n_features_in_: Number of features.
        feature_names_in_: Names of the features, if they have names.
        n_outputs_: Number of outputs.
        n_layers_: Number of layers, counting inputs and outputs.
    """

    def __init__(
        self,
        hidden_layer_sizes: Any = (100,),
        activation: str = "relu",
        *,
        beta: float = 0.3,
        max_norm: float | None = 1.0,
        alpha: float = 1e-4,
        batch_size: int | str = "auto",
        learning_rate_init: float = 1e-3,
        max_iter: int = 200,
        shuffle: bool = True,
        random_state: Any = None,
        tol: float = 1e-4,
        verbose: bool | int = False,
        warm_start: bool = False,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        n_iter_no_change: float = 10,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.beta = beta
        self.max_norm = max_norm
        self.alpha = alpha
        self.batch_size = batch_size
        self.learning_rate_init = learning_rate_init
        self.max_iter = max_iter
        self.shuffle = shuffle
        self.random_state = random_state
        self.tol = tol
        self.verbose = verbose
        self.warm_start = warm_start
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.n_iter_no_change = n_iter_no_change

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from all rows, in epochs, until the loss no longer improves.

        Args:
            X: Features, `(rows, features)`, dense or sparse.
            y: Targets, `(rows,)` or `(rows, outputs)`.
            sample_weight: Weight of each row; 2 is as much as two copies of it, 0 as much as none.
        """
        check_settings(self)
        data = self._prepare(X, y, sample_weight, new=not (self.warm_start and self._is_initialized()))
        data, validation = self._split(data)
        self._measure(Moments(beta=1.0), data)
        first = self._adam.steps
        self._train(self._normalized(data), None if validation is None else self._normalized(validation))
        self._count_updates(self._adam.steps - first)
        self._check_parameters()
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from each row once, and follow the size of the targets. The arguments are those of `fit`."""
        check_settings(self)
        if self.early_stopping:
            raise ValueError("partial_fit does not support early_stopping=True: it has no rows to set aside")
        data = self._prepare(X, y, sample_weight, new=not self._is_initialized())
        self._epoch(data, Moments(beta=self.beta))
        self.n_iter_ = 1
        self._check_parameters()
        return self

    def predict(self, X: Any) -> Floats:
        """Return predictions in the targets' own units, in float64, with the axes of the first `y`."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=self._network.parameters.dtype, reset=False)
        outputs = self._network.outputs(X, self.activation).astype(np.float64)
        predictions = self._affine().denormalize(outputs)
        return predictions[:, 0] if self._is_flat else predictions

    @property
    def scale_(self) -> Floats:
        return np.atleast_1d(self._affine().scale)

    @property
    def shift_(self) -> Floats:
        return np.atleast_1d(self._affine().shift)

    @property
    def coefs_(self) -> list[NDArray[Any]]:
        return [layer[:-1] for layer in self._network.layers]

    @property
    def intercepts_(self) -> list[NDArray[Any]]:
        return [layer[-1] for layer in self._network.layers]

    @property
    def n_layers_(self) -> int:
        return len(self._network.sizes)

    @property
    def n_outputs_(self) -> int:
        return self._network.sizes[-1]

    def __sklearn_is_fitted__(self) -> bool:
        return self._is_initialized() and self._adam.steps > 0

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.multi_output = True
        return tags

    def _is_initialized(self) -> bool:
        return hasattr(self, "_network")

    def _prepare(self, X: Any, y: Any, sample_weight: Any, *, new: bool) -> Data:
        """Check the data, initialise the model if it is new, and leave out rows without weight."""
        dtype = (np.float64, np.float32) if new else self._network.parameters.dtype
        X, y = validate_data(
            self, X, y, accept_sparse="csr", dtype=dtype, multi_output=True, y_numeric=True, reset=new
        )
        y = np.asarray(y, np.float64)
        columns = y.reshape(len(y), -1)
        weight = None if sample_weight is None else _checked_weight(sample_weight, len(y))
        sizes = (X.shape[1], *layer_sizes(self.hidden_layer_sizes), columns.shape[1])
        if new:
            self._initialize(sizes, X.dtype, is_flat=y.ndim == 1)
        elif sizes != self._network.sizes:
            raise ValueError(
                f"The model has layers of {self._network.sizes} units, and this data and hidden_layer_sizes "
                f"need {sizes}: partial_fit and warm_start continue a model of the same sizes."
            )
        data = Data(X, columns, weight)
        return data if weight is None or weight.all() else data.rows(np.flatnonzero(weight))

    def _initialize(self, sizes: tuple[int, ...], dtype: Any, *, is_flat: bool) -> None:
        rng = check_random_state(self.random_state)
        self._random_state = rng
        self._network = Network(sizes, self.activation, dtype, rng)
        self._adam = Adam(self._network.parameters)
        self._state: MomentsState = Moments().init(() if sizes[-1] == 1 else sizes[-1:])
        self._is_flat = is_flat
        self.loss_curve_: list[float] = []
        self.t_ = 0

    def _affine(self) -> Affine:
        return Moments().affine(self._state)

    def _measure(self, art: Moments, data: Data) -> None:
        """Update scale and shift (ART), and preserve outputs (POP)."""
        y = data.y if self._state.mu.ndim else data.y[:, 0]
        old = self._affine()
        self._state = art.update(self._state, y, weights=data.weight)
        new = self._affine()
        change = change_of(old, new)
        if self.max_norm is not None:
            change = limited(change, old, new, [(self._network.layers[-1][:-1], "in_out")], self.max_norm)
        rescale_head(self._network, self._adam, change)

    def _count_updates(self, steps: int) -> None:
        """Count the targets of `fit` as often as they were trained on, so that `partial_fit` keeps them."""
        counts = self._state.counts.copy()
        counts[0] = np.minimum(counts[0].astype(np.int64) + max(steps - 1, 0), COUNT_MAX)
        self._state = self._state._replace(counts=counts)

    def _split(self, data: Data) -> tuple[Data, Data | None]:
        """Return the rows to train on, and those to stop early with, if any."""
        if not self.early_stopping:
            return data, None
        rows = np.arange(len(data))
        train, validation = train_test_split(
            rows, test_size=self.validation_fraction, random_state=self._random_state
        )
        if len(validation) < 2:
            raise ValueError(
                f"The validation set has {len(validation)} row; early stopping needs at least 2. Increase "
                "validation_fraction or the number of rows."
            )
        return data.rows(train), data.rows(validation)

    def _train(self, data: Data, validation: Data | None) -> None:
        """Train in epochs until the loss, or the score on the validation set, no longer improves."""
        stopping = Stopping(self.tol, self.n_iter_no_change)
        for epoch in range(1, self.max_iter + 1):
            self._epoch(data)
            self.n_iter_ = epoch
            score = -self.loss_ if validation is None else self._validation_score(validation)
            if stopping.is_due(score, self._network.parameters):
                break
        else:
            warnings.warn(
                f"max_iter={self.max_iter} epochs were reached before the loss stopped improving",
                ConvergenceWarning,
                stacklevel=3,
            )
        self.best_loss_ = self.validation_scores_ = self.best_validation_score_ = None
        if validation is None:
            self.best_loss_ = -stopping.best
        else:
            self.validation_scores_, self.best_validation_score_ = stopping.scores, stopping.best
            self._network.parameters[:] = stopping.best_parameters

    def _epoch(self, data: Data, art: Moments | None = None) -> None:
        """Train on each row once. With a rule, targets are in their own units, and are measured meanwhile."""
        rows = len(data)
        size = min(200 if self.batch_size == "auto" else int(self.batch_size), rows)
        order = self._random_state.permutation(rows) if self.shuffle and size < rows else None
        per_row = 1.0 if data.weight is None else data.weight.mean()
        gradient = np.empty_like(self._network.parameters)
        views = self._network.views(gradient)
        total = 0.0
        for start in range(0, rows, size):
            end = min(start + size, rows)
            batch = data.rows(slice(start, end) if order is None else order[start:end])
            if art is not None:
                self._measure(art, batch)
                batch = self._normalized(batch)
            share = None if batch.weight is None else (batch.weight / per_row).astype(gradient.dtype)
            total += (end - start) * self._network.loss_and_gradient(
                batch.X, batch.y, share, self.alpha / per_row, self.activation, views
            )
            self._adam.step(
                self._network.parameters,
                gradient,
                self.learning_rate_init,
                self.beta_1,
                self.beta_2,
                self.epsilon,
            )
        self.loss_ = total / rows
        self.loss_curve_.append(self.loss_)
        self.t_ += rows
        if self.verbose:
            print(f"Epoch {len(self.loss_curve_)}: loss {self.loss_:.6g}")

    def _normalized(self, data: Data) -> Data:
        return replace(data, y=self._affine().normalize(data.y).astype(self._network.parameters.dtype))

    def _validation_score(self, data: Data) -> float:
        """Return R² in normalised units, where squares of targets neither overflow nor underflow."""
        outputs = self._network.outputs(data.X, self.activation)
        score = float(r2_score(data.y, outputs, sample_weight=data.weight))
        if self.verbose:
            print(f"Validation score {score:.6g}")
        return score

    def _check_parameters(self) -> None:
        if not np.isfinite(self._network.parameters).all():
            raise ValueError(
                "Training produced parameters that are not finite. X may contain very large values: put a "
                "StandardScaler before the regressor, or choose a smaller learning_rate_init."
            )


def _checked_weight(sample_weight: Any, rows: int) -> Floats:
    """Return the weights of the rows as an array."""
    weight = check_array(sample_weight, ensure_2d=False, input_name="sample_weight")
    weight = np.asarray(weight, np.float64)
    weight = np.full(rows, float(weight)) if weight.ndim == 0 else weight
    if weight.shape != (rows,):
        raise ValueError(
            f"sample_weight has shape {weight.shape}; it must be ({rows},), one weight per row of X"
        )
    if not (weight >= 0).all():
        raise ValueError(f"sample_weight has a minimum of {weight.min()}; weights must not be negative")
    if not weight.any():
        raise ValueError("sample_weight is zero for all rows; at least one weight must be positive")
    return weight
