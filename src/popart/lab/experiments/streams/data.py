"""The streams: inputs, targets, and what a perfect prediction is.

Inputs are numbers that change slowly (autoregressive processes with a memory of about ten samples). A random
network, another one for each random seed, turns them into a signal of mean 0 and standard deviation 1.
Streams differ in how targets are made of it.

To add one, write a function here, and a line in the table of `config`.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy.signal import lfilter

INPUTS = 8
HIDDEN = 16
MEMORY = 0.9
"""Correlation of an input with the one before."""

NOISE = 0.1
"""Standard deviation of the noise, beside a signal of 1."""

OFFSET = 3.0
"""Mean of prices and of sensors, in standard deviations of the signal."""

GROWTH = 1e4
"""Factor by which prices grow."""

UNITS = (1.0, 1000.0, 1.0, 0.001)
"""Units of sensors, each for a quarter of the stream."""

DRIFT = 100.0
"""Amplitude of the shift that drifts."""

EXPONENT = 1.5
"""Exponent of the heavy tails: the probability of noise beyond x falls as x to minus this. Its variance is
infinite."""

RARE, LARGE = 0.01, 100.0
"""Probability and size of spikes."""

SOURCES, TURN = (1.0, 10.0), 100
"""Sizes of sources that take turns, and the samples of a turn."""


class Data(NamedTuple):
    """A stream of samples, as arrays of NumPy or JAX."""

    x: Any
    """Inputs, `(samples, INPUTS)`."""

    y: Any
    """Targets, `(samples,)`."""

    mean: Any
    """Targets without noise."""

    size: Any
    """Standard deviation of targets without noise, at this time."""


def make(stream: str, seed: int, samples: int) -> Data:
    """Return a stream, in single precision."""
    found = globals()[stream](np.random.default_rng(seed), samples)
    return Data(*(np.ascontiguousarray(x, np.float32) for x in found))


def steady(rng: np.random.Generator, samples: int) -> Data:
    """Return targets that are the signal."""
    return _scaled(rng, samples, 0.0, 1.0)


def prices(rng: np.random.Generator, samples: int) -> Data:
    """Return targets whose level grows by `GROWTH`, with the ups and downs of a random walk."""
    x, signal = _signal(rng, samples)
    time = np.linspace(0, 1, samples)
    walk = rng.normal(size=samples).cumsum() / np.sqrt(samples)
    level = np.exp(np.log(GROWTH) * time + walk - walk[0] - time * (walk[-1] - walk[0]))
    return _targets(rng, x, signal, OFFSET * level, level)


def sensors(rng: np.random.Generator, samples: int) -> Data:
    """Return targets whose unit changes three times."""
    unit = np.repeat(UNITS, samples // len(UNITS))
    return _scaled(rng, samples, OFFSET * unit, unit)


def drift(rng: np.random.Generator, samples: int) -> Data:
    """Return targets whose shift goes up and down once, by many times the size of the signal."""
    return _scaled(rng, samples, DRIFT * np.sin(np.linspace(0, 2 * np.pi, samples)), 1.0)


def tails(rng: np.random.Generator, samples: int) -> Data:
    """Return targets with noise of Student's distribution, which has no variance."""
    x, signal = _signal(rng, samples)
    noise = 3 * NOISE * rng.standard_t(EXPONENT, samples)
    return Data(x, signal + noise, signal, np.ones(samples))


def spikes(rng: np.random.Generator, samples: int) -> Data:
    """Return targets of which a few are much larger, which the first input announces."""
    x, signal = _signal(rng, samples, blank=1)
    rare = rng.random(samples) < RARE
    x[:, 0] = rare
    mean = signal + LARGE * rare
    return Data(x, mean + NOISE * rng.normal(size=samples), mean, np.where(rare, LARGE, 1.0))


def turns(rng: np.random.Generator, samples: int) -> Data:
    """Return targets of sources of different size, one after the other; the first input tells them apart."""
    x, signal = _signal(rng, samples, blank=1)
    source = np.arange(samples) // TURN % len(SOURCES)
    x[:, 0] = source
    size = np.array(SOURCES)[source]
    return _targets(rng, x, signal, OFFSET * size, size)


def _scaled(
    rng: np.random.Generator, samples: int, shift: np.ndarray | float, size: np.ndarray | float
) -> Data:
    return _targets(rng, *_signal(rng, samples), shift, size)


def _targets(
    rng: np.random.Generator,
    x: np.ndarray,
    signal: np.ndarray,
    shift: np.ndarray | float,
    size: np.ndarray | float,
) -> Data:
    noise = NOISE * rng.normal(size=len(signal))
    return Data(x, shift + size * (signal + noise), shift + size * signal, size + 0 * signal)


def _signal(rng: np.random.Generator, samples: int, blank: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs, of which the first `blank` are 0, and the signal."""
    pulses = rng.normal(size=(samples, INPUTS))
    pulses[1:] *= np.sqrt(1 - MEMORY**2)
    x = np.asarray(lfilter([1.0], [1.0, -MEMORY], pulses, axis=0))
    x[:, :blank] = 0
    W, b, v = rng.normal(size=(INPUTS, HIDDEN)), rng.normal(size=HIDDEN), rng.normal(size=HIDDEN)
    signal = np.tanh(2 / np.sqrt(INPUTS) * x @ W + b) @ v
    return x, (signal - signal.mean()) / signal.std()
