"""A pass as one launch: for steps that the host cannot queue as fast as the GPU computes them.

A CUDA graph repeats a recorded pass (forward and backward) on the same memory. It holds for one shape, one process, and
networks that draw no random numbers; whatever else comes takes the ordinary way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

HOST_BOUND_SHARE = 0.7
"""Of the time of a pass that the host spends on queueing it: above it the GPU waits for the host."""


@dataclass(frozen=True, kw_only=True)
class GraphChoice:
    """Whether full passes are repeated from a graph, and why."""

    value: bool
    reason: str


NOT_POSSIBLE = GraphChoice(value=False, reason="for one process on a CUDA device, without dropout and loss scaling")


def leave_default_stream(device: torch.device) -> None:
    """The default stream cannot be recorded: from here on everything of this thread runs on another one."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.set_stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]


def can_capture(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.current_stream(device) != torch.cuda.default_stream(device)


def worth_it(*, queueing_s: float, whole_s: float) -> GraphChoice:
    """From the times of an ordinary pass."""
    times = f"the host queues a pass in {1000 * queueing_s:.1f} ms, the GPU is done after {1000 * whole_s:.1f} ms"
    is_host_bound = queueing_s >= HOST_BOUND_SHARE * whole_s
    return GraphChoice(
        value=is_host_bound, reason=f"{times}: {'the host' if is_host_bound else 'the GPU'} is the limit"
    )


class GraphedPass:
    """Repeats `run(images, labels)`, which leaves gradients in the parameters."""

    def __init__(
        self, run: Callable[[Tensor, Tensor], None], images: Tensor, labels: Tensor, parameters: list[nn.Parameter]
    ) -> None:
        self.images, self.labels, self.parameters = images.clone(), labels.clone(), parameters
        for parameter in parameters:  # so that the recorded pass makes them anew, and its repetitions write over them
            parameter.grad = None
        self.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph, stream=torch.cuda.current_stream()):
            run(self.images, self.labels)
        self.gradients = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None

    def __call__(self, images: Tensor, labels: Tensor) -> None:
        self.images.copy_(images)
        self.labels.copy_(labels)
        self.graph.replay()
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
