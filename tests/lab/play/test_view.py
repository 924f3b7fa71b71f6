"""Pictures of an agent at play: bars of Q-values that stay within their place."""

import numpy as np
import pytest

from popart.lab.play.view import BARS, SIZE, TEXT, Scene, View

BLUE, GREEN, RED = (0x1F, 0x5F, 0xD0), (0x22, 0x8B, 0x22), (0xD6, 0x27, 0x28)
NAMES = ["NOOP", "UPRIGHTFIRE", *"ABCDEFGHIJKLMNOP"]


def drawn(values: list[float], action: int | None) -> np.ndarray:
    view = View("Title", "about", "no Pop-Art", "points", NAMES[: len(values)])
    step = Scene(np.zeros((210, 160, 3), np.uint8), 0.0, np.array(values, np.float32), action)
    return np.asarray(view.draw(step))


def lengths(picture: np.ndarray, colour: tuple[int, int, int]) -> list[int]:
    """Return the pixels of a colour in the middle of each of three bars."""
    left, top, right, _ = BARS
    rows = picture[[top + 18, top + 54, top + 90], left:right]
    return (rows == colour).all(-1).sum(-1).tolist()


def test_bars_are_as_long_as_values_and_coloured_by_how_the_action_was_chosen() -> None:
    picture = drawn([-1.0, 2.0, 3.0], 2)
    unit = (BARS[2] - BARS[0]) / 4
    np.testing.assert_allclose(lengths(picture, BLUE), [unit, 2 * unit, 0], atol=2)
    np.testing.assert_allclose(lengths(picture, GREEN), [0, 0, 3 * unit], atol=2)
    at_random = drawn([-1.0, 2.0, 3.0], 1)
    np.testing.assert_allclose(lengths(at_random, RED), [0, 2 * unit, 0], atol=2)
    assert (
        lengths(drawn([-1.0, 2.0, 3.0], None), RED)
        == lengths(drawn([-1.0, 2.0, 3.0], None), GREEN)
        == [0, 0, 0]
    )


@pytest.mark.parametrize("scale", [0.0, 1e-12, 1.0, 1e6, 1e30])
def test_values_of_any_size_and_eighteen_actions_stay_within_their_place(scale: float) -> None:
    picture = drawn([scale * (i - 9) for i in range(18)], None)
    assert (picture[:, TEXT[2] :] == 255).all()
    assert (picture[BARS[3] + 1 :, TEXT[0] :] == 255).all()
    assert (picture[BARS[1] : BARS[3], TEXT[0] + 96 : BARS[0]] == 255).all()
    assert picture.shape == (SIZE[1], SIZE[0], 3)
