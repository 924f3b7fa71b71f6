"""A part of a run in a process of its own: `python -m tests.resume torch|jax FILE FROM TO`."""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from tests import training
from tests.training import Data, TorchRun, data, jax_start, jax_steps


def part(first: int, last: int) -> Data:
    return Data(*(x[first:last] for x in data(60)))


def torch_part(file: Path, first: int, last: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    run = TorchRun()
    if first:
        saved = torch.load(file, weights_only=True)
        run.online.load_state_dict(saved["online"])
        run.target.load_state_dict(saved["target"])
        run.optimizer.load_state_dict(saved["optimizer"])
        run.t = first
    run.steps(part(first, last))
    saved = {name: getattr(run, name).state_dict() for name in ("online", "target", "optimizer")}
    torch.save(saved, file)
    return run.parameters(), run.values(data(60).s[0])


def jax_part(file: Path, first: int, last: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    run: Any = jax_start()
    if first:
        leaves = np.load(f"{file}.leaves.npz")
        run = jax.tree.unflatten(
            jax.tree.structure(run), [jnp.asarray(leaves[name]) for name in leaves.files]
        )
    run, _ = jax_steps(run, Data(*map(jnp.asarray, part(first, last))))
    np.savez(f"{file}.leaves.npz", *map(np.asarray, jax.tree.leaves(run)))
    leaves = [run.params[part][name] for part in ("body", "head") for name in ("weight", "bias")]
    values = training._q(run.params, run.art, jnp.asarray(data(60).s[0]))
    return dict(zip("VcWb", map(np.asarray, leaves), strict=True)), np.asarray(values)


def run_part(module: str, file: Path, first: int, last: int) -> None:
    """Go on from what the file has, and leave there what comes next."""
    parameters, values = (torch_part if module == "torch" else jax_part)(file, first, last)
    np.savez(f"{file}.npz", allow_pickle=False, values=values, **parameters)


if __name__ == "__main__":
    run_part(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
