"""Description of the machine of a run. Enters: what only the caller knows. Leaves: the object for machine.json.

Nothing here can fail: what cannot be found out is None. No torch: versions come from the packages' metadata.
"""

import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from turnaround.cores import usable_cores
from turnaround.errors import RunDirectoryError
from turnaround.record.files import read_json
from turnaround.record.git import git_state, is_tracked
from turnaround.record.gpus import Nvml, describe_gpus
from turnaround.record.host import command_line, host_name
from turnaround.words import GIB

PACKAGES = ("turnaround", "torch", "torchvision", "timm", "numpy", "pillow")
COMPARED = (
    *("processes", "engine", "device", "cpu", "gpus", "turnaround_git.commit"),
    *(f"versions.{name}" for name in PACKAGES),
)
"""Facts that may change the last bits of a training when they change between two starts."""


def describe(
    *,
    workers: int,
    processes: int,
    engine: str,
    launch: str,
    device: str,
    choices: Mapping[str, Mapping[str, Any]] | None = None,
    nvml: Nvml | None = None,
) -> dict[str, Any]:
    """This host and this program, and how the run is spread over it.

    `choices` are the decisions turnaround made itself: name -> {"value": ..., "reason": ...}. `nvml` is for
    tests, in place of pynvml.
    """
    package = Path(__file__).resolve().parent
    return {
        "hostname": host_name(),
        "os": platform.platform(),
        "python": platform.python_version(),
        "cpu": _cpu_model(),
        "cores": usable_cores(),
        "memory_gib": _memory_gib(),
        "gpus": describe_gpus(nvml),
        "versions": {name: _version(name) for name in PACKAGES},
        "git": git_state(Path.cwd()) if _has_working_directory() else None,
        # An installed copy may lie in a virtual environment inside somebody's repository: that is not ours.
        "turnaround_git": git_state(package) if is_tracked(Path(__file__)) else None,
        "command": command_line(),
        "workers": workers,
        "processes": processes,
        "engine": engine,
        "launch": launch,
        "device": device,
        "choices": {name: dict(choice) for name, choice in (choices or {}).items()},
    }


def changed_since(path: Path, now: Mapping[str, Any], *, start: int) -> list[str]:
    """Return what differs from the start before, whose machine.json is at `path`, and what differed before that.

    The training stays the same; its last bits may not.
    """
    try:
        before = read_json(path)
    except RunDirectoryError:  # this is the first start, or the file is damaged
        return []
    earlier = before.get("changed")
    pairs = ((what, _fact(before, what), _fact(now, what)) for what in COMPARED)
    new = [f"start {start}: {what} {then} -> {today}" for what, then, today in pairs if then != today]
    return [*(earlier if isinstance(earlier, list) else []), *new]


def other_code(path: Path, *, with_uncommitted: bool = True) -> list[str]:
    """Return what of the code differs from the last start, whose machine.json is at `path`; nothing before the first.

    Of code with uncommitted changes nobody knows whether it is the same: `with_uncommitted` says so.
    """
    try:
        before = read_json(path)
    except RunDirectoryError:
        return []
    package = Path(__file__).resolve().parent
    git = git_state(package) if is_tracked(Path(__file__)) else None
    now = {"versions": {name: _version(name) for name in PACKAGES}, "turnaround_git": git}
    what = [name for name in COMPARED if name.startswith(("versions.", "turnaround_git."))]
    pairs = ((name, _fact(before, name), _fact(now, name)) for name in what)
    changed = [f"{name} {then} -> {today}" for name, then, today in pairs if then != today]
    is_dirty = "True" in (_fact(before, "turnaround_git.dirty"), _fact(now, "turnaround_git.dirty"))
    return [*changed, *(["turnaround has uncommitted changes"] if is_dirty and with_uncommitted else [])]


def _fact(machine: Mapping[str, Any], what: str) -> str:
    """Return a fact as text: "versions.torch" is machine["versions"]["torch"]."""
    value: Any = machine
    for key in what.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    if isinstance(value, list):
        return ", ".join(str(gpu.get("name")) for gpu in value if isinstance(gpu, Mapping)) or "none"
    return str(value)


def _has_working_directory() -> bool:
    try:
        Path.cwd()
    except OSError:  # it was removed under us
        return False
    return True


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except Exception:  # not installed, or its metadata is damaged
        return None


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()  # ARM's /proc/cpuinfo has no such line


def _memory_gib() -> float | None:
    try:
        return round(psutil.virtual_memory().total / GIB, 2)
    except Exception:
        return None


def installed_version() -> str:
    """Return the version of this program; a source tree that is used without being installed does not know it."""
    return _version("turnaround") or "not installed"
