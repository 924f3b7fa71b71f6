"""The plan of a campaign, its folder, and errors in its settings."""

import json
from pathlib import Path

import pytest

import popart
from popart.lab.campaign import versions
from popart.lab.campaign.config import MachineOptions, Plan, Start
from popart.lab.campaign.folder import Folder, members_of
from popart.lab.campaign.planning import fleets, makespan, room
from popart.lab.campaign.run import opened
from popart.lab.checks import LabError
from popart.lab.cli import main

H200 = ["--gpus", "4", "--memory", "141", "--cores", "16"]


def test_the_plan_of_the_paper_shows_runs_fleets_memory_and_hours(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["campaign", "plan", "--games", "all", "--seeds", "3", "--frames", "200000000", *H200])
    said = capsys.readouterr().out
    assert "513 runs (57 games × 3 agents × 3 seeds)" in said
    assert "zaxxon 0,1,2" in said
    assert " h on 4 GPUs with 16 cores for each fleet" in " ".join(said.split())
    assert "GB" in said
    assert list(tmp_path.iterdir()) == []


def small(out: Path, **options: object) -> Start:
    return Start(games=("catch",), agents=("popart",), seeds=3, frames=2000, out=out, **options)  # pyright: ignore[reportArgumentType]


def test_fleets_fit_into_memory_and_are_enough_for_all_workers() -> None:
    atari = Plan(games=("all",), machines=MachineOptions(gpus=2, memory=141))
    planned = fleets(atari, atari.train().members())
    assert sorted(m.name for fleet in planned for m in fleet) == sorted(
        m.name for m in atari.train().members()
    )
    assert all(sum(m.replay_size * 7067 + 180e6 for m in fleet) < 0.75 * 141e9 for fleet in planned)
    one = small(Path("x"), machines=MachineOptions(gpus=0, memory=4))  # not the free memory of this machine
    assert [len(f) for f in fleets(one, members_of(one.train()))] == [3]
    two = small(Path("x"), machines=MachineOptions(workers=2, gpus=0, memory=4))
    assert [len(f) for f in fleets(two, members_of(two.train()))] == [2, 1]
    many = small(Path("x"), machines=MachineOptions(workers=9, gpus=0, memory=4))
    assert [len(f) for f in fleets(many, members_of(many.train()))] == [1, 1, 1]


def test_a_campaign_uses_the_gpus_of_this_machine_and_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As popart train does. Those of a cluster are not known here, and have to be given."""
    found = (50 * 10**9, 40 * 10**9)
    for module in ("machine", "campaign.planning"):
        monkeypatch.setattr(f"popart.lab.{module}.gpu_memory", lambda: found)
    here = Plan(games=("pong",))
    assert (here.gpus, here.at_once, here.train().device) == (2, 2, "gpu")
    assert (room(here).arrays, room(here).on_gpu) == (40 * 10**9, True)
    assert room(Plan(machines=MachineOptions(gpus=8))).arrays == 40 * 10**9
    assert room(Plan(machines=MachineOptions(memory=100))).arrays == 75 * 10**9
    for on_cpus in (Plan(machines=MachineOptions(gpus=0)), Start(ray="auto"), Start(slurm=True)):
        assert (on_cpus.gpus, on_cpus.at_once, on_cpus.train().device) == (0, 1, "cpu")
        assert not room(on_cpus).on_gpu
    found = ()
    assert (here.gpus, here.train().device) == (0, "cpu")
    with pytest.raises(
        LabError, match=r"gpus is 8 and memory is not given, .*; give --memory, the memory of"
    ):
        room(Plan(machines=MachineOptions(gpus=8)))


def test_the_time_of_a_campaign_is_that_of_its_last_machine() -> None:
    assert makespan([3, 1, 1, 1], 2) == 3
    assert makespan([3, 3, 3], 2) == 6
    assert makespan([2, 2], 5) == 2


def test_a_single_run_has_its_own_folder_in_that_of_the_campaign(tmp_path: Path) -> None:
    (member,) = members_of(Start(games=("catch",), agents=("popart",), out=tmp_path).train())
    assert member.out == tmp_path / "catch-popart-0"


def test_a_campaign_keeps_its_fleets_on_other_machines(tmp_path: Path) -> None:
    first = opened(small(tmp_path))
    again = opened(small(tmp_path, machines=MachineOptions(workers=3)))
    assert again.fleets == first.fleets == [["catch-popart-0", "catch-popart-1", "catch-popart-2"]]
    assert again.id == first.id
    assert [member.out.parent for member in again.fleet(1)] == [tmp_path] * 3


def test_more_frames_are_taken_and_other_settings_refused(tmp_path: Path) -> None:
    opened(small(tmp_path))
    command = Start(games=("catch",), agents=("popart",), seeds=3, frames=4000, out=tmp_path)
    assert {member.frames for member in opened(command).members().values()} == {4000}
    with pytest.raises(LabError, match=r"other settings \(seeds is 3 there, 1 here\)"):
        opened(Start(games=("catch",), agents=("popart",), frames=2000, out=tmp_path))
    other = small(tmp_path)
    object.__setattr__(other, "learning", type(other.learning)(beta=0.1))
    with pytest.raises(
        LabError, match=r"beta is the default there, 0.1 here.*popart campaign start --games catch"
    ):
        opened(other)


def test_other_versions_are_refused_unless_they_are_accepted(tmp_path: Path) -> None:
    opened(small(tmp_path))
    path = tmp_path / "campaign.json"
    content = json.loads(path.read_text("utf-8"))
    content["versions"] |= {"popart-learn": "0.0.9", "jax": "0.1"}
    path.write_text(json.dumps(content), "utf-8")
    expected = rf"popart-learn {popart.__version__} instead of 0\.0\.9; jax [\d.]+ instead of 0\.1"
    with pytest.raises(LabError, match=expected):
        opened(small(tmp_path))
    with pytest.raises(LabError, match=expected):
        Folder.read(tmp_path).check_versions("here")
    assert opened(small(tmp_path, accept_versions=True)).versions == versions.versions()


def test_a_changed_source_is_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "popart"
    package.mkdir()
    found = []
    for text in ("a = 1", "a = 2", "a = 1"):
        (package / "__init__.py").write_text(text, "utf-8")
        monkeypatch.setattr(popart, "__file__", str(package / "__init__.py"))
        found.append(versions.source())
    assert found[0] == found[2] != found[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["xy"], ["there is no command 'xy'.", "are plan, start, status, report, work"]),
        (["strt"], ["did you mean 'start'?"]),
        (["plan", "--games", "pongg"], ["games has 'pongg'; did you mean 'pong'?"]),
        (["plan", "--games", "pong", "pong"], ["games has 'pong' more than once"]),
        (["plan", "--agents", "dqn"], ["agents has 'dqn'. It may have clipped, unclipped, popart, all"]),
        (["plan", "--agents", "al"], ["agents has 'al'; did you mean 'all'?"]),
        (["plan", "--seeds", "0"], ["seeds is 0; it must be 1 or more"]),
        (["plan", "--workers", "0"], ["workers is 0; it must be 1 or more"]),
        (["plan", "--memory", "-1"], ["memory is -1.0; it must be positive"]),
        (["plan", "--gpus", "-1"], ["gpus is -1; it must be 0 or more"]),
        (["start", "--ray", "auto", "--slurm"], ["--ray and --slurm are both given"]),
        (["start", "--sbatch", "time=1"], ["sbatch is 'time=1', which needs --slurm"]),
        (["start", "--tries", "0"], ["tries is 0"]),
        (["status", "nowhere"], ["nowhere is not the folder of a campaign: campaign.json: No such file"]),
        (["status", "--every", "0"], ["every is 0.0; it must be positive"]),
        (["work", "nowhere", "--fleet", "0"], ["fleet is 0; it must be 1 or more"]),
    ],
)
def test_errors_in_settings_are_named(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: list[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["campaign", *arguments])
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    said = " ".join((out + err).replace("│", " ").split())
    assert all(word in said for word in words), said


def test_a_fleet_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"fleet is 5; .* has fleets 1 to 1"):
        opened(small(tmp_path)).fleet(5)


@pytest.mark.parametrize("content", ["{", '{"format": 99}'])
def test_a_damaged_or_newer_campaign_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "campaign.json").write_text(content, "utf-8")
    with pytest.raises(LabError, match=r"campaign\.json (is damaged|was written by another version)"):
        Folder.read(tmp_path)
