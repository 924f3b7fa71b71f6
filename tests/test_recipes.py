"""The programs of the how-to pages run as they stand, and do what the pages say."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parents[1]
HOW_TO = ROOT / "docs" / "how-to"


def program(page: str) -> str:
    """Return all Python blocks of a page, in their order, as one program."""
    return "\n\n".join(re.findall(r"```python\n(.*?)```", (HOW_TO / page).read_text("utf-8"), re.DOTALL))


def load(page: str, folder: Path) -> ModuleType:
    """Import the program of a page."""
    path = folder / f"{page.removesuffix('.md').replace('-', '_')}_page.py"
    path.write_text(program(page), "utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


Pages = Callable[[str], Any]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Pages:
    """Programs of pages by name, each imported once."""
    loaded: dict[str, ModuleType] = {}

    def page(name: str) -> ModuleType:
        if name not in loaded:
            loaded[name] = load(name, tmp_path_factory.mktemp("pages"))
        return loaded[name]

    return page


def run(command: list[str], folder: Path) -> None:
    """Run a command with one thread per process, and show what it printed if it fails."""
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    result = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr


def assert_same_bits(one: torch.nn.Module, two: torch.nn.Module) -> None:
    theirs = two.state_dict()
    for name, x in one.state_dict().items():
        torch.testing.assert_close(theirs[name], x, rtol=0, atol=0, msg=name)


def assert_replicas_equal_one(one: dict[str, Any], replica: dict[str, Any]) -> None:
    """Compare the weights of a replica with those of one process, and the statistics more closely."""
    assert one["head.moments_counts"][0] == replica["head.moments_counts"][0] > 0
    for name in ("head.scale", "head.shift"):
        torch.testing.assert_close(replica[name], one[name], rtol=1e-6, atol=0)
    for name, x in one.items():
        assert (replica[name] - x).abs().max() <= 1e-5 * x.abs().max(), name


# The collectors of TorchRL warn of themselves when they are imported.
torchrl_warns = pytest.mark.filterwarnings("ignore:Creating .* inherits from WeightUpdaterBase")


@torchrl_warns
def test_torchrl_training_is_the_same_for_rewards_times_a_power_of_two(pages: Pages) -> None:
    train = pages("torchrl.md").train
    actor, critic = train(1.0, rollouts=2)
    for k in (-100, 100):
        same, larger = train(2.0**k, rollouts=2)
        assert_same_bits(actor, same)
        for name, x in critic.named_parameters():
            factor = 2.0**k if name.endswith(("scale", "shift")) else 1.0
            torch.testing.assert_close(dict(larger.named_parameters())[name], factor * x, rtol=0, atol=0)


@torchrl_warns
@pytest.mark.slow
def test_torchrl_learns_cartpole_with_rewards_of_ten_thousand(
    pages: Pages, capsys: pytest.CaptureFixture[str]
) -> None:
    pages("torchrl.md").train(1e4, rollouts=16)
    steps = [float(x) for x in re.findall(r"steps per episode +([\d.]+)", capsys.readouterr().out)]
    assert len(steps) == 16
    assert np.mean(steps[:3]) < 50
    assert np.mean(steps[-5:]) > 150


# Lightning uses what PyTorch deprecates, and advises to load data in more processes.
lightning_warns = pytest.mark.filterwarnings(
    "ignore:`isinstance.treespec, LeafSpec.` is deprecated", "ignore:.*does not have many workers"
)


@lightning_warns
def test_a_resumed_lightning_run_equals_one_that_was_not_stopped(pages: Pages, tmp_path: Path) -> None:
    page = pages("lightning.md")
    whole = page.train(3, folder=str(tmp_path / "whole"))
    page.train(1, folder=str(tmp_path / "first"))
    resumed = page.train(3, checkpoint=str(tmp_path / "first" / "last.ckpt"), folder=str(tmp_path / "rest"))
    assert whole.head.state.counts[0] == 48
    assert_same_bits(whole, resumed)
    loaded = page.Critic.load_from_checkpoint(tmp_path / "whole" / "last.ckpt")
    x = torch.randn(8, 4)
    torch.testing.assert_close(loaded(x), whole(x), rtol=0, atol=0)
    assert whole(x).mean() > 10


@lightning_warns
@pytest.mark.slow
def test_two_lightning_processes_equal_one(pages: Pages, tmp_path: Path) -> None:
    (tmp_path / "critic.py").write_text(program("lightning.md"), "utf-8")
    run([sys.executable, "critic.py", "2", "two"], tmp_path)
    one = pages("lightning.md").train(4, folder=str(tmp_path / "one")).state_dict()
    first, second = (torch.load(tmp_path / "two" / f"weights{rank}.pt") for rank in range(2))
    assert_replicas_equal_one(one, first)
    for name, x in first.items():
        torch.testing.assert_close(second[name], x, rtol=0, atol=0)


def test_a_resumed_accelerate_run_equals_one_that_was_not_stopped(pages: Pages, tmp_path: Path) -> None:
    train = pages("accelerate-ddp.md").train
    whole = train(4)
    train(2, save_to=str(tmp_path / "state"))
    resumed = train(2, resume_from=str(tmp_path / "state"))
    assert whole.head.state.counts[0] == 64
    assert_same_bits(whole, resumed)
    assert whole.values(torch.zeros(1, 4)) > 10


def test_accumulated_gradients_equal_those_of_the_whole_batch(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = pages("accelerate-ddp.md")
    whole = page.train(4, parts=1)
    assert_replicas_equal_one(whole.state_dict(), page.train(4, parts=2).state_dict())
    plugin = page.GradientAccumulationPlugin
    monkeypatch.setattr(page, "GradientAccumulationPlugin", lambda num_steps, **_: plugin(num_steps))
    more_steps = page.train(4, parts=2).body[0].weight
    assert (more_steps - whole.body[0].weight).abs().max() > 1e-4


@pytest.mark.slow
def test_two_accelerate_processes_equal_one(pages: Pages, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    (tmp_path / "critic.py").write_text(program("accelerate-ddp.md"), "utf-8")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run([*torchrun, "critic.py", "two"], tmp_path)
    one = pages("accelerate-ddp.md").train(4)
    assert_replicas_equal_one(one.state_dict(), load_file(tmp_path / "two" / "model.safetensors"))


def test_nnx_training_is_the_same_for_targets_times_a_power_of_two(pages: Pages) -> None:
    import jax
    from flax import nnx

    page = pages("nnx-optax.md")
    critic, optimizer = page.make()
    loss = page.train(critic, optimizer, range(90, 105))
    x = np.ones((3, 4), np.float32)
    for k in (-100, 100):
        other, its_optimizer = page.make()
        assert page.train(other, its_optimizer, range(90, 105), 2.0**k) == loss
        jax.tree.map(np.testing.assert_array_equal, nnx.state(other, nnx.Param), nnx.state(critic, nnx.Param))
        np.testing.assert_array_equal(other(x), np.float32(2.0**k) * critic(x))
    assert abs(critic(x)).min() > 1


def test_nnx_training_equals_the_plain_functions(pages: Pages) -> None:
    import jax
    import jax.numpy as jnp
    import optax
    from flax import nnx

    import popart.jax

    page = pages("nnx-optax.md")
    critic, optimizer = page.make()
    art = critic.art
    params: Any = nnx.to_pure_dict(nnx.state(critic, nnx.Param))
    adam = popart.jax.rescale_optimizer(optax.adam(1e-2), head=lambda params: params["head"])
    statistics, memory = popart.jax.init(art, params["head"]), adam.init(params)

    @jax.jit
    def step(params: Any, statistics: Any, memory: Any, x: Any, y: Any) -> Any:
        statistics, head, t, change = popart.jax.step(art, statistics, params["head"], y)
        params = {**params, "head": head}

        def loss(params: Any) -> Any:
            h = jnp.tanh(x @ params["body"]["kernel"] + params["body"]["bias"])
            return jnp.mean((popart.jax.normalized(params["head"], h) - t) ** 2)

        updates, memory = adam.update(jax.grad(loss)(params), memory, params, change=change)
        return optax.apply_updates(params, updates), statistics, memory

    for i in range(90, 105):
        x = jax.random.normal(jax.random.key(i), (32, 4))
        y = 10.0 ** (i // 100) * (x[:, :1] + 3)
        params, statistics, memory = step(params, statistics, memory, x, y)
        page.train_step(critic, optimizer, x, y)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        nnx.to_pure_dict(nnx.state(critic, nnx.Param)),
        params,
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), critic.statistics.get_value(), statistics
    )


def test_a_resumed_nnx_run_equals_one_that_was_not_stopped(pages: Pages, tmp_path: Path) -> None:
    import jax
    from flax import nnx

    page = pages("nnx-optax.md")
    whole, first, second = page.make(), page.make(), page.make()
    page.train(*whole, range(20))
    page.train(*first, range(10))
    page.save(tmp_path / "checkpoint", *first)
    page.load(tmp_path / "checkpoint", *second)
    page.train(*second, range(10, 20))
    jax.tree.map(np.testing.assert_array_equal, nnx.state(second), nnx.state(whole))


def test_each_task_is_learned_in_its_own_units(pages: Pages) -> None:
    page = pages("several-tasks.md")
    assert max(page.errors) < 0.2
    torch.testing.assert_close(page.head.sigma, page.SIZES, rtol=0.3, atol=0)
    assert page.loss < 10
    assert page.tasks.state.counts[0].tolist() == [1, 1, 1]
    before = page.tasks.sigma
    page.tasks.update(torch.tensor([5.0, 7.0]), index=torch.tensor([1, 1]))
    assert (page.tasks.sigma != before).tolist() == [False, True, False]
    np.testing.assert_allclose(np.abs(page.y.std()), 1, atol=0.1)
    np.testing.assert_allclose(page.art.affine(page.statistics).scale, [1e-3, 1, 1e6], rtol=0.5)
    assert page.predicted.shape == page.error.shape == (32,)


def test_a_resumed_pytorch_run_equals_one_that_was_not_stopped(pages: Pages, tmp_path: Path) -> None:
    page = pages("resuming.md")
    whole, first = page.make(), page.make()
    page.train(*whole, range(40))
    page.train(*first, range(20))
    page.save(tmp_path / "run.pt", *first)
    second = page.load(tmp_path / "run.pt")
    page.train(*second, range(20, 40))
    for one, two in zip(whole[:2], second[:2], strict=True):
        assert_same_bits(one, two)
    assert whole[0][2].sigma > 5


def test_statistics_that_are_lost_are_noticed(pages: Pages) -> None:
    """The claims of the page about what is refused."""
    page = pages("resuming.md")
    online, target, _ = page.make()
    online[2].update(torch.randn(8) * 1e6)
    saved = {name: x for name, x in online.state_dict().items() if "moments" not in name}
    with pytest.raises(RuntimeError, match="which the checkpoint does not have"):
        target.load_state_dict(saved, strict=False)
    with torch.no_grad():
        for mine, theirs in zip(target.parameters(), online.parameters(), strict=True):
            mine.copy_(theirs)
    x = torch.randn(4, 4)
    torch.testing.assert_close(target(x), online(x), rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="can be evaluated but not updated"):
        target[2].update(torch.randn(8))


def test_other_settings_than_those_of_a_checkpoint_are_noticed() -> None:
    import popart
    from popart.torch import PopArt

    saved, other = PopArt(4, 1, popart.Moments(0.1)), PopArt(4, 1, popart.Moments(0.1, std=0.5))
    saved.update(torch.randn(8))
    for checkpoint in (saved.state_dict(), dict(saved.state_dict())):
        with pytest.raises(RuntimeError, match=r"was saved with std=1\.0"):
            other.load_state_dict(checkpoint)


def test_a_resumed_jax_run_equals_one_that_was_not_stopped(pages: Pages, tmp_path: Path) -> None:
    import jax

    page = pages("resuming.md")
    whole = page.jax_train(page.jax_make(), range(30))
    page.jax_save(tmp_path / "run", page.jax_train(page.jax_make(), range(15)))
    resumed = page.jax_train(page.jax_load(tmp_path / "run"), range(15, 30))
    jax.tree.map(np.testing.assert_array_equal, resumed, whole)
    assert type(resumed["statistics"]) is type(whole["statistics"])


def test_sigma_follows_as_fast_as_the_page_about_beta_says(
    pages: Pages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = pages("choosing-beta.md")
    assert (tmp_path / "beta.png").stat().st_size > 10_000
    beta = 0.01
    rise = page.follow(beta, np.repeat([1.0, 100.0], [500, 200]))[500:]
    assert np.argmax(rise > 50) + 1 == pytest.approx(0.29 / beta, rel=0.2)
    fall = page.follow(beta, np.repeat([1.0, 1e-6], [500, 1000]))[500:]
    assert np.argmax(fall < 0.01) + 1 == pytest.approx(2 * np.log(100) / beta, rel=0.02)


def test_the_error_of_mu_is_what_the_page_about_beta_says() -> None:
    import popart

    beta, batch = 0.1, 32
    art, rng = popart.Moments(beta=beta), np.random.default_rng(0)
    state, means = art.init(()), []
    for _ in range(4000):
        state = art.update(state, rng.normal(size=batch))
        means.append(float(art.affine(state).shift))
    assert np.std(means[100:]) == pytest.approx(np.sqrt(beta / (2 * batch)), rel=0.15)


def test_the_metrics_of_the_page_are_those_of_a_healthy_run(pages: Pages) -> None:
    page = pages("reading-metrics.md")
    first, last = page.history[0], page.history[-1]
    assert first["loss"] == pytest.approx(1, abs=0.5)
    assert last["loss"] < 0.05
    assert last["sigma"] == pytest.approx(1e5, rel=0.2)
    assert last["mu"] == pytest.approx(3e5, rel=0.1)
    assert max(row["largest target"] for row in page.history) < 10
    assert last["not finite"] == 0
    assert set(first) == set(last)


def columns_of_metrics() -> set[str]:
    from popart.lab.train.metrics import Record

    record = Record()
    counts: dict[str, int] = dict.fromkeys(("frames", "steps", "updates", "episodes"), 0)
    measured = {"epsilon": 0.0, **record.summary(), "overflows": 0}
    return set(record.row(counts, measured, 0.0))


def test_the_page_about_metrics_has_every_column_of_the_laboratory() -> None:
    page = (HOW_TO / "reading-metrics.md").read_text("utf-8")
    table = page[page.index("| column |") : page.index("A healthy run")]
    first_cells = [line.split("|")[1] for line in table.splitlines()[2:] if line]
    named = set(re.findall(r"`(\w+)`", "".join(first_cells)))
    assert named == columns_of_metrics()


def test_numbers_from_results_are_those_of_the_files() -> None:
    """The table of β and that of Ms. Pac-Man are read from `results/`."""
    import csv

    with (ROOT / "results" / "optimizer_state.csv").open() as file:
        rows = [
            row for row in csv.DictReader(file) if (row["period"], row["optimizer_state"]) == ("1000", "keep")
        ]
    page = (HOW_TO / "choosing-beta.md").read_text("utf-8")
    for name, optimizer in (("momentum", "Momentum"), ("Adam", "Adam"), ("RMSProp", "RMSProp")):
        best: dict[float, float] = {}
        for row in rows:
            if row["optimizer"] == optimizer:
                beta, area = float(row["beta"]), float(row["area"])
                best[beta] = min(area, best.get(beta, area))
        cells = " | ".join(f"{best[beta]:.0f}" for beta in (1e-4, 1e-3, 1e-2, 0.1, 0.3162))
        assert f"| {name} | {cells} |" in page
    with (ROOT / "results" / "atari" / "ms_pacman-popart" / "metrics.csv").open() as file:
        run = list(csv.DictReader(file))
    page = (HOW_TO / "reading-metrics.md").read_text("utf-8")
    last = {name: float(run[-1][name]) for name in ("score_100", "loss", "gradient_norm", "scale", "shift")}
    shown = "| {score_100:,.0f} | {loss:.4f} | {gradient_norm:.2f} | {scale:.0f} | {shift:.0f} |"
    assert shown.format(**last) in page


def test_tests_that_the_pages_name_exist() -> None:
    tests = "\n".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    for page in HOW_TO.glob("*.md"):
        for name in re.findall(r"`(test_\w+)`", page.read_text("utf-8")):
            assert f"def {name}(" in tests, (page.name, name)
