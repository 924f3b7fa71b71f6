"""`popart evaluate`: the paper's protocol."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from popart.lab.budget import check_memory
from popart.lab.envs.atari import EPISODE_FRAMES
from popart.lab.envs.games import title
from popart.lab.envs.timestep import derived_seed
from popart.lab.machine import use_device
from popart.lab.play.config import Evaluate
from popart.lab.progress import progress
from popart.lab.runs import Run, command_line
from popart.lab.train.config import flat
from popart.lab.train.episodes import Player, first_episodes
from popart.lab.train.games import environments
from popart.lab.train.loading import Trained, load

BYTES_PER_EPISODE = {True: 6e6, False: 2e4}
"""Memory of an environment with its stack of observations, on Atari and in a small game."""

GROUP = 10
"""Environments per player, which play until the last is done: an episode may take a hundred times as long."""


def run(command: Evaluate) -> Path:
    use_device(command.device)
    trained = load(command.run_folder, command.which)
    check_memory("episodes", command.episodes, BYTES_PER_EPISODE[trained.settings.is_atari])
    agent = trained.settings.agent.agent
    heading = f"{title(trained.settings.game)}: {agent}, evaluated after {trained.frames:,} frames"
    protocol = f"{command.episodes}-{command.epsilon:g}-{command.seed}"
    out = command.run_folder / f"evaluation-{trained.which}-{trained.frames}-{protocol}"
    about = {"game": trained.settings.game, "agent": agent, "frames": trained.frames}
    settings = flat(command) | about | {"run_folder": str(command.run_folder), "out": out}
    free = ("run_folder", "which", "threads", "device", "large_rewards")
    with Run("evaluate", heading, settings, free, command_line("evaluate", command)) as run:
        if not run.finished:
            rewards = Counter[float]()
            scores, overflows = _play(command, trained, rewards)
            if overflows:
                print(f"{overflows} rewards are wrong: a score overflowed; --undo-overflow corrects them")
            run.write_table("episodes", [{"episode": i, "score": x} for i, x in enumerate(scores)])
            if rewards:
                run.write_table("rewards", reward_rows(rewards))
            run.finish()
        elif run.read_table("rewards") and run.settings["large_rewards"] != command.large_rewards:
            run.reopen()  # the episodes are the same; only the limit of large rewards is new
            run.finish()
    return run.folder


def reward_rows(rewards: Counter[float]) -> list[dict[str, float]]:
    """Return each size of reward with how often it was received, and the points that it made."""
    return [{"reward": x, "times": rewards[x], "points": x * rewards[x]} for x in sorted(rewards)]


def _play(command: Evaluate, trained: Trained, rewards: Counter[float]) -> tuple[list[float], int]:
    """Return the scores of episodes and the number of score overflows, and count rewards."""
    number, policy, players = command.episodes, None, list[Player]()
    options: dict[str, Any] = {"episode_frames": EPISODE_FRAMES} if trained.settings.is_atari else {}
    size = GROUP if trained.settings.is_atari else number
    with progress("starting environments", number, "environments") as advance:
        for i, first in enumerate(range(0, number, size)):
            several = min(size, number - first)
            games = environments(trained.settings, several, command.threads, training=False, **options)
            network = trained.network(games)
            policy = policy or trained.policy(network)  # early, before a run in progress replaces it
            players.append(Player(network, games, policy, command.epsilon, derived_seed(command.seed, i)))
            advance(several)
    with progress("evaluate", command.episodes, "episodes") as advance:
        scores = first_episodes(players, advance, rewards=rewards) or []
    for player in players:
        player.environments.close()
    return np.array(scores).tolist(), sum(player.environments.overflows for player in players)
