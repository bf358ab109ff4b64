"""What a training checks by itself, and how it splits by photo."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from turnaround import children, recipes
from turnaround.analysis.workloads import survey_runs
from turnaround.check import dataset
from turnaround.findings import find_all
from turnaround.launch.prepare import Prepared, image_facts, prepare_images
from turnaround.recipe import Recipe
from turnaround.record.reader import Run


@pytest.fixture(scope="module")
def folder(fruit_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes; every image has a copy in the same format of another name, one stands under both classes."""
    place = tmp_path_factory.mktemp("copies") / "photos"
    for name in ("fresh_apple", "rotten_banana"):
        shutil.copytree(fruit_folder / name, place / name)
        for image in sorted((place / name).iterdir())[:20]:
            with Image.open(image) as opened:
                opened.save(image.with_name(f"{image.stem}-again.png"))
    shutil.copy(next((place / "fresh_apple").iterdir()), place / "rotten_banana" / "an-apple.png")
    return place


@pytest.fixture(autouse=True)
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding by several processes is tested in data/; here to start them would take longer than all else."""
    monkeypatch.setattr(children, "num_helpers", lambda: 1)


def prepared(folder: Path, cache: Path, *overrides: str) -> tuple[Recipe, Prepared]:
    made = recipes.find(str(folder), ["data.size_px=32", "training.batch_per_worker=8", *overrides]).resolved()
    return made, prepare_images(made, cache=cache, show=lambda *what: None)


@pytest.mark.fault(49, "the same image in both parts: said before training, counted in the record")
def test_exact_copies_are_warned_of_and_recorded(folder: Path, tmp_path: Path) -> None:
    made, found = prepared(folder, tmp_path)
    assert made.data.split_by_photo is None
    facts = image_facts(found)
    leaks = facts["leaks"]
    assert leaks == {"num": len(found.copies.leaking), "of": facts["num_validation"], "kind": "exact"}
    assert 0 < leaks["num"] <= leaks["of"]
    for val, train in found.copies.leaking:
        assert val >= found.pixels.num_train > train
    first, second = facts["warnings"][:2]
    assert f"{leaks['num']} of {leaks['of']} validation images are exact copies" in first
    assert "under two classes" in second
    assert "an-apple.png" in second


def test_the_report_finds_the_leak_in_the_record(folder: Path, tmp_path: Path) -> None:
    made, found = prepared(folder, tmp_path)
    run = tmp_path / "run"
    run.mkdir()
    record = {"format_version": 1, **made.to_dict(), "images": image_facts(found)}
    (run / "recipe.json").write_text(json.dumps(record))
    (run / "status.json").write_text(json.dumps({"format_version": 1, "state": "finished"}))
    (run / "machine.json").write_text(json.dumps({"format_version": 1, "workers": 1, "processes": 1}))
    findings = find_all(survey_runs([Run.load(run)]))
    assert [finding.severity for finding in findings if finding.id == "leak"] == ["problem"]


def test_auto_keeps_copies_on_one_side(folder: Path, tmp_path: Path) -> None:
    _, found = prepared(folder, tmp_path, "data.split_by_photo=auto")
    assert found.table.split == "by photo"
    assert found.copies.leaking == ()
    assert found.copies.sets  # they are still there
    assert len(found.pixels.labels) > found.pixels.num_train


def test_what_was_compared_once_is_remembered_until_the_images_change(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos, compared = tmp_path / "photos", []
    shutil.copytree(folder, photos)
    check = dataset.check_table
    monkeypatch.setattr(
        dataset, "check_table", lambda table, **how: compared.append(len(table.files)) or check(table, **how)
    )

    def found(*overrides: str) -> str:
        return prepared(photos, tmp_path / "cache", "data.split_by_photo=auto", *overrides)[1].pixels.fingerprint

    first = found()
    assert found() == first
    assert len(compared) == 1
    (cached_by_curve,) = (tmp_path / "cache").glob("split-*.json")
    cached_by_curve.write_text("half a li")
    assert found() == first
    assert len(compared) == 2
    assert found("training.seed=1") != first
    next((photos / "fresh_apple").iterdir()).unlink()
    assert found() != first
    assert len(compared) == 4


def test_a_split_file_decides(folder: Path, tmp_path: Path) -> None:
    _, plain = prepared(folder, tmp_path)
    parts = {name: "validation" if name.endswith("-again.png") else "train" for name in plain.table.files}
    (tmp_path / "mine.json").write_text(json.dumps({"files": parts}))
    _, found = prepared(folder, tmp_path, f"data.split_by_photo={tmp_path / 'mine.json'}")
    assert set(found.pixels.files[found.pixels.num_train :]) == {
        name for name, part in parts.items() if part == "validation"
    }
    assert found.pixels.fingerprint != plain.pixels.fingerprint
