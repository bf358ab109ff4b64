"""The averages that are kept beside the weights, for evaluation: of batch norm's statistics, and of the weights.

Batch norm's running statistics, defined once for all engines: every worker updates the statistics of the step's
beginning with its own images, and the step leaves the mean over workers. So the same statistics come out however the
workers are spread over passes and processes.

An exponential moving average of the weights (EMA) is what is evaluated, while training goes on with the raw ones:

    average <- d average + (1 - d) weights        after every update, d = `training.ema`

The average over the last 1 / (1 - d) updates of one worker moves less than the weights do, and is usually better than
they are while the learning rate is high. k workers take k times fewer updates, so with `scaling = auto` an update of
theirs has d^k (Busbridge et al. 2023): the average is over as many images as before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn

from turnaround.recipe import TrainingRecipe
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
        self._sum_buffers: list[Tensor] = []
        self._is_one_pass = False

    def begin_step(self, *, is_one_pass: bool) -> None:
        """Remember what every worker of this step starts from; one pass alone leaves its workers' mean itself."""
        self._is_one_pass = is_one_pass
        if is_one_pass:
            return  # nothing to go back to: the common case costs no copies
        if not self.buffers:
            return
        if not self._before:
            self._before = [torch.empty_like(b) for b in self.buffers]
            self._counted = [torch.empty_like(c) for c in self.counters]
            self._sum_buffers = [torch.empty_like(b) for b in self.buffers]
        # One launch for all buffers: a network has a hundred of them, and each launch costs microseconds.
        torch._foreach_copy_(self._before, self.buffers)
        torch._foreach_copy_(self._counted, self.counters)
        torch._foreach_zero_(self._sum_buffers)
        self._sum = self._sum_buffers

    def begin_pass(self) -> None:
        """Go back to the beginning of the step, for the next pass; a step is counted once, not once a pass."""
        if self.buffers and not self._is_one_pass:
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


class WeightAverage:
    """The average of everything that learns: parameters, and floating-point buffers (batch norm's statistics).

    Its tensors are allocated once, and evaluation copies values in and out of the network: CUDA graphs replay kernels
    on the parameters' addresses, so no parameter may ever become another tensor.
    """

    def __init__(self, learner: nn.Module, *, network: nn.Module, decay: float, power: int = 1) -> None:
        """`decay` is that of an update of one worker, of which one update of ours stands for `power`.

        `learner` is the network, or the last layer of a frozen one: what is frozen is its own average. Names are those
        of the whole network.
        """
        self.decay, self.power = decay, power
        addresses = {p.data_ptr() for p in learner.parameters() if p.requires_grad}
        addresses |= {b.data_ptr() for b in learner.buffers() if b.is_floating_point()}
        found = {k: v for k, v in network.state_dict().items() if v.is_floating_point() and v.data_ptr() in addresses}
        self.names = list(found)
        # One list each for the launches below; they share the network's memory.
        self._weights = [tensor.detach() for tensor in found.values()]
        self._averages = [tensor.clone() for tensor in self._weights]
        self._kept = [torch.empty_like(tensor) for tensor in self._weights]

    def update(self, global_step: int) -> None:
        """Take the weights after step `global_step`, counted from 0, into the average."""
        # One launch for all tensors, by a number that the host knows: an average tensor by tensor tripled the time of a
        # step on an H200, and a decay on the device would be a tensor to wait for.
        torch._foreach_lerp_(self._averages, self._weights, 1 - self.decay_at(global_step))

    def decay_at(self, global_step: int) -> float:
        """Return the share of the average that this step keeps."""
        # (1 + t) / (10 + t), t updates of one worker: the average is over the last ninth of them at most. Of the random
        # weights of the beginning nothing is left after a few steps. The start without bias that Adam has (divide by
        # 1 - d^t) would be a plain mean over all of a short training, first steps and all.
        updates = global_step * self.power
        return min(self.decay, (1 + updates) / (10 + updates)) ** self.power

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside it the network has the averaged weights; after it, those that it had."""
        torch._foreach_copy_(self._kept, self._weights)
        torch._foreach_copy_(self._weights, self._averages)
        try:
            yield
        finally:
            torch._foreach_copy_(self._weights, self._kept)

    def tensors(self) -> dict[str, Tensor]:
        """Return the averages by the names of the network's state; not copies."""
        return dict(zip(self.names, self._averages, strict=True))

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Go on from the averages of a checkpoint; one that has none leaves the weights themselves as a beginning."""
        for name, average, weights in zip(self.names, self._averages, self._weights, strict=True):
            average.copy_(tensors.get(name, weights))


class EvaluatedWeights:
    """The weights that are evaluated and used: the network's, or their moving average where there is one.

    Step, evaluation and checkpoints ask this object, so none of them knows whether the weights are averaged.
    """

    def __init__(self, network: nn.Module, average: WeightAverage | None = None) -> None:
        self.network, self.average = network, average

    @classmethod
    def of(cls, recipe: TrainingRecipe, learner: nn.Module, *, network: nn.Module, power: int) -> EvaluatedWeights:
        """Make those that the recipe asks for; `learner` and `power` are as for `WeightAverage`."""
        if not recipe.ema:
            return cls(network)
        return cls(network, WeightAverage(learner, network=network, decay=recipe.ema, power=power))

    @property
    def num_sets(self) -> int:
        """Number of sets of weights: those that are trained, and the average where there is one."""
        return 1 if self.average is None else 2

    def update(self, global_step: int) -> None:
        """Follow the update of step `global_step`, counted from 0."""
        if self.average is not None:
            self.average.update(global_step)

    def in_place(self) -> AbstractContextManager[None]:
        """Return a context in which the network has these weights; after it, those that are trained."""
        return nullcontext() if self.average is None else self.average.in_place()

    def averages(self) -> dict[str, Tensor]:
        """Return what a checkpoint keeps besides the network's own weights; not copies."""
        return {} if self.average is None else self.average.tensors()

    def tensors(self) -> dict[str, Tensor]:
        """Return the evaluated weights by the names of the network's state; not copies."""
        return {**self.network.state_dict(), **self.averages()}

    def restore(self, averages: dict[str, Tensor]) -> None:
        """Go on from what a checkpoint keeps besides the network's own weights, which are restored before."""
        if self.average is not None:
            self.average.restore(averages)
