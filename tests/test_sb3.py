"""The algorithms of `popart.sb3`, against the real Stable-Baselines3.

Its own tests of saving, loading, callbacks and evaluation run with our classes in test_sb3_own.py, which says
which of them do not apply. Files of models that were trained without Pop-Art are refused, and so are state
dictionaries that leave out the statistics of a head (`test_statistics_cannot_be_left_out`).
"""

import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import stable_baselines3
import torch
from stable_baselines3.common import callbacks, envs
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.utils import set_random_seed

import popart
import popart.sb3
from benchmarks.sb3 import page_rows
from popart.sb3 import PopArtA2C, PopArtDQN, PopArtPPO, PopArtSAC, PopArtTD3, policies

ALL: list[Any] = [PopArtPPO, PopArtA2C, PopArtDQN, PopArtSAC, PopArtTD3]
ON_POLICY: list[Any] = [PopArtPPO, PopArtA2C]
OFF_POLICY: list[Any] = [PopArtDQN, PopArtSAC, PopArtTD3]
CRITICS: list[Any] = [PopArtSAC, PopArtTD3]

REPLAY = {"learning_starts": 20, "batch_size": 16, "buffer_size": 500}
SETTINGS: dict[Any, dict[str, Any]] = {
    PopArtPPO: {"n_steps": 32, "batch_size": 16, "n_epochs": 2, "clip_range_vf": 0.2},
    PopArtA2C: {},
    PopArtDQN: {**REPLAY, "train_freq": 2, "target_update_interval": 15},
    PopArtSAC: REPLAY,
    PopArtTD3: REPLAY,
}
UNITS = re.compile(r"scale|shift|moments_")
"""Names in a state dictionary that have the units of rewards."""


class Line(gymnasium.Env[Any, Any]):
    """A point on a line that is rewarded for being close to 0; an episode has 20 steps."""

    observation_space = gymnasium.spaces.Box(-4, 4, (2,), np.float32)

    def __init__(self, discrete: bool, scale: float = 1.0, observations: str = "vector") -> None:
        self.action_space = gymnasium.spaces.Discrete(3) if discrete else gymnasium.spaces.Box(-1, 1, (1,))
        self.discrete, self.scale, self.observations = discrete, scale, observations
        image = gymnasium.spaces.Box(0, 255, (36, 36, 1), np.uint8)
        vector = self.observation_space
        both = gymnasium.spaces.Dict({"image": image, "vector": vector})
        self.observation_space = {"vector": vector, "image": image, "dict": both}[observations]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.x, self.t = self.np_random.uniform(-3, 3), 0
        return self.observe(), {}

    def observe(self) -> Any:
        vector = np.array([self.x, self.t / 20], np.float32)
        image = np.full((36, 36, 1), int(128 + 30 * self.x), np.uint8)
        both = {"image": image, "vector": vector}
        return {**both, "dict": both}[self.observations]

    def step(self, action: Any) -> Any:
        move = (int(action) - 1) if self.discrete else float(np.asarray(action)[0])
        self.x, self.t = float(np.clip(self.x + 0.3 * move, -4, 4)), self.t + 1
        return self.observe(), self.scale * -abs(self.x), abs(self.x) < 0.1, self.t >= 20, {}


def is_discrete(algorithm: Any) -> bool:
    return algorithm is PopArtDQN


def make(algorithm: Any, policy: Any = "MlpPolicy", env: Any = None, scale: float = 1.0, **more: Any) -> Any:
    env = env or Line(is_discrete(algorithm), scale)
    small = {"net_arch": [16]} if policy == "MlpPolicy" else {}
    settings = {"seed": 0, "device": "cpu", "policy_kwargs": small, **SETTINGS.get(algorithm, {}), **more}
    return algorithm(policy, env, **settings)


def parameters(model: Any) -> dict[str, torch.Tensor]:
    return {name: x.clone() for name, x in model.policy.state_dict().items()}


def head_of(model: Any) -> Any:
    if isinstance(model, tuple(ON_POLICY)):
        return model.policy.value_net
    return model.q_net.head if isinstance(model, PopArtDQN) else model.critic.heads[0]


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    different = [name for name in a if not torch.equal(a[name], b[name])]
    assert not different


@pytest.mark.parametrize("algorithm", ALL)
@pytest.mark.parametrize("k", [20, pytest.param(-20, marks=pytest.mark.slow)])
def test_rewards_times_a_power_of_two_change_no_bit_of_a_policy(algorithm: Any, k: int) -> None:
    one, other = (make(algorithm, scale=scale).learn(200) for scale in (1.0, 2.0**k))
    a, b = parameters(one), parameters(other)
    without_units = [name for name in a if not UNITS.search(name)]
    assert_same({name: a[name] for name in without_units}, {name: b[name] for name in without_units})
    assert torch.equal(head_of(one).sigma * 2.0**k, head_of(other).sigma)
    observations = np.random.default_rng(0).uniform(-3, 3, (50, 2)).astype(np.float32)
    np.testing.assert_array_equal(
        *(model.predict(observations, deterministic=True)[0] for model in (one, other))
    )


@pytest.mark.parametrize("algorithm", ALL)
def test_without_normalisation_an_algorithm_is_that_of_stable_baselines3(algorithm: Any) -> None:
    """With scale 1 and shift 0 our training is theirs: to the bit, but for averages of target networks."""
    theirs = getattr(stable_baselines3, algorithm.__name__.removeprefix("PopArt"))
    plain = make(theirs, env=Line(is_discrete(algorithm)), **SETTINGS[algorithm])
    ours = make(algorithm, art=popart.Fixed(1.0, 0.0))
    ours.policy.load_state_dict(plain.policy.state_dict() | units(ours))
    found: list[Any] = []
    for model in (plain, ours):
        model.set_random_seed(1)
        model.learn(120)
        found.append({n: x for n, x in parameters(model).items() if not UNITS.search(n) and "fixed" not in n})
    exact = algorithm not in CRITICS
    for name, x in found[0].items():
        torch.testing.assert_close(
            found[1][name], x, rtol=0 if exact else 1e-3, atol=0 if exact else 1e-5, msg=name
        )


def units(model: Any) -> dict[str, torch.Tensor]:
    return {n: x for n, x in parameters(model).items() if UNITS.search(n) or "fixed" in n}


RESUME = """
import sys, torch
from pathlib import Path
import popart.sb3
from tests.test_sb3 import ALL, resume
for algorithm in ALL:
    torch.save(resume(algorithm.load, Path(sys.argv[1]), algorithm), f"{sys.argv[1]}/{algorithm.__name__}.pt")
"""


def resume(load: Any, folder: Path, algorithm: Any) -> dict[str, Any]:
    """Train on, in a new environment and with a new seed; return all that training has changed."""
    path = folder / algorithm.__name__
    model = load(path, env=Line(is_discrete(algorithm)), device="cpu")
    if algorithm in OFF_POLICY:
        model.load_replay_buffer(f"{path}_buffer.pkl")
    return train_on(model)


def train_on(model: Any) -> dict[str, Any]:
    model.set_random_seed(7)
    model.learn(60, reset_num_timesteps=False)
    return model.get_parameters()


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[Any, Any]]:
    """Models that were saved and trained on, and a folder with what a new process made of the files."""
    folder, going_on = tmp_path_factory.mktemp("resume"), {}
    for algorithm in ALL:
        model = make(algorithm).learn(100)
        model.save(folder / algorithm.__name__)
        if algorithm in OFF_POLICY:
            model.save_replay_buffer(folder / f"{algorithm.__name__}_buffer.pkl")
        model.set_env(Line(is_discrete(algorithm)), force_reset=True)
        going_on[algorithm] = train_on(model)
    subprocess.run([sys.executable, "-c", RESUME, str(folder)], check=True, cwd=Path(__file__).parents[1])
    return folder, going_on


@pytest.mark.xdist_group("sb3_resumed")  # the fixture trains all of them
@pytest.mark.parametrize("algorithm", ALL)
def test_a_model_that_a_new_process_loads_trains_as_if_it_had_not_been_stopped(
    algorithm: Any, resumed: tuple[Path, dict[Any, Any]]
) -> None:
    """Parameters, statistics and optimizers are the same to the bit."""
    folder, going_on = resumed
    loaded = torch.load(folder / f"{algorithm.__name__}.pt", weights_only=False)
    assert set(loaded) == set(going_on[algorithm])
    torch.testing.assert_close(loaded, going_on[algorithm], rtol=0, atol=0)


@pytest.mark.parametrize("algorithm", ALL)
def test_a_loaded_model_predicts_the_same_and_can_be_trained(algorithm: Any, tmp_path: Path) -> None:
    model = make(algorithm).learn(60)
    observations = np.random.default_rng(0).uniform(-3, 3, (20, 2)).astype(np.float32)
    model.save(tmp_path / "model")
    loaded = algorithm.load(tmp_path / "model", env=make_vec_env(lambda: Line(is_discrete(algorithm)), 2))
    assert_same(parameters(model), parameters(loaded))
    assert loaded.art == model.art == popart.Moments(algorithm.BETA)
    np.testing.assert_array_equal(
        *(each.predict(observations, deterministic=True)[0] for each in (model, loaded))
    )
    loaded.learn(64)
    assert loaded.num_timesteps >= 64


@pytest.mark.parametrize("algorithm", ALL)
def test_models_are_saved_to_streams_with_what_is_included_and_excluded(algorithm: Any) -> None:
    model, file = make(algorithm), io.BytesIO()
    model.save(file, exclude=["learning_rate"], include=["device"])
    file.seek(0)
    loaded = algorithm.load(file, learning_rate=0.5, env=Line(is_discrete(algorithm)))
    assert loaded.learning_rate == 0.5
    assert loaded.lr_schedule(1.0) == 0.5


def test_the_entropy_coefficient_and_the_reward_scale_are_saved(tmp_path: Path) -> None:
    model = make(PopArtSAC).learn(60)
    model.save(tmp_path / "model")
    loaded = PopArtSAC.load(tmp_path / "model")
    assert loaded.log_ent_coef is not None
    assert torch.equal(loaded.log_ent_coef, model.log_ent_coef)
    assert torch.equal(loaded.policy.reward_scale.sigma, model.policy.reward_scale.sigma)
    fixed = make(PopArtSAC, ent_coef=0.25).learn(60)
    fixed.save(tmp_path / "fixed")
    assert PopArtSAC.load(tmp_path / "fixed").ent_coef_tensor == 0.25


@pytest.mark.parametrize("algorithm", ALL)
def test_parameters_can_be_read_and_set(algorithm: Any) -> None:
    model, other = make(algorithm).learn(60), make(algorithm, seed=1)
    other.set_parameters(model.get_parameters())
    assert_same(parameters(other), parameters(model))
    with pytest.raises(ValueError, match="invalid object name"):
        other.set_parameters({**model.get_parameters(), "nothing": {}})
    with pytest.raises(ValueError, match="do not match"):
        other.set_parameters({"policy": model.policy.state_dict()})


@pytest.mark.parametrize("algorithm", ALL)
@pytest.mark.parametrize("exact_match", [True, False])
def test_statistics_cannot_be_left_out(algorithm: Any, exact_match: bool) -> None:
    model = make(algorithm)
    plain = {n: x for n, x in parameters(model).items() if "moments_" not in n}
    with pytest.raises(RuntimeError, match="moments_counts"):
        model.set_parameters({**model.get_parameters(), "policy": plain}, exact_match=exact_match)


@pytest.mark.parametrize("algorithm", ALL)
def test_a_policy_is_saved_alone_with_its_rule(algorithm: Any, tmp_path: Path) -> None:
    model = make(algorithm, art=popart.Percentiles(0.05)).learn(60)
    path = str(tmp_path / "policy.pt")
    model.policy.save(path)
    loaded = type(model.policy).load(path)
    assert_same(parameters(model), loaded.state_dict())
    assert loaded.art == model.art
    if algorithm is PopArtDQN:
        model.q_net.save(path)
        assert_same(dict(type(model.q_net).load(path).state_dict()), dict(model.q_net.state_dict()))


def test_a_step_size_can_be_changed_by_load_and_another_rule_is_refused(tmp_path: Path) -> None:
    model = make(PopArtPPO).learn(32)
    model.save(tmp_path / "model")
    changed = PopArtPPO.load(tmp_path / "model", art=popart.Moments(0.5))
    assert changed.policy.value_net.art == popart.Moments(0.5)
    assert PopArtPPO.load(tmp_path / "model", beta=0.5).policy.value_net.art == popart.Moments(0.5)
    with pytest.raises(ValueError, match="give one of them"):
        PopArtPPO.load(tmp_path / "model", beta=0.5, art=popart.Moments(0.5))
    with pytest.raises(RuntimeError, match="percentiles"):
        PopArtPPO.load(tmp_path / "model", art=popart.Percentiles(0.1))


def test_a_plain_algorithm_warns_of_a_model_whose_statistics_it_does_not_update(tmp_path: Path) -> None:
    model = make(PopArtPPO).learn(32)
    model.save(tmp_path / "model")
    with pytest.warns(UserWarning, match="without an algorithm of popart.sb3"):
        plain = stable_baselines3.PPO.load(tmp_path / "model")
    seen = model.observation_space.sample()
    assert plain.predict(seen, deterministic=True)[0] == model.predict(seen, deterministic=True)[0]


def test_policy_kwargs_are_compared_as_the_user_gave_them(tmp_path: Path) -> None:
    model = make(PopArtPPO)
    assert model.policy_kwargs == {"net_arch": [16]}
    model.save(tmp_path / "model")
    PopArtPPO.load(tmp_path / "model", policy_kwargs={"net_arch": [16]})
    with pytest.raises(ValueError, match="policy kwargs"):
        PopArtPPO.load(tmp_path / "model", policy_kwargs={"net_arch": [8]})


@pytest.mark.parametrize("algorithm", ALL)
def test_environments_can_be_changed(algorithm: Any) -> None:
    model = make(algorithm).learn(40)
    model.set_env(make_vec_env(lambda: Line(is_discrete(algorithm)), 1), force_reset=True)
    assert model._last_obs is None
    model.learn(40, reset_num_timesteps=False)
    with pytest.raises(AssertionError):
        model.set_env(make_vec_env(lambda: Line(is_discrete(algorithm)), 3))


@pytest.mark.parametrize("algorithm", ALL)
@pytest.mark.parametrize(("policy", "observations"), [("CnnPolicy", "image"), ("MultiInputPolicy", "dict")])
def test_images_and_dictionaries_are_observed_by_vectorised_environments(
    algorithm: Any, policy: str, observations: str, tmp_path: Path
) -> None:
    env = make_vec_env(lambda: Line(is_discrete(algorithm), observations=observations), 2, seed=0)
    buffer = {"buffer_size": 100} if algorithm in OFF_POLICY else {"n_steps": 8}
    size = "features_dim" if policy == "CnnPolicy" else "cnn_output_dim"
    small = {"net_arch": [8], "features_extractor_kwargs": {size: 8}}
    model = make(algorithm, policy, env, policy_kwargs=small, **buffer).learn(32)
    assert head_of(model).sigma > 0
    model.save(tmp_path / "model")
    assert_same(parameters(algorithm.load(tmp_path / "model")), parameters(model))


@pytest.mark.parametrize("algorithm", [*ON_POLICY, PopArtSAC])
def test_state_dependent_exploration(algorithm: Any) -> None:
    model = make(algorithm, use_sde=True, sde_sample_freq=4).learn(64)
    assert head_of(model).sigma > 0


@pytest.mark.parametrize("algorithm", OFF_POLICY)
def test_memory_is_saved_and_several_rewards_are_added_up(algorithm: Any) -> None:
    small = {"optimize_memory_usage": True, "replay_buffer_kwargs": {"handle_timeout_termination": False}}
    assert head_of(make(algorithm, **small).learn(60)).sigma > 0
    assert head_of(make(algorithm, n_steps=3).learn(60)).sigma > 0


@pytest.mark.parametrize("algorithm", OFF_POLICY)
def test_goals_are_learned_in_hindsight(algorithm: Any) -> None:
    env = envs.BitFlippingEnv(n_bits=3, continuous=algorithm is not PopArtDQN)
    model = make(
        algorithm,
        "MultiInputPolicy",
        env,
        replay_buffer_class=stable_baselines3.HerReplayBuffer,
        policy_kwargs={"net_arch": [16]},
    )
    model.learn(60)
    assert head_of(model).sigma > 0


class Features(BaseFeaturesExtractor):
    """A linear layer and a batch norm."""

    def __init__(self, observation_space: Any) -> None:
        super().__init__(observation_space, 6)
        self.layers = torch.nn.Sequential(torch.nn.Linear(2, 6), torch.nn.BatchNorm1d(6))

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.layers(observations)


@pytest.mark.parametrize("algorithm", ALL)
@pytest.mark.parametrize("share", [True, False])
def test_features_extractors_of_users_are_trained_and_copied(algorithm: Any, share: bool) -> None:
    sharing = {} if algorithm is PopArtDQN else {"share_features_extractor": share}
    kwargs = {"features_extractor_class": Features, "net_arch": [8], **sharing}
    model = make(algorithm, policy_kwargs=kwargs)
    before = parameters(model)
    model.learn(90)
    after = parameters(model)
    assert any("layers.0" in name and not torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("algorithm", CRITICS)
def test_batch_norm_statistics_of_target_networks_are_copied(algorithm: Any) -> None:
    model = make(algorithm, policy_kwargs={"features_extractor_class": Features, "net_arch": [8]}).learn(41)
    model.policy_delay = 1
    model.train(1, 16)
    online, target = model.critic.state_dict(), model.critic_target.state_dict()
    running = [name for name in online if "running_" in name]
    assert running
    assert_same({name: online[name] for name in running}, {name: target[name] for name in running})


class Stop(callbacks.BaseCallback):
    def _on_step(self) -> bool:
        return False


@pytest.mark.parametrize("algorithm", ALL)
def test_callbacks_evaluate_save_and_stop(algorithm: Any, tmp_path: Path) -> None:
    model = make(algorithm)
    evaluation = callbacks.EvalCallback(
        make_vec_env(lambda: Line(is_discrete(algorithm)), 1),
        best_model_save_path=str(tmp_path),
        log_path=str(tmp_path),
        eval_freq=40,
        n_eval_episodes=2,
        verbose=0,
    )
    checkpoints = callbacks.CheckpointCallback(40, str(tmp_path), save_replay_buffer=algorithm in OFF_POLICY)
    event = callbacks.EveryNTimesteps(20, callbacks.CheckpointCallback(1, str(tmp_path), "event"))
    model.learn(80, callback=[evaluation, checkpoints, event])
    assert -80 < evaluation.last_mean_reward < 0
    assert evaluation.last_mean_reward <= evaluation.best_mean_reward
    assert np.load(tmp_path / "evaluations.npz")["timesteps"].tolist() == [40, 80]
    for name in ("best_model", "rl_model_40_steps", "event_20_steps"):
        assert head_of(algorithm.load(tmp_path / name)).art == model.art
    stopped = make(algorithm)
    stopped.learn(100, callback=Stop())
    assert stopped.num_timesteps == 1


@pytest.mark.parametrize("algorithm", ALL)
def test_evaluation_is_of_a_model_or_of_its_policy(algorithm: Any) -> None:
    model = make(algorithm).learn(60)
    env = make_vec_env(lambda: Line(is_discrete(algorithm)), 2)
    found = []
    for evaluated in (model, model.policy):
        env.seed(3)
        found.append(evaluate_policy(evaluated, env, 6, return_episode_rewards=True))
    assert found[0] == found[1]
    observation: Any = env.reset()
    assert model.predict(observation)[0].shape[0] == 2
    assert np.shape(model.predict(observation[0])[0]) == env.action_space.shape


@pytest.mark.parametrize("algorithm", ALL)
def test_scale_shift_and_norms_are_logged(algorithm: Any) -> None:
    model = make(algorithm).learn(64)
    logged, head = model.logger.name_to_value, head_of(model)
    assert logged["popart/sigma"] == head.sigma.item() > 0
    assert logged["popart/mu"] == head.mu.item() < 0
    assert logged["popart/weight_norm"] == head.weight.norm().item() > 0
    assert logged["popart/gradient_norm"] > 0
    if algorithm is PopArtSAC:
        assert logged["popart/reward_scale"] == model.policy.reward_scale.sigma.item() > 0


@pytest.mark.parametrize("algorithm", ALL)
def test_rewards_that_are_all_zero_break_nothing(algorithm: Any) -> None:
    model = make(algorithm, scale=0.0).learn(100)
    assert all(x.isfinite().all() for x in parameters(model).values())
    assert head_of(model).sigma == 0
    assert head_of(model).mu == 0


def test_the_actor_of_td3_does_not_move_while_all_rewards_are_the_same() -> None:
    model = make(PopArtTD3, scale=0.0)
    before = {n: x for n, x in parameters(model).items() if n.startswith("actor.")}
    after = parameters(model.learn(60))
    assert_same(before, {n: after[n] for n in before})


@pytest.mark.parametrize("algorithm", ON_POLICY)
def test_a_rollout_is_learned_in_normalised_units_and_predicted_in_real_ones(algorithm: Any) -> None:
    model = make(algorithm, scale=1000.0, n_steps=64, learning_rate=1e-3)
    model.learn(64)
    buffer, head = model.rollout_buffer, model.policy.value_net
    assert abs(buffer.returns.mean()) < 1e-4
    assert buffer.returns.std() == pytest.approx(1, rel=1e-4)
    returns = head.mu.item() + head.sigma.item() * buffer.returns.flatten()
    np.testing.assert_allclose(returns, (buffer.advantages.flatten() * head.sigma.item()), rtol=1e-3)
    observations = torch.as_tensor(buffer.observations.reshape(-1, 2))
    values = model.policy.predict_values(observations).detach()
    assert (values - head.mu).abs().max() < 5 * head.sigma
    assert head.sigma > 100


def test_the_first_rollout_clips_values_around_those_after_adoption() -> None:
    """Before it all values are 0, which may be any number of standard deviations away."""
    model = make(PopArtPPO, n_epochs=1, batch_size=32)
    model.learn(32)
    assert np.abs(model.rollout_buffer.values).max() < 2
    assert model.policy.value_net.weight.grad.norm() > 0


@pytest.mark.parametrize("algorithm", CRITICS)
def test_all_critics_have_the_same_statistics(algorithm: Any) -> None:
    model = make(algorithm, policy_kwargs={"net_arch": [16], "n_critics": 3}).learn(90)
    first, *others = model.critic.heads
    for head in others:
        assert torch.equal(head.sigma, first.sigma)
        assert torch.equal(head.mu, first.mu)


@pytest.mark.parametrize("algorithm", CRITICS)
def test_target_networks_are_averaged_in_real_units(algorithm: Any) -> None:
    """This holds even if the scales differ a lot: critics are linear here, and so is their average."""
    delay = {"policy_delay": 1} if algorithm is PopArtTD3 else {}
    model = make(algorithm, policy_kwargs={"net_arch": []}, tau=0.25, **delay).learn(40)
    model.replay_buffer.rewards *= 1000
    data = model.replay_buffer.sample(8)

    def values(critic: Any) -> torch.Tensor:
        return torch.cat(critic(data.observations, data.actions), 1).detach()

    before, sigma = values(model.critic_target), head_of(model).sigma
    model.train(1, 16)
    assert head_of(model).sigma > 2 * sigma
    average = 0.75 * before + 0.25 * values(model.critic)
    torch.testing.assert_close(values(model.critic_target), average, rtol=1e-4, atol=1e-2)


def test_the_entropy_of_sac_is_in_units_of_the_rewards() -> None:
    model = make(PopArtSAC, scale=500.0, ent_coef=0.5, gamma=1.0).learn(60)
    data, sigma = model.replay_buffer.sample(8), head_of(model).sigma
    rho = model.policy.reward_scale.sigma
    seen = model.replay_buffer.rewards[:60]
    assert rho == pytest.approx(np.sqrt(np.mean(np.square(seen))), rel=0.3)
    set_random_seed(0)
    with_entropy = model._next_values(data, torch.tensor(0.5))
    set_random_seed(0)
    without = model._next_values(data, torch.tensor(0.0))
    set_random_seed(0)
    log_prob = model.actor.action_log_prob(data.next_observations)[1].reshape(-1, 1)
    torch.testing.assert_close(with_entropy - without, -rho * 0.5 * log_prob, rtol=1e-4, atol=1e-2)
    penalty = torch.randn(8, 1)
    losses = [model._actor_loss(data, data.actions, x) for x in (penalty, 0 * penalty)]
    torch.testing.assert_close(losses[0] - losses[1], (rho / sigma * penalty).mean())


def test_a_fixed_entropy_coefficient_fits_rewards_of_any_scale() -> None:
    one, other = (make(PopArtSAC, scale=scale, ent_coef=0.5).learn(120) for scale in (1.0, 2.0**20))
    a, b = parameters(one), parameters(other)
    without_units = [name for name in a if not UNITS.search(name)]
    assert_same({name: a[name] for name in without_units}, {name: b[name] for name in without_units})


class Unknown(torch.optim.Optimizer):
    """Gradient descent that remembers the last gradient."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.state[parameter]["last"] = parameter.grad.clone()
                    parameter -= group["lr"] * parameter.grad


@pytest.mark.parametrize("optimizer", [RMSpropTFLike, torch.optim.AdamW, Unknown])
def test_other_optimizers_train_free_of_scale_too(optimizer: Any) -> None:
    kwargs = {"net_arch": [16], "optimizer_class": optimizer}
    one, other = (make(PopArtA2C, scale=scale, policy_kwargs=kwargs).learn(100) for scale in (1.0, 2.0**20))
    assert torch.equal(one.policy.value_net.weight, other.policy.value_net.weight)
    assert torch.equal(one.policy.action_net.weight, other.policy.action_net.weight)


def test_a_policy_of_the_user_becomes_one_with_pop_art_by_inheritance() -> None:
    class Theirs(ActorCriticPolicy):
        pass

    class Mine(policies.PopArtActorCriticPolicy, Theirs):
        pass

    assert head_of(make(PopArtPPO, Mine).learn(32)).sigma > 0
    with pytest.raises(TypeError, match=r"class Mine\(popart.sb3.policies.PopArtActorCriticPolicy, Theirs\)"):
        make(PopArtPPO, Theirs)


def test_rules_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"art is Covariance.*single numbers"):
        make(PopArtDQN, art=popart.Covariance())
    with pytest.raises(ValueError, match=r"art is .* and beta is"):
        make(PopArtDQN, art=popart.Moments(), beta=0.1)
    with pytest.raises(TypeError, match="art is 3"):
        make(PopArtDQN, art=3)


def test_arguments_are_those_of_stable_baselines3_also_by_position() -> None:
    model = PopArtPPO("MlpPolicy", Line(True), 1e-2, 64, beta=0.3)
    assert (model.learning_rate, model.n_steps, model.art) == (1e-2, 64, popart.Moments(0.3))
    assert isinstance(model, stable_baselines3.PPO)
    assert all(issubclass(algorithm, BaseAlgorithm) for algorithm in ALL)


def test_an_import_without_stable_baselines3_names_the_extra() -> None:
    code = "import sys; sys.modules['stable_baselines3'] = None; import popart.sb3"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'popart-learn[sb3]'" in result.stderr


HOW_TO = Path(__file__).parents[1] / "docs" / "how-to" / "stable-baselines3.md"


@pytest.mark.slow
def test_the_programs_of_the_how_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", HOW_TO.read_text("utf-8"), re.DOTALL)
    assert len(blocks) >= 4
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "how_to"}
    for block in blocks:
        exec(re.sub(r"learn\([\d_]+", "learn(64", block), names)


def test_the_table_of_reward_scales_is_that_of_the_results() -> None:
    page = (Path(__file__).parents[1] / "docs" / "how-to" / "stable-baselines3.md").read_text("utf-8")
    rows = page_rows(Path(__file__).parents[1] / "results" / "sb3_scales.csv")
    assert len(rows) == 10
    for row in rows:
        assert row in page
