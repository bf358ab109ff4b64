"""CUDA graphs: a pass as one launch, for steps that the host cannot queue as fast as the GPU computes them.

A graph repeats a captured pass (forward and backward) on the same memory. It holds for one shape, one process, and
networks that draw no random numbers; whatever else comes takes the ordinary way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from turnaround.choice import Choice
from turnaround.data.mixing import Labels, overwrite

HOST_BOUND_SHARE = 0.7
"""Share of a pass's time that the host spends on queueing it: above it the GPU waits for the host. Fine-tuning
resnet50 at batch 32 on an H200 went from 1,100 to 3,233 images/s with graphs (docs/LOG.md)."""
NOT_POSSIBLE = Choice(False, "for one process on a CUDA device, without dropout and loss scaling")


def leave_default_stream(device: torch.device) -> None:
    """Run everything of this thread on another stream from here on: the default stream cannot be captured."""
    if device.type == "cuda":
        # Two streams are not ordered: what the default one still computes must be done before another reads it.
        torch.cuda.synchronize(device)
        torch.cuda.set_stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]


def can_capture(device: torch.device) -> bool:
    """Tell whether the current stream of a device can be captured."""
    return device.type == "cuda" and torch.cuda.current_stream(device) != torch.cuda.default_stream(device)


def worth_it(*, queueing_s: float, whole_s: float) -> Choice[bool]:
    """Choose from the times of an ordinary pass: how long the host queued it, and how long it took in all."""
    times = f"the host queues a pass in {1000 * queueing_s:.1f} ms, the GPU is done after {1000 * whole_s:.1f} ms"
    is_host_bound = queueing_s >= HOST_BOUND_SHARE * whole_s
    return Choice(is_host_bound, f"{times}: {'the host' if is_host_bound else 'the GPU'} is the limit")


class PassShape(NamedTuple):
    """The constants of a captured pass: it may be replayed only where they are the same."""

    worker_sizes: tuple[int, ...]
    global_size: int
    """The loss is divided by it."""


class GraphCapture:
    """The graph of full passes where there is one, and why; a collaborator of `Step`."""

    def __init__(self) -> None:
        self.choice = NOT_POSSIBLE
        self._captured: tuple[PassShape, CapturedPass] | None = None

    @property
    def is_captured(self) -> bool:
        return self._captured is not None

    def capture(
        self,
        shape: PassShape,
        run: Callable[[Tensor, Labels], None],
        images: Tensor,
        labels: Labels,
        learning: list[nn.Parameter],
    ) -> None:
        """Capture `run(images, labels)`, which leaves gradients in the parameters, for passes of this shape."""
        self._captured = shape, CapturedPass(run, images, labels, learning)

    def replay(self, shape: PassShape, images: Tensor, labels: Labels) -> bool:
        """Repeat the captured pass on other images; False when there is none of this shape."""
        if self._captured is None or self._captured[0] != shape:
            return False
        self._captured[1](images, labels)
        return True

    def forget(self) -> None:
        """Let every pass take the ordinary way."""
        self._captured = None


class CapturedPass:
    """Callable: repeats `run(images, labels)`, which leaves gradients in the parameters."""

    def __init__(
        self, run: Callable[[Tensor, Labels], None], images: Tensor, labels: Labels, parameters: list[nn.Parameter]
    ) -> None:
        # A graph knows addresses, not tensors: it always reads these two, so every replay copies its batch into them.
        self.images, self.labels, self.parameters = images.clone(), labels.clone(), parameters
        # Without gradients the captured pass makes them anew, in memory of the graph, and its repetitions write over
        # them; with gradients it would add to whatever is there.
        for parameter in parameters:
            parameter.grad = None
        self.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()  # nothing that was queued before may become a part of it
        with torch.cuda.graph(self.graph, stream=torch.cuda.current_stream()):
            run(self.images, self.labels)
        # Capturing computes nothing: the gradients are memory that the first replay fills. They are held here, or
        # zero_grad(set_to_none=True) would drop the last reference to it.
        self.gradients = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None

    def __call__(self, images: Tensor, labels: Labels) -> None:
        # On the stream that replays, so these copies come after the replay before and before this one.
        self.images.copy_(images)
        overwrite(self.labels, labels)
        self.graph.replay()
        # `zero_grad` has set them to None since: they are the same tensors at every step.
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
