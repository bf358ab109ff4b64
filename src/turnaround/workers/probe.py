"""Do processes reach each other here, and how fast? Started by `turnaround doctor` through torch_agent.py.

    python -m turnaround.workers.torch_agent --nproc-per-node 2 -m turnaround.workers.probe FILE [MB]

Process 0 writes the answer into FILE.
"""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

import torch

from turnaround.record.writer import write_json
from turnaround.workers.environment import place
from turnaround.workers.torch_ddp import TorchDDP

MESSAGE_MB = 4
REPEATS = 5
"""The shortest counts: others on the network make a message longer, nothing makes it shorter."""


def main(answer: Path, message_mb: int = MESSAGE_MB) -> None:
    here = place()
    has_gpus = torch.cuda.device_count() >= here.local_size
    device = torch.device("cuda", here.local_rank) if has_gpus else torch.device("cpu")
    workers = TorchDDP(place=here, count=here.size, device=device, shares_device=not has_gpus)
    hosts = len(set(workers.gather(socket.gethostname())))
    ones = torch.full((message_mb * 250_000,), float(here.rank + 1), device=device)  # float32: 4 bytes each
    workers.sum(ones.clone())  # the first message opens the connections
    elapsed_s, total = float("inf"), 0.0
    for _ in range(REPEATS):
        tensor = ones.clone()
        workers.barrier()
        start = time.perf_counter()
        workers.sum(tensor)
        total = tensor[-1].item()  # waits for the device too
        elapsed_s = min(elapsed_s, time.perf_counter() - start)
    if here.rank == 0:
        # Process r has sent r + 1, so the sum is 1 + 2 + ... + size.
        expected = here.size * (here.size + 1) / 2
        facts = {
            "backend": workers.backend,
            "processes": here.size,
            "hosts": hosts,
            "is_right": total == expected,
            "elapsed_s": elapsed_s,
            # A ring over h hosts sends 2 (h-1)/h of the message through each host's network: as forecasts count it.
            "gb_per_s": 2 * (hosts - 1) / hosts * message_mb / 1000 / elapsed_s if hosts > 1 else None,
        }
        write_json(answer, {**facts, "message_mb": message_mb})
    workers.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:3]))
