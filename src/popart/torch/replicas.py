"""Replicas that each have a part of a batch, and act together like one process with the whole batch."""

from typing import Any

import torch
import torch.distributed as dist


class Group:
    """A process group that copies of a module share, because groups cannot be copied."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.group = group

    def __deepcopy__(self, memo: dict[int, Any]) -> "Group":
        return self

    def sum(self, x: Any) -> Any:
        """Add up the arrays of all replicas."""
        return self._reduced(x, dist.ReduceOp.SUM)

    def max(self, x: Any) -> Any:
        """Return the largest of the arrays of all replicas, elementwise."""
        return self._reduced(x, dist.ReduceOp.MAX)

    def gather(self, x: Any) -> Any:
        """Stack the arrays of all replicas along a new first axis; smaller ones are filled up with zeros."""
        mine = _tensor(x)
        largest = self.max(torch.tensor(mine.shape, device=mine.device)).tolist()
        missing = [(0, most - size) for size, most in zip(mine.shape, largest, strict=True)]
        mine = torch.nn.functional.pad(mine, [n for pair in reversed(missing) for n in pair])
        everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(everyone, mine, group=self.group)
        return _like(torch.stack(everyone), x)

    def _reduced(self, x: Any, operation: Any) -> Any:
        total = _tensor(x)
        dist.all_reduce(total, operation, group=self.group)
        return _like(total, x)

    def check_agreement(self, settings: str) -> None:
        """Raise on every replica unless all replicas have these settings."""
        theirs: list[Any] = [None] * dist.get_world_size(self.group)
        dist.all_gather_object(theirs, settings, group=self.group)
        if len(set(theirs)) > 1:
            listed = "; ".join(f"replica {rank} has {setting}" for rank, setting in enumerate(theirs))
            raise ValueError(f"process_group has replicas that disagree on settings: {listed}")


def _tensor(x: Any) -> torch.Tensor:
    """Return a contiguous copy of a tensor, an array or a number of NumPy."""
    return x.clone(memory_format=torch.contiguous_format) if isinstance(x, torch.Tensor) else torch.tensor(x)


def _like(x: torch.Tensor, other: Any) -> Any:
    """Return a tensor as an array of NumPy, if `other` is one."""
    return x if isinstance(other, torch.Tensor) else x.numpy()
