"""torch.distributed.run for the processes of one machine, which meet through a store on loopback.

    python -m turnaround.workers.torch_agent --nproc-per-node 2 -m turnaround.worker RUN

It takes the options of torch.distributed.run, and is torch's agent in all it does. Only the meeting point is ours: that
of `--standalone` and of every c10d rendezvous listens on all interfaces, and unpickles what anybody has written there.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.run import main as torch_run

from turnaround.workers.loopback_store import HOST, loopback_store

BACKEND = "turnaround-loopback"
TIMEOUT = timedelta(minutes=10)
"""What torch's own rendezvous waits."""


def main(arguments: Sequence[str] | None = None) -> None:
    rendezvous_handler_registry.register(BACKEND, LoopbackRendezvous)
    # The id tells one start from another (workers/environment.py).
    meet = ["--rdzv-backend", BACKEND, "--rdzv-id", secrets.token_hex(8)]
    torch_run([*meet, *(sys.argv[1:] if arguments is None else arguments)])


class LoopbackRendezvous(RendezvousHandler):
    """The meeting of a single agent, which has nobody to agree with."""

    def __init__(self, parameters: RendezvousParameters) -> None:
        if parameters.max_nodes != 1:
            raise ValueError(f"Processes of one machine meet here, not of {parameters.max_nodes} hosts.")
        self._run_id = parameters.run_id
        self._store = loopback_store(TIMEOUT)
        self._is_closed = False

    def get_backend(self) -> str:
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        # Process 0 must not host a store of its own: it would listen on all interfaces.
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        # The agent's own keys have a prefix; the processes' have none.
        store = PrefixStore(self._run_id, self._store)
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(HOST, self._store.port))

    def is_closed(self) -> bool:
        return self._is_closed

    def set_closed(self) -> None:
        self._is_closed = True

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        self._is_closed = True
        return True


if __name__ == "__main__":
    main()
