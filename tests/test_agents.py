"""The single-file agents learn whatever the size of rewards is, and the how-to pages show how.

Each page shows the lines that turn a plain agent into one with Pop-Art, as differences. Here they are undone,
so that the plain agent of the page is run and compared with `--head linear` of the example.
"""

import functools
import importlib
import re
import statistics
import types
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
import torch

from benchmarks import agents
from popart.sb3 import PopArtSAC

ROOT = Path(__file__).parents[1]
PAGES = {"ppo": "ppo", "dqn": "dqn", "sac": "sac", "ppo_jax": "ppo"}
"""The agents, and the how-to page of each."""

SHORT = {"ppo": 8192, "dqn": 3000, "sac": 700, "ppo_jax": 8192}
"""Environment steps of a short run."""

FACTOR = 2.0**20


def each(*names: str, slow: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    """Parametrize a test over agents; tests of one agent share a process, and so what it has trained."""
    marks = {name: [pytest.mark.xdist_group(name), *[pytest.mark.slow] * (name in slow)] for name in names}
    return pytest.mark.parametrize("agent", [pytest.param(name, marks=marks[name]) for name in names])


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def example(agent: str) -> Any:
    return importlib.import_module(f"examples.{agent}")


@functools.cache
def trained(
    agent: str, head: str = "popart", scale: float = 1.0, steps: int | None = None, seed: int = 0
) -> Any:
    return example(agent).train(head, scale, seed, steps or SHORT[agent])


def score(agent: str, *run: Any, seeds: int = 1) -> float:
    """Return the median score over random seeds."""
    agents = [trained(agent, *run), *(trained(agent, *run, seed=seed) for seed in range(1, seeds))]
    return float(statistics.median(float(example(agent).evaluate(each, 0)) for each in agents))


def arrays(learned: Any) -> dict[str, np.ndarray]:
    """Return all that an agent has learned, by name."""
    if isinstance(learned, torch.nn.Module):
        return {name: x.numpy().copy() for name, x in learned.state_dict().items()}
    if hasattr(learned, "critics"):
        parts = {"actor": learned.actor, **{f"critic {i}": x for i, x in enumerate(learned.critics)}}
        parts |= {f"target {i}": x for i, x in enumerate(learned.targets)}
        found = {f"{name} {key}": x for name, part in parts.items() for key, x in arrays(part).items()}
        return {**found, "log_alpha": learned.log_alpha.detach().numpy()}
    leaves = jax.tree_util.tree_leaves_with_path(learned)
    return {jax.tree_util.keystr(path): np.asarray(x) for path, x in leaves}


def in_units_of_rewards(name: str) -> bool:
    return name.endswith(("scale", "shift", ".moments", "_moments"))


@each(*PAGES)
def test_scaling_rewards_by_a_power_of_two_changes_no_bit_of_training(agent: str) -> None:
    plain, scaled = arrays(trained(agent)), arrays(trained(agent, "popart", FACTOR))
    assert plain.keys() == scaled.keys()
    assert any(map(in_units_of_rewards, plain))
    for name, x in plain.items():
        factor = FACTOR if in_units_of_rewards(name) else 1
        np.testing.assert_array_equal(scaled[name], factor * x, err_msg=name)
    assert score(agent) == score(agent, "popart", FACTOR)


@each("ppo", "dqn", "ppo_jax")
def test_cartpole_is_learned_in_a_short_run(agent: str) -> None:
    assert score(agent) > 100  # untrained: about 10


@pytest.mark.xdist_group("sac")
def test_the_critics_of_sac_learn_in_a_short_run() -> None:
    """They tell good states and actions from bad ones: values of random actions follow rewards."""
    env = gymnasium.make("Pendulum-v1")
    env.action_space.seed(0)
    observation, _ = env.reset(seed=0)
    steps: list[tuple[Any, ...]] = []
    for _ in range(200):
        action = env.action_space.sample()
        after, reward, *_ = env.step(action)
        steps.append((observation, action / example("sac").TORQUE, reward))
        observation = after
    x, a, rewards = (torch.as_tensor(np.stack(column)) for column in zip(*steps, strict=True))
    for critic in trained("sac").critics:
        with torch.no_grad():
            assert np.corrcoef(critic(x, a), rewards)[0, 1] > 0.5


def sac_with_fixed_alpha(scale: float, alpha: float) -> Any:
    """Return an agent after 30 updates on random transitions with rewards × `scale`."""
    torch.manual_seed(0)
    sac = example("sac")
    agent = sac.Agent("popart")
    agent.log_alpha = torch.tensor(alpha).log().requires_grad_()
    agent.alpha_optimizer = torch.optim.SGD([agent.log_alpha], lr=0.0)
    for _ in range(30):
        x, a, r, x2 = (torch.randn(64, n) for n in (3, 1, 1, 3))
        discount = torch.full((64,), sac.GAMMA)
        sac.learn(agent, sac.Transitions(x, a.tanh(), scale * (r[:, 0] - 2), discount, x2))
    return agent


@pytest.mark.xdist_group("sac")
@pytest.mark.parametrize(("scale", "tolerance"), [(2.0**-20, 0.0), (2.0**20, 0.0), (1e-4, 1e-4), (1e4, 1e-4)])
def test_a_fixed_entropy_coefficient_fits_rewards_of_any_scale(scale: float, tolerance: float) -> None:
    plain, scaled = arrays(sac_with_fixed_alpha(1.0, 0.5)), arrays(sac_with_fixed_alpha(scale, 0.5))
    assert plain["log_alpha"] == np.log(np.float32(0.5))
    for name, x in plain.items():
        if tolerance and name.endswith("moments"):
            continue  # they contain what was lost to rounding
        factor = scale if in_units_of_rewards(name) else 1
        np.testing.assert_allclose(scaled[name], factor * x, tolerance, factor * tolerance, err_msg=name)


@pytest.mark.xdist_group("sac")
def test_the_entropy_coefficient_has_the_same_unit_in_the_example_and_in_sb3() -> None:
    """It is the root mean square of rewards, whatever the targets of the critics are."""
    agent, rewards = example("sac").Agent("popart"), torch.tensor([1.0, -7.0])
    model = PopArtSAC("MlpPolicy", "Pendulum-v1", device="cpu")
    agent.rewards = agent.art.update(agent.rewards, rewards)
    model.policy.reward_scale.update(rewards)
    assert agent.alpha().item() == pytest.approx(5 * agent.log_alpha.exp().item())
    assert model.policy.reward_scale.sigma.item() == pytest.approx(5)
    agent.critics[0].head.update(1e6 * rewards)
    assert agent.alpha().item() == pytest.approx(5 * agent.log_alpha.exp().item())


@each(*PAGES)
def test_the_command_ends_with_the_mean_return(
    agent: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = {"ppo": 1024, "dqn": 700, "sac": 510, "ppo_jax": SHORT["ppo_jax"]}[agent]
    options = ["--head", "popart", "--reward-scale", "3", "--seed", "1", "--steps", str(steps)]
    monkeypatch.setattr("sys.argv", [f"{agent}.py", *options])
    example(agent).main()
    first, *_, last = capsys.readouterr().out.splitlines()
    assert "popart head, rewards × 3" in first
    assert re.fullmatch(r"mean return -?\d+\.\d in \d+ greedy episodes", last)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "steps", "seeds", "failed", "solved"),
    [("ppo", 32768, 3, 400, 450), ("sac", 4000, 1, -800, -300)],
)
def test_small_rewards_are_learned_with_pop_art_alone(
    agent: str, steps: int, seeds: int, failed: float, solved: float
) -> None:
    assert score(agent, "linear", 1e-4, steps, seeds=seeds) < failed
    assert score(agent, "popart", 1e-4, steps, seeds=seeds) > solved


def differences(agent: str) -> list[list[str]]:
    """Return the blocks of changed lines that the page shows for this example, each line with its sign."""
    page = (ROOT / f"docs/how-to/{PAGES[agent]}.md").read_text()
    blocks = re.findall(rf'```diff title="examples/{agent}\.py"\n(.*?)```', page, re.DOTALL)
    return [block.splitlines() for block in blocks]


def without_pop_art(agent: str) -> str:
    """Return the example with the differences of its page undone."""
    source = (ROOT / f"examples/{agent}.py").read_text()
    for lines in differences(agent):
        after, before = ("".join(f"{x[1:]}\n" for x in lines if x[0] != sign) for sign in "-+")
        assert source.count(after) == 1, f"{agent}.py does not have these lines once:\n{after}"
        source = source.replace(after, before)
    return source


@pytest.mark.parametrize("agent", PAGES)
def test_marked_lines_are_few_and_all_on_the_page(agent: str) -> None:
    source = (ROOT / f"examples/{agent}.py").read_text().splitlines()
    marked = [line for line in source if line.endswith("# Pop-Art")]
    shown = [line[1:] for lines in differences(agent) for line in lines if line[0] == "+"]
    assert 4 <= len(marked) <= 11
    assert shown == marked


@each(*PAGES, slow=("ppo_jax",))
def test_the_linear_head_trains_as_the_plain_agent_of_the_page(agent: str) -> None:
    steps = {"ppo": 2048, "dqn": 1500, "sac": 600, "ppo_jax": 2048}[agent]
    source = without_pop_art(agent)
    assert "import popart" not in source
    plain = types.ModuleType(f"plain_{agent}")
    exec(compile(source, plain.__name__, "exec"), plain.__dict__)
    learned = arrays(plain.train("linear", 1.0, 0, steps))
    same = arrays(trained(agent, "linear", 1.0, steps))
    assert any("head" in name for name in learned)
    for name, x in learned.items():
        np.testing.assert_array_equal(same[name], x, err_msg=name)


@pytest.fixture(scope="module")
def found() -> dict[Any, list[str]]:
    return agents.read(ROOT / "results/agents.csv")


@pytest.mark.parametrize("agent", PAGES)
def test_tables_of_the_pages_are_those_of_the_results(agent: str, found: dict[Any, list[str]]) -> None:
    assert agents.table(agent, found) in (ROOT / f"docs/how-to/{PAGES[agent]}.md").read_text()


@pytest.mark.parametrize("agent", PAGES)
def test_results_show_that_pop_art_alone_learns_at_every_scale(
    agent: str, found: dict[Any, list[str]]
) -> None:
    solved, failed = (-250, -600) if agent == "sac" else (400, 300)

    def returns(head: str) -> np.ndarray:
        return np.array(
            [[float(found[agent, head, c, seed][5]) for seed in agents.SEEDS] for c in agents.SCALES]
        )

    assert returns("popart").min() > solved
    assert returns("linear")[1].mean() > solved
    assert returns("linear").mean(1).min() < failed


def test_a_benchmark_that_was_interrupted_resumes_and_fills_in_the_pages(tmp_path: Path) -> None:
    path, page = tmp_path / "agents.csv", tmp_path / "page.md"
    for i, (agent, head, scale, seed) in enumerate(agents.runs()):
        if i == 2:
            path.write_text(path.read_text() + "ppo,linear,0.0001")  # interrupted while a row was written
        agents.append(path, [agent, head, f"{scale:g}", str(seed), "1000", f"{i}.0", "1.0"])
    found = agents.read(path)
    assert list(found) == agents.runs()
    page.write_text("before\n\n<!-- table of ppo -->\nold\n<!-- end of table -->\n\nafter\n")
    agents.fill_in(page, found)
    assert "| 10⁻⁴ | 1 (0, 1, 2) | 10 (9, 10, 11) |" in page.read_text()
    assert "old" not in page.read_text()
    agents.figure(found)
