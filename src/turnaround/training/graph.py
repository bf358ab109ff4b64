"""CUDA graphs: a pass or an update as one launch, for steps that the host cannot queue as fast as the GPU computes.

A graph repeats what was captured on the same memory. That of a pass (forward and backward) holds for one shape, one
process, and networks that draw no random numbers; whatever else comes takes the ordinary way. That of an update holds
for optimizers that keep everything they count on the device.
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
    """Run everything of this thread on another stream from here on: the default stream cannot be captured.

    A thread that has left it stays where it is: the allocator's cache and cuBLAS's workspace (65 MiB on an H200) belong
    to a stream, and batches are tried one after the other (fitting.py).
    """
    if device.type == "cuda" and not can_capture(device):
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

    def replay(self, shape: PassShape, images: Tensor, labels: Labels, *, is_only_pass: bool) -> bool:
        """Repeat the captured pass on other images; False when there is none of this shape."""
        if self._captured is None or self._captured[0] != shape:
            return False
        self._captured[1](images, labels, is_only_pass=is_only_pass)
        return True

    def forget(self) -> None:
        """Let every pass take the ordinary way."""
        self._captured = None


class CapturedPass:
    """Callable: repeats `run(images, labels)`, and leaves its gradients in the parameters or adds them there."""

    def __init__(
        self, run: Callable[[Tensor, Labels], None], images: Tensor, labels: Labels, parameters: list[nn.Parameter]
    ) -> None:
        # A graph knows addresses, not tensors: it always reads these two, so every replay copies its batch into them.
        self.images, self.labels = images.clone(), labels.clone()
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
        found = [(parameter, parameter.grad) for parameter in parameters if parameter.grad is not None]
        self.parameters = [parameter for parameter, _ in found]
        self.gradients = [gradient for _, gradient in found]
        self._sums: list[Tensor] = []
        for parameter in parameters:
            parameter.grad = None

    def __call__(self, images: Tensor, labels: Labels, *, is_only_pass: bool) -> None:
        # On the stream that replays, so these copies come after the replay before and before this one.
        self.images.copy_(images)
        overwrite(self.labels, labels)
        self.graph.replay()
        if is_only_pass:
            # `zero_grad` has set them to None since: they are the same tensors at every step.
            self._leave(self.gradients)
        elif self.parameters[0].grad is None:
            # The next replay of this step writes over the gradients, so the step sums them elsewhere.
            self._sums = self._sums or [torch.empty_like(gradient) for gradient in self.gradients]
            torch._foreach_copy_(self._sums, self.gradients)
            self._leave(self._sums)
        else:
            torch._foreach_add_([p.grad for p in self.parameters if p.grad is not None], self.gradients)

    def _leave(self, gradients: list[Tensor]) -> None:
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient


class UpdateGraph:
    """The update of an optimizer as one launch, for optimizers of hundreds of small kernels.

    Muon's update of a network of eleven layers is about 300 launches, 6 ms of the host's time on an H200 machine where
    the GPU computes for 1 (docs/LOG.md). `optimizers.make_optimizer` makes an optimizer of which nothing is counted on
    the host (`capturable`): the learning rate is a tensor that every update overwrites.
    """

    NUM_ORDINARY = 2
    """The first update of a process makes the moments and loads kernels; the second is an ordinary one too, so that
    what is captured has been computed before."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self._rate: Tensor | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._parameters: list[nn.Parameter] = []
        self._gradients: list[Tensor] = []
        self._num_updates = 0

    @property
    def is_captured(self) -> bool:
        return self._graph is not None

    def update(self, learning_rate: float) -> None:
        """Do what `optimizer.step()` does with this learning rate and the gradients that the parameters have."""
        if not self.optimizer.defaults.get("capturable"):
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate
            self.optimizer.step()
            return
        self._overwrite_rate(learning_rate)
        parameters = [p for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        if self._graph is None and self._num_updates >= self.NUM_ORDINARY and can_capture(parameters[0].device):
            self._capture(parameters)
        self._num_updates += 1
        # A parameter without a gradient is left alone by an update, which a graph cannot know: the ordinary way.
        if self._graph is None or [id(p) for p in parameters] != [id(p) for p in self._parameters]:
            self.optimizer.step()
            return
        # Gradients of a captured pass lie where they lay; all others are copied to where the graph reads.
        moved = [
            (gradient, parameter.grad)
            for gradient, parameter in zip(self._gradients, parameters, strict=True)
            if parameter.grad is not None and parameter.grad.data_ptr() != gradient.data_ptr()
        ]
        if moved:
            torch._foreach_copy_([to for to, _ in moved], [source for _, source in moved])
        self._graph.replay()

    def forget(self) -> None:
        """Let the next updates take the ordinary way: the moments are other tensors after a checkpoint was restored."""
        self._graph, self._num_updates = None, 0

    def _overwrite_rate(self, learning_rate: float) -> None:
        if self._rate is None:
            first = self.optimizer.param_groups[0]["params"][0]
            self._rate = torch.zeros((), device=first.device, dtype=first.dtype)
        self._rate.fill_(learning_rate)  # an argument of a launch: the host does not wait
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate

    def _capture(self, parameters: list[nn.Parameter]) -> None:
        self._parameters = parameters
        self._gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        # In the middle of training: the threads that save and that upload images may call CUDA meanwhile.
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"):
            self.optimizer.step()
        self._graph = graph
