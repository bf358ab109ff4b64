"""The batch that fits: computed for host memory, tried on a GPU, the same on every process."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest
import torch

from training.test_assembly import black
from turnaround import recipes
from turnaround.data.pixels import Pixels
from turnaround.errors import TrainingError
from turnaround.recipe import Recipe
from turnaround.record.heartbeat import Heartbeat
from turnaround.training import fitting
from turnaround.training.assembly import build_core
from turnaround.training.choices import choose_device
from turnaround.training.fitting import GIB, TrialSite, fitting_batch, free_host_bytes, out_of_memory_explained
from turnaround.workers.environment import RankInfo
from turnaround.workers.single import Single

NUM_TRAIN, NUM_VALIDATION, SIDE_PX = 600, 8, 32


@pytest.fixture(scope="module")
def pixels(tmp_path_factory: pytest.TempPathFactory) -> Pixels:
    return black(tmp_path_factory.mktemp("pixels"), num_train=NUM_TRAIN, num_validation=NUM_VALIDATION, side_px=SIDE_PX)


def recipe(*settings: str) -> Recipe:
    defaults = (f"data.size_px={SIDE_PX}", "training.batch_per_worker=256", *settings)
    return recipes.find("fruitbowl", list(defaults)).resolved()


def site(pixels: Pixels, *, workers: int = 1, device: str = "cpu", rank_info: RankInfo | None = None) -> TrialSite:
    rank_info = rank_info or RankInfo()
    chosen = choose_device(device, rank_info)
    alone = Single(count=workers, device=chosen.value.device)
    return TrialSite(workers=alone, pixels=pixels, rank_info=rank_info, device=chosen)


def with_free(monkeypatch: pytest.MonkeyPatch, num_bytes: float) -> None:
    monkeypatch.setattr(fitting, "free_host_bytes", lambda: int(num_bytes))


def test_less_memory_gives_a_smaller_batch(pixels: Pixels, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = {}
    for mib in (16, 64, 100_000):
        with_free(monkeypatch, mib * 2**20)
        chosen[mib] = fitting_batch(recipe(), site(pixels))
    assert 1 <= chosen[16].value < chosen[64].value < chosen[100_000].value == 256
    assert f"{2 * chosen[64].value} would not fit" in chosen[64].reason
    assert "would not fit" not in chosen[100_000].reason


def test_processes_of_a_host_share_its_memory(pixels: Pixels, monkeypatch: pytest.MonkeyPatch) -> None:
    with_free(monkeypatch, 64 * 2**20)
    alone = fitting_batch(recipe(), site(pixels))
    four = fitting_batch(recipe(), site(pixels, rank_info=RankInfo(local_size=4)))
    assert four.value < alone.value


def test_what_is_computed_is_what_a_step_keeps(pixels: Pixels) -> None:
    """The estimate from 8 images holds for 64: what the passes keep grows with the images, and weights do not count."""
    kept = {}
    for batch in (8, 64):
        there = site(pixels)
        made = recipe(f"training.batch_per_worker={batch}")
        core = build_core(made, there.workers, pixels, rank_info=there.rank_info, device=there.device)
        counter = fitting.KeptForBackward(core.network.module.parameters())
        with torch.autograd.graph.saved_tensors_hooks(counter.pack, lambda tensor: tensor):
            fitting._step(core)
        kept[batch] = counter.num_bytes / batch
    assert kept[64] == pytest.approx(kept[8], rel=0.1)
    assert kept[8] > 3 * SIDE_PX**2 * 4  # at least its input, in float32


class OneOfTwo(Single):
    """A process whose neighbour has less memory."""

    def gather(self, value: str) -> list[str]:
        return [value, json.dumps([4, GIB, 2 * GIB])]


def test_all_processes_take_the_smallest(pixels: Pixels, monkeypatch: pytest.MonkeyPatch) -> None:
    with_free(monkeypatch, 100 * GIB)
    there = site(pixels)
    two = TrialSite(
        workers=OneOfTwo(count=1, device=there.workers.device),
        pixels=pixels,
        rank_info=there.rank_info,
        device=there.device,
    )
    choice = fitting_batch(recipe(), two)
    assert choice.value == 4
    assert "a step of it needs about 1.00 GiB in each process, and 2.0 GiB are free; 8 would not fit" in choice.reason


def test_a_control_group_has_less_than_its_machine(tmp_path: Path) -> None:
    own, groups = tmp_path / "own", tmp_path / "groups"
    own.write_text("1:cpu:/old\n0::/jobs/mine\n")
    for name, limit in {"jobs": "3000000", "jobs/mine": "max"}.items():
        folder = groups / name
        folder.mkdir(parents=True)
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text("2500000\n")
        (folder / "memory.stat").write_text("anon 1\ninactive_file 400000\n")
    assert free_host_bytes(groups, own) == 900_000
    (groups / "jobs" / "memory.max").write_text("max\n")
    assert free_host_bytes(groups, own) == pytest.approx(psutil.virtual_memory().available, rel=0.2)
    assert free_host_bytes(groups, tmp_path / "no such file") > 900_000


# --- a GPU that is full


LIMITED_TO = 0.02
"""Of the GPU's memory: 2.8 GiB of an H200. torch refuses what is beyond it as a full GPU does."""


@pytest.fixture
def small_gpu(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    device = torch.device("cuda", 0)
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(LIMITED_TO, device)
    monkeypatch.setattr(fitting, "SPARE_SHARE", 0.0)  # the rest of the GPU is free, and not to be had
    return device


@pytest.fixture
def large() -> Recipe:
    """resnet18 at 224 px in fp32 keeps some 40 MiB for each image: 256 of them are 10 GiB."""
    pytest.importorskip("timm")
    return recipe("model.name=resnet18", "data.size_px=224", "training.precision=fp32")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Pixels:
    return black(tmp_path_factory.mktemp("photos"), num_train=NUM_TRAIN, num_validation=NUM_VALIDATION, side_px=224)


@pytest.mark.gpu
def test_a_full_gpu_gives_a_smaller_batch(photos: Pixels, large: Recipe, small_gpu: torch.device) -> None:
    try:
        there = site(photos, device="cuda")
        choice = fitting_batch(large, there)
        assert 1 < choice.value < 256
        assert f"{2 * choice.value} did not fit" in choice.reason
        before = torch.cuda.memory_allocated(small_gpu)
        assert fitting_batch(large, there).value == choice.value  # nothing is left behind by what was tried
        assert torch.cuda.memory_allocated(small_gpu) <= before + 2**20
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, small_gpu)


@pytest.mark.gpu
def test_a_batch_that_was_asked_for_and_does_not_fit_names_one_that_does(
    photos: Pixels, large: Recipe, small_gpu: torch.device
) -> None:
    there = site(photos, device="cuda")

    def fails() -> None:
        with out_of_memory_explained(large, there.workers, Heartbeat(), there):
            core = build_core(large, there.workers, photos, rank_info=there.rank_info, device=there.device)
            fitting._step(core)

    try:
        with pytest.raises(TrainingError, match=r"batch_per_worker=(\d+)` \(tried: it fits\)"):
            fails()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, small_gpu)
