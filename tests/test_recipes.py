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
@pytest.mark.parametrize("k", [-100, 100])
def test_torchrl_training_is_the_same_for_rewards_times_a_power_of_two(pages: Pages, k: int) -> None:
    train = pages("torchrl.md").train
    (actor, critic), (same, larger) = train(1.0, rollouts=2), train(2.0**k, rollouts=2)
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
    adam = popart.jax.rescale_moments(optax.adam(1e-2), head=lambda params: params["head"])
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
