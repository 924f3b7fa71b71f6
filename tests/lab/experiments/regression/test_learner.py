"""Many networks at once learn what one learns in float64 with PyTorch's gradients."""

from typing import Any

import numpy as np
import pytest
import torch

import popart
from popart.lab.experiments.regression.learner import errors
from popart.lab.experiments.regression.methods import METHODS, RULES, WINDOW, Method
from popart.lab.experiments.regression.sweep import Data, Setting, learn
from popart.lab.experiments.regression.task import digits, network, stack

SAMPLES, RARE_AT = 160, 60


def stream(repetition: int) -> np.ndarray:
    n = stack(0, [repetition], SAMPLES)[0][:, 0]
    n[RARE_AT] = 65_535
    return n


def reference(method: Method, repetition: int, alpha: float, beta: float) -> np.ndarray:
    """Learn with one network, literally as in Section 3; return the errors."""
    n = stream(repetition)
    layers = [torch.nn.Linear(W.shape[1], W.shape[0]).double() for W, _ in network(0, repetition)]
    for layer, (W, b) in zip(layers, network(0, repetition), strict=True):
        layer.load_state_dict({"weight": torch.asarray(W), "bias": torch.asarray(b)})
    parameters = [p for layer in layers for p in layer.parameters()]
    *hidden, last = layers
    if method.optimizer == "rmsprop":
        optimizer = torch.optim.RMSprop(parameters, alpha, alpha=0.9, eps=1e-8)
    else:
        optimizer = torch.optim.SGD(parameters, alpha)
    statistics = None if method.rule is None else _Statistics(RULES[method.rule](beta), method.window)
    found = []
    for y, x in zip(n.astype(float), np.asarray(digits(n)).T, strict=True):  # pyright: ignore
        h = torch.asarray(x, dtype=torch.float64)
        for layer in hidden:
            h = torch.tanh(layer(h))
        if statistics is None:
            found.append(abs(last(h).item() - y))
            target = y
        else:
            old = statistics.affine
            found.append(abs(float(old.denormalize(last(h).item())) - y))
            new = statistics.update(y)
            if method.preserve:
                with torch.no_grad():
                    W, b = last.weight.numpy(), last.bias.numpy()
                    W, b = popart.preserve(W, b, old, new)
                    last.weight.copy_(torch.asarray(W))
                    last.bias.copy_(torch.asarray(b))
            target = float(new.normalize(np.float64(y)))
        loss = (last(h) - target).square().sum() / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return np.array(found)


class _Statistics:
    def __init__(self, rule: Any, window: int) -> None:
        self.rule, self.window, self.seen = rule, window, []
        self.state = rule.init((), like=np.zeros(()))

    @property
    def affine(self) -> popart.Affine:
        return self.rule.affine(self.state)

    def update(self, y: float) -> popart.Affine:
        self.seen.append(y)
        latest = np.array(self.seen[-self.window :])
        self.state = self.rule.update(self.state, latest if self.window > 1 else latest[0])
        return self.affine


@pytest.mark.parametrize("name", METHODS)
def test_errors_equal_those_of_the_reference(name: str) -> None:
    method = METHODS[name]
    alpha = 1e-3 if method.optimizer == "rmsprop" else 10**-3.5
    beta = 0.1
    n = np.stack([stream(r) for r in range(2)], -1)
    _, layers = stack(0, range(2), SAMPLES)
    many = np.full(2, alpha, np.float32), np.full(2, beta, np.float32)
    found = np.asarray(errors(method, layers, *many, n))
    for r in range(2):
        expected = reference(method, r, alpha, beta)
        np.testing.assert_allclose(found[:, r], expected, rtol=5e-3, atol=0.5)


def test_the_papers_statistics_are_equation_4_from_0_and_1() -> None:
    rule = RULES["moments"](0.1)
    state = rule.init((), like=np.zeros(()))
    affine = rule.affine(state)
    assert (affine.scale, affine.shift) == (1, 0)
    mu, nu = 0.0, 1.0
    for y in (3.0, 65_535.0, 12.0):
        mu, nu = 0.9 * mu + 0.1 * y, 0.9 * nu + 0.1 * y**2
        state = rule.update(state, np.float64(y))
        np.testing.assert_allclose(rule.affine(state).scale, np.sqrt(nu - mu**2))
        np.testing.assert_allclose(rule.affine(state).shift, mu)


def test_art_changes_outputs_where_popart_does_not() -> None:
    """Right after the large target, with a learning rate of 0."""
    n = np.stack([stream(0)] * 2, -1)
    _, layers = stack(0, [0, 0], SAMPLES)
    still, beta = np.zeros(2, np.float32), np.full(2, 0.1, np.float32)
    sgd, art, popart = (
        np.asarray(errors(METHODS[m], layers, still, beta, n)) for m in ("sgd", "art", "popart")
    )
    np.testing.assert_allclose(popart, sgd, rtol=1e-3)
    assert abs(art - sgd)[RARE_AT + 1].min() > 100


def test_the_minibatch_of_extremes_is_the_latest_targets() -> None:
    assert METHODS["popart-extremes"].window == WINDOW == 20
    assert METHODS["popart"].window == 1


def test_a_cell_gives_the_same_bits_alone_and_in_its_row() -> None:
    data = Data(0, 7, 50)
    row = [Setting("popart", alpha, 0.3) for alpha in (1e-3, 1e-2, 1e-1, 1.0, 10.0) * 5]
    whole = learn(row, data)
    assert whole.shape == (50, 25, 7)
    for i in (0, 3, 24):
        np.testing.assert_array_equal(learn([row[i]], data)[:, 0], whole[:, i])


def test_nan_errors_become_infinite() -> None:
    e = learn([Setting("sgd", 1.0, None), Setting("sgd", 1e-5, None)], Data(0, 3, 1010))
    assert np.isinf(e[-1, 0]).all()
    assert np.isfinite(e[:, 1]).all()
    assert not np.isnan(e).any()
