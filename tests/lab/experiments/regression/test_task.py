"""The regression task is that of Section 3."""

import numpy as np

from popart.lab.experiments.regression.config import GRID
from popart.lab.experiments.regression.task import SIZES, digits, integers, network, stack


def test_every_thousandth_target_is_the_large_one() -> None:
    n = integers(0, 0, 5000).astype(int)
    assert list(np.flatnonzero(n > 1023) + 1) == [1000, 2000, 3000, 4000, 5000]
    assert set(n[n > 1023]) == {65_535}


def test_the_other_targets_are_uniform() -> None:
    n = np.concatenate([np.delete(integers(0, r, 1000), 999) for r in range(50)])
    counts = np.bincount(n // 64, minlength=16)
    expected = len(n) / 16
    assert ((counts - expected) ** 2 / expected).sum() < 37.7  # the 99.9th percentile of chi squared with 15
    assert (n.min(), n.max()) == (0, 1023)


def test_inputs_are_binary_digits_of_the_target() -> None:
    n = np.array([0, 1, 6, 1023, 65_535], np.uint16)
    x = np.asarray(digits(n))  # pyright: ignore[reportArgumentType]
    assert x.shape == (16, 5)
    np.testing.assert_array_equal(2 ** np.arange(16) @ x, n)
    assert x[:, -1].all()


def test_a_repetition_does_not_depend_on_the_number_of_repetitions() -> None:
    few, many = (stack(3, range(r), 100) for r in (2, 5))
    np.testing.assert_array_equal(few[0], many[0][:, :2])
    np.testing.assert_array_equal(few[1][0][0], many[1][0][0][..., :2])


def test_repetitions_and_seeds_differ() -> None:
    streams = {integers(s, r, 20).tobytes() for s in range(3) for r in range(3)}
    networks = {network(s, r)[0][0].tobytes() for s in range(3) for r in range(3)}
    assert len(streams) == len(networks) == 9


def test_the_network_is_16_10_10_10_1() -> None:
    assert SIZES == (16, 10, 10, 10, 1)
    assert [(W.shape, b.shape) for W, b in network(0, 0)] == [
        ((10, 16), (10,)),
        ((10, 10), (10,)),
        ((10, 10), (10,)),
        ((1, 10), (1,)),
    ]


def test_the_grid_has_half_orders_of_magnitude() -> None:
    np.testing.assert_allclose(np.log10(GRID), np.arange(-5, 0.1, 0.5), atol=1e-12)
