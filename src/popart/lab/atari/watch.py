"""`popart watch`: a film of one episode, beside what the agent expects of each action."""

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, cast

import imageio_ffmpeg
import numpy as np

from popart.lab.atari import Watch
from popart.lab.atari.environment import Atari
from popart.lab.atari.games import scores
from popart.lab.atari.view import RATE, SIZE, Step, View, number
from popart.lab.checks import LabError
from popart.lab.dqn.learner import Settings
from popart.lab.environments import Scores
from popart.lab.machine import use_device
from popart.lab.progress import progress
from popart.lab.train import Train
from popart.lab.train.loading import Trained, load
from popart.lab.train.playing import Player, Policy, make

COLOURS = {"grayscale": False, "img_height": 210, "img_width": 160}
"""The screen as it is."""


def run(settings: Watch) -> Path:
    use_device(settings.device)
    trained = load(settings.run_folder, settings.which)
    if not trained.settings.is_atari:
        raise LabError(
            f"{settings.run_folder} is a run of {trained.settings.game!r}, a small game that has no screen; "
            "give a run of an Atari game"
        )
    out = settings.out or settings.run_folder / "watch.mp4"
    games, screens = (
        cast("Atari", make(trained.settings, 1, training=False, **options)) for options in ({}, COLOURS)
    )
    try:
        network = games.network(trained.settings.dtype)
        policy = trained.policy(network)
        player = Player(network, games, policy, settings.epsilon, settings.seed)
        view, most = _view(trained, policy, games.names), settings.frames // games.frames
        with film(out) as show, progress("watch", most, "steps") as advance:
            for step in islice(episode(player, screens, trained.settings.learning), most):
                show(view.draw(step).tobytes())
                advance(1, f"score {number(step.score, 0)}")
    finally:
        games.close()
        screens.close()
    return out


def episode(player: Player, screens: Atari, settings: Settings) -> Iterator[Step]:
    """The first one. `screens` are of the same game; the same is done there, and the same must come of it."""
    screens.start(player.seed)
    score, last = Scores(1), False
    while not last:
        seen, shown = player.step(), screens.receive()
        if not np.array_equal(seen[1:], shown[1:]):
            raise RuntimeError(f"what the agent plays is not what is shown: {seen[1:]} is not {shown[1:]}")
        screens.send(player.action)
        score.add(seen)
        last = bool(seen.last[0])
        values, action = player.values(settings)[0], None if last else int(player.action[0])
        if not np.isfinite(values).all():
            raise LabError(f"the agent's values are {values}: it diverged in training; give another run")
        yield Step(shown.observation[0], score.now[0], values, action)


def _view(trained: Trained, policy: Policy, actions: list[str]) -> View:
    settings = trained.settings
    title = next(score.title for score in scores() if score.game == settings.game)
    about = f"{settings.agent}, {trained.which} agent of the run, after {trained.frames:,} frames"
    return View(title, about, normalisation(settings, policy.statistics), unit(settings), actions)


def normalisation(settings: Train, statistics: Any) -> str:
    if settings.agent != "popart":
        return "no Pop-Art"
    affine = settings.learning.art.affine(statistics)
    return f"σ {float(affine.scale):.4g}     μ {float(affine.shift):.4g}".replace("-", "−")


def unit(settings: Train) -> str:
    """Of what the agent predicts."""
    if settings.agent == "clipped":
        return "clipped rewards"
    return "points" if settings.reward_scale == 1 else f"points × {settings.reward_scale:g}"


@contextmanager
def film(path: Path) -> Iterator[Callable[[bytes], object]]:
    """Takes pictures, and replaces a file by the whole film; if that fails, what was there stays."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=f".{path.name}.", suffix=".tmp", delete=False
        ) as file:
            temporary = Path(file.name)
        with _encoder(temporary) as show:
            yield show
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        raise LabError(f"{path} cannot be written: {error.strerror or error}; give another --out") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


@contextmanager
def _encoder(path: Path) -> Iterator[Callable[[bytes], object]]:
    """ffmpeg. `imageio_ffmpeg.write_frames` forks, which JAX warns of, and ignores whether it succeeded."""
    size, rate = "{}x{}".format(*SIZE), str(RATE)
    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", size, "-r", rate, "-i", "-"]
    sink = ["-c:v", "libx264", "-crf", "18", "-pix_fmt", "yuv420p", "-movflags", "+faststart", "-f", "mp4"]
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-y", *source, *sink, str(path.absolute())]
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(command, stdin=subprocess.PIPE, stderr=said, start_new_session=True) as process,
    ):
        assert process.stdin
        try:
            yield process.stdin.write
            process.communicate()
        except BrokenPipeError:  # it has ended, and said why
            process.wait()
        finally:
            process.kill()
            with suppress(OSError):  # of what nobody reads
                process.stdin.close()
        if process.returncode:
            said.seek(0)
            reason = said.read().decode(errors="replace").partition("\n")[0]  # the first is the cause
            raise OSError(reason or f"ffmpeg ended with {process.returncode}")
