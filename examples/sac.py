"""SAC on Pendulum, with and without Pop-Art, for rewards of any size.

    pip install "popart-learn[torch]" gymnasium
    python examples/sac.py [--head popart|linear] [--reward-scale 1e4] [--seed 0] [--steps 5000]

The lines that Pop-Art adds or changes end with `# Pop-Art`; docs/how-to/sac.md explains them. `--head linear`
is the same agent without it: `popart.Fixed()` has a scale of 1 and a shift of 0, so that the heads are plain
linear layers.
"""

import argparse
import copy
import math
from collections.abc import Iterable
from typing import NamedTuple

import gymnasium
import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn.functional import logsigmoid
from torch.optim import Adam

import popart.torch  # Pop-Art

STEPS, WARMUP = 5_000, 500
BATCH, WIDTH = 128, 64
GAMMA, TAU = 0.99, 0.01
LEARNING_RATE = 1e-3
ALPHA, ENTROPY, TORQUE = 0.01, -1.0, 2.0
EVALUATIONS = 20
ART = {"popart": popart.Moments(beta=1e-3), "linear": popart.Fixed()}  # Pop-Art


class Actor(nn.Module):
    """A Gaussian policy through a hyperbolic tangent: actions are from -1 to 1."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers(3), nn.Linear(WIDTH, 2))

    def greedy(self, observation: Tensor) -> Tensor:
        return self.layers(observation)[..., :1].tanh()

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return an action and its log-probability."""
        mean, log_std = self.layers(observation).chunk(2, -1)
        normal = Normal(mean, log_std.clamp(-5, 2).exp(), validate_args=False)
        x = normal.rsample()
        # The logarithm of the derivative of tanh, without the cancellation in log(1 - tanh²).
        slope = math.log(4) + logsigmoid(2 * x) + logsigmoid(-2 * x)
        return x.tanh(), (normal.log_prob(x) - slope).sum(-1)


class Critic(nn.Module):
    """The value of an action, in the units of the rewards."""

    def __init__(self, head: str) -> None:
        super().__init__()
        self.body = nn.Sequential(*layers(4))
        self.head = popart.torch.PopArt(WIDTH, 1, ART[head])  # Pop-Art

    def features(self, observation: Tensor, action: Tensor) -> Tensor:
        return self.body(torch.cat((observation, action), -1))

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        return self.head(self.features(observation, action))[..., 0]


def layers(inputs: int) -> list[nn.Module]:
    return [nn.Linear(inputs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()]


class Transitions(NamedTuple):
    """Steps of the environment. `discount` is 0 where the episode terminated."""

    observation: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    next_observation: Tensor


class Agent:
    """An actor, two critics with target networks, and the entropy coefficient α."""

    def __init__(self, head: str) -> None:
        self.art, self.rewards = ART[head], ART[head].init()  # Pop-Art
        self.actor = Actor()
        self.critics = [Critic(head), Critic(head)]
        self.targets = copy.deepcopy(self.critics)
        self.log_alpha = torch.tensor(math.log(ALPHA), requires_grad=True)
        parameters = [p for critic in self.critics for p in critic.parameters()]
        self.critic_optimizer = Adam(parameters, lr=LEARNING_RATE)
        self.actor_optimizer = Adam(self.actor.parameters(), lr=LEARNING_RATE)
        self.alpha_optimizer = Adam([self.log_alpha], lr=LEARNING_RATE)

    def alpha(self) -> Tensor:
        """Return α in the units of the rewards."""
        std, mean = self.art.affine(self.rewards)  # Pop-Art
        return torch.hypot(std, mean) * self.log_alpha.detach().exp()  # Pop-Art


def learn(agent: Agent, batch: Transitions) -> None:
    """Train the critics, then the actor and α, then move the target networks."""
    agent.rewards = agent.art.update(agent.rewards, batch.reward)  # Pop-Art
    train_critics(agent, batch)
    train_actor(agent, batch)
    for target, critic in zip(agent.targets, agent.critics, strict=True):
        popart.torch.polyak_(target, critic, TAU)  # Pop-Art


def train_critics(agent: Agent, batch: Transitions) -> None:
    """Take a step on the squared errors of both critics, with targets that contain the policy's entropy."""
    with torch.no_grad():
        action, log_pi = agent.actor(batch.next_observation)
        q = least(target(batch.next_observation, action) for target in agent.targets)
        y = batch.reward + batch.discount * (q - agent.alpha() * log_pi)
    loss = torch.zeros(())
    for critic in agent.critics:
        h = critic.features(batch.observation, batch.action)
        t = critic.head.update(y, optimizer=agent.critic_optimizer)  # Pop-Art
        loss = loss + (critic.head.normalized(h)[:, 0] - t).square().mean()  # Pop-Art
    step(agent.critic_optimizer, loss)


def train_actor(agent: Agent, batch: Transitions) -> None:
    """Take a step towards actions of high value and high entropy, and one of α towards `ENTROPY`."""
    action, log_pi = agent.actor(batch.observation)
    q = least(critic(batch.observation, action) for critic in agent.critics)
    loss = (agent.alpha() * log_pi - q).mean()
    loss = agent.critics[0].head.normalize(loss)  # Pop-Art
    step(agent.actor_optimizer, loss)
    step(agent.alpha_optimizer, -agent.log_alpha.exp() * (log_pi.detach().mean() + ENTROPY))


def least(values: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(values)).amin(0)


def step(optimizer: Adam, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def train(head: str, reward_scale: float, seed: int, steps: int = STEPS) -> Agent:
    """Return the agent after training on rewards × `reward_scale`."""
    torch.manual_seed(seed)
    env = gymnasium.make("Pendulum-v1")
    agent = Agent(head)
    buffer = Transitions(*(torch.zeros(steps, *shape) for shape in ((3,), (1,), (), (), (3,))))
    observation, total = env.reset(seed=seed)[0], 0.0
    for t in range(steps):
        with torch.no_grad():
            action, _ = agent.actor(torch.as_tensor(observation))
        if t < WARMUP:
            action = 2 * torch.rand(1) - 1
        next_observation, reward, terminated, truncated, _ = env.step(TORQUE * action.numpy())
        row = (observation, action, reward_scale * float(reward), GAMMA * (not terminated), next_observation)
        for column, x in zip(buffer, row, strict=True):
            column[t] = torch.as_tensor(x)
        observation, total = next_observation, total + float(reward)
        if t >= WARMUP:
            chosen = torch.randint(t + 1, (BATCH,))
            learn(agent, Transitions(*(x[chosen] for x in buffer)))
        if terminated or truncated:
            if (t + 1) % 1000 == 0:
                print(f"  step {t + 1:6}: return {total:.0f} of the last episode", flush=True)
            observation, total = env.reset()[0], 0.0
    return agent


@torch.no_grad()
def evaluate(agent: Agent, seed: int) -> float:
    """Return the mean return of the greedy policy, in Pendulum's own units."""
    env = gymnasium.make("Pendulum-v1")
    total = 0.0
    for episode in range(EVALUATIONS):
        observation, _ = env.reset(seed=1_000_000 * (seed + 1) + episode)
        ended = False
        while not ended:
            action = TORQUE * agent.actor.greedy(torch.as_tensor(observation)).numpy()
            observation, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            ended = terminated or truncated
    return total / EVALUATIONS


def main() -> None:
    parser = argparse.ArgumentParser(description="SAC on Pendulum with and without Pop-Art.")
    parser.add_argument("--head", choices=("popart", "linear"), default="popart", help="critics' last layer")
    parser.add_argument("--reward-scale", type=float, default=1.0, help="factor of all rewards")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument("--steps", type=int, default=STEPS, help="environment steps of training")
    options = parser.parse_args()

    torch.set_num_threads(1)  # More threads cost more than they gain on networks of this size.
    print(f"SAC, {options.head} head, rewards × {options.reward_scale:g}", flush=True)
    agent = train(options.head, options.reward_scale, options.seed, options.steps)
    print(f"mean return {evaluate(agent, options.seed):.1f} in {EVALUATIONS} greedy episodes")


if __name__ == "__main__":
    main()
