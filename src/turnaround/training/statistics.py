"""Batch-norm running statistics, defined once for all engines: the mean over workers at every step.

Every worker updates the statistics of the step's beginning with its own images; the step leaves the mean over workers.
So the same statistics come out however the workers are spread over passes and processes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from turnaround.workers.contract import Workers


class RunningStatistics:
    """The running means and variances of the batch norms that learn."""

    def __init__(self, batch_norms: list[nn.Module], workers: Workers) -> None:
        self.workers = workers
        buffers = (b for norm in batch_norms for b in (norm.running_mean, norm.running_var))
        self.buffers = [b for b in buffers if isinstance(b, Tensor)]
        counters = (norm.num_batches_tracked for norm in batch_norms)
        self.counters = [c for c in counters if isinstance(c, Tensor)]
        # Each buffer is (channels,), each counter a scalar; the lists below follow their order.
        self._before: list[Tensor] = []  # at the step's beginning
        self._counted: list[Tensor] = []
        self._sum: list[Tensor] = []  # over the workers of the passes so far
        self._is_one_pass = False

    def begin_step(self, *, is_one_pass: bool) -> None:
        """Remember what every worker of this step starts from; one pass alone leaves its workers' mean itself."""
        self._is_one_pass = is_one_pass
        if is_one_pass:
            return  # nothing to go back to: the common case costs no copies
        self._before = [b.clone() for b in self.buffers]
        self._counted = [c.clone() for c in self.counters]
        self._sum = [torch.zeros_like(b) for b in self.buffers]

    def begin_pass(self) -> None:
        """Go back to the beginning of the step, for the next pass; a step is counted once, not once a pass."""
        if self.buffers and not self._is_one_pass:
            # One launch for all buffers: a network has a hundred of them, and each launch costs microseconds.
            torch._foreach_copy_(self.buffers, self._before)
            torch._foreach_copy_(self.counters, self._counted)

    def end_pass(self, *, num_workers: int) -> None:
        """Add what the workers of this pass made of them: the pass itself leaves the mean over its workers."""
        if not self.buffers:
            return
        # A pass of w workers leaves the mean over them (grouped_norm.py): times w it is a sum again, so that passes and
        # processes of different numbers of workers weigh every worker alike.
        if self._is_one_pass:
            self._sum = list(torch._foreach_mul(self.buffers, num_workers)) if self.workers.size > 1 else []
        else:
            torch._foreach_add_(self._sum, self.buffers, alpha=num_workers)

    def end_step(self) -> None:
        """Leave the mean over all workers of all processes: one message however many buffers there are."""
        if not self._sum:
            return
        # On one process the sum over workers is already complete, and `sum` is the identity.
        flat = torch.cat([s.flatten() for s in self._sum])  # (channels of all norms, twice)
        self.workers.sum(flat)
        flat /= self.workers.count
        sizes = [b.numel() for b in self.buffers]
        means = [m.view_as(b) for m, b in zip(torch.split(flat, sizes), self.buffers, strict=True)]
        torch._foreach_copy_(self.buffers, means)
