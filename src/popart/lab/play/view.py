"""Pictures of an agent at play: the screen, the score, and the Q-value of each action."""

import math
import re
from collections import deque
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from popart.lab.figures import ART, INK, POPART, SGD

RATE = 15
"""Pictures per second: one for each agent step, so that the speed is that of the game."""

SIZE = 960, 544
SCREEN = 16, 16, 496, 436
HISTORY = 16, 468, 496, 528
TEXT = 520, 16, 944, 136
BARS = 628, 166, 864, 528
"""Place of the diagram: left, top, right and bottom."""

PALE, FAINT = "#707070", "#d8d8d8"


class Scene(NamedTuple):
    """The content of a picture: the screen in colour, the score so far, Q of all actions, the chosen one."""

    screen: np.ndarray
    score: float
    values: np.ndarray
    action: int | None


class View:
    """Draws scenes one by one. The scale of the bars only grows, so that they can be compared."""

    def __init__(self, title: str, about: str, normalisation: str, unit: str, actions: Sequence[str]) -> None:
        self.names = [re.sub(r"(?<=[A-Z])(?=LEFT|RIGHT|FIRE)", " ", name).lower() for name in actions]
        self.range = Range(0.0, 0.0)
        self.history: deque[float] = deque(maxlen=HISTORY[2] - HISTORY[0])
        self.steps = 0
        self.sheet = Image.new("RGB", SIZE, "white")
        draw = ImageDraw.Draw(self.sheet)
        left, top, right, _ = TEXT
        draw.text((left, top), title, INK, font(24, "-Bold"), "lt")
        draw.text((left, top + 30), about, PALE, font(), "lt")
        draw.text((left, top + 92), normalisation, INK, font(16), "lt")
        draw.text((left, BARS[1] - 12), f"Q in {unit}", PALE, font(), "ls")
        draw.text((right - 136, BARS[1] - 12), "chosen", POPART, font(), "rs")
        draw.text((right, BARS[1] - 12), "chosen at random", SGD, font(), "rs")
        seconds = (HISTORY[2] - HISTORY[0]) // RATE
        draw.text((HISTORY[0], HISTORY[1] - 10), f"max Q, last {seconds} s", PALE, font(), "ls")

    def draw(self, scene: Scene) -> Image.Image:
        """Draw the next picture."""
        picture = self.sheet.copy()
        draw = ImageDraw.Draw(picture)
        left, top, right, bottom = SCREEN
        screen = Image.fromarray(scene.screen).resize((right - left, bottom - top), Image.Resampling.NEAREST)
        picture.paste(screen, (left, top))
        left, top, right, _ = TEXT
        seconds = self.steps // RATE
        draw.text((left, top + 56), f"score {number(scene.score, 0)}", INK, font(20, "-Bold"), "lt")
        draw.text((right, top + 56), f"{seconds // 60}:{seconds % 60:02}", INK, font(20), "rt")
        values = scene.values.tolist()
        self.range = Range(min(self.range.low, *values), max(self.range.high, *values))
        self._draw_bars(draw, values, scene.action)
        self.history.append(max(values))
        self._draw_history(draw)
        self.steps += 1
        return picture

    def _draw_bars(self, draw: ImageDraw.ImageDraw, values: list[float], action: int | None) -> None:
        left, top, right, bottom = BARS
        height = min(36.0, (bottom - top) / len(values))
        zero = self.range.place(0.0, left, right)
        for i, (name, value) in enumerate(zip(self.names, values, strict=True)):
            middle = top + (i + 0.5) * height
            start, end = sorted((zero, self.range.place(value, left, right)))
            colour, weight = POPART if value == max(values) else SGD, "-Bold"
            ink = colour
            if i != action:
                colour, ink, weight = ART, INK, ""
            draw.rectangle((start, middle - 0.32 * height, end, middle + 0.32 * height), colour)
            draw.text((TEXT[0], middle), name, ink, font(weight=weight), "lm")
            draw.text((TEXT[2], middle), self.range.number(value), ink, font(weight=weight), "rm")
        draw.line((zero, top, zero, top + height * len(values)), INK)

    def _draw_history(self, draw: ImageDraw.ImageDraw) -> None:
        left, top, right, bottom = HISTORY
        extent = Range(min(self.history), max(self.history))
        words = f"{extent.number(extent.low)} to {extent.number(extent.high)}"
        draw.text((right, top - 10), words, PALE, font(), "rs")
        draw.rectangle((left, top, right, bottom), outline=FAINT)
        first = right - len(self.history)
        line = [(first + i, extent.place(q, bottom - 4, top + 4)) for i, q in enumerate(self.history)]
        draw.line(line, POPART, 2)


class Range(NamedTuple):
    """The lowest and the highest value."""

    low: float
    high: float

    def place(self, value: float, low: float, high: float) -> float:
        """Return the position of a value if the ends of this range are at `low` and `high`."""
        return low + (high - low) * (value - self.low) / ((self.high - self.low) or 1.0)

    def number(self, value: float) -> str:
        """Format a value with as many decimals as the largest needs for four digits."""
        largest = max(abs(self.low), abs(self.high), 1e-4)
        if largest >= 1e7:
            return f"{value:.2e}".replace("-", "−")
        return number(value, max(0, 3 - math.floor(math.log10(largest))))


def number(value: float, decimals: int) -> str:
    return f"{value:z,.{decimals}f}".replace("-", "−")


@cache
def font(size: int = 13, weight: str = "") -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(Path(mpl.get_data_path()) / "fonts" / "ttf" / f"DejaVuSans{weight}.ttf", size)
