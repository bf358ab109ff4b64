"""What differs between two runs besides what was meant to vary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis.build import LAB, Plan, build, built, import_table, rising
from turnaround.analysis.compare import (
    Difference,
    Fact,
    differences,
    recipe_facts,
    shared_gpu,
    unintended_differences,
)
from turnaround.analysis.workloads import survey
from turnaround.findings.labels import fact_name, fact_text
from turnaround.record.files import read_json
from turnaround.record.layout import RunDirectory
from turnaround.record.reader import Run
from turnaround.record.writer import write_json


def found(tmp_path: Path, a: dict[str, Any], b: dict[str, Any]) -> dict[str, Difference]:
    left, right = built(tmp_path / "a", **a), built(tmp_path / "b", **b)
    return {fact_name(difference.id): difference for difference in differences(left, right)}


def said(side: tuple[Fact, ...]) -> str:
    return " / ".join(map(fact_text, side))


def test_equal_runs_do_not_differ(tmp_path: Path) -> None:
    assert found(tmp_path, {}, {}) == {}


def test_what_was_meant_to_vary_is_no_difference(tmp_path: Path) -> None:
    a, b = built(tmp_path / "a", workers=2), built(tmp_path / "b", workers=4, gpu="Tesla V100")
    assert [fact_name(difference.id) for difference in differences(a, b)] == ["global batch"]
    everything = {fact_name(difference.id) for difference in differences(a, b, meant=frozenset())}
    assert everything == {"global batch", "workers", "processes", "GPU kind"}


@pytest.mark.parametrize(
    ("options", "what", "right", "matters_for"),
    [
        ({"training": {"learning_rate": 0.4}}, "learning rate", "0.4", "accuracy"),
        ({"training": {"precision": "bf16"}}, None, "", ""),  # the other side does not say: no difference
        ({"training": {"batch_total": 256}}, "batch", "256 in all", "both"),
        ({"training": {"seed": 3}}, "seed", "3", "accuracy"),
        ({"accuracy": rising(epochs=5)}, "epochs", "5", "accuracy"),
        ({"images": {"fingerprint": "0" * 64}}, "images (fingerprint)", "00000000", "accuracy"),
        ({"images": {"split": "holdout 0.2, seed 1"}}, "split", "holdout 0.2, seed 1", "accuracy"),
        ({"images": {"num_train": 9}}, "training images", "9", "both"),
        ({"workers": 8, "processes": 2}, "rehearsal", "yes", "time"),
        ({"accuracy": (0.5,)}, "cold cache", "yes", "time"),
        ({"machine": {"versions": {"turnaround": "0.3", "torch": "2.8"}}}, "code version", "0.3", "both"),
        ({"machine": {"versions": {"turnaround": "0.2", "torch": "2.9"}}}, "torch version", "2.9", "both"),
    ],
)
def test_each_difference_is_named_with_both_sides(
    options: dict[str, Any], what: str | None, right: str, matters_for: str, tmp_path: Path
) -> None:
    differing = found(tmp_path, {}, options)
    if what is None:
        assert differing == {}
        return
    assert (said(differing[what].right), differing[what].matters_for) == (right, matters_for)
    assert said(differing[what].left) != right


def test_chosen_precision_pixels_and_a_shared_gpu(tmp_path: Path) -> None:
    def machine(precision: str, device: int) -> dict[str, Any]:
        ranks = [{"host": "n", "device": f"cuda:{rank * device}", "workers": [rank]} for rank in range(2)]
        return {"choices": {"precision": {"value": precision}}, "ranks": ranks, "cpu": precision}

    differing = found(tmp_path, {"machine": machine("fp16", 1)}, {"machine": machine("bf16", 1)})
    assert {fact_name(d.id): (said(d.left), said(d.right)) for d in differing.values()} == {
        "precision": ("fp16", "bf16"),
        "processor": ("fp16", "bf16"),
    }


@pytest.mark.parametrize(
    ("gpus", "num_gpus"),
    [((0, 0), 1), ((0, 1), None), ((None, None), 1)],  # None: a record from before the GPU had a number
)
def test_processes_that_are_each_shown_one_gpu_share_none(gpus: tuple[int | None, ...], num_gpus: int | None) -> None:
    ranks = [{"host": "n", "device": "cuda:0", **({} if gpu is None else {"gpu": gpu})} for gpu in gpus]
    shared = shared_gpu({"device": "cuda", "ranks": ranks})
    assert (shared and dict(shared.value)["gpus"]) == num_gpus  # type: ignore[arg-type]


def test_another_split_explains_another_fingerprint(tmp_path: Path) -> None:
    other = {"images": {"split": "holdout 0.2, seed 1", "fingerprint": "0" * 64}}
    assert list(found(tmp_path, {"images": {"split": "holdout 0.2, seed 0"}}, other)) == ["split"]


def test_augmentation_in_words(tmp_path: Path) -> None:
    a, b = (import_table(LAB.replace("false,true", f"false,{word}"), tmp_path / word) for word in ("true", "false"))
    left, right = Run.load(a / "model3"), Run.load(b / "model3")
    (one,) = differences(left, right)
    assert (fact_name(one.id), said(one.left), said(one.right), one.matters_for) == (
        "augmentation",
        "yes",
        "no",
        "both",
    )


@pytest.mark.parametrize(("source", "is_fact"), [("fruitbowl", True), ("/photos", False)])
def test_how_many_images_are_drawn_is_no_fact_of_a_folder(source: str, is_fact: bool, tmp_path: Path) -> None:
    path = build(tmp_path / "run", Plan())
    recipe = read_json(RunDirectory(path).recipe)
    write_json(RunDirectory(path).recipe, {**recipe, "data": {**recipe["data"], "source": source, "images": 1800}})
    assert ("data.images" in {fact.id for fact in recipe_facts(Run.load(path))}) is is_fact


def test_equal_sets_of_seeds_are_fair(tmp_path: Path) -> None:
    for workers in (2, 4):
        for seed in (0, 1):
            build(tmp_path / f"{workers}-{seed}", Plan(workers=workers, training={"seed": seed}))
    two, four = survey([tmp_path]).workloads[0].configurations
    assert [fact_name(difference.id) for difference in unintended_differences(two, four)] == ["global batch"]
    build(tmp_path / "8", Plan(workers=8))  # with seed 0, which the others have too
    build(tmp_path / "16", Plan(workers=16, training={"seed": 7}))
    _, _, eight, sixteen = survey([tmp_path]).workloads[0].configurations
    assert [fact_name(difference.id) for difference in unintended_differences(two, eight)] == ["global batch"]
    seed = next(difference for difference in unintended_differences(two, sixteen) if difference.id == "seed")
    assert (said(seed.left), said(seed.right)) == ("0 / 1", "7")
