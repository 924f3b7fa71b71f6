"""`popart watch`: videos of agents that play Atari."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import pytest
from PIL import Image

import popart
from popart.lab.checks import LabError
from popart.lab.cli import main
from popart.lab.envs.atari import Atari
from popart.lab.envs.timestep import TimeStep
from popart.lab.play import watch
from popart.lab.play.config import Watch
from popart.lab.play.view import BARS, HISTORY, SCREEN, SIZE, TEXT, Scene, View
from popart.lab.train.config import Train
from tests.lab.examples import ASTERIX

pytestmark = pytest.mark.xdist_group("atari")

FRAMES = 400


@pytest.fixture(scope="module")
def command(asterix: Path, tmp_path_factory: pytest.TempPathFactory) -> Watch:
    out = tmp_path_factory.mktemp("videos") / "new" / "asterix.mp4"
    return Watch(asterix, epsilon=0.5, frames=FRAMES, device="cpu", out=out)


@pytest.fixture(scope="module")
def pictures(command: Watch) -> np.ndarray:
    return decoded(command.run())


def decoded(path: Path, agents: int = 1) -> np.ndarray:
    ffmpeg = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", str(path)]
    raw = subprocess.run(
        [*ffmpeg, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"], capture_output=True, check=True
    )
    return np.frombuffer(raw.stdout, np.uint8).reshape(-1, SIZE[1], agents * SIZE[0], 3)


def part(pictures: np.ndarray, box: tuple[int, int, int, int]) -> np.ndarray:
    left, top, right, bottom = box
    return pictures[:, top:bottom, left:right].astype(np.int16)


def test_a_video_has_a_picture_for_each_step(pictures: np.ndarray) -> None:
    assert len(pictures) == FRAMES // 4


def test_the_screen_is_shown_in_colours_and_moves(pictures: np.ndarray) -> None:
    screen = part(pictures, SCREEN)[:, ::4, ::4]
    assert screen.mean() > 10
    assert np.ptp(screen.mean((0, 1, 2))) > 10
    assert (np.abs(np.diff(screen, axis=0)) > 60).any((1, 2, 3)).mean() > 0.5


@pytest.mark.parametrize("box", [TEXT, HISTORY, BARS], ids=["text", "history", "bars"])
def test_what_is_beside_the_screen_changes(pictures: np.ndarray, box: tuple[int, int, int, int]) -> None:
    assert np.ptp(part(pictures, box), 0).max() > 60


def test_the_first_picture_has_the_screen_of_the_emulator(command: Watch, pictures: np.ndarray) -> None:
    """It depends on the seed and on nothing else."""
    games = Atari("asterix", 1, sticky=0.25, **watch.COLOURS)
    games.reset(command.seed)
    expected = np.repeat(np.repeat(games.receive().observation[0], 2, 0), 3, 1)
    games.close()
    assert np.abs(part(pictures[:1], SCREEN)[0] - expected).mean() < 4


def test_sigma_and_mu_are_shown_for_agents_that_have_them() -> None:
    art = popart.Moments(1e-4)
    statistics = art.update(art.init(), np.array([-5.0, -1.0]))
    (with_popart,), (clipped,) = (Train.of(agent=name).members() for name in ("popart", "clipped"))
    assert watch.normalisation(with_popart, statistics).split() == ["σ", "2", "μ", "−3"]
    assert watch.normalisation(clipped, None) == "no Pop-Art"


def test_the_unit_of_q_is_that_of_the_rewards_which_the_agent_sees() -> None:
    cases = ({"agent": "clipped"}, {"agent": "popart"}, {"agent": "unclipped", "reward_scale": 0.5})
    units = [watch.unit(Train.of(**case).members()[0]) for case in cases]
    assert units == ["clipped rewards", "points", "points × 0.5"]


@pytest.mark.slow
def test_two_agents_are_side_by_side_each_with_its_values(
    command: Watch, pictures: np.ndarray, tmp_path: Path
) -> None:
    """The left one is the video of the run alone; the right one is another agent with the same seed."""
    other = tmp_path / "clipped"
    ASTERIX.changed(agent=("clipped",), frames=64, sticky=0.25, seed=(5,), out=other).run()
    both = decoded(replace(command, beside=other, out=tmp_path / "both.mp4").run(), agents=2)
    assert len(both) == len(pictures)
    left, right = both[:, :, : SIZE[0]].astype(np.int16), both[:, :, SIZE[0] :].astype(np.int16)
    assert np.abs(left - pictures).mean() < 2
    first = slice(0, 1)  # the same seed, hence the same first screen
    assert np.abs(part(left[first], SCREEN) - part(right[first], SCREEN)).mean() < 4
    assert np.abs(part(left, BARS) - part(right, BARS)).max() > 60


def test_an_episode_that_is_over_shows_its_last_picture_beside_a_longer_one() -> None:
    def pictures(colour: str, number: int) -> Iterator[tuple[Image.Image, str]]:
        return ((Image.new("RGB", SIZE, colour), f"{colour} {i}") for i in range(number))

    shown = list(watch.side_by_side([pictures("red", 2), pictures("blue", 4)]))
    assert [told for _, told in shown] == ["red 0, blue 0", "red 1, blue 1", "red 1, blue 2", "red 1, blue 3"]
    assert all(sheet.size == (2 * SIZE[0], SIZE[1]) for sheet, _ in shown)
    assert [shown[3][0].getpixel((x, 0)) for x in (0, SIZE[0])] == [(255, 0, 0), (0, 0, 255)]


def test_runs_of_different_games_are_not_put_side_by_side(
    command: Watch, asterix: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(asterix, tmp_path / "other")
    manifest = json.loads((other / "manifest.json").read_text(encoding="utf-8"))
    manifest["settings"].update(game="pong")
    (other / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(LabError, match="is a run of 'pong', not of 'asterix'; give runs of one game"):
        replace(command, beside=other, out=tmp_path / "both.mp4").run()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_interrupted_video_leaves_no_file_and_replaces_none(
    command: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    old = tmp_path / "old.mp4"
    old.write_bytes(b"a video")
    draw = View.draw

    def fail(self: View, scene: Scene) -> Any:
        if self.steps == 5:
            raise error
        return draw(self, scene)

    monkeypatch.setattr(View, "draw", fail)
    for out in (old, tmp_path / "new.mp4"):
        with pytest.raises(error):
            replace(command, out=out).run()
    assert [path.name for path in tmp_path.iterdir()] == ["old.mp4"]
    assert old.read_bytes() == b"a video"


def test_an_encoder_that_fails_leaves_no_file_and_its_reason_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def record() -> None:
        with watch.film(tmp_path / "new.mp4") as show:
            for _ in range(20):
                show(bytes(961 * 544 * 3))

    monkeypatch.setattr(watch, "SIZE", (961, 544))
    with pytest.raises(LabError, match=r"new.mp4 cannot be written: .*width not divisible.*; give another"):
        record()
    assert not list(tmp_path.iterdir())


def test_a_video_is_replaced_by_a_finished_one(tmp_path: Path) -> None:
    out = tmp_path / "video.mp4"
    out.write_bytes(b"a video")
    with watch.film(out) as show:
        show(bytes(SIZE[0] * SIZE[1] * 3))
    assert len(decoded(out)) == 1
    assert list(tmp_path.iterdir()) == [out]


def test_a_screen_that_differs_from_what_the_agent_sees_is_an_error(
    command: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(self: Atari) -> TimeStep:
        seen = receive(self)
        return seen if seen.observation.ndim == 3 else seen._replace(reward=seen.reward + 1)

    receive = Atari.receive
    monkeypatch.setattr(Atari, "receive", other)
    with pytest.raises(RuntimeError, match="the agent and the screen differ"):
        replace(command, out=tmp_path / "video.mp4").run()
    assert not list(tmp_path.iterdir())


def test_a_run_of_a_small_game_is_refused(
    asterix: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = shutil.copytree(asterix, tmp_path / "small")
    manifest = json.loads((small / "manifest.json").read_text(encoding="utf-8"))
    manifest["settings"].update(game="catch", sticky=0.0, groups=1)
    (small / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(SystemExit):
        main(["watch", str(small), "--device", "cpu"])
    assert "'catch', a small game that has no screen" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"frames": 3}, "frames is 3; it must be 4 or more"),
        ({"epsilon": 1.5}, r"epsilon is 1.5; it must be between 0 and 1"),
        ({"seed": -1}, "seed is -1; it must be from 0 to 4294967295"),
        ({"out": Path("video.avi")}, r"out is 'video.avi'; it must end in .mp4"),
    ],
)
def test_a_wrong_option_is_named(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Watch(Path("run"), **arguments)
