"""`popart.torchrl` in TorchRL's own losses: values are preserved, and GAE sees them in true units."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.modules import MultiAgentMLP, OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.multiagent import MAPPOLoss
from torchrl.objectives.value import GAE

from popart.torch import PopArt
from popart.torchrl import (
    PopArtClipPPOLoss,
    PopArtKLPENPPOLoss,
    PopArtMAPPOLoss,
    PopArtPPOLoss,
    PopArtValueNorm,
)

LOSSES: list[type[Any]] = [PopArtPPOLoss, PopArtClipPPOLoss, PopArtKLPENPPOLoss]
EPS = torch.finfo(torch.float32).eps


class Agent:
    """An actor, a critic whose last layer is a head, and data of two trajectories."""

    def __init__(self, scale: float = 1.0, beta: float = 0.1) -> None:
        torch.manual_seed(0)
        self.head = PopArt(16, 1, beta=beta)
        body = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), self.head)
        self.critic = ValueOperator(body, in_keys=["observation"])
        logits = TensorDictModule(nn.Linear(4, 2), in_keys=["observation"], out_keys=["logits"])
        self.actor = ProbabilisticActor(
            logits, in_keys=["logits"], distribution_class=OneHotCategorical, return_log_prob=True
        )
        self.gae = GAE(gamma=0.9, lmbda=0.9, value_network=self.critic)
        self.norm = PopArtValueNorm(self.head)
        self.data = self.rollout(scale)

    def rollout(self, scale: float, steps: int = 10) -> Any:
        no = torch.zeros(2, steps, 1, dtype=torch.bool)
        following = {
            "observation": torch.randn(2, steps, 4),
            "reward": scale * (torch.randn(2, steps, 1) + 3),
            "done": no,
            "terminated": no.clone(),
        }
        data = TensorDict({"observation": torch.randn(2, steps, 4), "next": following}, [2, steps])
        with torch.no_grad():
            return self.actor(data)

    def estimated(self) -> Any:
        with torch.no_grad():
            return self.gae(self.data.clone())


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("factor", [1e3, 1e-3])
def test_values_are_preserved_through_the_ppo_loss(kind: Callable[..., Any], factor: float) -> None:
    """The errors that the loss sees after an update, in true units, are those of the values before it."""
    agent = Agent()
    agent.norm.update(agent.estimated()["value_target"])
    loss = kind(agent.actor, agent.critic, value_norm=agent.norm, loss_critic_type="l1", reduction="none")
    data = agent.estimated()
    values, y = data["state_value"].double(), data["value_target"].double()
    sigma = agent.head.sigma
    agent.norm.update(factor * data["value_target"])
    assert not 0.5 < agent.head.sigma / sigma < 1.1
    errors = agent.head.sigma.double() * loss(data)["loss_critic"].double()
    g = agent.norm.normalize(data["state_value"]).double()
    largest = torch.maximum(agent.head.sigma * g.abs(), agent.head.mu.abs())
    ulps = (errors - (values - y).abs().reshape(errors.shape)).abs() / (EPS * largest.max())
    assert ulps.max() <= 8
    assert errors.max() > 0.1


def test_gae_sees_values_in_true_units_and_the_loss_normalised_ones() -> None:
    """Rewards times 2**60 have values and advantages times 2**60, and the same loss."""

    def measured(scale: float) -> tuple[Any, Any]:
        agent = Agent(scale)
        agent.norm.update(agent.estimated()["value_target"])
        data = agent.estimated()
        torch.testing.assert_close(
            data["state_value"], agent.critic(data.clone())["state_value"], rtol=0, atol=0
        )
        loss = PopArtClipPPOLoss(
            agent.actor, agent.critic, value_norm=agent.norm, advantage_norm=agent.norm, clip_value=0.2
        )
        return data, loss(data)

    (data, losses), (large, same) = measured(1.0), measured(2.0**60)
    for key in ("state_value", "advantage", "value_target"):
        torch.testing.assert_close(large[key], 2.0**60 * data[key], rtol=0, atol=0)
    assert losses["loss_critic"] < 10
    for key, x in losses.items():
        torch.testing.assert_close(same[key], x, rtol=0, atol=0)


def test_the_loss_that_estimates_advantages_updates_before_it_runs_the_critic() -> None:
    agent = Agent()
    loss = PopArtPPOLoss(agent.actor, agent.critic, value_norm=agent.norm, advantage_norm=agent.norm)
    loss.make_value_estimator(gamma=0.9, lmbda=0.9)
    loss(agent.data)["loss_critic"].backward()
    assert agent.head.state.counts[0] == 1
    assert agent.norm.head.weight.grad is not None
    loss.eval()
    loss(agent.data)
    assert agent.head.state.counts[0] == 1
    loss.train()
    loss(agent.estimated())
    assert agent.head.state.counts[0] == 1


@pytest.mark.parametrize("key", ["auto", "own", None])
def test_invalid_rows_stay_out_of_the_statistics(key: str | None) -> None:
    agent = Agent()
    valid = torch.ones(2, 10, 1, dtype=torch.bool)
    valid[0, 5:] = False
    agent.data[("collector", "mask") if key == "auto" else "own"] = valid
    loss: Any = PopArtPPOLoss(agent.actor, agent.critic, value_norm=agent.norm)
    loss.make_value_estimator(gamma=0.9, lmbda=0.9)
    loss.loss_mask_key = key
    y = agent.estimated()["value_target"]
    loss(agent.data)
    counted = y if key is None else y[valid[..., 0]]
    torch.testing.assert_close(agent.head.mu, counted.mean())


def test_an_update_inside_of_mappo_is_refused_and_the_loss_of_this_module_is_not() -> None:
    def losses(kind: Callable[..., Any]) -> tuple[Any, PopArt]:
        torch.manual_seed(0)
        head = PopArt(16, 1)
        mlp = MultiAgentMLP(4, 16, n_agents=3, centralized=True, share_params=True)
        critic = TensorDictModule(
            nn.Sequential(mlp, nn.Tanh(), head),
            in_keys=[("agents", "observation")],
            out_keys=[("agents", "state_value")],
        )
        logits = MultiAgentMLP(4, 2, n_agents=3, centralized=False, share_params=True)
        actor = ProbabilisticActor(
            TensorDictModule(logits, in_keys=[("agents", "observation")], out_keys=[("agents", "logits")]),
            in_keys=[("agents", "logits")],
            out_keys=[("agents", "action")],
            distribution_class=OneHotCategorical,
            return_log_prob=True,
        )
        agents = {"observation": torch.randn(5, 3, 4)}
        data: Any = TensorDict({"agents": agents}, [5])
        with torch.no_grad():
            actor(data)
        norm = PopArtValueNorm(head)
        data["advantage"], data["value_target"] = torch.randn(5, 3, 1), 1e3 * torch.randn(5, 3, 1)
        norm.update(10 * data["value_target"])
        loss = kind(actor, critic, value_norm=norm)
        loss.set_keys(value=("agents", "state_value"), action=("agents", "action"))
        return loss(data)["loss_critic"], head

    with pytest.raises(RuntimeError, match=r"Use a loss of popart\.torchrl, such as PopArtMAPPOLoss"):
        losses(MAPPOLoss)
    loss, head = losses(PopArtMAPPOLoss)
    loss.backward()
    assert head.weight.grad is not None
    assert loss < 10


def test_statistics_travel_with_the_loss_also_when_it_is_converted() -> None:
    agent, other = Agent(), Agent()
    losses = [PopArtPPOLoss(a.actor, a.critic, value_norm=a.norm) for a in (agent, other)]
    for loss in losses:
        loss.double()
    agent.norm.update(1e6 * torch.randn(8, 1, dtype=torch.float64))
    saved = losses[0].state_dict()
    losses[1].load_state_dict(saved)
    assert other.head.state.counts[0] == 1
    torch.testing.assert_close(other.head.state.moments, agent.head.state.moments, rtol=0, atol=0)
    assert other.head.sigma > 1e5
    x = torch.ones(1, 4, dtype=torch.float64)
    torch.testing.assert_close(other.critic(x), agent.critic(x), rtol=0, atol=0)
    assert len(list(losses[0].parameters())) == len({*map(id, losses[0].parameters())})


def test_the_state_of_the_optimizer_follows_the_head() -> None:
    agent = Agent()
    agent.norm.update(agent.estimated()["value_target"])
    optimizer = torch.optim.Adam(agent.critic.parameters(), 1e-3)
    agent.norm.optimizer = optimizer
    loss = PopArtClipPPOLoss(agent.actor, agent.critic, value_norm=agent.norm)
    loss(agent.estimated())["loss_critic"].backward()
    optimizer.step()
    before, sigma = optimizer.state[agent.head.weight]["exp_avg"].clone(), agent.head.sigma
    agent.norm.update(100 * agent.estimated()["value_target"])
    after = optimizer.state[agent.head.weight]["exp_avg"]
    torch.testing.assert_close(after, before * sigma / agent.head.sigma, rtol=1e-5, atol=0)


def test_normalised_advantages_are_0_while_no_spread_is_known() -> None:
    agent = Agent()
    agent.norm.update(torch.full((4, 1), 7.0))
    assert agent.norm.scale() == torch.inf
    assert not agent.norm.normalize(torch.full((4, 1), 7.0)).any()
    y = torch.randn(8, 1) * 5
    agent.norm.update(y)
    torch.testing.assert_close(agent.norm.denormalize(agent.norm.normalize(y)), y)
    assert agent.norm.scale() == agent.head.sigma


def test_what_cannot_work_is_refused() -> None:
    agent = Agent()
    layer: Any = nn.Linear(16, 1)
    with pytest.raises(TypeError, match=r"head is Linear.*; it must be a popart\.torch\.PopArt"):
        PopArtValueNorm(layer)
    with pytest.raises(TypeError, match="without several heads"):
        PopArtValueNorm(PopArt(16, 1, heads=2))
    with pytest.raises(ValueError, match="which is not a part of critic_network"):
        PopArtClipPPOLoss(agent.actor, agent.critic, value_norm=PopArtValueNorm(PopArt(16, 1)))
    with pytest.raises(ValueError, match=r"shape=\(1,\)"):
        agent.norm.update(torch.zeros(4, 2))


def test_a_plain_loss_of_torchrl_still_takes_the_norm_for_its_advantages() -> None:
    agent = Agent(1e6)
    loss = ClipPPOLoss(agent.actor, agent.critic, advantage_norm=agent.norm)
    agent.norm.update(agent.estimated()["value_target"])
    assert loss(agent.estimated())["loss_objective"].abs() < 10
