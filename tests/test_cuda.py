"""Claims that need a GPU: CUDA graphs, no waiting for the device, half precision there.

These run where there is one. Everything else that the heads promise is tested on the CPU.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import popart
from popart.torch import PopArt

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")

HEADS: dict[str, Callable[[], PopArt]] = {
    "one scale": lambda: PopArt(64, 6, popart.Moments(beta=0.1)),
    "per output": lambda: PopArt(64, 6, popart.Moments(beta=0.1), per_output=True),
    "dense": lambda: PopArt(64, 6, popart.Covariance(beta=0.1)),
    "several heads": lambda: PopArt(64, 6, popart.Moments(beta=0.1), heads=3),
    "no bias": lambda: PopArt(64, 6, bias=False),
    "percentiles": lambda: PopArt(64, 6, popart.Percentiles(beta=0.1)),
    "kept": lambda: PopArt(64, 6, popart.Moments(beta=0.1, keep=True)),
}


def make(kind: str) -> tuple[PopArt, Any, torch.Tensor]:
    torch.manual_seed(0)
    head = HEADS[kind]().cuda()
    optimizer = torch.optim.Adam(head.parameters(), 1e-3, capturable=True)
    heads = () if head.heads is None else (head.heads,)
    y = torch.randn((32, *heads, *((6,) if head.per_output else ())), device="cuda")
    step(head, optimizer, y, torch.randn(32, 64, device="cuda"))
    return head, optimizer, y


def step(head: PopArt, optimizer: Any, y: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    normalized = head.update(y, optimizer=optimizer)
    optimizer.zero_grad()
    (head.normalized(h).square().mean() + normalized.mean()).backward()
    optimizer.step()
    return normalized


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_training_step_never_waits_for_the_device(kind: str) -> None:
    head, optimizer, y = make(kind)
    h = torch.randn(32, 64, device="cuda")
    step(head, optimizer, y, h)
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(head, optimizer, y, h)
        head(h)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("kind", HEADS)
def test_a_captured_training_step_does_what_an_eager_one_does(kind: str) -> None:
    head, optimizer, y = make(kind)
    h = torch.randn(32, 64, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(head, optimizer, y, h)
    torch.cuda.current_stream().wait_stream(stream)
    eager = copy.deepcopy(head)
    eager_optimizer = torch.optim.Adam(eager.parameters(), 1e-3, capturable=True)
    eager_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        normalized = step(head, optimizer, y, h)
    for i in range(5):
        y.copy_(10.0**i * (torch.randn_like(y) + 1))
        graph.replay()
        expected = step(eager, eager_optimizer, y, h)
        torch.testing.assert_close(normalized, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(head(h), eager(h), rtol=1e-4, atol=1e-3)


def test_under_autocast_the_head_stays_in_float32_on_the_gpu() -> None:
    head, _, y = make("one scale")
    h = torch.randn(32, 64, device="cuda")
    with torch.autocast("cuda", torch.float16):
        assert head.update(1e8 * y).isfinite().all()
        assert head.normalized(h).dtype == torch.float32
        assert head(h).isfinite().all()


def test_a_head_moves_between_devices_with_its_statistics() -> None:
    head = PopArt(64, 6, popart.Moments(beta=0.1))
    head.update(torch.arange(8.0))
    expected = head(torch.ones(2, 64)).detach()
    head.cuda()
    head.update(1e3 * torch.arange(8.0, device="cuda"))
    torch.testing.assert_close(head(torch.ones(2, 64, device="cuda")).cpu(), expected, rtol=1e-4, atol=1e-2)
