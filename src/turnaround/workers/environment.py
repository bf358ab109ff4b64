"""The only reader of what a launcher says about this process.

| variable          | set by                      | meaning                         |
|-------------------|-----------------------------|---------------------------------|
| RANK              | torch.distributed.run       | number of this process          |
| WORLD_SIZE        | torch.distributed.run       | processes in all                |
| LOCAL_RANK        | torch.distributed.run       | number of this process on host  |
| LOCAL_WORLD_SIZE  | torch.distributed.run       | processes on this host          |

Without them this process is alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from turnaround.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where this process stands among all."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1


def place(variables: Mapping[str, str] = os.environ) -> Place:
    """This process's place, or `InputError` when the launcher's variables contradict each other."""
    if "RANK" not in variables and "WORLD_SIZE" not in variables:
        return Place()
    try:
        rank, size = int(variables["RANK"]), int(variables["WORLD_SIZE"])
        local_rank = int(variables.get("LOCAL_RANK", "0"))
        local_size = int(variables.get("LOCAL_WORLD_SIZE", "1"))
    except (KeyError, ValueError) as error:
        raise InputError(
            f"RANK and WORLD_SIZE must both be whole numbers (problem: {error}). Start this through "
            "`turnaround train` or `python -m torch.distributed.run`, or unset both."
        ) from None
    if not (0 <= rank < size and 0 <= local_rank < local_size <= size):
        raise InputError(
            f"RANK={rank} of WORLD_SIZE={size} with LOCAL_RANK={local_rank} of LOCAL_WORLD_SIZE={local_size} cannot be."
        )
    return Place(rank=rank, size=size, local_rank=local_rank, local_size=local_size)
