"""The engines, one row each: the way in which the processes of a training are started, told apart, and connected.

A new engine is a file with a `connect` function beside this one, and a row in `ENGINES`; the recipe, the launcher, the
reader of the environment and the training read it from here. No torch: `turnaround train` asks whether an engine is
installed before it decodes a single image.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from turnaround.errors import MissingPartError

if TYPE_CHECKING:
    import torch

    from turnaround.workers.contract import Workers
    from turnaround.workers.environment import RankInfo

INSTALL_HOROVOD = "HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=1 pip install --no-build-isolation --no-cache-dir horovod"
HINT = (
    "It is compiled against the torch that is installed and needs cmake and a C++ compiler; .ci/horovod in our sources "
    "does it for torch 2.13. Or leave out --engine horovod: the engine `torch` needs nothing more."
)


TORCH_AGENT = "turnaround.workers.torch_agent"
"""torch.distributed.run, with a meeting point that only this machine reaches."""


def require(engine: str) -> None:
    """Raise `MissingPartError`, with the command that helps, when an engine's packages are not here or not compiled."""
    ENGINES[engine].require()


def connect(engine: str, *, place: RankInfo, count: int, device: torch.device, shares_device: bool) -> Workers:
    """Connect this process with the others of its start; alone it needs no engine, whichever the recipe names."""
    if place.size == 1:
        from turnaround.workers.single import Single

        return Single(count=count, device=device)
    module = importlib.import_module(ENGINES[engine].module)
    workers: Workers = module.connect(place=place, count=count, device=device, shares_device=shares_device)
    return workers


def host_meeting_point(engine: str) -> tuple[object, dict[str, str]]:
    """Return what processes of this machine meet through as long as it is kept, and the variables that lead there."""
    found: tuple[object, dict[str, str]] = importlib.import_module(ENGINES[engine].module).host_meeting_point()
    return found


def not_built(why: str) -> MissingPartError:
    """Horovod's Python part is here and its compiled part is not, or not as needed."""
    return MissingPartError(
        f"Horovod is installed, but was not built for PyTorch ({why}). Build it again: pip uninstall -y horovod && "
        f"{INSTALL_HOROVOD}\n{HINT}"
    )


def _require_horovod() -> None:
    package = find_spec("horovod")
    if package is None:
        raise MissingPartError(f"The engine horovod is not installed. Install it: {INSTALL_HOROVOD}\n{HINT}")
    # `import horovod.torch` succeeds without its extension, and prints a warning on stdout.
    folders = [Path(folder) / "torch" for folder in package.submodule_search_locations or ()]
    if not any(file for folder in folders for file in folder.glob("mpi_lib_v2*.so")):
        raise not_built("its extension for PyTorch is missing")


def _torch_run(processes: int) -> list[str]:
    # Without a log directory of its own it makes empty folders in /tmp, which stay for ever.
    return [TORCH_AGENT, "--nproc-per-node", str(processes), "--log-dir", os.devnull, "-m"]


@dataclass(frozen=True, kw_only=True)
class Engine:
    """The facts about one engine."""

    module: str
    """The module with `connect(place=, count=, device=, shares_device=) -> Workers`; imports torch, so loaded late."""
    launcher: str
    """The command by which people start its processes."""
    rank_variables: tuple[str, str, str, str]
    """The variables that its launcher sets: rank, size, rank on this host, size on this host."""
    meeting_point: tuple[str, ...]
    """The variables that tell one start from another."""
    backends: str
    """The libraries that may carry its messages, for the help of --engine."""
    lost_errors: tuple[str, ...]
    """The names of its exceptions for "the other side is gone": by name, since the launcher imports no engine."""
    spread: Callable[[int], list[str]]
    """Returns the arguments after `python -m` that run a module, named next, in so many processes on this machine."""
    require: Callable[[], None] = lambda: None
    can_be_forked: bool = False
    """Whether its module has `host_meeting_point()`, where processes meet that no launcher of its own has started."""


ENGINES = {
    "torch": Engine(
        module="turnaround.workers.torch_ddp",
        launcher="python -m torch.distributed.run",
        rank_variables=("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        meeting_point=("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"),
        backends="NCCL or Gloo",
        lost_errors=("DistBackendError", "DistNetworkError", "DistStoreError"),
        spread=_torch_run,
        can_be_forked=True,
    ),
    "horovod": Engine(
        module="turnaround.workers.horovod",
        launcher="horovodrun",
        rank_variables=("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
        meeting_point=("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
        backends="NCCL, Gloo or MPI, as it was built",
        lost_errors=("HorovodInternalError",),
        spread=lambda processes: ["turnaround.launch.horovod", "--processes", str(processes)],
        require=_require_horovod,
    ),
}
