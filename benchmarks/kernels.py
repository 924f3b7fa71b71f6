"""Kernels that an eager update of a head starts on a GPU, counted by PyTorch's profiler.

    python -m benchmarks.kernels [CSV]

An operation may start several kernels: a reduction, and a copy if a precision changes. Where there is no GPU,
`tests/test_kernels.py` counts operations.
"""

import argparse
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.tables import publish
from popart.torch import PopArt

FEATURES, OUTPUTS, BATCH = 512, 18, 32


def kernels(per_output: bool, adam: bool) -> int:
    """Return the number of kernels and copies of one update, after some training steps."""
    head = PopArt(FEATURES, OUTPUTS, per_output=per_output, device="cuda")
    optimizer = torch.optim.Adam(head.parameters(), 1e-3) if adam else None
    index = torch.randint(OUTPUTS, (BATCH,), device="cuda") if per_output else None
    h = torch.randn(BATCH, FEATURES, device="cuda")
    for _ in range(5):
        head.update(torch.randn(BATCH, device="cuda"), optimizer=optimizer, index=index)
        if optimizer:
            optimizer.zero_grad()
            head.normalized(h).square().mean().backward()
            optimizer.step()
    y = torch.randn(BATCH, device="cuda")
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        head.update(y, optimizer=optimizer, index=index)
        torch.cuda.synchronize()
    return sum(event.device_type.name == "CUDA" for event in profiler.events() or ())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("path", nargs="?", type=Path, default=Path("results/kernels_gpu.csv"))
    path = parser.parse_args().path
    if not torch.cuda.is_available():
        raise SystemExit("PyTorch finds no GPU, whose kernels this counts")
    rows = [
        (
            "per output" if per_output else "one for all",
            "Adam" if adam else "none",
            f"{kernels(per_output, adam)}",
        )
        for per_output in (False, True)
        for adam in (False, True)
    ]
    publish(path, ("statistics", "optimizer", "kernels"), rows, "kernels", torch.cuda.get_device_name())


if __name__ == "__main__":
    main()
