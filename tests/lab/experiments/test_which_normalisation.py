"""The numbers and claims of `docs/explanation/which-normalisation.md` are those of the results."""

import re
from dataclasses import fields
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from popart.lab.analysis import Page
from popart.lab.dqn.methods import config_of, method
from popart.lab.envs.games import GAMES
from popart.lab.experiments.reward_scale.comparison import Comparison, estimate, read
from popart.lab.experiments.reward_scale.config import CASES, METHODS, QUICK, RATE, SCALES, Scale
from popart.lab.experiments.reward_scale.guide import better_than_popart, guide
from popart.lab.files import read_table
from popart.lab.intervals import Interval, iqm, over_seeds
from popart.lab.manifest import read_manifest
from popart.lab.runs import command_line

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "results" / "lab"
PAGE = (ROOT / "docs" / "explanation" / "which-normalisation.md").read_text("utf-8")
NOT_THE_BEST = PAGE.split("## Where Pop-Art is not the best")[1].split("\n## ")[0]
PLAYED = ("catch", "cartpole", "breakout", "freeway")
AT_ONE = {**dict.fromkeys(PLAYED, "methods"), "space_invaders": "methods-space-invaders"}
"""The games that were played with all methods at a scale of 1, and the run of each."""


@cache
def comparison(run: str) -> Comparison:
    return read(Page(RESULTS / run))


def text(interval: Interval, form: str) -> str:
    return interval.text(form).replace("-", "−")


def normalized(run: str, method: str, case: str = "steady", scale: float = 1.0) -> Interval:
    found = comparison(run)
    return over_seeds(iqm, found.normalized(method, case, list(found.scales).index(scale)))


def scale_row(method: str) -> str:
    cells = [text(normalized("methods", method, scale=scale), ".2f") for scale in SCALES]
    return f"| {METHODS[method]} | {' | '.join(cells)} |"


def case_row(method: str, run: str = "methods-changing") -> str:
    cells = [text(normalized(run, method, case), ".2f") for case in CASES]
    return f"| {METHODS[method]} | {' | '.join(cells)} |"


def at_one(game: str, method: str) -> Interval:
    found = comparison(AT_ONE[game])
    return estimate(found.best((game, "steady", method))[list(found.scales).index(1.0)])


def game_row(method: str) -> str:
    """Return the returns at a scale of 1, with the learning rates that were chosen."""
    cells = []
    for game, run in AT_ONE.items():
        chosen = comparison(run).chosen[game, "steady", method]
        cells.append(f"{text(at_one(game, method), '.2f')}, {chosen:g}")
    return f"| {METHODS[method]} | {' | '.join(cells)} |"


@pytest.mark.parametrize("method", METHODS)
def test_the_tables_have_every_method(method: str) -> None:
    assert scale_row(method) in PAGE
    assert case_row(method) in PAGE
    assert case_row(method, "methods-space-invaders") in PAGE
    assert case_row(method, "methods-changing-cartpole") in PAGE
    assert game_row(method) in PAGE


def test_the_page_says_what_was_run() -> None:
    settings = read_manifest(RESULTS / "methods")["settings"]
    assert tuple(settings["games"]) == PLAYED
    assert settings["seeds"] == read_manifest(RESULTS / "methods-changing")["settings"]["seeds"] == 10
    assert tuple(settings["scales"]) == SCALES
    assert settings["tuned"]
    assert "ten random seeds" in PAGE
    alone = read_manifest(RESULTS / "methods-space-invaders")["settings"]
    assert (alone["games"], tuple(alone["scales"]), alone["seeds"]) == (["space_invaders"], SCALES, 10)
    assert tuple(alone["cases"]) == tuple(CASES)
    for run in (
        "methods",
        "methods-changing",
        "methods-changing-cartpole",
        "methods-space-invaders",
        "methods-asterix-tuned",
    ):
        command = read_manifest(RESULTS / run)["command"]
        assert f"`{command.replace(' '.join(METHODS), 'all')}`" in PAGE.replace("\n", " ")


@pytest.mark.parametrize("run", sorted(path.name for path in RESULTS.glob("methods*")))
def test_a_stored_run_can_be_extended_with_its_own_command(run: str) -> None:
    manifest = read_manifest(RESULTS / run)
    stored: dict[str, Any] = {
        name: tuple(x) if isinstance(x, list) else x for name, x in manifest["settings"].items()
    }
    assert stored.keys() | {"out"} == {field.name for field in fields(Scale)}
    assert manifest["command"] == command_line("scale", Scale(**stored, out=Path("results/lab") / run))


def asterix(run: str, method: str) -> Interval:
    found = comparison(run)
    return estimate(found.best(("asterix", "steady", method))[0])


@pytest.mark.parametrize("name", METHODS)
def test_the_table_of_asterix_has_every_method(name: str) -> None:
    tuned = comparison("methods-asterix-tuned")
    longer = read_manifest(RESULTS / "methods-asterix")["settings"]["methods"]
    second = text(asterix("methods-asterix", name), ".2f") + " " if name in longer else ""
    first = text(asterix("methods-asterix-tuned", name), ".2f")
    assert f"| {METHODS[name]} | {first}, {tuned.chosen['asterix', 'steady', name]:g} | {second}|" in PAGE


def test_methods_that_are_free_of_scale_are_the_worst_on_asterix() -> None:
    found = {name: asterix("methods-asterix-tuned", name) for name in METHODS}
    free = {"popart", "popart_adam", "scale_only", "adaptive_bins"}
    assert max(found[name].value for name in free) < min(
        found[name].value for name in METHODS if name not in free
    )
    pop, others = found["popart"], ("art", "unclipped", "hl_gauss")
    numbers = [f"{x.value:.2f}" for x in (pop, *(found[name] for name in others))]
    expected = (
        "Pop-Art has {}, where random play has 0.50, Art without Pop {}, plain Double DQN {} and HL-Gauss {}"
    )
    assert expected.format(*numbers) in NOT_THE_BEST.replace("\n  ", " ")


def test_the_table_of_epsilons_is_that_of_the_benchmark() -> None:
    rows = [row for row in read_table(ROOT / "results" / "epsilon.csv") if row["learning rate"] == "0.001"]
    section = " ".join(PAGE.split("### RMSProp's epsilon")[1].split("\n## ")[0].split())
    for name in ("unclipped", "art", "popart"):
        mine = [row for row in rows if row["method"] == METHODS[name]]
        assert [row["ε"] for row in mine] == ["0.01", "0.0001", "1e-06"]
        assert f"| {METHODS[name]} | {' | '.join(row['return'] for row in mine)} |" in section
        assert f"{float(mine[1]['value']):.2f}" in section
        assert mine[0]["gradient / √ε"] in section
    art, pop = (
        row["norm of the last layer"] for row in rows if row["ε"] == "0.01" and row["method"] != "Double DQN"
    )
    with_pop, with_art = (
        [float(row["return"].split()[0]) for row in rows if row["method"] == METHODS[name]]
        for name in ("popart", "art")
    )
    ratios = [f"{mine / theirs:.2f}" for mine, theirs in zip(with_pop, with_art, strict=True)]
    assert f"Pop-Art has {ratios[0]} of Art's return with DQN's ε and {ratios[1]} with 10⁻⁴" in section
    assert f"their norm is {pop} with Pop-Art and {art} with Art" in section


@pytest.mark.parametrize("name", ["unclipped", "popart"])
def test_the_table_of_epsilons_in_asterix_is_that_of_the_benchmark(name: str) -> None:
    mine = [
        row for row in read_table(ROOT / "results" / "epsilon_asterix.csv") if row["method"] == METHODS[name]
    ]
    rows = [row for row in mine if row["learning rate"] == "0.001"]
    assert [row["ε"] for row in rows] == ["0.0001", "0.01", "1", "100"]
    cells = [f"{row['return']} [{row['gradient / √ε']}]" for row in rows]
    assert f"| {METHODS[name]} | {' | '.join(cells)} |" in PAGE


def test_nobody_learns_catch_after_constant_rewards() -> None:
    found = comparison("methods-changing")
    values = [estimate(found.best(("catch", "constant", method))[0]).value for method in METHODS]
    assert f"({min(values):.2f} to {max(values):.2f}, and".replace("-", "−") in PAGE


def overlap(first: Interval, second: Interval) -> bool:
    return first.low <= second.high and second.low <= first.high


def test_popart_has_the_same_return_at_every_scale_and_plain_double_dqn_at_one() -> None:
    pop = [round(normalized("methods", "popart", scale=scale).value, 2) for scale in SCALES]
    assert (min(pop), max(pop)) == (0.9, 0.92)
    plain = [normalized("methods", "unclipped", scale=scale).value for scale in SCALES]
    assert round(plain[2], 2) == 0.8
    assert max(plain[:2] + plain[3:]) < 0.075


@pytest.mark.parametrize("other", ["vecnormalize", "adaptive_bins", "art"])
def test_others_are_as_good_as_popart_at_the_scales_that_the_page_names(other: str) -> None:
    for scale in SCALES[2:] if other == "vecnormalize" else SCALES:
        assert overlap(
            normalized("methods", "popart", scale=scale), normalized("methods", other, scale=scale)
        )


@pytest.mark.parametrize("run", ["methods-changing", "methods-changing-cartpole", "methods-space-invaders"])
def test_the_stored_tables_are_those_of_the_results(run: str) -> None:
    found = comparison(run)
    assert read_table(RESULTS / run / "better.csv") == list(better_than_popart(found))
    assert read_table(RESULTS / run / "guide.csv") == list(guide(found))


def test_no_method_is_better_than_popart_on_four_games_with_steady_rewards() -> None:
    assert not list(better_than_popart(comparison("methods")))


def test_the_guide_names_the_best_method_and_those_whose_intervals_overlap_with_its() -> None:
    found = comparison("methods-changing")
    for row, case in zip(guide(found), CASES, strict=True):
        values = {METHODS[name]: normalized("methods-changing", name, case) for name in METHODS}
        best = max(values, key=lambda label: values[label].value)
        as_good = {label for label in values if overlap(values[label], values[best])} - {best}
        assert row["your rewards"] == CASES[case]
        assert row["best"] == f"{best} {values[best].text('.2f')}"
        assert set(row["as good"].split("; ")) == (as_good or {"none"})


@pytest.mark.parametrize(
    "method", ["art", "unclipped_adam", "return_scaling", "popart_adam", "hl_gauss", "two_hot"]
)
def test_others_are_better_than_popart_in_space_invaders(method: str) -> None:
    better = at_one("space_invaders", method)
    assert better.low > at_one("space_invaders", "popart").high
    assert f"({better.value:.2f}" in NOT_THE_BEST


def test_what_the_page_says_of_space_invaders_at_every_scale() -> None:
    def values(name: str, case: str = "steady") -> list[float]:
        return [normalized("methods-space-invaders", name, case, scale).value for scale in SCALES]

    page = PAGE.split("### Space Invaders, at every scale")[1].replace("\n  ", " ")
    for name in ("popart", "art", "popart_adam"):
        assert f"{min(values(name)):.2f} to {max(values(name)):.2f}" in page
    rare = {name: normalized("methods-space-invaders", name, "rare") for name in METHODS}
    follow = ("popart", "popart_adam", "art", "scale_only", "vecnormalize", "percentile_span")
    assert all(rare[name].high < 0 for name in follow)
    assert rare["adaptive_bins"].low > 0
    assert [round(rare[name].value, 2) for name in ("hl_gauss", "clipped")] == [0.52, 0.42]
    constant = {name: normalized("methods-space-invaders", name, "constant").value for name in METHODS}
    assert (max(constant, key=constant.__getitem__), round(max(constant.values()), 2)) == ("h", 0.13)
    run = RESULTS / "methods-space-invaders"
    agents = len(read_table(run / "returns.csv")) + len(read_table(run / "tuning.csv"))
    assert f"These are {agents:,} agents" in page
    assert "H200" in read_manifest(run)["device"]


def test_what_the_page_says_of_cartpole_with_changing_rewards() -> None:
    def found(name: str, case: str) -> Interval:
        return normalized("methods-changing-cartpole", name, case)

    page = " ".join(PAGE.split("### CartPole with changing rewards")[1].split("\n### ")[0].split())
    grows = {name: found(name, "grows") for name in METHODS}
    assert max(grows, key=lambda name: grows[name].value) == "popart"
    worse, overlapping = ("clipped", "vecnormalize", "hl_gauss"), ("art", "popart_adam")
    assert all(grows[name].high < grows["popart"].low for name in worse)
    assert all(overlap(grows[name], grows["popart"]) for name in overlapping)
    assert all(f"({grows[name].value:.2f})" in page for name in ("popart", *worse, *overlapping))
    assert all(found(name, "constant") == found(name, "steady") for name in METHODS)
    better = read_table(RESULTS / "methods-changing-cartpole" / "better.csv")
    assert [(row["rewards"], row["better"]) for row in better] == [(CASES["shrinks"], "percentile span 1.00")]
    assert f"better than Pop-Art ({found('popart', 'shrinks').value:.2f})" in page
    rare = [round(found(name, "rare").value, 1) for name in METHODS]
    assert sum(0.4 <= value <= 0.7 for value in rare) == 13


WITH_ADAM = ("two_hot", "hl_gauss", "adaptive_bins", "popart_adam", "unclipped_adam")


def listed_as_better() -> list[dict[str, str]]:
    return read_table(RESULTS / "methods-changing" / "better.csv")


@pytest.mark.parametrize(
    ("case", "better"),
    [
        ("grows", ("vecnormalize", "clipped")),
        ("rare", ("hl_gauss", "clipped", "symlog")),
        ("steady", ("hl_gauss", "popart_adam")),
        ("constant", ("unclipped_adam",)),
        (
            "shrinks",
            ("vecnormalize", "unclipped_adam", "popart_adam", "hl_gauss", "adaptive_bins", "two_hot"),
        ),
    ],
)
def test_others_are_better_than_popart_where_the_page_says_so(case: str, better: tuple[str, ...]) -> None:
    pop = normalized("methods-changing", "popart", case)
    assert f"{pop.value:.2f}" in NOT_THE_BEST
    found = [normalized("methods-changing", method, case) for method in better]
    assert all(interval.low > pop.high for interval in found)
    assert all(f"{interval.value:.2f}" in NOT_THE_BEST for interval in found)
    (listed,) = (row["better"].split("; ") for row in listed_as_better() if row["rewards"] == CASES[case])
    assert {f"{METHODS[m]} {x.value:.2f}" for m, x in zip(better, found, strict=True)} <= set(listed)
    if case != "rare":  # of which the page names three
        assert len(listed) == len(better)


def test_every_case_with_a_better_method_is_one_that_the_list_was_tested_for() -> None:
    assert {row["rewards"] for row in listed_as_better()} == set(CASES.values())


def common_rate(game: str, method: str) -> Interval | None:
    """Return the return at a scale of 1 with the common learning rate, if another one was chosen."""
    found, cell = comparison(AT_ONE[game]), (game, "steady", method)
    if found.chosen[cell] == RATE:
        return None
    return estimate(found.returns[cell, RATE][list(found.scales).index(1.0)])


def test_chosen_learning_rates_that_are_worse_with_ten_seeds() -> None:
    worse, apart = {}, set[tuple[str, str]]()
    for cell in product(AT_ONE, METHODS):
        common, chosen = common_rate(*cell), at_one(*cell)
        if common is not None and round(common.value, 2) > round(chosen.value, 2):
            worse[cell] = f"{common.value:.2f} against {chosen.value:.2f}"
            apart |= {cell} if common.low > chosen.high else set()
    places = ("freeway", "popart"), ("freeway", "art"), ("freeway", "scale_only")
    assert worse.keys() == {*places, ("cartpole", "clipped")}
    assert apart == {("freeway", "art")}
    assert all(f"({pair})" in PAGE.replace("\n  ", " ") for pair in worse.values())


def test_the_common_learning_rate_is_too_small_for_some_methods_on_catch() -> None:
    """With ten seeds and the steps of --quick."""
    assert QUICK["steps"] == GAMES["catch"].steps == 20_000
    slow, text = ("two_hot", "adaptive_bins", "h"), PAGE.replace("\n", " ")
    common = [f"{found.value:.2f}" for name in slow if (found := common_rate("catch", name))]
    best = [f"{at_one('catch', name).value:.2f}" for name in slow]
    assert "{}, {} and {} with it".format(*common) in text
    assert "{}, {} and {} with 0.003".format(*best) in text
    assert {comparison("methods").chosen["catch", "steady", name] for name in slow} == {3e-3}


def own_settings(label: str) -> str:
    (row,) = re.findall(
        rf"^\| {re.escape(label)} \|(.*)\|$", PAGE.split("### Settings of each method")[1], re.M
    )[:1]
    return row


def test_the_page_has_the_settings_of_each_method() -> None:
    heads: dict[str, Any] = {name: config_of(name, GAMES["catch"].reach).head(3) for name in METHODS}
    for name in METHODS:
        assert METHODS[name] in PAGE.split("### Settings of each method")[1].split("\n## ")[0]
    for name in ("two_hot", "hl_gauss", "adaptive_bins"):
        bins = heads[name].histogram
        assert f"{bins.bins} bins from −{-bins.low:g} to {bins.high:g}" in own_settings(METHODS[name])
    assert f"σ of {heads['hl_gauss'].histogram.ratio} bins" in own_settings("HL-Gauss")
    assert f"±{config_of('hl_gauss', GAMES['cartpole'].reach).reach:g} on CartPole" in own_settings(
        "HL-Gauss"
    )
    span: Any = heads["percentile_span"].art
    rewards: Any = method("vecnormalize").rewards
    assert (span.low, span.high, 1 - span.beta, span.floor) == (0.05, 0.95, 0.99, 1)
    assert "5th and 95th percentile, 0.99 of the last span, floor of 1" in own_settings("percentile span")
    assert (rewards.epsilon, rewards.limit, heads["h"].transform.epsilon) == (1e-8, 10, 1e-3)
    assert {config_of(name, 10).beta for name in METHODS} == {heads["popart"].art.beta} == {1e-3}
    assert {config_of(name, 10).learning_rate for name in METHODS} == {RATE} == {1e-3}
    assert {config_of(name, 10).discount for name in METHODS} == {0.99}
    adam = {name for name in METHODS if method(name).optimizer == "adam"}
    assert adam == set(WITH_ADAM)


def test_no_method_is_a_straw_man_at_scale_1_but_for_those_that_the_page_names() -> None:
    """In four games each is as good as one of the two baselines, or intervals overlap."""
    weak = set()
    for game in (*PLAYED[:3], "space_invaders"):
        found = {method: at_one(game, method) for method in METHODS}
        least = min(found["unclipped"].low, found["clipped"].low)
        weak |= {(game, method) for method, interval in found.items() if interval.high < least}
    assert weak == {("breakout", "h"), ("breakout", "symlog"), ("space_invaders", "h")}


def test_costs_of_moving_bins_are_those_measured() -> None:
    rows = read_table(ROOT / "results" / "reprojection.csv")
    found = {row["change of units"]: row["root mean square"] for row in rows if row["head"].startswith("51")}
    for change in ("scale × 1.25", "scale × 2", "scale × 10", "scale × 10⁴", "shift + 1 scale"):
        assert f"| {change} | {found[change]} |" in PAGE
    assert f"| 10,000 updates, following each of them | {found['10,000 updates, slack 0']} |" in PAGE
