"""Replicas that see parts of one batch, and are to act as one process that sees it whole."""

from typing import Any

import torch
import torch.distributed as dist


class Group:
    """A process group that a copied module shares: groups themselves cannot be copied."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.group = group

    def __deepcopy__(self, memo: dict[int, Any]) -> "Group":
        return self

    def gather(self, summary: Any) -> Any:
        """The summaries of all replicas, stacked, in one collective call."""
        mine = torch.cat([x.reshape(-1) for x in summary])
        everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(everyone, mine, group=self.group)
        parts = torch.stack(everyone).split([x.numel() for x in summary], 1)
        return type(summary)(*(p.reshape(-1, *x.shape) for p, x in zip(parts, summary, strict=True)))

    def check_agreement(self, settings: str) -> None:
        """Raise, on every replica, if these are not the settings of all."""
        theirs: list[Any] = [None] * dist.get_world_size(self.group)
        dist.all_gather_object(theirs, settings, group=self.group)
        if len(set(theirs)) > 1:
            listed = "; ".join(f"replica {rank} has {setting}" for rank, setting in enumerate(theirs))
            raise ValueError(f"process_group has replicas that disagree on settings: {listed}")
