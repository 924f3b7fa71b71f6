"""Errors of each method on each stream, and how they change with time, from the tables of a run."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from popart.lab.analysis import Page
from popart.lab.experiments.streams.config import (
    BETA,
    CAP,
    CHOICES,
    CONTROL,
    METHODS,
    STREAMS,
    TUNING,
    WINDOWS,
)
from popart.lab.experiments.streams.drawing import curves
from popart.lab.intervals import Interval, iqm, over_seeds

MEASURE = f"""Each target is predicted before it is learned. Errors are those of predictions against targets
without noise, in units of the size of targets at the time: 1 is as good as always predicting the mean. They
are root mean squares over windows, {WINDOWS} in a stream."""

FIGURE = f"""{MEASURE} Lines: interquartile mean over random seeds. Bands of Pop-Art, Art without Pop and the
plain network: quartiles. Errors above {CAP:g} are not shown. Learning rate and step size are {{choice}}, with
{len(TUNING)} other random seeds."""

SUMMARY = f"""Geometric mean of the errors of all windows but the first: the average height of a curve in the
figure. Interquartile mean over random seeds, with its 95 % bootstrap interval. Errors of a window above
{CAP:g}, and all that follow a prediction that is not finite, count as {CAP:g}. “Steady”: the learning rate
that is best on the steady stream, with β = {BETA:g}, for all streams. “Own”: the learning rate and step size
that are best on the stream itself. Both were chosen with {len(TUNING)} other random seeds."""

SETTLED = """The same for the last fifth of each quarter of a stream alone. Sensors change units after each
quarter."""

CHOSEN = """Learning rate α and step size β of the statistics that were chosen. Methods without running
statistics, and the z-score of all targets, have no β."""

ERRORS = "Errors of each random seed. Diverged: a prediction was not finite."

TUNED = f"""Geometric mean of the errors with the {len(TUNING)} random seeds for tuning, and the number of
these that diverged. Choices have the fewest that diverged, and of these the smallest error."""

Errors = Mapping[tuple[str, str, str], Sequence[Mapping[str, str]]]
"""The rows of each stream, method and choice, one per random seed."""


def analyse(page: Page) -> None:
    rows: dict[tuple[str, str, str], list[dict[str, str]]] = {}
    for row in page.needed_table("errors"):
        rows.setdefault((row["stream"], row["method"], row["choice"]), []).append(row)
    points = page.needed_table("curves")
    for choice, words in reversed(CHOICES.items()):
        some = [row for row in points if row["choice"] == choice]
        figure = curves(page.settings["streams"], page.settings["methods"], some)
        heading = f"Error against time, with settings {words}"
        page.figure(f"stream-{choice}", heading, FIGURE.format(choice=words), figure)
    page.show_table("summary", "Error over the whole stream", SUMMARY, _table(page, rows, "error"))
    page.show_table("settled", "Error when settled", SETTLED, _table(page, rows, "settled"))
    page.show_table("chosen", "Chosen learning rates and step sizes", CHOSEN, _chosen(page, rows))
    page.show_table("errors", "All random seeds", ERRORS)
    page.show_table("tuning", "All learning rates and step sizes", TUNED)
    _find_control(page, rows)
    _find_best(page, rows)


def estimate(rows: Sequence[Mapping[str, str]], measure: str = "error") -> Interval:
    """Return the interquartile mean over random seeds, with its bootstrap interval."""
    return over_seeds(iqm, [np.array([float(row[measure]) for row in rows])])


def text(rows: Sequence[Mapping[str, str]], measure: str = "error") -> str:
    """Return the estimate, and how many runs diverged if any did."""
    diverged = sum(int(row["diverged"]) for row in rows)
    return estimate(rows, measure).text(".3g") + (f"; {diverged} diverged" if diverged else "")


def _table(page: Page, rows: Errors, measure: str) -> list[dict[str, Any]]:
    return [
        {"method": METHODS[method], "settings": choice}
        | {
            STREAMS[stream]: text(rows[stream, method, choice], measure)
            for stream in page.settings["streams"]
        }
        for method in page.settings["methods"]
        for choice in CHOICES
    ]


def _chosen(page: Page, rows: Errors) -> list[dict[str, Any]]:
    def words(row: Mapping[str, str]) -> str:
        beta = f", {float(row['beta']):g}" if row["beta"] else ""
        return f"{float(row['rate']):.2g}{beta}"

    return [
        {"method": METHODS[method], "settings": choice}
        | {STREAMS[stream]: words(rows[stream, method, choice][0]) for stream in page.settings["streams"]}
        for method in page.settings["methods"]
        for choice in CHOICES
    ]


def _find_control(page: Page, rows: Errors) -> None:
    """Compare all methods with the plain network where it has no difficulty."""
    if CONTROL not in page.settings["streams"] or "sgd" not in page.settings["methods"]:
        return
    found = {method: estimate(rows[CONTROL, method, "own"]) for method in page.settings["methods"]}
    worst = max(found, key=lambda method: found[method].value)
    page.find(
        "On the steady stream every method is within a quarter of the plain network's error",
        paper="",
        here=f"{found['sgd'].text('.3g')} without normalisation; at most {found[worst].text('.3g')} "
        f"({METHODS[worst]})",
        agrees=found[worst].value <= 1.25 * found["sgd"].value,
    )


def _find_best(page: Page, rows: Errors) -> None:
    """Say for each stream whether any method is better than Pop-Art."""
    if "popart" not in page.settings["methods"]:
        return
    for stream in page.settings["streams"]:
        found = {method: estimate(rows[stream, method, "own"]) for method in page.settings["methods"]}
        best = min(found, key=lambda method: found[method].value)
        popart = found["popart"]
        page.find(
            f"No method is better than Pop-Art on this stream: {STREAMS[stream]}",
            paper="",
            here=f"Pop-Art {popart.text('.3g')}"
            + (f"; best {METHODS[best]} {found[best].text('.3g')}" if best != "popart" else ", the best"),
            agrees=not found[best].high < popart.low,
        )
