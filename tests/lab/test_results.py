"""Numbers in the documentation about runs on a GPU are those in the files of these runs."""

import json
import re
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from popart.lab.envs.games import scores
from popart.lab.experiments.gradient_norms.analysis import spread
from popart.lab.experiments.reward_scale.config import METHODS
from popart.lab.files import read_table
from popart.lab.intervals import over_games
from popart.lab.manifest import read_manifest

ROOT = Path(__file__).parents[2]
RUNS = sorted((ROOT / "results" / "atari").iterdir())


def cells(page: str, first: str) -> list[str]:
    """Return the cells of the last row of a table that begins with `first`, without markup."""
    text = (ROOT / "docs" / "explanation" / page).read_text("utf-8")
    rows = re.findall(rf"^ *\| {first} \|(.*)\|$", text, re.MULTILINE)
    return [cell.strip().strip("*").replace(",", "").replace("−", "-") for cell in rows[-1].split("|")]


def words(page: str) -> str:
    """Return the text of a page in one line."""
    return " ".join((ROOT / page).read_text("utf-8").split())


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_runs_of_atari(run: Path) -> None:
    manifest = read_manifest(run)
    settings = manifest["settings"]
    assert manifest["finished"]
    assert "NVIDIA" in manifest["device"]
    last = read_table(run / "metrics.csv")[-1]
    (evaluation,) = run.glob("evaluation-*")
    assert read_manifest(evaluation)["finished"]
    episodes = [float(row["score"]) for row in read_table(evaluation / "episodes.csv")]
    assert len(episodes) == 100

    paper = next(score for score in scores() if score.game == settings["game"])
    dtype = "" if settings["dtype"] == "float32" else f", {settings['dtype']}"
    frames, training, found, random, theirs = cells(
        "atari.md", f"{paper.title}, `{settings['agent']}`{dtype}"
    )
    mean, error = (float(number) for number in found.split("±"))
    assert float(frames) == round(int(last["frames"]) / 1e6, 1)
    assert float(training) == pytest.approx(float(last["score_100"]), rel=0.003)
    assert mean == pytest.approx(np.mean(episodes), rel=0.001, abs=0.05)
    assert error == pytest.approx(np.std(episodes) / 10, rel=0.01, abs=0.05)
    assert float(random) == pytest.approx(paper.random, rel=0.002)
    published = paper.popart if settings["agent"] == "popart" else paper.double_dqn
    assert float(theirs) == pytest.approx(published, rel=0.001)


SAME_HEAD = ("clipped", "vecnormalize", "unclipped_adam", "popart_adam")
"""Methods of `popart scale` whose head is that of another."""


@pytest.mark.parametrize(
    ("head", "row"),
    [
        ("linear", "linear"),
        ("popart", "popart"),
        ("TorchRL PopArtValueNorm", "TorchRL PopArtValueNorm"),
        ("popart, head.loss", "popart, `head.loss`"),
    ],
)
def test_a_small_step(head: str, row: str) -> None:
    rows = read_table(ROOT / "results" / "head_small_cpu.csv")
    (found,) = (row for row in rows if row["module"] == "torch" and row["head"] == head)
    line = f"| {row} | {found['ms per step']} | {found['ratio to linear']} | {found['quartiles']} |"
    assert line in (ROOT / "docs" / "explanation" / "speed.md").read_text("utf-8")


def test_the_heads_of_all_methods_in_jax() -> None:
    rows = [row for row in read_table(ROOT / "results" / "head_small_cpu.csv") if row["module"] == "jax"]
    assert {row["head"] for row in rows} == {METHODS[name] for name in METHODS if name not in SAME_HEAD}
    bins = ("two-hot", "HL-Gauss")
    linear = [float(row["ratio to linear"]) for row in rows if not row["head"].startswith(bins)]
    categorical = [float(row["ratio to linear"]) for row in rows if row["head"].startswith(bins)]
    page = (ROOT / "docs" / "explanation" / "speed.md").read_text("utf-8")
    assert f"at most {max(linear):.2f} times" in page
    assert f"the categorical ones {min(categorical):.2f} to {max(categorical):.2f} times" in page


def test_the_time_of_an_update() -> None:
    """The pages have the time of an update of a head for a batch of 32, in eager PyTorch."""
    rows = [
        row
        for row in read_table(ROOT / "results" / "statistics.csv")
        if (row["mode"], row["batch"]) == ("eager", "32") and row["what"].startswith("popart, head.update")
    ]
    times = [float(row["µs per update"]) / 1000 for row in rows]
    alone = next(t for t, row in zip(times, rows, strict=True) if row["head"] == "512→1")
    assert f"takes {alone:.3f} ms on a CPU" in words("docs/explanation/limits.md")
    assert f"{min(times):.3f} to {max(times):.3f} ms" in words("docs/how-to/stable-baselines3.md")


def test_statistics_of_many_tasks() -> None:
    ratios = [float(cells("speed.md", name)[2]) for name in ("JAX, jitted", "NumPy", "PyTorch, eager")]
    ratios += [float(cells("speed.md", "PyTorch, compiled")[2])]
    said = f"{min(ratios):.1f} to {max(ratios):.1f} times"
    assert said in words("docs/how-to/several-tasks.md")
    assert said in words("docs/explanation/limits.md")


def test_ratios_outside_of_their_quartiles_are_counted() -> None:
    rows = read_table(ROOT / "results" / "statistics.csv")
    ranges = [[float(x) for x in row["quartiles"].split(" to ")] for row in rows]
    outside = sum(
        not low <= float(row["ratio to first"]) <= high for row, (low, high) in zip(rows, ranges, strict=True)
    )
    assert f"it does in {outside} of the {len(rows)} rows of `results/statistics.csv`" in words(
        "docs/explanation/speed.md"
    )


def test_two_workers_of_a_campaign() -> None:
    file = ROOT / "results" / "campaign_cpu.csv"
    one, two = read_table(file)
    load = json.loads(file.with_suffix(".json").read_text("utf-8"))["load of the machine"]
    page = words("docs/how-to/campaign.md")
    assert f"in {two['seconds']} s; one worker with both cores took {one['seconds']} s" in page
    divided = "of one worker's time divided by workers"
    assert f"two took {two[divided]} times half of its time" in page
    assert f"a load of {load} on its two cores" in page


@pytest.mark.parametrize("run", ["breakout-popart", "ms_pacman-popart", "breakout-popart-bf16"])
def test_the_speed_of_atari(run: str) -> None:
    file = ROOT / "results" / f"atari_{run}.csv"
    found = {row["what"]: row for row in read_table(file)}
    seconds = json.loads(file.with_suffix(".json").read_text("utf-8"))["seconds"]
    game, dtype = found["emulators"]["game"], found["emulators"]["dtype"]
    title = next(score.title for score in scores() if score.game == game)
    *rates, part, told = cells("speed.md", f"{title}, {dtype}")
    assert rates == [found[what]["frames/s"] for what in ("emulators", "learner", "end to end")]
    assert (part, float(told)) == (found["emulators"]["end to end / this"], round(seconds))

    half_minutes, since = [], None
    for row in read_table(ROOT / "results" / "atari" / run / "metrics.csv"):
        now = np.array([int(row["frames"]), float(row["seconds"])])
        if int(row["updates"]) and since is None:
            since = now
        elif since is not None and now[1] - since[1] >= 30:
            frames, took = now - since
            half_minutes.append(round(frames / took, -3))
            since = now
    assert len(half_minutes) > 10
    assert f"{min(half_minutes):,.0f} and {max(half_minutes):,.0f}" in words("docs/explanation/speed.md")


FLEETS = {
    "all": "57 games, float32",
    "all-bf16": "57 games, bfloat16",
    "breakout": r"one game \(Breakout\), float32",
}


@pytest.mark.parametrize("name", FLEETS)
def test_the_table_of_fleets(name: str) -> None:
    file = ROOT / "results" / f"atari_{name}.csv"
    found = {row["what"]: row for row in read_table(file)}
    about = json.loads(file.with_suffix(".json").read_text("utf-8"))
    *rates, part, told = cells("speed.md", FLEETS[name])
    assert rates == [found[what]["frames/s"] for what in ("emulators", "learner", "end to end")]
    assert (part, float(told)) == (found["emulators"]["end to end / this"], round(about["seconds"]))


def test_the_speed_of_a_fleet() -> None:
    file = ROOT / "results" / "atari_all.csv"
    found = {row["what"]: row for row in read_table(file)}
    about = json.loads(file.with_suffix(".json").read_text("utf-8"))
    for name in ("end_to_end_by_minute", "emulators_by_minute"):
        assert f"{min(about[name]):,} and {max(about[name]):,}" in words("docs/explanation/speed.md")
    assert f"first turn, 1,368 emulators and 57 agents take {about['start_seconds']:.0f} seconds" in words(
        "docs/explanation/speed.md"
    )
    rate = f"{round(float(found['end to end']['frames/s']), -3):,.0f}"
    assert f"57 games at {rate} frames per second" in words("README.md")


def rate_of(run: str) -> str:
    """Return the frames per second of a run from end to end, rounded to thousands."""
    *_, whole = read_table(ROOT / "results" / f"atari_{run}.csv")
    return f"{round(float(whole['frames/s']), -3):,.0f}"


def test_the_rate_of_one_game_is_that_of_this_release() -> None:
    about = json.loads((ROOT / "results" / "atari_breakout.json").read_text("utf-8"))
    assert {"--agent", "--optimizer", "--threads"}.isdisjoint(about["arguments"].split())
    assert round(about["seconds"]) == 122
    assert f"{rate_of('breakout')} frames per second on Breakout" in words("README.md")
    assert f"{rate_of('breakout')} frames per second on Breakout for two minutes" in words(
        "docs/explanation/atari.md"
    )


def test_rates_of_the_first_release_are_said_to_be_its() -> None:
    old = [rate_of("breakout-popart"), rate_of("ms_pacman-popart")]
    said = "`popart` with Adam at {} frames per second on Breakout and {} on Ms. Pac-Man".format(*old)
    assert said in words("docs/explanation/atari.md").split("The first release, whose emulators")[1]
    assert not any(rate in words("README.md") for rate in old)


def test_thirds_of_training_on_breakout() -> None:
    for run, dtype in (("breakout-popart", "float32"), ("breakout-popart-bf16", "bfloat16")):
        thirds: list[list[float]] = [[], [], []]
        for row in read_table(ROOT / "results" / "atari" / run / "metrics.csv"):
            if row["score_100"]:
                thirds[min(int(row["frames"]) // 8_000_000, 2)].append(float(row["score_100"]))
        first, second, third = (f"{np.mean(scores):.0f}" for scores in thirds)
        assert f"{first}, {second} and {third} with {dtype}" in words("docs/explanation/atari.md")


@pytest.mark.parametrize("weights", ["dqn", "he"])
@pytest.mark.parametrize("agent", ["clipped", "unclipped", "popart"])
def test_gradients_beside_the_epsilon_of_rmsprop(agent: str, weights: str) -> None:
    early, late = (
        row
        for row in read_table(ROOT / "results" / "start_gradients.csv")
        if (row["agent"], row["start"], row["layer"]) == (agent, weights, "all")
    )
    assert (early["updates"], late["updates"]) == ("100", "2000")
    size, below = cells("atari.md", f"`{agent}`, {'`he`' if weights == 'he' else 'DQN.s weights'}")
    name = "rms / sqrt(epsilon)"
    assert size == f"{float(early[name]):.2g} ({float(late[name]):.2g})"
    name = "below sqrt(epsilon), %"
    assert below == f"{early[name]} % ({late[name]} %)"


def test_only_the_first_convolution_and_the_head_have_gradients_near_the_root_of_epsilon() -> None:
    rows = read_table(ROOT / "results" / "start_gradients.csv")
    popart = [row for row in rows if (row["agent"], row["start"]) == ("popart", "dqn")]
    large = {row["layer"] for row in popart if float(row["rms / sqrt(epsilon)"]) > 0.5}
    assert large == {"convolution 1", "head"}
    assert min(float(row["below sqrt(epsilon), %"]) for row in popart if row["layer"] == "all") > 99.7


def test_values_by_the_number_of_copies() -> None:
    """After n copies, values are right for n + 1 steps before the reward, and near 0 farther away."""
    rows = {
        row.pop("copies"): list(row.values()) for row in read_table(ROOT / "results" / "start_backups.csv")
    }
    for copies in ("0", "2", "4", "6", "8", "best play"):
        assert cells("atari.md", copies) == rows[copies]
    best = [float(x) for x in rows.pop("best play")]
    for copies, values in rows.items():
        reached = int(copies) + 1
        assert all(abs(float(x) - y) < 0.1 for x, y in zip(values[:reached], best, strict=False))
        assert all(abs(float(x)) < 0.1 for x in values[reached:])


@pytest.mark.parametrize("agent", ["clipped", "popart"])
def test_variance_explained_by_initial_weights(agent: str) -> None:
    rows = [row for row in read_table(ROOT / "results" / "start.csv") if row["agent"] == agent]
    assert cells("atari.md", f"`{agent}`") == [f"{float(row['explained after 8000']):.2f}" for row in rows]


ORDERS = {
    "here, all 57 games": "orders of magnitude",
    "here, the 53 games with scores": "orders of magnitude, 53 games with scores",
}


def test_the_norms_of_57_games() -> None:
    """Fig. 1b: the page has the ranges of the report, and claims no agreement that is not found."""
    report = ROOT / "results" / "lab" / "campaign"
    norms = {row["game"]: row for row in read_table(report / "norms.csv")}
    agents = ("unclipped", "clipped", "popart")
    for row, name in ORDERS.items():
        expected = [[float(x) for x in re.findall(r"[\d.]+", norms[name][agent])] for agent in agents]
        shown = [[float(x) for x in re.findall(r"[\d.]+", cell)] for cell in cells("atari.md", row) if cell]
        np.testing.assert_allclose(shown, expected, atol=0.0501)
    agrees = [finding["agrees"] for finding in read_manifest(report)["findings"]]
    assert agrees == [False, False, False, True, False]
    assert (report / "figure_1b.png").read_bytes() == (ROOT / "docs" / "figure_1b.png").read_bytes()
    (about,) = read_table(report / "about.csv")
    assert (about["games"], about["frames"], about["runs compared"]) == ("57", "520,000", "171")
    assert "same sign on 29 of 57" in read_manifest(report)["findings"][0]["here"]


def test_the_norms_at_the_end_of_training() -> None:
    lines: dict[tuple[str, str], list[float]] = {}
    for row in read_table(ROOT / "results" / "lab" / "campaign" / "gradients.csv"):
        lines.setdefault((row["game"], row["agent"]), []).append(32 * float(row["gradient_norm"]))
    silent = {"enduro", "freeway", "montezuma_revenge", "venture"}
    scored = sorted({game for game, _ in lines} - silent)
    assert len(scored) == 53
    shown = cells("atari.md", "here, these 53, last third of the updates")
    for agent, cell in zip(("unclipped", "clipped", "popart"), shown, strict=False):
        third = [lines[game, agent][-(len(lines[game, agent]) // 3) :] for game in scored]
        found = over_games(spread, [float(np.median(norms)) for norms in third])
        np.testing.assert_allclose([float(x) for x in re.findall(r"[\d.]+", cell)], found, atol=0.0501)
    last = [lines[game, "popart"][-1] for game in scored]
    low, high = np.quantile(last, (0.25, 0.75))
    assert f"between {low:.0f} and {high:.0f} after 27,500 updates" in words("docs/explanation/atari.md")


def test_stored_runs_of_the_campaign_are_finished_and_equally_long() -> None:
    runs = sorted((ROOT / "results" / "campaign").iterdir())
    assert len(runs) == 3 * 57
    for run in runs:
        manifest = read_manifest(run)
        assert manifest["finished"]
        assert "NVIDIA H200" in manifest["device"]
        assert manifest["settings"]["frames"] == 520_000
        assert int(read_table(run / "metrics.csv")[-1]["updates"]) == pytest.approx(27_500, abs=20)


def test_the_command_of_the_campaign_is_that_of_its_runs() -> None:
    page = (ROOT / "docs" / "explanation" / "atari.md").read_text("utf-8")
    (block,) = re.findall(r"```\n(popart campaign start --agents [^`]*)```", page)
    shown = " ".join(block.replace("\\\n", " ").split())
    for agent in ("popart", "clipped", "unclipped"):
        agents = "unclipped" if agent == "unclipped" else "popart clipped unclipped"
        command = shown.replace("--agents popart clipped unclipped", f"--agents {agents}")
        runs = (ROOT / "results" / "campaign").glob(f"*-{agent}-0")
        assert {read_manifest(run)["command"] for run in runs} == {command}


def test_the_fleets_of_the_campaign_took_22_minutes() -> None:
    seconds = 0.0
    for agent in ("popart", "clipped", "unclipped"):
        runs = [read_manifest(run) for run in (ROOT / "results" / "campaign").glob(f"*-{agent}-0")]
        first = min(datetime.fromisoformat(run["started"]) for run in runs)
        last = max(datetime.fromisoformat(run["finished"]) for run in runs)
        seconds += (last - first).total_seconds()
    assert round(seconds / 60) == 22
    assert words("docs/explanation/atari.md").count("22 minutes") == 2


def test_what_was_run_of_section_4() -> None:
    """One seed of each; the page names what is missing."""
    atari = [read_manifest(run)["settings"] for run in RUNS]
    campaign = [read_manifest(run)["settings"] for run in (ROOT / "results" / "campaign").iterdir()]
    assert {run["seed"] for run in (*atari, *campaign)} == {0}
    assert (len(atari), len({run["game"] for run in atari})) == (6, 4)
    lengths = [run["frames"] / 1e6 for run in atari]
    said = f"six runs of {min(lengths):.0f} to {max(lengths):.0f} million frames on four games"
    assert said in words("docs/explanation/atari.md")
