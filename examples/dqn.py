"""Double DQN on CartPole, with and without Pop-Art, for rewards of any size.

    pip install "popart-learn[torch]" gymnasium
    python examples/dqn.py [--head popart|linear] [--reward-scale 1e4] [--seed 0] [--steps 20000]

The lines that Pop-Art adds or changes end with `# Pop-Art`; docs/how-to/dqn.md explains them. `--head linear`
is the same agent without it: `popart.Fixed()` has a scale of 1 and a shift of 0, so that the head is a plain
linear layer. With rewards × 10⁴ that agent learns nothing: values are in the hundreds of thousands, its
outputs start near 0, and Adam moves a weight by about the learning rate, whatever the rewards are.
"""

import argparse
import copy
import random
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

import popart.torch  # Pop-Art

STEPS, WARMUP = 20_000, 500
STEPS_PER_UPDATE, UPDATES_PER_COPY = 6, 10
EPSILON, EXPLORATION = 0.1, 4_000
GAMMA, N_STEP = 0.99, 20
BATCH = 256
LEARNING_RATE = 2e-3
EVALUATIONS = 20
ART = {"popart": popart.Moments(beta=1e-2), "linear": popart.Fixed()}  # Pop-Art


class Network(nn.Module):
    """The values of both actions, in the units of the rewards."""

    def __init__(self, head: str) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.head = popart.torch.PopArt(64, 2, ART[head])  # Pop-Art

    def forward(self, observation: Tensor) -> Tensor:
        return self.head(self.body(observation))


class Transitions(NamedTuple):
    """Transitions over `N_STEP` steps, or to the end of the episode. `discount` is 0 where it terminated."""

    observation: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    next_observation: Tensor


def learn(network: Network, target: Network, optimizer: Optimizer, batch: Transitions) -> None:
    """Take a step on the squared error of the values of the actions that were taken."""
    with torch.no_grad():
        best = network(batch.next_observation).argmax(1, keepdim=True)
        y = batch.reward + batch.discount * target(batch.next_observation).gather(1, best)[:, 0]
    y = network.head.update(y, optimizer=optimizer)  # Pop-Art
    q = network.head.normalized(network.body(batch.observation))  # Pop-Art
    loss = (q.gather(1, batch.action[:, None])[:, 0] - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def play(env: gymnasium.Env[Any, Any], network: Network, rng: random.Random, epsilon: float) -> Transitions:
    """Return the transitions of one episode."""
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
    # A truncated episode would have continued, so its last state has a value.
    discount = np.where(terminated & (end == T), 0, GAMMA ** (end - np.arange(T)))
    return Transitions(
        torch.as_tensor(np.stack(observations[:-1])),
        torch.as_tensor(actions),
        torch.as_tensor(windows @ GAMMA ** np.arange(N_STEP), dtype=torch.float32),
        torch.as_tensor(discount, dtype=torch.float32),
        torch.as_tensor(np.stack(observations)[end]),
    )


def train(head: str, reward_scale: float, seed: int, steps: int = STEPS) -> Network:
    """Return the network after training on rewards × `reward_scale`."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    env = gymnasium.make("CartPole-v1")
    env.reset(seed=seed)  # The resets in `play` continue its random numbers.
    network = Network(head)
    target = copy.deepcopy(network)
    optimizer = Adam(network.parameters(), lr=LEARNING_RATE)

    buffer: Transitions | None = None
    lengths: list[int] = []
    while (before := sum(lengths)) < steps:
        episode = play(env, network, rng, epsilon=max(EPSILON, 1 - before / EXPLORATION))
        episode = episode._replace(reward=reward_scale * episode.reward)
        buffer = Transitions(*map(torch.cat, zip(buffer, episode, strict=True))) if buffer else episode
        lengths.append(len(episode.action))
        now = sum(lengths)
        for update in range(max(before, WARMUP) // STEPS_PER_UPDATE, now // STEPS_PER_UPDATE):
            if update % UPDATES_PER_COPY == 0:
                target.load_state_dict(network.state_dict())
            chosen = torch.randint(now, (BATCH,))
            learn(network, target, optimizer, Transitions(*(x[chosen] for x in buffer)))
        if before // 5000 < now // 5000:
            print(f"  step {now:6}: mean return {np.mean(lengths[-10:]):.0f} of 10 episodes", flush=True)
    return network


def evaluate(network: Network, seed: int) -> float:
    """Return the mean return of the greedy policy, in CartPole's own units: steps survived."""
    env = gymnasium.make("CartPole-v1")
    env.reset(seed=1_000_000 + seed)
    rng = random.Random(seed)
    episodes = [play(env, network, rng, epsilon=0) for _ in range(EVALUATIONS)]
    return float(np.mean([len(episode.action) for episode in episodes]))


def main() -> None:
    parser = argparse.ArgumentParser(description="Double DQN on CartPole with and without Pop-Art.")
    parser.add_argument("--head", choices=("popart", "linear"), default="popart", help="last layer")
    parser.add_argument("--reward-scale", type=float, default=1.0, help="factor of all rewards")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument("--steps", type=int, default=STEPS, help="environment steps of training")
    options = parser.parse_args()

    torch.set_num_threads(1)  # More threads cost more than they gain on a network of this size.
    print(f"DQN, {options.head} head, rewards × {options.reward_scale:g}", flush=True)
    network = train(options.head, options.reward_scale, options.seed, options.steps)
    print(f"mean return {evaluate(network, options.seed):.1f} in {EVALUATIONS} greedy episodes")


if __name__ == "__main__":
    main()
