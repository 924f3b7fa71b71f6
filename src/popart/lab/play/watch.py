"""`popart watch`: a video of one episode with the Q-values of all actions, or of two agents side by side."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, cast

import imageio_ffmpeg
import numpy as np
from PIL.Image import Image
from PIL.Image import new as new_image

from popart.lab.checks import LabError
from popart.lab.dqn.config import AgentConfig
from popart.lab.dqn.learner import Policy
from popart.lab.envs.atari import SPEC, Atari
from popart.lab.envs.games import title
from popart.lab.envs.timestep import Scores
from popart.lab.files import temporary_file, writer
from popart.lab.machine import use_device
from popart.lab.play.config import Watch
from popart.lab.play.view import RATE, SIZE, Scene, View, number
from popart.lab.progress import progress
from popart.lab.train.config import Member
from popart.lab.train.episodes import Player
from popart.lab.train.games import environments
from popart.lab.train.loading import Trained, load

COLOURS = {"grayscale": False, "img_height": 210, "img_width": 160}
"""The original screen."""


def run(command: Watch) -> Path:
    use_device(command.device)
    folders = [command.run_folder, *([command.beside] if command.beside else [])]
    agents = [_load(folder, command) for folder in folders]
    games = [trained.settings.game for trained in agents]
    if len(set(games)) > 1:
        raise LabError(f"{folders[1]} is a run of {games[1]!r}, not of {games[0]!r}; give runs of one game")
    out, most = command.out or _default_path(command), command.frames // SPEC.frames_per_step
    with ExitStack() as stack:
        pictures = [stack.enter_context(playing(trained, command)) for trained in agents]
        show = stack.enter_context(film(out, (len(agents) * SIZE[0], SIZE[1])))
        advance = stack.enter_context(progress("watch", most, "steps"))
        for picture, told in islice(side_by_side(pictures), most):
            show(picture.tobytes())
            advance(1, told)
    return out


def _load(folder: Path, command: Watch) -> Trained:
    trained = load(folder, command.which)
    if not trained.settings.is_atari:
        raise LabError(
            f"{folder} is a run of {trained.settings.game!r}, a small game that has no screen; "
            "give a run of an Atari game"
        )
    return trained


def _default_path(command: Watch) -> Path:
    name = f"watch-beside-{command.beside.resolve().name}" if command.beside else "watch"
    return command.run_folder / f"{name}.mp4"


@contextmanager
def playing(trained: Trained, command: Watch) -> Iterator[Iterator[tuple[Image, str]]]:
    """Start an agent, and yield the pictures of its first episode, each with the score so far."""
    with ExitStack() as stack:
        games, screens = (
            cast("Atari", environments(trained.settings, 1, training=False, **options))
            for options in ({}, COLOURS)
        )
        stack.callback(games.close)
        stack.callback(screens.close)
        network = trained.network(games)
        policy = trained.policy(network)
        player = Player(network, games, policy, command.epsilon, command.seed)
        view, scenes = _view(trained, policy, games.names), episode(player, screens, trained.settings.agent)
        yield ((view.draw(scene), f"score {number(scene.score, 0)}") for scene in scenes)


def side_by_side(agents: Sequence[Iterator[tuple[Image, str]]]) -> Iterator[tuple[Image, str]]:
    """Join the pictures of agents from left to right; an episode that is over shows its last picture."""
    shown: list[tuple[Image, str]] = [next(pictures) for pictures in agents]
    while True:
        sheet = new_image("RGB", (len(shown) * SIZE[0], SIZE[1]))
        for i, (picture, _) in enumerate(shown):
            sheet.paste(picture, (i * SIZE[0], 0))
        yield sheet, ", ".join(told for _, told in shown)
        later = [next(pictures, None) for pictures in agents]
        if not any(later):
            return
        shown = [new or old for new, old in zip(later, shown, strict=True)]


def episode(player: Player, screens: Atari, config: AgentConfig) -> Iterator[Scene]:
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
        yield Scene(shown.observation[0], score.now[0], values, action)


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
def film(path: Path, size: tuple[int, int] | None = None) -> Iterator[Callable[[bytes], object]]:
    """Yield a function that takes pictures; at the end, replace the file by the complete video."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary_file(path) as temporary:
            with _encoder(temporary, size or SIZE) as show:
                yield show
            temporary.chmod(0o644)
            temporary.replace(path)
    except OSError as error:
        raise LabError(f"{path} cannot be written: {error.strerror or error}; give another --out") from error


@contextmanager
def _encoder(path: Path, size: tuple[int, int]) -> Iterator[Callable[[bytes], object]]:
    """Run ffmpeg. `imageio_ffmpeg.write_frames` forks, which JAX warns of, and ignores errors."""
    shape, rate = "{}x{}".format(*size), str(RATE)
    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", shape, "-r", rate, "-i", "-"]
    sink = ["-c:v", "libx264", "-crf", "18", "-pix_fmt", "yuv420p", "-movflags", "+faststart", "-f", "mp4"]
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-y", *source, *sink, str(path.absolute())]
    with tempfile.TemporaryFile() as said:
        with writer(command, said) as process:
            assert process.stdin
            try:
                yield process.stdin.write
                process.communicate()
            except BrokenPipeError:  # ffmpeg has ended; its message is below
                process.wait()
        if process.returncode:
            said.seek(0)
            reason = said.read().decode(errors="replace").partition("\n")[0]  # the first is the cause
            raise OSError(reason or f"ffmpeg ended with {process.returncode}")
