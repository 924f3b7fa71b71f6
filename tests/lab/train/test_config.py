"""Options of `popart train`: defaults by game, given options that nothing overrides, and errors."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tyro

from popart.lab.checks import LabError
from popart.lab.cli import main
from popart.lab.dqn.config import ATARI_SCHEDULE, SMALL_SCHEDULE
from popart.lab.envs.games import ATARI
from popart.lab.runs import command_line
from popart.lab.train.config import Member, ScheduleOptions, Train, flat, member_of


def parsed(*words: str) -> Train:
    return tyro.cli(Train, args=list(words))


def member(**options: Any) -> Member:
    (one,) = Train.of(**options).members()
    return one


def test_defaults_on_atari_are_those_of_double_dqn() -> None:
    one = member(game="ms_pacman")
    assert one.schedule == ATARI_SCHEDULE
    assert (one.agent.batch, one.agent.discount, one.agent.beta) == (32, 0.99, 1e-4)
    assert (one.frames, one.replay_size, one.sticky) == (200_000_000, 1_000_000, 0.0)
    assert (one.num_envs, one.groups, one.dtype) == (512, 4, "float32")
    assert (one.log_every, one.evaluate_every) == (20_000, 10_000_000)


@pytest.mark.parametrize(
    ("game", "options", "expected"),
    [
        ("all", {}, (24, 3)),
        (("pong", "breakout", "boxing"), {}, (340, 4)),
        ("pong", {"num_envs": 16}, (16, 2)),
        ("pong", {"num_envs": 8}, (8, 1)),
        ("pong", {"num_envs": 1}, (1, 1)),
        ("pong", {"num_envs": 8, "groups": 4}, (8, 4)),
    ],
)
def test_up_to_four_groups_of_at_least_eight_environments(
    game: Any, options: dict[str, int], expected: tuple[int, int]
) -> None:
    one = Train.of(game=game, **options).members()[0]
    assert (one.num_envs, one.groups) == expected


def test_small_games_have_defaults_of_their_own() -> None:
    one = member(game="catch")
    assert one.schedule == SMALL_SCHEDULE
    assert (one.agent.learning_rate, one.agent.beta) == (1e-3, 1e-3)
    assert (one.frames, one.num_envs, one.replay_size, one.groups) == (50_000, 8, 50_000, 1)
    assert (one.log_every, one.evaluate_every) == (1000, 10_000)


ATARI_VALUES = {
    "frames": 200_000_000,
    "num_envs": 512,
    "replay_size": 1_000_000,
    "warm_up": 50_000,
    "exploration": 1_000_000,
    "epsilon": 0.01,
    "copy_every": 30_000,
    "learning_rate": 1e-4,
    "beta": 1e-4,
    "log_every": 20_000,
    "evaluate_every": 10_000_000,
}


@pytest.mark.parametrize("name", ATARI_VALUES)
def test_a_given_option_is_never_overridden_even_if_it_is_the_default_of_other_games(name: str) -> None:
    """Each option whose default depends on the game is given on a small game, with the value for Atari."""
    value = ATARI_VALUES[name]
    (one,) = parsed("--game", "catch", f"--{name.replace('_', '-')}", f"{value}").members()
    assert flat(one)[name] == value
    given = flat(member(game="catch"))
    assert given[name] != value
    assert {k: v for k, v in flat(one).items() if k != name} == {k: v for k, v in given.items() if k != name}


def test_the_learning_rate_depends_on_agent_and_optimizer_unless_it_is_given() -> None:
    agents = ("clipped", "unclipped", "popart")
    members = Train.of(game="pong", agent=agents).members()
    assert [one.agent.learning_rate for one in members] == [2.5e-4, 1e-4, 1e-4]
    assert member(game="pong", optimizer="adam").agent.learning_rate == 6.25e-5
    given = Train.of(game="pong", agent=agents, learning_rate=1e-4).members()
    assert [one.agent.learning_rate for one in given] == [1e-4] * 3


def test_the_three_agents_differ_in_nothing_but_their_name_and_learning_rate() -> None:
    """Double DQN has the learning rate of its own paper; the other two have the one of this paper."""
    members = Train.of(game="pong", agent=("clipped", "unclipped", "popart"), seed=(3,)).members()
    clipped, unclipped, popart = map(flat, members)
    assert differences(clipped, unclipped) == {
        "agent": ("clipped", "unclipped"),
        "learning_rate": (2.5e-4, 1e-4),
    }
    assert differences(unclipped, popart) == {"agent": ("unclipped", "popart")}
    assert len({one.program for one in members}) == 3  # which the agent is a part of


def differences(one: dict[str, Any], other: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ, except for the folder of the run."""
    assert one.keys() == other.keys()
    return {name: (one[name], other[name]) for name in one.keys() - {"out"} if one[name] != other[name]}


def test_the_same_settings_share_a_program_whatever_game_seed_and_frames_are() -> None:
    games = Train.of(game=("pong", "breakout"), seed=(0, 1), num_envs=8).members()
    games += Train.of(game="asterix", num_envs=8, frames=1000).members()
    assert len({one.program for one in games}) == 1
    others = [{"beta": 1e-3}, {"num_envs": 4}, {"copy_every": 100}, {"sticky": 0.25}, {"dtype": "bfloat16"}]
    others += [{"replay_size": 1000}, {"reward_scale": 2.0}, {"agent": "clipped"}, {"game": "catch"}]
    programs = {member(**({"game": "pong", "num_envs": 8} | other)).program for other in others}
    assert len(programs | {games[0].program}) == len(others) + 1


def test_several_games_agents_and_seeds_are_all_combinations() -> None:
    members = parsed("--game", "pong", "catch", "--agent", "clipped", "popart", "--seed", "0", "5").members()
    assert [(one.game, one.agent.agent, one.seed) for one in members] == [
        (game, agent, seed)
        for game in ("pong", "catch")
        for agent in ("clipped", "popart")
        for seed in (0, 5)
    ]


def test_all_stands_for_all_games_and_all_agents() -> None:
    members = parsed("--game", "all", "--agent", "all").members()
    assert members == parsed("--game", "all", "--agent", "all", "popart").members()
    assert len(members) == 3 * 57
    assert {one.game for one in members} == set(ATARI)


def test_members_of_a_large_fleet_have_fewer_environments_each() -> None:
    assert member(game="pong").num_envs == 512
    numbers = [Train.of(game=ATARI[:n]).members()[0].num_envs for n in (2, 8, 57)]
    assert numbers == sorted(numbers, reverse=True)
    assert all(number % 4 == 0 and number >= 8 for number in numbers)
    assert Train.of(game="all", num_envs=512).members()[0].num_envs == 512


def test_a_single_run_has_the_given_folder_and_several_have_folders_in_it() -> None:
    assert member(game="pong", out=Path("here")).out == Path("here")
    assert member(game="pong", agent="clipped", seed=7).out == Path("runs/pong-clipped-7")
    members = Train.of(game=("pong", "catch"), out=Path("here")).members()
    assert [one.out for one in members] == [Path("here/pong-popart-0"), Path("here/catch-popart-0")]


def test_flat_options_fill_the_nested_settings() -> None:
    command = Train.of(game="catch", copy_every=30_000, beta=0.5)
    assert command == Train(
        game=("catch",),
        schedule=ScheduleOptions(copy_every=30_000),
        learning=replace(Train().learning, beta=0.5),
    )
    with pytest.raises(TypeError, match="copyevery"):
        Train.of(copyevery=3)


def test_changed_options_leave_the_others_as_they_were() -> None:
    command = Train.of(game="catch", copy_every=30_000, beta=0.5, seed=4)
    changed = command.changed(beta=0.25, game=("pong", "breakout"))
    assert flat(changed) == flat(command) | {"beta": 0.25, "game": ("pong", "breakout")}
    assert changed.changed(beta=0.5, game="catch") == command


@pytest.mark.parametrize(
    "options",
    [
        {"game": "catch"},
        {"game": "pong", "agent": "clipped", "dtype": "bfloat16", "sticky": 0.25, "num_envs": 4},
    ],
)
def test_a_member_can_be_built_from_its_flat_settings(options: dict[str, Any]) -> None:
    one = member(**options, threads=3, save_replay=False)
    assert member_of(flat(one), one.out) == one


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"game": "ms_pacman", "agent": "clipped", "frames": 1000, "num_envs": 8, "learning_rate": 3e-4},
        {"save_replay": False, "undo_overflow": True, "out": Path("a folder")},
        {"game": ("pong", "breakout"), "agent": "all", "seed": (0, 7), "optimizer": "adam", "device": "cpu"},
        {
            "game": "catch",
            "copy_every": 30_000,
            "epsilon": 0.01,
            "evaluate_every": 0,
            "reward_scale": 2.0**-4,
        },
    ],
)
def test_the_command_line_of_a_run_gives_the_same_settings_when_parsed(options: dict[str, Any]) -> None:
    command = Train.of(**options)
    words = shlex.split(command_line("train", command))
    assert words[:2] == ["popart", "train"]
    assert parsed(*words[2:]) == command


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--game", "mspacman"], ["game is 'mspacman'; did you mean 'ms_pacman'?", "yars_revenge"]),
        (["--game", "catchh"], ["did you mean 'catch'?"]),
        (["--game", "pong", "pong"], ["game has 'pong' more than once"]),
        (["--game"], ["game is empty; give at least one"]),
        (["--agent", "popat"], ["agent has 'popat'; did you mean 'popart'?", "unclipped, popart, all"]),
        (["--agent"], ["agent is empty"]),
        (["--seed", "4294967296"], ["seed is 4294967296; it must be from 0 to 4294967295"]),
        (["--seed", "1", "1"], ["seed has 1 more than once"]),
        (["--seed"], ["seed is empty"]),
        (["--frames", "0"], ["frames is 0; it must be 1 or more"]),
        (["--num-envs", "0"], ["num_envs is 0; it must be 1 or more"]),
        (["--num-envs", "6", "--groups", "4"], ["num_envs is 6; it must be a multiple of groups, 4"]),
        (["--replay-size", "0"], ["replay_size is 0; it must be 1 or more"]),
        (["--warm-up", "-1"], ["warm_up is -1; it must be 0 or more"]),
        (["--exploration", "-1"], ["exploration is -1; it must be 0 or more"]),
        (["--copy-every", "0"], ["copy_every is 0; it must be 1 or more"]),
        (["--evaluate-every", "-5"], ["evaluate_every is -5; it must be 0 or more"]),
        (["--log-every", "0"], ["log_every is 0; it must be 1 or more"]),
        (["--threads", "0"], ["threads is 0; it must be 1 or more"]),
        (["--epsilon", "1.5"], ["epsilon is 1.5; it must be between 0 and 1"]),
        (["--discount", "2"], ["discount is 2.0; it must be between 0 and 1"]),
        (["--sticky", "nan"], ["sticky is nan; it must be between 0 and 1"]),
        (["--beta", "2"], ["beta is 2.0; it must be between 0 and 1"]),
        (["--beta", "0"], ["beta is 0.0; it must be positive and finite"]),
        (["--learning-rate", "0"], ["learning_rate is 0.0; it must be positive and finite"]),
        (["--rmsprop-epsilon", "0"], ["rmsprop_epsilon is 0.0; it must be positive and finite"]),
        (["--reward-scale", "inf"], ["reward_scale is inf; it must be positive and finite"]),
        (["--checkpoint-every", "0"], ["checkpoint_every is 0.0; it must be positive and finite"]),
        (["--optimizer", "sgd"], ["--optimizer", "rmsprop", "adam"]),
        (["--step-size", "1"], ["--step-size"]),
        (["--game", "catch", "--sticky", "0.25"], ["sticky, undo_overflow and dtype are for Atari"]),
        (["--game", "catch", "--undo-overflow"], ["sticky, undo_overflow and dtype are for Atari"]),
        (["--num-envs", "256", "--replay-size", "1000"],
         ["replay_size is 1,000", "num_envs 256", "--replay-size 1536"]),
        (["--replay-size", "1000000000000"], ["takes 14134000.4 GB", "would fit", "--no-save-replay"]),
    ],
)  # fmt: skip
def test_a_wrong_option_is_named_with_what_it_may_be(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["train", *arguments, "--device", "cpu", "--out", str(tmp_path / "run")])
    assert ended.value.code == 2
    said = " ".join("".join(capsys.readouterr()).replace("│", " ").split())
    for word in words:
        assert word in said
    assert not (tmp_path / "run").exists()


def test_settings_that_contradict_each_other_are_errors_that_the_user_can_correct() -> None:
    with pytest.raises(LabError, match="num_envs is 6"):
        member(game="pong", num_envs=6, groups=4)
