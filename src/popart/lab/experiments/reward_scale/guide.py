"""Which method to choose: where others are better than Pop-Art, and which are as good as the best."""

from collections.abc import Iterator

from popart.lab.analysis import Page
from popart.lab.experiments.reward_scale.comparison import Comparison
from popart.lab.experiments.reward_scale.config import CASES, METHODS
from popart.lab.intervals import Interval

BETTER = """Methods whose normalised return is higher than that with Pop-Art, with intervals that do not
overlap."""

GUIDE = """For each kind of rewards the method with the highest normalised return, and all methods whose 95 %
intervals overlap with its interval. docs/explanation/which-normalisation.md says what that means for a
choice."""

Row = dict[str, str]


def show(page: Page, comparison: Comparison) -> None:
    """Write both tables, if there are intervals: one random seed cannot tell methods apart."""
    if not comparison.can_normalize or int(page.settings["seeds"]) < 2:
        return
    if "popart" in comparison.methods and (better := list(better_than_popart(comparison))):
        page.show_table("better", "Where Pop-Art is not the best", BETTER, better)
    page.show_table("guide", "Which method to choose", GUIDE, list(guide(comparison)))


def better_than_popart(comparison: Comparison) -> Iterator[Row]:
    """Yield the kinds of rewards with which other methods are better than Pop-Art, and these methods."""
    for rewards, found in _kinds(comparison):
        popart = found.pop("popart")
        better = [name for name, interval in found.items() if interval.low > popart.high]
        if better:
            texts = (f"{METHODS[name]} {found[name].value:.2f}" for name in better)
            yield {"rewards": rewards, METHODS["popart"]: popart.text(".2f"), "better": "; ".join(texts)}


def guide(comparison: Comparison) -> Iterator[Row]:
    """Yield the best method for each kind of rewards, and all that are as good."""
    for rewards, found in _kinds(comparison):
        best = max(found, key=lambda name: found[name].value)
        as_good = (METHODS[name] for name in found if name != best and found[name].high >= found[best].low)
        yield {
            "your rewards": rewards,
            "best": f"{METHODS[best]} {found[best].text('.2f')}",
            "as good": "; ".join(as_good) or "none",
        }


def _kinds(comparison: Comparison) -> Iterator[tuple[str, dict[str, Interval]]]:
    """Yield each kind of rewards in words, and the normalised returns of all methods with it."""
    for case in comparison.cases:
        for place, scale in enumerate(comparison.scales):
            size = "" if len(comparison.scales) == 1 else f", times {scale:g}"
            found = {name: comparison.interval(name, case, place) for name in comparison.methods}
            yield f"{CASES[case]}{size}", found
