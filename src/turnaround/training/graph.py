"""CUDA graphs: a pass or an update as one launch, for steps that the host cannot queue as fast as the GPU computes.

A graph repeats what was captured on the same memory. That of a pass (forward and backward) holds for one shape, one
process, and networks that draw no random numbers; whatever else comes takes the ordinary way. The full pass is captured
in the warm-up; the others of a training (the last step of an epoch, the passes by which the noise scale is measured)
when they have come a few times. That of an update holds for optimizers that keep everything they count on the
device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

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
    purpose: Literal["learn", "measure", "probe"] = "learn"
    """A measured pass also returns the squared length of its gradient; a probe returns noise and signal of the two
    halves of its images, and leaves no gradient (noise.py)."""


@contextmanager
def _capturing(graph: torch.cuda.CUDAGraph, *, shares_memory_of: torch.cuda.CUDAGraph | None = None) -> Iterator[None]:
    """Capture what is queued inside on the current stream. Of graphs that share memory, one may run at a time."""
    torch.cuda.synchronize()  # nothing that was queued before may become a part of it
    pool, stream = shares_memory_of.pool() if shares_memory_of else None, torch.cuda.current_stream()
    # In the middle of training the threads that save and that upload images may call CUDA meanwhile.
    with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        yield


PassRun = Callable[[Tensor, Labels], Tensor | None]
"""Computes a pass over images and labels. What it returns is none, or one tensor of what was measured."""


class GraphCapture:
    """The graphs of passes, by their shape, where there are any, and why; a collaborator of `Step`."""

    MAX_GRAPHS = 8
    """Shapes of a training: the full pass, the last one of an epoch, both measured (in two unequal parts at most), and
    a probe of each. A pass of any further shape is computed the ordinary way."""
    MIN_TIMES = 4
    """Times that a pass of another shape than the first has come before it is captured, so that none is captured for a
    shape that hardly comes. A capture takes 7 to 13 ms (`small` on an H200), as long as one pass that the host
    queues."""

    def __init__(self) -> None:
        self.choice = NOT_POSSIBLE
        self._captured: dict[PassShape, CapturedPass] = {}
        self._times: Counter[PassShape] = Counter()
        self._refused: set[PassShape] = set()

    @property
    def is_captured(self) -> bool:
        return bool(self._captured)

    def capture(
        self, shape: PassShape, run: PassRun, images: Tensor, labels: Labels, learning: list[nn.Parameter]
    ) -> None:
        """Capture `run(images, labels)`, which may leave gradients in the parameters, for passes of this shape."""
        # One pool for all: they never run at the same time, so the activations of one lie where those of another lay.
        first = next(iter(self._captured.values()), None)
        try:
            self._captured[shape] = CapturedPass(
                run, images, labels, learning, shares_memory_of=first.graph if first else None
            )
        except torch.OutOfMemoryError:
            if first is None:  # in the warm-up, where running out of memory is explained
                raise
            # The ordinary way has worked so far: no reason to end a training.
            self._refused.add(shape)

    def find(self, shape: PassShape) -> CapturedPass | None:
        """Return the captured pass of this shape, if there is one."""
        return self._captured.get(shape)

    def count(self, shape: PassShape) -> bool:
        """Count a pass of this shape; return whether to capture it now, in a training whose passes are captured.

        It was computed before, so what it needs is compiled and loaded.
        """
        is_full = len(self._captured) >= self.MAX_GRAPHS
        if not self._captured or is_full or shape in self._captured or shape in self._refused:
            return False
        self._times[shape] += 1
        return self._times[shape] > self.MIN_TIMES

    def forget(self) -> None:
        """Let every pass take the ordinary way."""
        self._captured.clear()


class CapturedPass:
    """Callable: repeats `run(images, labels)`, and leaves its gradients in the parameters or adds them there."""

    def __init__(
        self,
        run: PassRun,
        images: Tensor,
        labels: Labels,
        parameters: list[nn.Parameter],
        *,
        shares_memory_of: torch.cuda.CUDAGraph | None = None,
    ) -> None:
        # A graph knows addresses, not tensors: it always reads these two, so every replay copies its batch into them.
        self.images, self.labels = images.clone(), labels.clone()
        # Without gradients the captured pass makes them anew, in memory of the graph, and its repetitions write over
        # them; with gradients it would add to whatever is there. In the middle of a step there may be some.
        before = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        self.graph = torch.cuda.CUDAGraph()
        try:
            with _capturing(self.graph, shares_memory_of=shares_memory_of):
                self._result = run(self.images, self.labels)
            # Capturing computes nothing: the gradients are memory that the first replay fills. They are held here, or
            # zero_grad(set_to_none=True) would drop the last reference to it.
            found = [(parameter, parameter.grad) for parameter in parameters if parameter.grad is not None]
        finally:
            for parameter, gradient in zip(parameters, before, strict=True):
                parameter.grad = gradient
        self.parameters = [parameter for parameter, _ in found]
        self.gradients = [gradient for _, gradient in found]
        self._sums: list[Tensor] = []

    def __call__(self, images: Tensor, labels: Labels, *, is_only_pass: bool) -> Tensor | None:
        # On the stream that replays, so these copies come after the replay before and before this one.
        self.images.copy_(images)
        overwrite(self.labels, labels)
        self.graph.replay()
        self._leave_gradients(is_only_pass=is_only_pass)
        # A copy: the next replay, perhaps of the same step, writes over it.
        return None if self._result is None else self._result.clone()

    def _leave_gradients(self, *, is_only_pass: bool) -> None:
        if not self.parameters:  # a probe
            return
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
        with _capturing(graph):
            self.optimizer.step()
        self._graph = graph
