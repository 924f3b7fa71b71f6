"""Several processes or devices that see parts of one batch equal one that sees it whole."""

import os
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import popart
from examples.ddp import free_port
from popart.alternatives import PercentileSpan
from popart.torch import PopArt

ROOT = Path(__file__).parents[1]
RULES: list[Any] = [
    popart.Moments(beta=0.1),
    popart.Percentiles(beta=0.1),
    popart.Covariance(beta=0.1),
    PercentileSpan(floor=0.0),
]


Work = Callable[[int, int], Any]


def _process(rank: int, size: int, port: int, works: tuple[Work, ...], results: Any) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=size)
    for work in works:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                results.put((work.__name__, rank, work(rank, size)))
        except Exception as error:
            results.put((work.__name__, rank, repr(error)))
        dist.barrier()
    dist.destroy_process_group()


def in_processes(*works: Work, size: int = 2) -> dict[str, list[Any]]:
    """Return the results of each work, by its name, in each of several processes that gloo connects."""
    context = mp.get_context("spawn")
    results, port = context.SimpleQueue(), free_port()
    processes = [context.Process(target=_process, args=(i, size, port, works, results)) for i in range(size)]
    for process in processes:
        process.start()
    answers = {
        (name, rank): answer for name, rank, answer in (results.get() for _ in range(size * len(works)))
    }
    for process in processes:
        process.join()
    return {work.__name__: [answers[work.__name__, rank] for rank in range(size)] for work in works}


@pytest.fixture(scope="module")
def answers() -> dict[str, list[Any]]:
    """Return the results of all works below in two processes, started once. Tests that use it are a group."""
    return in_processes(_train, _disagree, _copy)


gloo = pytest.mark.xdist_group("gloo")


def _train(rank: int, size: int) -> dict[str, Any]:
    """Every rule, in replicas of unequal parts (one has a single target), and a network under DDP."""
    out: dict[str, Any] = {}
    for rule in RULES:
        torch.manual_seed(0)
        shape = (2,) if isinstance(rule, popart.Covariance) else ()
        head = PopArt(4, 2, rule, bias=rule.has_shift, process_group=size > 1)
        generator = torch.Generator().manual_seed(1)
        for step in range(10):
            y = 10.0 ** (step // 3) * (torch.randn(12, *shape, generator=generator) + 1)
            part = y if size == 1 else y[:11] if rank == 0 else y[11:]
            head.update(part)
        out[type(rule).__name__] = head(torch.ones(3, 4)).detach().numpy(), head.affine.scale.numpy()
    out["DDP"] = _train_network(rank, size)
    return out


class _Network(nn.Module):
    def __init__(self, process_group: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
        self.head = PopArt(8, 3, popart.Moments(beta=0.1), process_group=process_group)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head.normalized(self.body(x))


def _train_network(rank: int, size: int) -> Any:
    torch.manual_seed(rank)  # DDP gives all replicas the parameters of the first
    network = _Network(size > 1)
    if size == 1:
        torch.manual_seed(0)
        network = _Network(False)
    model: Any = DistributedDataParallel(network) if size > 1 else network
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    generator = torch.Generator().manual_seed(1)
    for step in range(30):
        x = torch.randn(8, 4, generator=generator)
        a = torch.randint(3, (8,), generator=generator)
        y = 10.0 ** (step // 10) * (x[:, 0] * (a - 1) + 2)
        mine = slice(rank * 8 // size, (rank + 1) * 8 // size)
        t = network.head.update(y[mine], index=a[mine], optimizer=optimizer)
        optimizer.zero_grad()
        (model(x[mine]).gather(1, a[mine, None])[:, 0] - t).square().mean().backward()
        optimizer.step()
    return network.head(network.body(torch.ones(2, 4))).detach().numpy(), network.head.affine.scale.numpy()


@gloo
def test_two_processes_on_gloo_equal_one(answers: dict[str, list[Any]]) -> None:
    first, second = answers["_train"]
    alone = _train(0, 1)
    for name, (outputs, scale) in alone.items():
        for replica in (first, second):
            torch.testing.assert_close(
                torch.asarray(replica[name][0]),
                torch.asarray(outputs),
                rtol=2e-4,
                atol=1e-4 * abs(outputs).max(),
            )
            torch.testing.assert_close(
                torch.asarray(replica[name][1]), torch.asarray(scale), rtol=1e-5, atol=0
            )
        assert (first[name][0] == second[name][0]).all(), name


def _disagree(rank: int, size: int) -> None:
    PopArt(4, 2, popart.Moments(beta=0.1 / (1 + rank)), process_group=True)


@gloo
def test_replicas_that_disagree_on_settings_are_told_so(answers: dict[str, list[Any]]) -> None:
    for answer in answers["_disagree"]:
        assert "ValueError" in answer
        assert "replica 0 has PopArt(4, 2, art=Moments(beta=0.1" in answer
        assert "replica 1 has PopArt(4, 2, art=Moments(beta=0.05" in answer


@gloo
def test_a_head_with_a_group_can_be_copied(answers: dict[str, list[Any]]) -> None:
    assert answers["_copy"] == ["copied", "copied"]


def _copy(rank: int, size: int) -> str:
    import copy

    head = PopArt(4, 2, process_group=dist.group.WORLD)
    target = copy.deepcopy(head)
    head.update(torch.tensor([1.0, 2.0]) + rank)
    return "copied" if not target(torch.ones(1, 4)).any() and head.state.mu == 2 else "not"


def test_two_devices_under_shard_map_equal_one() -> None:
    code = """
    import os
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, PartitionSpec as P
    import popart, popart.jax

    assert len(jax.devices()) == 2
    art = popart.Moments(beta=0.1)
    head = {"kernel": jax.random.normal(jax.random.key(0), (4, 3)), "bias": jnp.zeros(3)}
    step = lambda axis: lambda state, head, y: popart.jax.step(art, state, head, y, axis)[:3]
    mesh = Mesh(np.array(jax.devices()), ("replicas",))
    sharded = jax.jit(jax.shard_map(
        step("replicas"), mesh=mesh, in_specs=(P(), P(), P("replicas")), out_specs=(P(), P(), P("replicas")),
        check_vma=False,
    ))
    whole = jax.jit(step(None))
    one = two = (art.init(like=head["bias"]), head)
    for i in range(20):
        y = 10.0 ** (i // 5) * (jax.random.normal(jax.random.key(i), (8,)) + 2)
        *one, a = whole(*one, y)
        *two, b = sharded(*two, y)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    for x, y in zip(jax.tree.leaves(one[1]), jax.tree.leaves(two[1]), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5)
        first, second = (shard.data for shard in y.addressable_shards)
        np.testing.assert_array_equal(first, second)
    print("equal")
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, cwd=ROOT
    )
    assert result.stdout.strip() == "equal", result.stderr


@pytest.mark.parametrize("axis", [0, 1])
def test_parts_along_an_axis_of_vmap_equal_one(axis: int) -> None:
    """`axis_name` is any named axis, also one of vmap."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import popart.jax

    art = RULES[axis]
    head = {"w": jnp.ones((4, 1)), "b": jnp.zeros(1)}
    state = art.init(like=head["b"])
    y = jax.random.normal(jax.random.key(0), (2, 4))
    parts = jax.jit(jax.vmap(lambda y: popart.jax.step(art, state, head, y, "i")[2], axis_name="i"))(y)
    whole = jax.jit(lambda y: popart.jax.step(art, state, head, y)[2])(y.reshape(-1))
    np.testing.assert_allclose(parts.reshape(-1), whole, rtol=1e-5, atol=1e-6)
