"""Double DQN on CartPole whose rewards are multiplied by 10⁴, with and without Pop-Art.

With these settings an agent without Pop-Art learns to balance the pole when each step is worth 1. When
each is worth 10⁴ it learns nothing: values are in the hundreds of thousands, its outputs start near 0,
and Adam moves a weight by about the step size whatever the rewards are. A step size that is five or
fifteen times larger helps, but not with every seed. With Pop-Art nothing has to be set anew.

    python examples/cartpole_torch.py [--head popart|linear] [--reward-scale 1e4] [--seed 0] [--steps N]

To put Pop-Art into an agent of your own, see the two places that ask which head it is: `Network` and
`loss_of`. The rest does not depend on it.
"""

import argparse
import copy
import random
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.wrappers import TransformReward
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

import popart
import popart.torch

STEPS = 30_000
STEPS_PER_UPDATE = 6
UPDATES_PER_COPY = 10
WARMUP = 500
EPSILON, EXPLORATION = 0.1, 4_000
GAMMA, N_STEP = 0.99, 20
BATCH = 256
LEARNING_RATE = 2e-3
BETA = 1e-2
EVALUATIONS = 20


class Network(nn.Module):
    """The values of both actions, in the units of the rewards."""

    def __init__(self, head: str) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        if head == "popart":
            self.head = popart.torch.PopArt(64, 2, popart.Moments(beta=BETA))
        else:
            self.head = nn.Linear(64, 2)

    def forward(self, observation: Tensor) -> Tensor:
        return self.head(self.body(observation))


class Transitions(NamedTuple):
    """From each step of an episode to `N_STEP` later, or to its end. `discount` is 0 where the pole fell."""

    observation: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    later: Tensor


def loss_of(network: Network, target: Network, batch: Transitions, optimizer: Optimizer) -> Tensor:
    """The squared error of the values of the actions that were taken."""
    with torch.no_grad():
        best = network(batch.later).argmax(1, keepdim=True)
        y = batch.reward + batch.discount * target(batch.later).gather(1, best)[:, 0]
    h = network.body(batch.observation)
    if isinstance(network.head, popart.torch.PopArt):
        # First the targets, which set the units that the outputs and the error are in.
        y = network.head.update(y, optimizer=optimizer)
        q = network.head.normalized(h, index=batch.action)
    else:
        q = network.head(h).gather(1, batch.action[:, None])[:, 0]
    return (q - y).square().mean()


def play(env: gymnasium.Env[Any, Any], network: Network, rng: random.Random, epsilon: float) -> Transitions:
    """One episode."""
    observations, actions, rewards = [env.reset()[0]], [], []
    terminated = truncated = False
    while not (terminated or truncated):
        action = rng.randrange(2)
        if rng.random() >= epsilon:
            with torch.no_grad():
                action = int(network(torch.as_tensor(observations[-1])).argmax())
        observation, reward, terminated, truncated, _ = env.step(action)
        observations.append(observation)
        actions.append(action)
        rewards.append(float(reward))

    T = len(actions)
    end = np.minimum(np.arange(T) + N_STEP, T)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(rewards, (0, N_STEP - 1)), N_STEP)
    # An episode that only ran out of time would have gone on, so its last state has a value.
    discount = np.where(terminated & (end == T), 0, GAMMA ** (end - np.arange(T)))
    return Transitions(
        torch.as_tensor(np.stack(observations[:-1])),
        torch.as_tensor(actions),
        torch.as_tensor(windows @ GAMMA ** np.arange(N_STEP), dtype=torch.float32),
        torch.as_tensor(discount, dtype=torch.float32),
        torch.as_tensor(np.stack(observations)[end]),
    )


def train(head: str, reward_scale: float, seed: int, steps: int = STEPS) -> float:
    """The mean return of the greedy policy after training, in CartPole's own units: steps survived."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    env = TransformReward(gymnasium.make("CartPole-v1"), lambda reward: reward_scale * float(reward))
    env.reset(seed=seed)  # The resets in `play` go on from here.
    network = Network(head)
    target = copy.deepcopy(network)
    optimizer = Adam(network.parameters(), lr=LEARNING_RATE)

    memory = play(env, network, rng, epsilon=1)
    lengths = [len(memory.action)]
    while (before := sum(lengths)) < steps:
        episode = play(env, network, rng, epsilon=max(EPSILON, 1 - before / EXPLORATION))
        memory = Transitions(*map(torch.cat, zip(memory, episode, strict=True)))
        lengths.append(len(episode.action))
        now = sum(lengths)
        for update in range(max(before, WARMUP) // STEPS_PER_UPDATE, now // STEPS_PER_UPDATE):
            if update % UPDATES_PER_COPY == 0:
                target.load_state_dict(network.state_dict())
            chosen = torch.randint(now, (BATCH,))
            loss = loss_of(network, target, Transitions(*(x[chosen] for x in memory)), optimizer)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if before // 5000 < now // 5000:
            print(
                f"  step {now:5}: the last 10 episodes' mean return is {np.mean(lengths[-10:]):.0f}",
                flush=True,
            )
    return float(np.mean([len(play(env, network, rng, epsilon=0).action) for _ in range(EVALUATIONS)]))


def main() -> None:
    parser = argparse.ArgumentParser(description="CartPole with large rewards, with and without Pop-Art.")
    parser.add_argument("--head", choices=("popart", "linear"), help="the last layer; by default, both")
    parser.add_argument("--reward-scale", type=float, default=1e4, help="by what rewards are multiplied")
    parser.add_argument("--seed", type=int, default=0, help="of everything that is random")
    parser.add_argument("--steps", type=int, default=STEPS, help="how many steps of CartPole to learn from")
    arguments = parser.parse_args()

    torch.set_num_threads(1)  # More threads cost more than they gain on a network of this size.
    for head in (arguments.head,) if arguments.head else ("linear", "popart"):
        print(f"{head}, rewards × {arguments.reward_scale:g}", flush=True)
        mean = train(head, arguments.reward_scale, arguments.seed, arguments.steps)
        print(f"  after training: mean return {mean:.1f} in {EVALUATIONS} greedy episodes", flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit("\nStopped.") from None
