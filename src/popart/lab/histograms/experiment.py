"""`popart histograms`: normalised targets for several beta and s, their variance and their bound."""

import functools
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import popart
from popart.lab.figures import INK, POPART, SGD, letter, styled, subplots
from popart.lab.histograms import Histograms
from popart.lab.runs import Run

MEAN, STD = 1.0, 2.0
TARGETS, MAGENTA = "#1f5fd0", "#b300b3"
LEFT = ((0.1, 1.0, POPART), (0.5, 1.0, SGD))
MIDDLE = ((0.1, 1.0, POPART), (0.1, 1 / 3, SGD))
BETA = 0.01
"""The step size while s varies."""

BOUNDS = tuple(np.geomspace(0.1, 10, 21).tolist())
"""Where the variance is measured, as values of the bound."""

BURN_IN = 500
"""Targets that are left out: the first one has a weight of (1 - beta)^t in what normalises target t."""


CAPTION = """Left: normal targets with mean 1 and standard deviation 2 (blue), and normalised with step
sizes 0.1 (green) and 0.5 (red): what limits them to [-1, 1] also deforms them. Middle: the same with 0.1
and s = 1/3 (red), which keeps them normal. Right: the variance of normalised targets for each bound, when
the bound is set by beta (magenta) or by s with beta = 0.01 (black), with what theory says of either
(dotted)."""


def targets(settings: Histograms) -> np.ndarray:
    rng = np.random.default_rng(settings.seed)
    return rng.normal(MEAN, STD, settings.targets).astype(np.float32)


def normalized(y: np.ndarray, beta: Any, s: float = 1.0) -> np.ndarray:
    """Each target normalised right after the update with it, (targets, *shape of beta)."""
    return np.asarray(_normalized(jnp.asarray(y), jnp.asarray(beta, jnp.float32), s))


@functools.partial(jax.jit, static_argnums=2)
def _normalized(y: jax.Array, beta: jax.Array, s: float) -> jax.Array:
    art = popart.Moments(popart.constant(beta), std=s)  # pyright: ignore[reportArgumentType]

    def step(state: Any, y: jax.Array) -> tuple[Any, jax.Array]:
        y = jnp.broadcast_to(y, beta.shape)
        state = art.update(state, y)
        return state, art.affine(state).normalize(y)

    return jax.lax.scan(step, art.init(beta.shape, like=y), y)[1]


def beta_of(bound: float) -> float:
    """The step size with this bound when s = 1, in float32: Proposition 2, solved for beta."""
    return float(np.float32(1 / (1 + bound**2)))


def expected_variance(beta: float) -> float | None:
    r"""The variance of normalised normal targets for s = 1, for small and for large $\beta$; None in between.

    With $\delta = Y_t - \mu_{t-1}$ a normalised target, squared, is
    $(1 - \beta) \delta^2 / (\sigma_{t-1}^2 + \beta \delta^2)$. To first order in $\beta$ its mean is
    $1 - 2 \beta$. For $\eta = 1 - \beta$ near 0 there is nothing in $\sigma_{t-1}^2$ but $\eta$ times the
    last $\delta^2$; the ratio of the two $\delta$, which are normal and correlated by -1/2, has a Cauchy
    distribution, and the mean is
    $\frac{\eta}{\beta} \left(1 - \frac{\sqrt\eta (\gamma + \sqrt\eta)}{1 + 2 \gamma \sqrt\eta + \eta}\right)$
    with $\gamma = \sqrt 3 / 2$.
    """
    if beta < 0.03:
        return 1 - 2 * beta
    if beta < 0.95:
        return None
    root, gamma = math.sqrt(1 - beta), math.sqrt(3) / 2
    return (1 - beta) / beta * (1 - root * (gamma + root) / (1 + 2 * gamma * root + 1 - beta))


def run(settings: Histograms) -> Path:
    with Run("histograms", "Histograms of normalised targets (appendix, Fig. 3)", settings) as run:
        if not run.finished:
            y = targets(settings)
            rows = variances(y)
            figure = _figure(y, rows)
            run.show_figure(
                "figure_3",
                "Figure 3",
                CAPTION,
                figure,
            )
            run.show_table(
                "variances",
                "Variances and bounds",
                "Largest: the largest normalised target in absolute value. Expected: what theory says of the "
                "variance, for small and for large beta.",
                rows,
            )
            _find(run, y, rows)
            run.finish()
    return run.folder


def variances(y: np.ndarray) -> list[dict[str, Any]]:
    """For each bound, by beta and by s."""
    betas = [beta_of(bound) for bound in BOUNDS]
    by_beta = normalized(y, betas)[BURN_IN:]
    unit = normalized(y, BETA)[BURN_IN:]
    rows = [_row("beta", beta, 1.0, by_beta[:, i]) for i, beta in enumerate(betas)]
    return rows + [_row("s", BETA, s, unit * s) for s in (bound / popart.bound(BETA) for bound in BOUNDS)]


def _row(changed: str, beta: float, s: float, z: np.ndarray) -> dict[str, Any]:
    bound = s * popart.bound(beta)
    expected = expected_variance(beta)
    return {
        "changed": changed,
        "beta": beta,
        "s": s,
        "bound": bound,
        "largest": float(np.abs(z).max()),
        "variance": float(z.var(dtype=np.float64)),
        "expected": None if expected is None else s**2 * expected,
    }


def _find(run: Run, y: np.ndarray, rows: list[dict[str, Any]]) -> None:
    worst = max(row["largest"] / row["bound"] for row in rows)
    run.find(
        "No normalised target is beyond the bound s√((1 - β)/β)",
        paper="none, whatever the targets",
        here=f"the largest is at {worst:.6f} of its bound, to rounding",
        agrees=worst
        <= 1 + 1e-4,  # float32 has Y - μ to 1e-7 of Y, and it is a hundredth of Y for beta = 0.99
    )
    half, tenth = (float(normalized(y, b)[BURN_IN:].var()) for b in (0.5, 0.1))
    run.find(
        "With a large beta the variance is far below the desired 1",
        paper="far below one",
        here=f"{half:.2f} with beta = 0.5, {tenth:.2f} with 0.1",
        agrees=half < 0.7,
    )
    ratios = [row["variance"] / row["s"] ** 2 for row in rows if row["changed"] == "s"]
    run.find(
        "With beta = 0.01 and s, the variance is what s asks for",
        paper="“approximately s”; a standard deviation of s is a variance of s²",
        here=f"{min(ratios):.3f} s², beside (1 - 2 beta) s² = 0.98 s² in theory",
        agrees=all(0.9 < ratio < 1.05 for ratio in ratios),
    )


@styled
def _figure(y: np.ndarray, rows: list[dict[str, Any]]) -> Figure:
    figure, (left, middle, right) = subplots(1, 3, height=2.5)
    for axes, curves, title in ((left, LEFT, "Limited by β"), (middle, MIDDLE, "Limited by s")):
        _histogram(axes, y, TARGETS, "targets")
        for beta, s, colour in curves:
            label = f"β = {beta:g}" + ("" if s == 1 else ", s = 1/3")
            _histogram(axes, normalized(y, beta, s)[BURN_IN:], colour, label)
        axes.set(xlabel="(normalised) target", ylabel="density", xlim=(-6, 8), ylim=(0, 1.8))
        letter(axes, title)
        axes.legend(loc="upper right", handlelength=1)
    _variances(right, rows)
    return figure


def _histogram(axes: Any, z: np.ndarray, colour: str, label: str) -> None:
    style = {"bins": np.arange(-8, 8.01, 0.2), "density": True, "color": colour, "label": label}
    axes.hist(z, alpha=0.35, histtype="stepfilled", **style)
    axes.hist(z, histtype="step", linewidth=0.8, **{**style, "label": None})


def _variances(axes: Any, rows: list[dict[str, Any]]) -> None:
    for changed, colour, label in (("beta", MAGENTA, "by β, s = 1"), ("s", INK, f"by s, β = {BETA:g}")):
        some = [row for row in rows if row["changed"] == changed]
        bounds = [row["bound"] for row in some]
        axes.plot(bounds, [row["variance"] for row in some], color=colour, label=label)
        expected = [np.nan if row["expected"] is None else row["expected"] for row in some]
        axes.plot(bounds, expected, ":", color=colour, linewidth=2.5, alpha=0.4)
    axes.set(xscale="log", yscale="log", xlabel="bound s√((1 − β)/β)", ylabel="variance", ylim=(5e-5, 3))
    axes.grid()
    letter(axes, "Variance")
    axes.legend(loc="lower right", title="bound set")
