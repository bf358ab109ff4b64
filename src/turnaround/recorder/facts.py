"""Facts about somebody else's training. Enters: what a user or a framework says. Leaves: recipe, machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, TypedDict

from turnaround.errors import InputError
from turnaround.record.host import command_line, host_name
from turnaround.record.machine import describe
from turnaround.workers.environment import RankInfo, anywhere, local_rank_in

FRAMEWORKS = (
    *("tensorflow", "keras", "tf_keras", "jax", "flax", "horovod", "lightning", "pytorch_lightning"),
    *("transformers", "accelerate", "deepspeed", "fastai", "mxnet"),
)


class Facts(TypedDict, total=False):
    """The arguments of `Recorder` besides workers and batch_per_worker; whatever else is given is kept as `extra`."""

    job: str
    """The name of the work: runs of one job are compared. Without it `data`, and without that the program's name."""
    data: str
    """The images: a folder, or a name."""
    model: str
    fine_tune: bool
    """False for a frozen backbone."""
    weights: str
    """"none" for a network that learns from scratch."""
    size_px: int
    num_train: int
    num_validation: int
    classes: int | Iterable[str]
    """The number of classes, or their names."""
    epochs: int
    """Number of epochs that are planned."""
    batch_total: int
    """The global batch, where it is no multiple of the workers."""
    optimizer: str
    learning_rate: float
    schedule: str
    loss: str
    precision: str
    seed: int
    augment: bool | Mapping[str, Any]
    """True or False, or the transforms and their settings."""
    gpu: str
    """Its kind, where the driver cannot be asked."""
    device: str
    """cuda, cpu or mps; without it, cuda where there is a GPU."""
    processes: int
    """Fewer than workers makes it a rehearsal: the accuracy is that of the workers, the times are not."""
    engine: str
    """Framework, and how its processes agree."""
    rank: int
    """Rank of this process; without it, what the launcher's variables say."""
    size: int
    synchronize: Callable[[], object]
    """Waits until the device has done what it was told; called around the steps that are taken apart."""
    parameters: int
    """Number of the network's parameters."""
    trainable_parameters: int


ALL = tuple(Facts.__annotations__)
TEXTS = ("job", "data", "model", "weights", "optimizer", "schedule", "loss", "precision", "gpu", "device", "engine")
WHOLE = (
    *("size_px", "num_train", "num_validation", "epochs", "batch_total", "seed", "processes"),
    *("parameters", "trainable_parameters"),
)


@dataclass(frozen=True, kw_only=True)
class TrainingFacts:
    """All that is known, checked."""

    name: str
    place: RankInfo
    workers: int
    batch_per_worker: int | None
    facts: Mapping[str, Any]
    extra: Mapping[str, Any]

    @property
    def processes(self) -> int:
        """One for each worker: a process that drives four GPUs has the times of four GPUs."""
        return int(self.facts.get("processes", self.workers))

    @property
    def global_batch(self) -> int | None:
        total: int | None = self.facts.get("batch_total")
        return total or (None if self.batch_per_worker is None else self.batch_per_worker * self.workers)

    def recipe(self) -> dict[str, Any]:
        """recipe.json, with null for what is not known."""
        know = self.facts.get
        classes = know("classes")
        names = None if classes is None or isinstance(classes, int) else [str(name) for name in classes]
        augment = know("augment")
        return {
            "name": self.name,
            "recorded_by": "turnaround.Recorder",
            "data": {"source": know("job") or know("data") or program_name(), "size_px": know("size_px")},
            "model": {"name": know("model"), "fine_tune": know("fine_tune"), "weights": know("weights")},
            "training": {
                **{key: know(key) for key in ("epochs", "batch_total", "optimizer", "learning_rate", "schedule")},
                **{key: know(key) for key in ("loss", "precision", "seed")},
                "batch_per_worker": self.batch_per_worker,
            },
            "augment": {"given": augment} if isinstance(augment, bool) else dict(augment or {}),
            "workers": {"count": self.workers, "engine": know("engine")},
            "images": {
                "num_train": know("num_train"),
                "num_validation": know("num_validation"),
                "num_classes": classes if isinstance(classes, int) else None if names is None else len(names),
                "classes": names or [],
            },
            "command": command_line(),
            "extra": dict(self.extra),
        }

    def machine(self, ranks: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
        """machine.json; `ranks` are the processes that have said where they are."""
        know = self.facts.get
        described = describe(
            workers=self.workers,
            processes=self.processes,
            engine=know("engine") or "unknown",
            launch=self.place.engines[0] if self.place.engines else "by hand",
            device="cpu",
        )
        if gpu := know("gpu"):
            described["gpus"] = [{"name": gpu, "index": index} for index in range(self.place.local_size)]
        described["device"] = know("device") or ("cuda" if described["gpus"] else "cpu")
        described["versions"] |= versions()
        if len(ranks) == self.place.size:
            described["ranks"] = [one for rank in sorted(ranks) for one in self._hosted(rank, ranks[rank], described)]
        if (learns := know("trainable_parameters")) is not None:
            described["cost"] = {
                "parameters": know("parameters"),
                "trainable_parameters": learns,
                "gradient_bytes": 4 * learns,
            }
        return described

    def _hosted(self, rank: int, said: Mapping[str, Any], described: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return one entry for each worker that has a device of its own; of a rehearsal, one for the process."""
        each = max(1, self.workers // self.place.size)
        mine = list(range(rank * each, rank * each + each))
        kind, first = str(described["device"]), int(said.get("local_rank", 0)) * each
        groups = [mine] if self.processes < self.workers else [[worker] for worker in mine]
        return [
            {"host": said.get("host"), "device": f"cuda:{first + i}" if kind == "cuda" else kind, "workers": group}
            for i, group in enumerate(groups)
        ]


def place_of(rank: Any, size: Any) -> RankInfo:
    """Return rank and size of this process: as given, else as its launcher says."""
    try:
        here = anywhere()
    except InputError as error:
        if rank is None or size is None:
            raise InputError(f"{error} Or give rank= and size= to the recorder.") from None
        here = RankInfo()
    if rank is None and size is None:
        return here
    rank = whole(here.rank if rank is None else rank, least=0)
    size = whole(max(here.size, rank + 1) if size is None else size, least=rank + 1)
    local_rank = here.local_rank if rank == here.rank else local_rank_in()
    return replace(here, rank=rank, size=size, local_rank=local_rank)


def where_i_am(place: RankInfo) -> dict[str, Any]:
    """Return the note of this process: rank and host."""
    return {"rank": place.rank, "host": host_name(), "local_rank": place.local_rank}


def checked(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Return the facts that are as they should be, all else as `extra`, and a remark on what could not be used."""
    facts: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    remarks: list[str] = []
    for name, value in given.items():
        if value is None or name in ("rank", "size"):
            continue
        if name not in ALL:
            extra[name] = _jsonable(value)
            continue
        try:
            facts[name] = _as_it_should_be(name, value)
        except (TypeError, ValueError, OverflowError, AttributeError):
            remarks.append(f"{name}={str(value)[:60]!r} cannot be used and is left out.")
    return facts, extra, remarks


def _as_it_should_be(name: str, value: Any) -> Any:
    if name in TEXTS:
        return str(value)
    if name in WHOLE:
        return whole(value, least=0)
    if name == "learning_rate":
        return float(value)
    if name == "fine_tune":
        return bool(value)
    if name == "classes":
        return whole(value, least=1) if not hasattr(value, "__iter__") else [str(one) for one in value]
    if name == "synchronize" and not callable(value):
        raise TypeError
    return value if name == "synchronize" or isinstance(value, bool) else {k: _jsonable(v) for k, v in value.items()}


def whole(value: Any, *, least: int) -> int:
    """Return a whole number from `least`; ValueError or TypeError for anything else, also for True."""
    if isinstance(value, bool) or int(value) != value or value < least:
        raise ValueError(value)
    return int(value)


def program_name() -> str:
    """Return the script's name, as a name for its work."""
    name = Path(sys.argv[0]).name if sys.argv and sys.argv[0] not in ("", "-c", "-m") else ""
    return name or "unnamed program"


def versions() -> dict[str, str]:
    """Return the versions of the frameworks that this program has imported."""
    found = {}
    for name in FRAMEWORKS:
        if name in sys.modules:
            try:
                found[name] = metadata.version(name.replace("_", "-"))
            except Exception:  # no metadata, or damaged
                found[name] = str(getattr(sys.modules[name], "__version__", "unknown"))
    return found


def _jsonable(value: Any) -> Any:
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return str(value)[:200]
    return value
