"""PPO on CartPole, with and without Pop-Art, for rewards of any size.

    pip install "popart-learn[torch]" gymnasium
    python examples/ppo.py [--head popart|linear] [--reward-scale 1e4] [--seed 0] [--steps 65536]

The lines that Pop-Art adds or changes end with `# Pop-Art`; docs/how-to/ppo.md explains them. `--head linear`
is the same agent without it: `popart.Fixed()` has a scale of 1 and a shift of 0, so that the head is a
plain linear layer.
"""

import argparse
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.optim import Adam, Optimizer

import popart.torch  # Pop-Art

STEPS, ENVIRONMENTS, ROLLOUT = 65_536, 8, 128
EPOCHS, MINIBATCH = 8, 256
GAMMA, LAMBDA = 0.99, 0.95
LEARNING_RATE = 1e-3
CLIP, ENTROPY, MAX_GRADIENT_NORM = 0.2, 0.01, 0.5
EVALUATIONS = 20
ART = {"popart": popart.Moments(beta=0.1), "linear": popart.Fixed()}  # Pop-Art


class Agent(nn.Module):
    """A policy, and a critic whose values are in the units of the rewards."""

    def __init__(self, head: str) -> None:
        super().__init__()
        self.actor = nn.Sequential(*layers(), nn.Linear(64, 2))
        self.critic = nn.Sequential(*layers())
        self.head = popart.torch.PopArt(64, 1, ART[head])  # Pop-Art

    def policy(self, observation: Tensor) -> Categorical:
        return Categorical(logits=self.actor(observation), validate_args=False)

    def value(self, observation: Tensor) -> Tensor:
        return self.head(self.critic(observation))[..., 0]


def layers() -> list[nn.Module]:
    return [nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()]


class Rollout(NamedTuple):
    """Steps of all environments, `(ROLLOUT, ENVIRONMENTS, ...)`."""

    observation: Tensor
    action: Tensor
    log_probability: Tensor
    reward: Tensor
    next_observation: Tensor
    terminated: Tensor
    done: Tensor


def play(env: gymnasium.vector.VectorEnv, agent: Agent, observation: Any) -> tuple[Rollout, Any]:
    """Return the next steps of all environments, and the observation after them."""
    steps: list[tuple[Any, ...]] = []
    for _ in range(ROLLOUT):
        with torch.no_grad():
            policy = agent.policy(torch.as_tensor(observation))
            action = policy.sample()
        next_observation, reward, terminated, truncated, info = env.step(action.numpy())
        done = terminated | truncated
        last = next_observation.copy()
        for i in np.flatnonzero(done):
            last[i] = info["final_obs"][i]  # This environment was reset in the same step.
        steps.append((observation, action, policy.log_prob(action), reward, last, terminated, done))
        observation = next_observation
    columns = (torch.as_tensor(np.stack(column)) for column in zip(*steps, strict=True))
    rollout = Rollout(*columns)
    return rollout._replace(reward=rollout.reward.float()), observation


@torch.no_grad()
def values_and_returns(agent: Agent, rollout: Rollout) -> tuple[Tensor, Tensor]:
    """Return values and λ-returns (GAE plus values), in the units of the rewards."""
    values = agent.value(rollout.observation)
    bootstrap = ~rollout.terminated * agent.value(rollout.next_observation)
    errors = rollout.reward + GAMMA * bootstrap - values
    advantages, advantage = torch.zeros_like(values), torch.zeros(ENVIRONMENTS)
    for t in reversed(range(ROLLOUT)):
        advantage = errors[t] + GAMMA * LAMBDA * ~rollout.done[t] * advantage
        advantages[t] = advantage
    return values, advantages + values


def learn(agent: Agent, optimizer: Optimizer, rollout: Rollout) -> None:
    """Train for several epochs on a rollout, in minibatches."""
    values, returns = values_and_returns(agent, rollout)
    returns = agent.head.update(returns, optimizer=optimizer)  # Pop-Art
    values = agent.head.normalize(values)  # Pop-Art
    advantages = returns - values
    columns = (*rollout[:3], values, returns, advantages)
    observation, action, log_old, v_old, y, A = (x.flatten(0, 1) for x in columns)
    for _ in range(EPOCHS):
        for i in torch.randperm(len(y)).split(MINIBATCH):
            policy = agent.policy(observation[i])
            ratio = (policy.log_prob(action[i]) - log_old[i]).exp()
            a = (A[i] - A[i].mean()) / (A[i].std() + 1e-8)
            policy_loss = -torch.min(ratio * a, ratio.clamp(1 - CLIP, 1 + CLIP) * a).mean()

            v = agent.head.normalized(agent.critic(observation[i]))[:, 0]  # Pop-Art
            clipped = v_old[i] + (v - v_old[i]).clamp(-CLIP, CLIP)
            value_loss = torch.max((v - y[i]).square(), (clipped - y[i]).square()).mean() / 2

            loss = policy_loss + value_loss - ENTROPY * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), MAX_GRADIENT_NORM)
            optimizer.step()


def train(head: str, reward_scale: float, seed: int, steps: int = STEPS) -> Agent:
    """Return the agent after training on rewards × `reward_scale`."""
    torch.manual_seed(seed)
    env = gymnasium.make_vec(
        "CartPole-v1",
        ENVIRONMENTS,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
    )
    observation, _ = env.reset(seed=seed)
    agent = Agent(head)
    optimizer = Adam(agent.parameters(), lr=LEARNING_RATE, eps=1e-5)
    size = ROLLOUT * ENVIRONMENTS
    for step in range(0, steps, size):
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - step / steps)
        rollout, observation = play(env, agent, observation)
        learn(agent, optimizer, rollout._replace(reward=reward_scale * rollout.reward))
        if step // size % 8 == 7:
            falls = int(rollout.terminated.sum())
            print(f"  step {step + size:6}: the pole fell {falls} times in the last {size} steps", flush=True)
    env.close()
    return agent


@torch.no_grad()
def evaluate(agent: Agent, seed: int) -> float:
    """Return the mean return of the greedy policy, in CartPole's own units: steps survived."""
    env = gymnasium.make("CartPole-v1")
    total = 0.0
    for episode in range(EVALUATIONS):
        observation, _ = env.reset(seed=1_000_000 * (seed + 1) + episode)
        ended = False
        while not ended:
            action = int(agent.actor(torch.as_tensor(observation)).argmax())
            observation, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            ended = terminated or truncated
    return total / EVALUATIONS


def main() -> None:
    parser = argparse.ArgumentParser(description="PPO on CartPole with and without Pop-Art.")
    parser.add_argument("--head", choices=("popart", "linear"), default="popart", help="critic's last layer")
    parser.add_argument("--reward-scale", type=float, default=1.0, help="factor of all rewards")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument("--steps", type=int, default=STEPS, help="environment steps of training")
    options = parser.parse_args()

    torch.set_num_threads(1)  # More threads cost more than they gain on networks of this size.
    print(f"PPO, {options.head} head, rewards × {options.reward_scale:g}", flush=True)
    agent = train(options.head, options.reward_scale, options.seed, options.steps)
    print(f"mean return {evaluate(agent, options.seed):.1f} in {EVALUATIONS} greedy episodes")


if __name__ == "__main__":
    main()
