"""Checkpoints: exact, whole or invisible, and a damaged one is named and passed over."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from turnaround.errors import DiskFullError, RunDirectoryError, StorageError
from turnaround.optimizers import OPTIMIZERS, make_optimizer
from turnaround.recipe import TrainingRecipe
from turnaround.record.files import storage_error
from turnaround.record.schema import FORMAT_VERSION
from turnaround.training import checkpoint
from turnaround.training.checkpoint import Manifest, checkpoints, newest_valid, restore, save
from turnaround.training.position import TrainingPosition
from turnaround.workers.single import Single

FILES = ("manifest.json", "optimizer.safetensors", "weights.safetensors")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """These networks are too small to share out."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def network(width: int = 4, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.Flatten(), nn.Linear(width * 4, 3))
    return made.to(dtype=dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]


def optimizer_of(module: nn.Module, name: str = "adamw") -> torch.optim.Optimizer:
    rate = OPTIMIZERS[name].learning_rates.from_scratch
    return make_optimizer(module, TrainingRecipe(optimizer=name, learning_rate=rate))


def train(module: nn.Module, optimizer: torch.optim.Optimizer, *, steps: range) -> None:
    dtype = next(module.parameters()).dtype
    for step in steps:
        images = torch.randn(8, 3, 4, 4, generator=torch.Generator().manual_seed(step), dtype=dtype)
        loss = F.cross_entropy(module(images), torch.arange(8) % 3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def manifest(epoch: int, *, step: int = 0, **keys: object) -> Manifest:
    position = TrainingPosition(epochs_done=epoch, step_in_epoch=step, global_step=10 * epoch + step)
    return Manifest(**{"position": position, "clock_s": {"training": 1.25 * epoch}, **keys})  # type: ignore[arg-type]


def saved(folder: Path, *epochs: int) -> Path:
    """Checkpoints of a short training, one after each epoch."""
    module = network()
    optimizer = optimizer_of(module)
    for epoch in epochs:
        train(module, optimizer, steps=range(epoch, epoch + 1))
        save(folder, module=module, optimizer=optimizer, manifest=manifest(epoch))
    return folder


def state(module: nn.Module) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in module.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "lamb"])
def test_training_goes_on_to_the_bit(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    goes_on_to_the_bit(name, dtype, tmp_path)


def test_training_goes_on_to_the_bit_with_lamb(tmp_path: Path) -> None:
    goes_on_to_the_bit("lamb", torch.float32, tmp_path)


def goes_on_to_the_bit(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    straight, first = network(dtype=dtype), network(dtype=dtype)
    train(straight, optimizer_of(straight, name), steps=range(6))
    optimizer = optimizer_of(first, name)
    train(first, optimizer, steps=range(3))
    path = save(tmp_path, module=first, optimizer=optimizer, manifest=manifest(3))
    second = network(dtype=dtype)
    nn.init.zeros_(second[0].weight)
    fresh = optimizer_of(second, name)
    assert restore(path, module=second, optimizer=fresh) == manifest(3)
    assert same(state(second), state(first))
    train(second, fresh, steps=range(3, 6))
    assert same(state(second), state(straight))


def test_position_clock_and_scaler_come_back(tmp_path: Path) -> None:
    module = network()
    scaler = torch.amp.GradScaler("cpu").state_dict()
    given = manifest(7, scaler=scaler, clock_s={"training": 0.1 + 0.2, "program": 1e-9})
    save(tmp_path, module=module, optimizer=optimizer_of(module), manifest=given)
    path, problems = newest_valid(tmp_path)
    assert path is not None
    assert problems == []
    assert restore(path, module=module, optimizer=optimizer_of(module)) == given


def test_weights_keep_their_memory_format(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    module = network()
    restore(tmp_path / "epoch-00001", module=module, optimizer=optimizer_of(module))
    assert module[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_the_two_newest_are_kept(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2, 3, 10)
    assert names(tmp_path) == ["epoch-00003", "epoch-00010"]
    assert newest_valid(tmp_path) == (tmp_path / "epoch-00010", [])
    assert names(tmp_path / "epoch-00010") == sorted(FILES)


def test_the_same_epoch_again_replaces_it(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    module = network()
    nn.init.constant_(module[0].weight, 7.0)
    save(tmp_path, module=module, optimizer=optimizer_of(module), manifest=manifest(2))
    other = network()
    restore(tmp_path / "epoch-00002", module=other, optimizer=optimizer_of(other))
    assert same(state(other), state(module))
    assert names(tmp_path) == ["epoch-00001", "epoch-00002"]


def test_nothing_in_it_is_a_pickle(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    for file in (tmp_path / "epoch-00001").iterdir():
        content = file.read_bytes()
        assert not content.startswith((b"\x80", b"PK"))
        head = content if file.suffix == ".json" else content[8 : 8 + int.from_bytes(content[:8], "little")]
        json.loads(head)  # a safetensors file is a JSON head and plain numbers
    assert names(tmp_path / "epoch-00001") == sorted(FILES)


def interrupted(monkeypatch: pytest.MonkeyPatch, error: BaseException, *, call: int) -> None:
    """The `call`-th file of the next checkpoint cannot be written."""
    calls, plain = [], checkpoint.save_file

    def failing(tensors: dict[str, Tensor], path: Path) -> None:
        calls.append(path)
        if len(calls) == call:
            Path(path).write_bytes(b"half")
            raise error
        plain(tensors, path)

    monkeypatch.setattr(checkpoint, "save_file", failing)


@pytest.mark.parametrize("call", [1, 2])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), RuntimeError("x")])
def test_a_save_that_fails_is_invisible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, call: int
) -> None:
    saved(tmp_path, 1, 2)
    before = {p: p.read_bytes() for p in tmp_path.glob("*/*")}
    module = network()
    with monkeypatch.context() as patch:
        interrupted(patch, error, call=call)
        with pytest.raises(StorageError if isinstance(error, OSError) else type(error)):
            save(tmp_path, module=module, optimizer=optimizer_of(module), manifest=manifest(3))
    assert [p.name for p in checkpoints(tmp_path)] == ["epoch-00001", "epoch-00002"]
    assert {p: p.read_bytes() for p in tmp_path.glob("epoch-*/*")} == before
    assert newest_valid(tmp_path) == (tmp_path / "epoch-00002", [])
    save(tmp_path, module=module, optimizer=optimizer_of(module), manifest=manifest(3))
    assert names(tmp_path) == ["epoch-00002", "epoch-00003"]  # and what was left behind is gone


@pytest.mark.fault(19, "a disk that is really full while a checkpoint is written: said, nothing half-written stays")
def test_a_full_disk_is_said_plainly(tmp_path: Path) -> None:
    """A real limit on the size of a file stands for the full disk."""
    saved(tmp_path, 1)
    module = nn.Linear(500, 500)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(StorageError, match=r"Cannot save a checkpoint .*epoch-00002"):
            save(tmp_path, module=module, optimizer=optimizer_of(module), manifest=manifest(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path) == ["epoch-00001"]


@pytest.mark.fault(3, "what a killed save left is removed, never an error")
def test_leftovers_of_a_killed_save_go(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    (tmp_path / ".epoch-00002.4711").mkdir()
    (tmp_path / ".epoch-00002.4711" / "weights.safetensors").write_bytes(b"half")
    assert newest_valid(tmp_path) == (tmp_path / "epoch-00001", [])
    checkpoint.remove_leftovers(tmp_path)
    assert names(tmp_path) == ["epoch-00001"]


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 4
    path.write_bytes(content)


DAMAGES = {
    "bit flip in the weights": (lambda p: flip_a_bit(p / FILES[2]), "weights.safetensors has another SHA-256"),
    "bit flip in the optimiser": (lambda p: flip_a_bit(p / FILES[1]), "optimizer.safetensors has another SHA-256"),
    "truncated weights": (lambda p: (p / FILES[2]).write_bytes((p / FILES[2]).read_bytes()[:-10]), "SHA-256"),
    "empty weights": (lambda p: (p / FILES[2]).write_bytes(b""), "SHA-256"),
    "missing weights": (lambda p: (p / FILES[2]).unlink(), "is missing"),
    "missing manifest": (lambda p: (p / FILES[0]).unlink(), "is missing"),
    "truncated manifest": (lambda p: (p / FILES[0]).write_bytes((p / FILES[0]).read_bytes()[:50]), "JSON"),
    "manifest of another kind": (lambda p: (p / FILES[0]).write_text("[1, 2]"), "not a JSON object"),
    "manifest that is no text": (lambda p: (p / FILES[0]).write_bytes(b"\xff\xfe\x00"), "not JSON"),
    "newer format": (
        lambda p: (p / FILES[0]).write_text(json.dumps({"format": FORMAT_VERSION + 1})),
        f"written in format {FORMAT_VERSION + 1} by a newer turnaround",
    ),
}


@pytest.mark.fault(23, "any damage to a checkpoint's files: named, and the one before is used")
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_is_named_and_the_one_before_is_used(damage: str, tmp_path: Path) -> None:
    harm, words = DAMAGES[damage]
    saved(tmp_path, 4, 5)
    harm(tmp_path / "epoch-00005")
    path, problems = newest_valid(tmp_path)
    assert path == tmp_path / "epoch-00004"
    (problem,) = problems
    assert problem.startswith("epoch-00005 is damaged")
    assert words in problem
    module = network()
    assert restore(path, module=module, optimizer=optimizer_of(module)).position.epochs_done == 4


@pytest.mark.parametrize(
    "change",
    [
        lambda m: {**m, "epoch": m["epoch"] + 2},
        lambda m: {**m, "sha256": {}},
        lambda m: {k: v for k, v in m.items() if k != "epoch"},
        lambda m: {k: v for k, v in m.items() if k != "optimizer"},
    ],
    ids=["another epoch", "no digests", "no epoch", "no optimiser"],
)
def test_a_manifest_that_lies_or_lacks_something_is_damage(change: object, tmp_path: Path) -> None:
    saved(tmp_path, 4, 5)
    file = tmp_path / "epoch-00005" / "manifest.json"
    file.write_text(json.dumps(change(json.loads(file.read_text()))))  # type: ignore[operator]
    path, problems = newest_valid(tmp_path)
    assert path == tmp_path / "epoch-00004"
    assert "epoch-00005" in problems[0]


def test_when_all_are_damaged_all_are_named(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    for path in checkpoints(tmp_path):
        flip_a_bit(path / "weights.safetensors")
    path, problems = newest_valid(tmp_path)
    assert path is None
    assert [p.split()[0] for p in problems] == ["epoch-00002", "epoch-00001"]


def test_no_checkpoint_is_no_problem(tmp_path: Path) -> None:
    assert newest_valid(tmp_path / "nowhere") == (None, [])
    (tmp_path / "epoch-1").mkdir()
    (tmp_path / "notes.txt").touch()
    assert checkpoints(tmp_path) == []


@pytest.mark.fault(33, "a checkpoint of another network or optimiser: refused")
@pytest.mark.parametrize("changed", ["network", "optimizer"])
def test_another_recipe_is_refused(changed: str, tmp_path: Path) -> None:
    saved(tmp_path, 1)
    module = network(width=5 if changed == "network" else 4)
    optimizer = optimizer_of(module)
    if changed == "optimizer":
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    with pytest.raises(RunDirectoryError, match="does not fit this recipe's network or optimiser") as error:
        restore(tmp_path / "epoch-00001", module=module, optimizer=optimizer)
    assert "start a new run" in str(error.value)


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_a_gpu_saved_a_cpu_reads(name: str, tmp_path: Path) -> None:
    there, here = network().cuda(), network()
    optimizer = optimizer_of(there, name)
    for _ in range(3):
        loss = F.cross_entropy(there(torch.randn(8, 3, 4, 4, device="cuda")), torch.arange(8, device="cuda") % 3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    path = save(tmp_path, module=there, optimizer=optimizer, manifest=manifest(1))
    fresh = optimizer_of(here, name)
    restore(path, module=here, optimizer=fresh)
    assert same(state(here), {k: v.cpu() for k, v in state(there).items()})
    train(here, fresh, steps=range(3, 4))


def test_the_checkpoint_just_saved_is_kept_beside_damaged_later_ones(tmp_path: Path) -> None:
    module = nn.Linear(3, 2)
    for epoch in (9, 10):
        save(tmp_path, module=module, optimizer=optimizer_of(module), manifest=manifest(epoch))
        (tmp_path / f"epoch-{epoch:05d}" / "weights.safetensors").write_bytes(b"damaged")
    save(tmp_path, module=module, optimizer=optimizer_of(module), manifest=manifest(3))
    found, passed_over = newest_valid(tmp_path)
    assert found == tmp_path / "epoch-00003"
    assert len(passed_over) == 2  # both are still there to be named and looked at


def test_a_damaged_checkpoint_is_not_one_of_the_two_that_are_kept(tmp_path: Path) -> None:
    def damage(name: str) -> None:
        file = tmp_path / name / "weights.safetensors"
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)

    saved(tmp_path, 1, 2)
    damage("epoch-00002")
    saved(tmp_path, 3)
    assert names(tmp_path) == ["epoch-00001", "epoch-00002", "epoch-00003"]
    damage("epoch-00003")  # a second one decays: the run is not lost
    found, passed_over = newest_valid(tmp_path)
    assert (found, len(passed_over)) == (tmp_path / "epoch-00001", 2)
    saved(tmp_path, 4, 5)
    assert names(tmp_path) == ["epoch-00004", "epoch-00005"]


# --- within an epoch


def test_a_position_within_an_epoch_comes_back(tmp_path: Path) -> None:
    module = network()
    given = manifest(
        6, step=12, totals=[[0.1 + 0.2, 3.0, 8.0], [1e-9, 0.0, 8.0]], epoch_time_s=1.5, noise=[[8, 0.5, 2.0]]
    )
    path = save(tmp_path, module=module, optimizer=optimizer_of(module), manifest=given)
    assert path.name == "epoch-00006-step-00012"
    assert newest_valid(tmp_path) == (path, [])
    assert restore(path, module=module, optimizer=optimizer_of(module)) == given


def test_order_is_by_epoch_then_step(tmp_path: Path) -> None:
    module = nn.Linear(3, 2)
    for epoch, step in ((6, 0), (6, 2), (6, 12)):
        save(tmp_path, module=module, optimizer=optimizer_of(module), manifest=manifest(epoch, step=step))
    assert [p.name for p in checkpoints(tmp_path)] == ["epoch-00006-step-00002", "epoch-00006-step-00012"]
    save(tmp_path, module=module, optimizer=optimizer_of(module), manifest=manifest(7))
    assert [p.name for p in checkpoints(tmp_path)] == ["epoch-00006-step-00012", "epoch-00007"]
    for name in ("epoch-100000", "epoch-99999-step-00001"):
        (tmp_path / name).mkdir()
    assert [p.name for p in checkpoints(tmp_path)][-2:] == ["epoch-99999-step-00001", "epoch-100000"]


def test_a_checkpoint_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """It knows only ends of epochs."""
    saved(tmp_path, 4)
    file = tmp_path / "epoch-00004" / "manifest.json"
    old = json.loads(file.read_text())
    for key in ("step", "totals", "epoch_time_s", "noise", "digest"):
        del old[key]
    file.write_text(json.dumps(old))
    assert newest_valid(tmp_path) == (tmp_path / "epoch-00004", [])
    module = network()
    assert restore(tmp_path / "epoch-00004", module=module, optimizer=optimizer_of(module)) == manifest(4)


class Second(Single):
    """Process 1 of two; process 0 has said `word`."""

    def __init__(self, word: str) -> None:
        super().__init__(count=2, device=torch.device("cpu"))
        self.rank, self.word = 1, word

    def gather(self, value: str) -> list[str]:
        return [self.word, value]


def word_of_the_first(folder: Path) -> str:
    """What process 0 says when it finds the newest valid one."""
    said: list[str] = []
    first = Single(count=2, device=torch.device("cpu"))
    first.gather = lambda value: said.append(value) or [value]  # type: ignore[method-assign,func-returns-value]
    checkpoint.agree_on_newest(folder, first)
    return said[0]


@pytest.mark.fault(25, "a process that never sees the checkpoint of process 0 says so instead of taking another one")
def test_processes_go_on_from_one_checkpoint_or_not_at_all(tmp_path: Path) -> None:
    saved(tmp_path / "theirs", 4, 5)
    saved(tmp_path / "mine", 4)
    word = word_of_the_first(tmp_path / "theirs")
    assert checkpoint.agree_on_newest(tmp_path / "theirs", Second(word)) == (tmp_path / "theirs" / "epoch-00005", [])
    with pytest.raises(StorageError, match=r"Process 1 does not see .*epoch-00005 \(.*is missing.* share one file"):
        checkpoint.agree_on_newest(tmp_path / "mine", Second(word), patience_s=0.3)
    with (tmp_path / "theirs" / "epoch-00005" / "weights.safetensors").open("r+b") as file:
        file.write(b"late")
    with pytest.raises(StorageError, match="has another SHA-256"):
        checkpoint.agree_on_newest(tmp_path / "theirs", Second(word), patience_s=0.3)
    assert checkpoint.agree_on_newest(tmp_path / "none", Second(word_of_the_first(tmp_path / "none"))) == (None, [])


@pytest.mark.fault(23, "a flipped bit in the manifest itself is noticed too")
def test_a_manifest_whose_numbers_decay_is_damage(tmp_path: Path) -> None:
    saved(tmp_path, 4, 5)
    file = tmp_path / "epoch-00005" / "manifest.json"
    text = file.read_text()
    assert text.count('"training": 6.25') == 1
    file.write_text(text.replace('"training": 6.25', '"training": 2.25'))
    path, problems = newest_valid(tmp_path)
    assert path == tmp_path / "epoch-00004"
    assert "its manifest has another SHA-256 than it says" in problems[0]
    for wrong in (-1.0, None, "much"):
        old = {**json.loads(text), "clock_s": {"training": wrong}}
        file.write_text(json.dumps({key: value for key, value in old.items() if key != "digest"}))
        assert newest_valid(tmp_path)[0] == tmp_path / "epoch-00004"


@pytest.mark.fault(19, "room for the checkpoints is asked for before the first step, less what is there already")
def test_room_for_the_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Linear(1000, 1000, bias=False)  # 4 MB of weights, 8 of moments; three checkpoints
    free = {"bytes": 40_000_000}
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda _: SimpleNamespace(free=free["bytes"]))
    checkpoint.require_room(tmp_path / "checkpoint", module)
    free["bytes"] = 20_000_000
    with pytest.raises(StorageError, match=r"has 19 MiB free, but the checkpoints of this network need up to 34 MiB"):
        checkpoint.require_room(tmp_path / "checkpoint", module)
    save(tmp_path / "checkpoint", module=module, optimizer=optimizer_of(module), manifest=manifest(1))
    (tmp_path / "checkpoint" / "epoch-00001" / "optimizer.safetensors").write_bytes(bytes(16_000_000))
    checkpoint.require_room(tmp_path / "checkpoint", module)


def test_no_room_for_the_manifest_leaves_nothing_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, 1)

    def full(path: Path, _payload: object, _run: Path) -> None:
        raise storage_error("write", path, OSError(28, "No space left")) from OSError(28, "No space left")

    monkeypatch.setattr(checkpoint, "write_json", full)
    with pytest.raises(DiskFullError, match=r"Cannot save a checkpoint .*epoch-00002: the disk or your quota is full"):
        saved(tmp_path, 2)
    assert names(tmp_path) == ["epoch-00001"]
