"""Films of agents that play Atari."""

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import pytest

import popart
from popart.lab.atari import Watch, watch
from popart.lab.atari.environment import Atari
from popart.lab.atari.view import BARS, HISTORY, SCREEN, SIZE, TEXT, Step, View
from popart.lab.checks import LabError
from popart.lab.cli import main
from popart.lab.dqn.replay import Seen
from popart.lab.train import Train

pytestmark = pytest.mark.xdist_group("watch")

FRAMES = 400


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an agent that did not learn yet, and is good enough to be watched."""
    short: dict[str, Any] = {"frames": 64, "num_envs": 4, "replay": 400, "evaluate_every": 0}
    out = tmp_path_factory.mktemp("runs") / "pong"
    return Train("pong", "unclipped", **short, sticky=0.25, device="cpu", out=out).run()


@pytest.fixture(scope="module")
def asked(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Watch:
    out = tmp_path_factory.mktemp("films") / "new" / "pong.mp4"
    return Watch(run, epsilon=0.5, frames=FRAMES, device="cpu", out=out)


@pytest.fixture(scope="module")
def pictures(asked: Watch) -> np.ndarray:
    return decoded(asked.run())


def decoded(path: Path) -> np.ndarray:
    ffmpeg = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", str(path)]
    raw = subprocess.run(
        [*ffmpeg, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"], capture_output=True, check=True
    )
    return np.frombuffer(raw.stdout, np.uint8).reshape(-1, SIZE[1], SIZE[0], 3)


def part(pictures: np.ndarray, box: tuple[int, int, int, int]) -> np.ndarray:
    left, top, right, bottom = box
    return pictures[:, top:bottom, left:right].astype(np.int16)


def test_a_film_has_a_picture_for_each_step(pictures: np.ndarray) -> None:
    assert len(pictures) == FRAMES // 4


def test_the_screen_is_shown_and_moves(pictures: np.ndarray) -> None:
    screen = part(pictures, SCREEN)[:, ::4, ::4]
    assert screen.mean() > 30
    assert np.ptp(screen.mean((0, 1, 2))) > 10  # in colours
    assert (np.abs(np.diff(screen, axis=0)) > 60).any((1, 2, 3)).mean() > 0.5


@pytest.mark.parametrize("box", [TEXT, HISTORY, BARS], ids=["text", "history", "bars"])
def test_what_stands_beside_the_screen_changes(pictures: np.ndarray, box: tuple[int, int, int, int]) -> None:
    assert np.ptp(part(pictures, box), 0).max() > 60


def test_the_screen_is_that_of_the_emulator_at_the_same_step(asked: Watch, pictures: np.ndarray) -> None:
    """Of the first, which depends on the seed and on nothing else."""
    games = Atari("pong", 1, sticky=0.25, **watch.COLOURS)
    games.start(asked.seed)
    expected = np.repeat(np.repeat(games.receive().observation[0], 2, 0), 3, 1)
    games.close()
    assert np.abs(part(pictures[:1], SCREEN)[0] - expected).mean() < 4


def drawn(values: list[float], action: int | None, actions: int = 3) -> np.ndarray:
    view = View(
        "Title", "about", "no Pop-Art", "points", ["NOOP", "UPRIGHTFIRE", *"ABCDEFGHIJKLMNOP"][:actions]
    )
    step = Step(np.zeros((210, 160, 3), np.uint8), 0.0, np.array(values, np.float32), action)
    return np.asarray(view.draw(step))


def test_bars_are_as_long_as_values_and_tell_how_the_action_was_chosen() -> None:
    picture = part(drawn([-1.0, 2.0, 3.0], 2)[None], BARS)[0]
    blue, green = (
        [(picture[row] == colour).all(-1).sum() for row in (18, 54, 90)]
        for colour in ((0x1F, 0x5F, 0xD0), (0x22, 0x8B, 0x22))
    )
    unit = (BARS[2] - BARS[0]) / 4
    np.testing.assert_allclose(blue, [unit, 2 * unit, 0], atol=2)
    np.testing.assert_allclose(green, [0, 0, 3 * unit], atol=2)
    assert (part(drawn([-1.0, 2.0, 3.0], 1)[None], BARS)[0, 54] == (0xD6, 0x27, 0x28)).all(-1).sum() > unit


@pytest.mark.parametrize("scale", [0.0, 1e-12, 1.0, 1e6, 1e30])
def test_values_of_any_size_and_eighteen_actions_stay_within_their_place(scale: float) -> None:
    picture = drawn([scale * (i - 9) for i in range(18)], None, actions=18).astype(int)
    gaps = ((TEXT[2], 0, SIZE[0], SIZE[1]), (0, BARS[3] + 1, SIZE[0], SIZE[1]))
    for gap in gaps:
        assert (part(picture[None], gap) == 255).all()
    between = picture[BARS[1] : BARS[3], TEXT[0] + 96 : BARS[0]]
    assert (between == 255).all()


def test_sigma_and_mu_are_told_of_agents_that_have_them() -> None:
    art = popart.Moments(1e-4)
    statistics = art.update(art.init(), np.array([-5.0, -1.0]))
    assert watch.normalisation(Train(agent="popart"), statistics).split() == ["σ", "2", "μ", "−3"]
    assert watch.normalisation(Train(agent="clipped"), None) == "no Pop-Art"


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_what_is_interrupted_leaves_nothing_and_replaces_nothing(
    asked: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    old = tmp_path / "old.mp4"
    old.write_bytes(b"a film")
    draw = View.draw

    def fail(self: View, step: Step) -> Any:
        if self.steps == 5:
            raise error
        return draw(self, step)

    monkeypatch.setattr(View, "draw", fail)
    for out in (old, tmp_path / "new.mp4"):
        with pytest.raises(error):
            replace(asked, out=out).run()
    assert [path.name for path in tmp_path.iterdir()] == ["old.mp4"]
    assert old.read_bytes() == b"a film"


def test_an_encoder_that_fails_leaves_nothing_and_says_why(
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


def test_a_film_is_replaced_by_a_finished_one(tmp_path: Path) -> None:
    out = tmp_path / "film.mp4"
    out.write_bytes(b"a film")
    with watch.film(out) as show:
        show(bytes(SIZE[0] * SIZE[1] * 3))
    assert len(decoded(out)) == 1
    assert list(tmp_path.iterdir()) == [out]


def test_games_that_part_are_an_error(asked: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(self: Atari, *_: Any) -> Seen:
        seen = receive(self)
        return seen if seen.observation.ndim == 3 else seen._replace(reward=seen.reward + 1)

    receive = Atari.receive
    monkeypatch.setattr(Atari, "receive", other)
    with pytest.raises(RuntimeError, match="not what is shown"):
        replace(asked, out=tmp_path / "film.mp4").run()
    assert not list(tmp_path.iterdir())


def test_a_small_game_has_no_screen(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = shutil.copytree(run, tmp_path / "small")
    manifest = json.loads((small / "manifest.json").read_text(encoding="utf-8"))
    manifest["settings"].update(game="catch", sticky=0.0)
    (small / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(SystemExit):
        main(["watch", str(small), "--device", "cpu"])
    assert "'catch', a small game that has no screen" in capsys.readouterr().err


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["watch", str(tmp_path), "--device", "cpu"])
    assert "is not a run's folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"frames": 3}, "frames is 3; it must be 4 or more"),
        ({"epsilon": 1.5}, r"epsilon is 1.5; it must be between 0 and 1"),
        ({"seed": -1}, "seed is -1; it must be from 0 to 4294967295"),
        ({"out": Path("film.avi")}, r"out is 'film.avi'; it must end in .mp4"),
    ],
)
def test_settings_are_checked(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Watch(Path("run"), **arguments)
