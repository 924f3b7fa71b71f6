"""The figure of a diagnosis: targets over time, their magnitudes, and the targets of a network."""

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from popart._style import ART, POPART, STYLE, WIDTH
from popart.diagnosis.choice import Track, follow
from popart.diagnosis.measures import Floats
from popart.diagnosis.words import code

try:
    import matplotlib as mpl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ImportError as error:
    raise ImportError("figures need matplotlib; install it with: pip install matplotlib") from error

if TYPE_CHECKING:
    from popart.diagnosis.report import Diagnosis

POINTS, COLUMNS = 3_000, 300
"""Largest number of targets that are drawn: some at equal distances, and the extremes of each column."""

TARGETS = "#8a8a8a"


@mpl.rc_context(STYLE)  # pyright: ignore[reportArgumentType]
def draw(diagnosis: "Diagnosis") -> Figure:
    """Draw the three panels."""
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    axes: dict[str, Any] = figure.subplot_mosaic([["a", "a"], ["b", "c"]], height_ratios=[1.15, 1])
    track = follow(diagnosis.rule, diagnosis.targets, diagnosis.batch)
    _over_time(axes["a"], diagnosis, track)
    _magnitudes(axes["b"], diagnosis)
    _learned(axes["c"], diagnosis, track)
    return figure


@mpl.rc_context(STYLE)  # pyright: ignore[reportArgumentType]
def save(figure: Figure, path: Path) -> Path:
    """Write a figure, with the same bytes for the same figure."""
    suffix = path.suffix.lower().lstrip(".")
    known = figure.canvas.get_supported_filetypes()
    if suffix not in known:
        raise ValueError(f"path is '{path}'; its suffix must be one of .{', .'.join(sorted(known))}")
    metadata = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    figure.savefig(path, format=suffix, metadata=metadata.get(suffix))
    return path


def _over_time(axes: Axes, diagnosis: "Diagnosis", track: Track) -> None:
    y, n = diagnosis.targets, diagnosis.count
    what = "Returns" if diagnosis.of_rewards else "Targets"
    axes.set_title(f"a  {what} over time", loc="left", fontweight="bold")
    shown = _shown(y)
    axes.plot(shown, y[shown], ".", color=TARGETS, markersize=2, markeredgewidth=0, label=what.lower())
    t = np.minimum((1 + np.arange(len(track.scale))) * track.size, n)
    low, high = track.shift - track.scale, track.shift + track.scale
    axes.fill_between(t, low, high, color=POPART, alpha=0.25, linewidth=0)
    axes.plot(t, track.shift, color=POPART, label=f"μ ± σ of {code(diagnosis.rule).removeprefix('popart.')}")
    for edge in () if diagnosis.of_rewards else (-1, 1):
        label = "clip to [-1, 1]" if edge == 1 else None
        axes.axhline(edge, color=ART, linestyle=(0, (4, 2)), linewidth=1, label=label)
    _symlog(axes, y)
    axes.set_xlim(0, n)
    axes.set_xlabel("time")
    axes.set_ylabel(what.lower())
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    above = {"loc": "lower right", "bbox_to_anchor": (1, 1), "borderaxespad": 0}
    legend = axes.legend(ncols=3, handlelength=1.3, columnspacing=1.2, markerscale=3, **above)
    legend.set_in_layout(False)


def _shown(y: Floats) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Return the indices of the targets that are drawn."""
    if len(y) <= POINTS:
        return np.arange(len(y))
    edges = np.linspace(0, len(y), COLUMNS + 1).astype(int)
    extremes = [
        start + f(y[start:end]) for start, end in itertools.pairwise(edges) for f in (np.argmin, np.argmax)
    ]
    return np.unique(np.concatenate((np.linspace(0, len(y) - 1, POINTS).astype(int), extremes)))


def _symlog(axes: Axes, y: Floats) -> None:
    """Use a logarithmic axis for both signs, linear below where most magnitudes are, with readable ticks."""
    sizes = np.abs(y[y != 0])
    smallest = float(np.quantile(sizes, 0.05)) if sizes.size else 1.0
    largest = max(float(sizes.max(initial=1.0)), 1.0)
    threshold = 10.0 ** np.floor(np.log10(np.clip(smallest, 1e-6 * largest, 1.0)))
    axes.set_yscale("symlog", linthresh=threshold, linscale=0.5)
    low, high = min(float(y.min()), -1.0), max(float(y.max()), 1.0)
    first = np.log10(threshold) + (low < -threshold)
    decades = np.arange(first, np.floor(np.log10(largest)) + 1)
    sides = (low <= -(10.0**first)) + (high >= 10.0**first)
    powers = 10.0 ** decades[:: max(1, int(np.ceil(len(decades) * sides / 7)))]
    axes.set_yticks([-p for p in powers[::-1] if -p >= low] + [0.0] + [p for p in powers if p <= high])
    axes.minorticks_off()
    axes.set_ylim(low * 1.8, high * 1.8)
    axes.grid(axis="y")


def _magnitudes(axes: Axes, diagnosis: "Diagnosis") -> None:
    """Draw a histogram over decades of the targets that are not 0, and the part of it that a clip cuts."""
    what, y = "rewards" if diagnosis.of_rewards else "targets", diagnosis.unclipped
    axes.set_title(f"b  Magnitudes of {what}", loc="left", fontweight="bold")
    logs, zeros = np.log10(np.abs(y[y != 0])), float(np.mean(y == 0))
    low = min(np.floor(logs.min(initial=0.0) - 1e-9), -1.0)
    high = max(np.floor(logs.max(initial=0.0)) + 1, 1.0)
    edges = np.linspace(low, high, int((high - low) * np.clip(40 // (high - low), 1, 10)) + 1)
    shares = np.histogram(logs - 1e-9, edges)[0] / max(logs.size, 1)  # 1 itself is not cut
    width, middles = 0.92 * (edges[1] - edges[0]), (edges[:-1] + edges[1:]) / 2
    for part, colour, label in (
        (middles < 0, TARGETS, None),
        (middles > 0, ART, f"cut by a clip: {100 * diagnosis.clipped:.3g} %"),
    ):
        axes.bar(middles[part], shares[part], width, color=colour, label=label)
    if zeros:
        axes.plot([], [], " ", label=f"not shown: {100 * zeros:.3g} % zeros")
    ticks = np.arange(low, high + 1, np.ceil((high - low) / 8))
    axes.set_xticks(ticks, [f"$10^{{{k:.0f}}}$" for k in ticks])
    axes.set_ylim(0, 1.4 * max(float(shares.max()), 0.01))
    axes.yaxis.set_major_formatter(_percent)
    axes.set_xlabel("magnitude")
    axes.set_ylabel("share of others" if zeros else f"share of {what}")
    axes.legend(loc="upper left", handlelength=1)


def _percent(x: float, _: Any) -> str:
    return f"{100 * x:.3g} %"


def _learned(axes: Axes, diagnosis: "Diagnosis", track: Track) -> None:
    """Draw the distributions of clipped targets and of those that the recommended rule has normalised."""
    axes.set_title("c  What a network is given to learn", loc="left", fontweight="bold")
    clip = "with clipped rewards" if diagnosis.of_rewards else "clipped"
    pairs = ((clip, ART, diagnosis.after_clip), ("with Pop-Art", POPART, track.after(diagnosis.targets)))
    share = np.linspace(0, 1, 1001)
    limits = [-3.0, 3.0]
    for label, colour, seen in pairs:
        values = np.quantile(seen, share)
        axes.step(values, share, where="post", color=colour, label=label)
        limits = [min(limits[0], float(values[10])), max(limits[1], float(values[-11]))]
    axes.set_xlim(*limits)
    axes.set_ylim(-0.02, 1.25)
    axes.set_yticks(np.linspace(0, 1, 5))
    axes.grid()
    axes.set_xlabel("target of the network")
    axes.set_ylabel("share below")
    axes.yaxis.set_major_formatter(_percent)
    axes.legend(loc="upper left", ncols=2, handlelength=1.2, columnspacing=1.2)
