"""Two processes with DistributedDataParallel: Pop-Art as if one process saw the whole batch, in PyTorch.

    python examples/ddp.py

Each replica has half of every batch. With `process_group=True` the heads combine their measurements before
they update. So both have the same statistics and weights, which are those of a single process.
"""

import os
import socket
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import popart
from popart.torch import PopArt

STEPS, BATCH, REPLICAS = 100, 32, 2


class Network(nn.Module):
    """DDP calls `forward`, so it returns the normalised outputs that the loss needs."""

    def __init__(self, process_group: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 32), nn.Tanh())
        self.head = PopArt(32, 1, popart.Moments(beta=1e-2), process_group=process_group)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head.normalized(self.body(x))


def train(rank: int, replicas: int) -> Network:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = Network(process_group=replicas > 1)
    model = DistributedDataParallel(network) if replicas > 1 else network
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    data = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        x = torch.randn(BATCH, 4, generator=data)
        y = 10.0 ** (step // 20) * (x[:, :1] + 3)
        mine = slice(rank * BATCH // replicas, (rank + 1) * BATCH // replicas)
        target = network.head.update(y[mine], optimizer=optimizer)
        optimizer.zero_grad()
        (model(x[mine]) - target).square().mean().backward()
        optimizer.step()
    return network


def learned(network: Network) -> dict[str, Any]:
    """Return the weights, and the scale and shift of the targets."""
    scale, shift = network.head.affine
    tensors = {**dict(network.named_parameters()), "scale of targets": scale, "shift of targets": shift}
    return {name: x.detach().numpy() for name, x in tensors.items()}


def replica(rank: int, port: int, results: Any) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=REPLICAS)
    results.put((rank, learned(train(rank, REPLICAS))))
    dist.barrier()
    dist.destroy_process_group()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def compare() -> dict[str, tuple[float, float]]:
    """Return the differences between replicas, and to a single process, relative to the largest number."""
    context = mp.get_context("spawn")
    results, port = context.SimpleQueue(), free_port()
    processes = [context.Process(target=replica, args=(rank, port, results)) for rank in range(REPLICAS)]
    for process in processes:
        process.start()
    alone = learned(train(0, 1))
    replicas = dict(results.get() for _ in range(REPLICAS))
    for process in processes:
        process.join()

    def apart(x: Any, y: Any) -> float:
        return float(abs(x - y).max() / abs(y).max())

    first, second = replicas[0], replicas[1]
    return {name: (apart(first[name], second[name]), apart(first[name], x)) for name, x in alone.items()}


def main() -> None:
    print(f"{'':>18}  replicas differ by   and from a single process by")
    for name, (between, off) in compare().items():
        print(f"{name:>18}: {between:18.1e} {off:26.1e}")


if __name__ == "__main__":
    main()
