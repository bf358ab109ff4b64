"""Several processes through torch.distributed: NCCL when every process has a GPU of its own, Gloo otherwise."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from inspect import signature
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import TCPStore
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from turnaround.workers.contract import Workers
from turnaround.workers.environment import RankInfo
from turnaround.workers.loopback_store import HOST, loopback_store

TIMEOUT = timedelta(minutes=10)
"""Time that a collective waits for a silent process."""


# The same setting under its new name, and under the one it had before torch 2.14.
_NAME = (
    "forward_sync_buffers"
    if "forward_sync_buffers" in signature(DistributedDataParallel).parameters
    else "broadcast_buffers"
)
_KEEP_BUFFERS: dict[str, Any] = {_NAME: False}


def host_meeting_point() -> tuple[TCPStore, dict[str, str]]:
    """Host the store through which processes of this machine find each other, as torch_agent.py does."""
    store = loopback_store(TIMEOUT)
    return store, {
        "MASTER_ADDR": HOST,
        "MASTER_PORT": str(store.port),
        # Process 0 must not host a store of its own (torch/distributed/rendezvous.py); its keys carry the count.
        "TORCHELASTIC_USE_AGENT_STORE": str(True),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_RUN_ID": secrets.token_hex(8),
    }


def connect(*, place: RankInfo, count: int, device: torch.device, shares_device: bool) -> Workers:
    """Meet the other processes, where MASTER_ADDR and MASTER_PORT say."""
    return TorchDDP(place=place, count=count, device=device, shares_device=shares_device)


class TorchDDP(Workers):
    """One process of several."""

    def __init__(self, *, place: RankInfo, count: int, device: torch.device, shares_device: bool) -> None:
        super().__init__(rank=place.rank, size=place.size, count=count, device=device)
        # NCCL refuses two processes on one GPU ("Duplicate GPU detected").
        self.backend = "nccl" if device.type == "cuda" and not shares_device else "gloo"
        own_device = device if self.backend == "nccl" else None
        dist.init_process_group(self.backend, timeout=TIMEOUT, device_id=own_device)

    def wrap(self, module: nn.Module, *, on_last_gradient: Callable[[], None]) -> nn.Module:
        # Buffers are not DDP's business: it would keep process 0's, we keep the mean over workers (averages.py).
        wrapped = DistributedDataParallel(
            module,
            device_ids=[self.device] if self.device.type == "cuda" else None,
            gradient_as_bucket_view=True,  # `.grad` is the message itself: no copy, and no second set of gradients
            **_KEEP_BUFFERS,
        )

        def reduce(group: dist.ProcessGroup, bucket: Any) -> torch.futures.Future[Tensor]:
            # Buckets are sent while the backward pass computes the next; with the last one it has ended.
            if bucket.is_last():
                on_last_gradient()
            return allreduce_hook(group, bucket)

        reduce.__annotations__.clear()  # torch compares them with its own classes, not with their names
        wrapped.register_comm_hook(dist.group.WORLD, reduce)
        return wrapped

    def deferred(self, wrapped: nn.Module) -> AbstractContextManager[Any]:
        assert isinstance(wrapped, DistributedDataParallel)
        return cast(AbstractContextManager[Any], wrapped.no_sync())

    def sum(self, tensor: Tensor) -> None:
        _in_place(tensor, dist.all_reduce)

    def broadcast(self, tensor: Tensor) -> None:
        _in_place(tensor, lambda message: dist.broadcast(message, src=0))

    def gather(self, value: str) -> list[str]:
        # As bytes in a tensor: torch's own gather of objects pickles them.
        mine = torch.tensor(list(value.encode()), dtype=torch.uint8, device=self.device)
        # Sums of zeros and one process's values, as a gather: rows need one length, so the lengths go first.
        lengths = torch.zeros(self.size, dtype=torch.int64, device=self.device)  # (processes,)
        lengths[self.rank] = len(mine)
        self.sum(lengths)
        # (processes, bytes of the longest)
        rows = torch.zeros(self.size, int(lengths.max()), dtype=torch.int32, device=self.device)
        rows[self.rank, : len(mine)] = mine.int()
        self.sum(rows)
        return [bytes(row[:n].tolist()).decode() for row, n in zip(rows.cpu(), lengths.tolist(), strict=True)]

    def barrier(self) -> None:
        dist.barrier(device_ids=[self.device.index] if self.backend == "nccl" else None)

    def close(self) -> None:
        dist.destroy_process_group()


def _in_place(tensor: Tensor, collective: Callable[[Tensor], Any]) -> None:
    """Apply a collective to a tensor of any layout: NCCL refuses those that are not contiguous, Gloo takes them."""
    message = tensor.detach().contiguous()
    collective(message)
    if message.data_ptr() != tensor.data_ptr():
        tensor.copy_(message)
