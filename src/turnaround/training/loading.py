"""What a process loads before it has images, and what it never loads: the first second of a training.

    get_ready          a GPU's context, its libraries and our kernels, the code of the network
    load_late_code     what torch and a network would load in the middle of the first step
    postpone_dynamo    torch._dynamo, half as large as torch itself, which only torch.compile needs
    use_threads        the threads of a forked process

Start-up is most of a short training: on an H200 machine `import torch` takes 4.3 s and all that is loaded here another
second or two (docs/LOG.md). `worker.begin_cuda_context` has begun with the GPU before torch was imported.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from types import ModuleType
from typing import Any

import torch
from torch.nn import functional as F

from turnaround import kernels
from turnaround.model.network import load_code
from turnaround.training.choices import choose_device
from turnaround.workers.environment import RankInfo

DYNAMO = "torch._dynamo"


def get_ready(device: str, rank_info: RankInfo, *, network: str | None, downloads: bool = True) -> None:
    """Load what takes seconds and needs no images; the code of a network where it is known already.

    Whatever goes wrong goes wrong again when it is needed, and is said there.
    """
    libraries: Thread | None = None
    with suppress(Exception):
        chosen = choose_device(device, rank_info).value.device
        if chosen.type == "cuda":
            # cuDNN and cuBLAS load their kernels without the interpreter's lock: Python imports Triton meanwhile.
            libraries = Thread(target=_load_libraries, args=(chosen,), name="CUDA libraries", daemon=True)
            libraries.start()
            kernels.unavailable_reason()
    load_late_code(network, is_alone=rank_info.size == 1, downloads=downloads)
    if libraries is not None:
        libraries.join()  # a thread of CUDA calls beside the first pass could fall into a graph that is captured


def load_late_code(network: str | None, *, is_alone: bool = True, downloads: bool = True) -> None:
    """Load what torch and a network would load later; a network that is unknown is refused where it is built.

    `is_alone`: of one process; `downloads`: the network's weights may be fetched.
    """
    with suppress(Exception):
        # DistributedDataParallel asks torch._dynamo for its settings: several processes need the real one.
        postpone_dynamo()
        if not is_alone:
            torch._dynamo.config  # noqa: B018 - any name but the two of the stand-in loads it
    with suppress(Exception):
        if network is not None:
            load_code(network, downloads=downloads)


def use_threads(count: int) -> None:
    """Give torch so many threads, as OMP_NUM_THREADS would have before it was loaded."""
    torch.set_num_threads(count)


def _load_libraries(device: torch.device) -> None:
    """Run the smallest convolution and matrix product, forward and backward, in the arithmetic of most trainings."""
    with suppress(Exception):
        torch.cuda.set_device(device)
        dtype = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
        images = torch.zeros(8, 8, 8, 8, device=device, dtype=dtype).to(memory_format=torch.channels_last)
        weight = torch.zeros(8, 8, 3, 3, device=device, dtype=dtype, requires_grad=True)
        features = F.conv2d(images, weight, padding=1).amax(dim=(2, 3))  # (8, 8)
        (features @ features.T).sum().backward()  # type: ignore[no-untyped-call]
        torch.cuda.synchronize(device)


class PostponedDynamo(ModuleType):
    """Stands in for torch._dynamo until something is compiled.

    torch's optimizers and its counter of FLOPs import torch._dynamo at their first call, to tell it what it must not
    compile: 1.6 s of computing where torch itself takes 2.0 (two cores, 2026-11-18), also when nothing ever is. Both
    ask for the two functions below. Whoever asks for anything else, as torch.compile does, gets the real module.
    """

    def __init__(self) -> None:
        super().__init__(DYNAMO)

    def graph_break(self, msg: str = "") -> None:
        """Do nothing, as the real one does outside of compiled code."""

    def disable(self, fn: Callable[..., Any], recursive: bool = True, **_options: Any) -> Callable[..., Any]:
        """Return the function itself: nothing that we compile calls an optimizer or counts FLOPs."""
        return fn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real(), name)

    def _real(self) -> ModuleType:
        if sys.modules.get(DYNAMO) is self:
            del sys.modules[DYNAMO]
            importlib.import_module(DYNAMO)  # sets torch._dynamo, too
        return sys.modules[DYNAMO]


def postpone_dynamo() -> None:
    """Import torch._dynamo when something is compiled, and not before. Nothing happens where it is loaded already."""
    if DYNAMO not in sys.modules:
        sys.modules[DYNAMO] = torch._dynamo = PostponedDynamo()
