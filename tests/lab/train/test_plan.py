"""Memory is computed in advance: what does not fit is refused with what would, or split into fleets."""

import re
from pathlib import Path
from typing import Any

import pytest

from popart.lab.checks import LabError
from popart.lab.envs.games import ATARI
from popart.lab.train import plan, run
from popart.lab.train.config import Member, Train
from popart.lab.train.plan import RESERVE, Room, check_replay, fleets, member_bytes

GB = 10**9


def gpu(free: int, host: int = 1000) -> Room:
    return Room(free * GB, "the GPU's memory", host * GB)


def cpu(free: int) -> Room:
    return Room(free * GB, "memory", free * GB)


def member(**options: Any) -> Member:
    return Train.of(**({"game": "pong", "num_envs": 8} | options)).members()[0]


def suggested(error: str) -> int:
    (size,) = re.findall(r"--replay-size (\d+) would fit", error)
    return int(size)


@pytest.mark.parametrize(
    ("saved", "room", "words"),
    [
        (False, cpu(10), None),
        (
            True,
            cpu(10),
            "14.5 GB of memory, and 8.9 GB are free; --replay-size 606000 would fit, or more with",
        ),
        (True, gpu(10, 10), None),
        (
            True,
            gpu(6, 10),
            "7.2 GB of the GPU's memory, and 4.9 GB are free; --replay-size 671000 would fit$",
        ),
        (
            True,
            gpu(10, 6),
            "7.2 GB of memory, and 4.9 GB are free; --replay-size 671000 would fit, or more with",
        ),
        (False, gpu(10, 1), None),
    ],
)
def test_a_replay_buffer_must_fit_where_it_is_and_where_it_is_saved(
    saved: bool, room: Room, words: str | None
) -> None:
    """On a CPU it is copied while it is saved. On a GPU the copy is in the machine's memory."""
    one = member(save_replay=saved)
    if words is None:
        check_replay(one, room)
        return
    with pytest.raises(LabError, match=words) as refused:
        check_replay(one, room)
    size = suggested(str(refused.value))
    check_replay(member(save_replay=saved, replay_size=size), room)
    with pytest.raises(LabError):
        check_replay(member(save_replay=saved, replay_size=size + 2000), room)


@pytest.mark.parametrize(("game", "observations"), [("pong", 6), ("catch", 3)])
def test_a_replay_buffer_must_hold_a_few_observations_of_each_environment(
    game: str, observations: int
) -> None:
    least = 16 * observations
    check_replay(member(game=game, num_envs=16, replay_size=least), cpu(10))
    words = f"replay_size is {least - 1}, .* num_envs 16: .* give --replay-size {least} or more"
    with pytest.raises(LabError, match=words):
        check_replay(member(game=game, num_envs=16, replay_size=least - 1), cpu(10))


def test_a_refused_run_leaves_no_folder_and_fits_with_the_suggested_size(tmp_path: Path) -> None:
    """On this machine."""
    command = Train.of(game="boxing", replay_size=10**12, device="cpu", out=tmp_path / "run")
    with pytest.raises(LabError) as refused:
        command.run()
    assert not (tmp_path / "run").exists()
    size = suggested(str(refused.value)) * 9 // 10  # other processes may have taken some memory meanwhile
    check_replay(command.changed(replay_size=size).members()[0], Room.now())


def test_members_with_the_same_settings_are_one_fleet_if_they_fit() -> None:
    members = Train.of(game=("pong", "breakout"), seed=(0, 1), num_envs=8).members()
    assert fleets(members, gpu(140)) == [members]


def test_members_with_other_settings_are_in_other_fleets() -> None:
    command = Train.of(game=("pong", "catch", "breakout", "cartpole"), agent=("clipped", "popart"))
    members = command.members()
    planned = fleets(members, gpu(140))
    assert sorted(one.name for fleet in planned for one in fleet) == sorted(one.name for one in members)
    assert [[one.name for one in fleet] for fleet in planned] == [
        ["pong-clipped-0", "breakout-clipped-0"],
        ["pong-popart-0", "breakout-popart-0"],
        ["catch-clipped-0"],
        ["catch-popart-0"],
        ["cartpole-clipped-0"],
        ["cartpole-popart-0"],
    ]
    assert all(len({one.program for one in fleet}) == 1 for fleet in planned)


@pytest.mark.parametrize("room", [gpu(20), gpu(140), cpu(40), cpu(400)], ids=str)
def test_a_fleet_that_does_not_fit_is_split_into_as_few_as_possible(room: Room) -> None:
    members = Train.of(game="all").members()
    planned = fleets(members, room)
    assert [one for fleet in planned for one in fleet] == members
    sizes = [len(fleet) for fleet in planned]
    each, copies = member_bytes(members[0]), 0 if room.on_gpu else 1
    free = room.arrays - RESERVE

    def fits(number: int) -> bool:
        return (number + copies) * each <= free

    assert all(fits(size) for size in sizes)
    assert max(sizes) - min(sizes) <= 1
    assert not fits(-(-len(members) // (len(planned) - 1))) if len(planned) > 1 else fits(57)


def test_the_plan_shows_members_memory_rate_and_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    members = Train.of(game="all", agent=("clipped", "popart"), num_envs=32).members()
    room = gpu(1000)
    plan.show(fleets(members, room), room)
    said = capsys.readouterr().err
    for word in ("57 (alien,", "57 × 32", "413.", "GB", "clipped", "popart", "frames/s", " h"):
        assert word in said
    assert "do not fit" not in said


def test_the_advised_replay_size_makes_one_fleet(capsys: pytest.CaptureFixture[str]) -> None:
    for room in (gpu(140), cpu(140)):
        command = Train.of(game="all", num_envs=32)
        planned = fleets(command.members(), room)
        plan.show(planned, room)
        said = " ".join(capsys.readouterr().err.split())
        words = f"57 members with agent popart do not fit into {room.name} (140 GB free) and are split into"
        assert f"{words} {len(planned)} fleets" in said
        (size,) = re.findall(r"--replay-size (\d+) would fit all 57 into one", said)
        assert len(fleets(command.changed(replay_size=int(size)).members(), room)) == 1
        assert len(fleets(command.changed(replay_size=int(size) + 2000).members(), room)) > 1


def test_no_replay_size_is_advised_if_none_would_do(capsys: pytest.CaptureFixture[str]) -> None:
    room = gpu(9)
    plan.show(fleets(Train.of(game=ATARI, num_envs=32).members(), room), room)
    said = capsys.readouterr().err
    assert "split into" in said
    assert "--replay-size" not in said


def test_the_expected_rate_is_limited_by_emulators_or_updates() -> None:
    few, many = (plan.expected_rate([member(threads=threads)], gpu(100)) for threads in (1, 10**6))
    assert few == plan.FRAMES_PER_CORE
    assert many == 16 * plan.UPDATES_PER_SECOND["gpu"]
    assert plan.expected_rate([member(threads=1)], cpu(100)) < few


def test_a_plan_is_shown_before_several_members_train_and_none_for_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = list[tuple[str, str]]()

    def train(members: list[Member], name: str, command: str) -> dict[str, str]:
        trained.append((name, capsys.readouterr().err))
        return {}

    monkeypatch.setattr(run, "train", train)
    monkeypatch.setattr(run, "outcome", lambda folder: {"run": folder.name})
    command = Train.of(game="catch", device="cpu", out=Path("folder"))
    assert command.run() == Path("folder")
    assert command.changed(seed=(0, 1), agent="all").run() == Path("folder")
    (one, nothing), (first, shown), *_ = trained
    assert (one, first) == ("catch-popart-0", "fleet 1 of 3")
    assert not nothing
    assert "Plan" in shown
    assert len(trained) == 1 + 3


def test_failed_members_are_named_when_all_fleets_have_trained_and_the_results_are_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    results = list[Path]()

    def train(members: list[Member], name: str, command: str) -> dict[str, str]:
        return {one.name: "it diverged" for one in members if one.agent.clips}

    monkeypatch.setattr(run, "train", train)
    monkeypatch.setattr(run, "outcome", lambda folder: results.append(folder) or {"run": folder.name})
    words = r"1 of 3 runs failed; .* retries them .*: catch-clipped-0: it diverged$"
    with pytest.raises(LabError, match=words):
        Train.of(game="catch", agent="all", device="cpu").run()
    assert results == [Path("runs/catch-unclipped-0"), Path("runs/catch-popart-0")]
