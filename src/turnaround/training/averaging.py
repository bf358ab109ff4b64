"""An exponential moving average of the weights (EMA): what is evaluated, while training goes on with the raw ones.

    average <- d average + (1 - d) weights        after every update, d = `training.ema`

The average over the last 1 / (1 - d) updates of one worker moves less than the weights do, and is usually better than
they are while the learning rate is high. k workers take k times fewer updates, so with `scaling = auto` an update of
theirs has d^k (Busbridge et al. 2023): the average is over as many images as before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


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
