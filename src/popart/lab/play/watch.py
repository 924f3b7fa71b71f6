"""`popart watch`: a video of one episode, beside the Q-values of all actions."""

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, cast

import imageio_ffmpeg
import numpy as np

from popart.lab.checks import LabError
from popart.lab.dqn.config import AgentConfig
from popart.lab.dqn.learner import Policy
from popart.lab.envs.atari import Atari
from popart.lab.envs.games import title
from popart.lab.envs.timestep import Scores
from popart.lab.files import temporary_file
from popart.lab.machine import use_device
from popart.lab.play.config import Watch
from popart.lab.play.view import RATE, SIZE, Step, View, number
from popart.lab.progress import progress
from popart.lab.train.config import Member
from popart.lab.train.episodes import Player
from popart.lab.train.games import environments
from popart.lab.train.loading import Trained, load

COLOURS = {"grayscale": False, "img_height": 210, "img_width": 160}
"""The original screen."""


def run(command: Watch) -> Path:
    use_device(command.device)
    trained = load(command.run_folder, command.which)
    if not trained.settings.is_atari:
        raise LabError(
            f"{command.run_folder} is a run of {trained.settings.game!r}, a small game that has no screen; "
            "give a run of an Atari game"
        )
    out = command.out or command.run_folder / "watch.mp4"
    games, screens = (
        cast("Atari", environments(trained.settings, 1, training=False, **options))
        for options in ({}, COLOURS)
    )
    try:
        network = trained.network(games)
        policy = trained.policy(network)
        player = Player(network, games, policy, command.epsilon, command.seed)
        view, most = _view(trained, policy, games.names), command.frames // games.spec.frames_per_step
        with film(out) as show, progress("watch", most, "steps") as advance:
            for step in islice(episode(player, screens, trained.settings.agent), most):
                show(view.draw(step).tobytes())
                advance(1, f"score {number(step.score, 0)}")
    finally:
        games.close()
        screens.close()
    return out


def episode(player: Player, screens: Atari, config: AgentConfig) -> Iterator[Step]:
    """Play the first episode. `screens` is the same game in colour: it gets the same actions."""
    screens.reset(player.seed)
    score, last = Scores(1), False
    while not last:
        seen, shown = player.step(), screens.receive()
        if not np.array_equal(seen[1:], shown[1:]):
            raise RuntimeError(f"the agent and the screen differ: {seen[1:]} is not {shown[1:]}")
        screens.send(player.action)
        score.add(seen)
        last = bool(seen.last[0])
        values, action = player.values(config)[0], None if last else int(player.action[0])
        if not np.isfinite(values).all():
            raise LabError(f"the agent's values are {values}: it diverged in training; give another run")
        yield Step(shown.observation[0], score.now[0], values, action)


def _view(trained: Trained, policy: Policy, actions: list[str]) -> View:
    settings = trained.settings
    about = f"{settings.agent.agent}, {trained.which} agent of the run, after {trained.frames:,} frames"
    return View(
        title(settings.game), about, normalisation(settings, policy.statistics), unit(settings), actions
    )


def normalisation(settings: Member, statistics: Any) -> str:
    if settings.agent.agent != "popart":
        return "no Pop-Art"
    affine = settings.agent.art.affine(statistics)
    return f"σ {float(affine.scale):.4g}     μ {float(affine.shift):.4g}".replace("-", "−")


def unit(settings: Member) -> str:
    """Return the unit of Q."""
    if settings.agent.clips:
        return "clipped rewards"
    return "points" if settings.reward_scale == 1 else f"points × {settings.reward_scale:g}"


@contextmanager
def film(path: Path) -> Iterator[Callable[[bytes], object]]:
    """Yield a function that takes pictures; at the end, replace the file by the complete video."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary_file(path) as temporary:
            with _encoder(temporary) as show:
                yield show
            temporary.chmod(0o644)
            temporary.replace(path)
    except OSError as error:
        raise LabError(f"{path} cannot be written: {error.strerror or error}; give another --out") from error


@contextmanager
def _encoder(path: Path) -> Iterator[Callable[[bytes], object]]:
    """Run ffmpeg. `imageio_ffmpeg.write_frames` forks, which JAX warns of, and ignores errors."""
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
        except BrokenPipeError:  # ffmpeg has ended; its message is below
            process.wait()
        finally:
            process.kill()
            with suppress(OSError):  # unread data
                process.stdin.close()
        if process.returncode:
            said.seek(0)
            reason = said.read().decode(errors="replace").partition("\n")[0]  # the first is the cause
            raise OSError(reason or f"ffmpeg ended with {process.returncode}")
