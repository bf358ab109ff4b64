"""Do processes reach each other here? Started by `turnaround doctor` through torch.distributed.run.

    python -m torch.distributed.run --standalone --nproc-per-node 2 -m turnaround.workers.probe FILE

Process 0 writes the answer into FILE.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

from turnaround.record.writer import write_json
from turnaround.workers.environment import place
from turnaround.workers.torch_ddp import TorchDDP

MESSAGE_MB = 4


def main(answer: Path) -> None:
    here = place()
    has_gpus = torch.cuda.device_count() >= here.local_size
    device = torch.device("cuda", here.local_rank) if has_gpus else torch.device("cpu")
    workers = TorchDDP(place=here, count=here.size, device=device, shares_device=not has_gpus)
    tensor = torch.full((MESSAGE_MB * 250_000,), float(here.rank + 1), device=device)  # float32: 4 bytes each
    workers.sum(tensor.clone())  # the first message opens the connections
    start = time.perf_counter()
    workers.sum(tensor)
    total = tensor[-1].item()  # waits for the device too
    elapsed_s = time.perf_counter() - start
    if here.rank == 0:
        # Process r has sent r + 1, so the sum is 1 + 2 + ... + size.
        expected = here.size * (here.size + 1) / 2
        facts = {
            "backend": workers.backend,
            "processes": here.size,
            "is_right": total == expected,
            "elapsed_s": elapsed_s,
        }
        write_json(answer, {**facts, "message_mb": MESSAGE_MB})
    workers.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
