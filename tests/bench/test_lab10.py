"""The lab's stack beside ours: what can be checked anywhere, and the stack itself where .ci/keras-horovod built it."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from turnaround import fruitbowl
from turnaround.analysis.bottleneck import bottleneck
from turnaround.analysis.workloads import survey
from turnaround.findings import find_all
from turnaround.record.reader import Run

BENCH = Path(__file__).parents[2] / "bench" / "lab10_keras_horovod"
LAB_PYTHON = os.environ.get("TURNAROUND_KERAS_HOROVOD_PYTHON")
built = pytest.mark.skipif(LAB_PYTHON is None, reason=".ci/keras-horovod builds the lab's stack and runs this")


@pytest.fixture(scope="module")
def modules() -> Iterator[tuple[ModuleType, ModuleType]]:
    sys.path.append(str(BENCH))
    yield importlib.import_module("lab10"), importlib.import_module("compare")
    sys.path.remove(str(BENCH))


@pytest.fixture(scope="module")
def lab10(modules: tuple[ModuleType, ModuleType]) -> ModuleType:
    return modules[0]


@pytest.fixture(scope="module")
def compare(modules: tuple[ModuleType, ModuleType]) -> ModuleType:
    return modules[1]


# --- without TensorFlow


def test_the_programs_defaults_are_the_labs(lab10: ModuleType) -> None:
    options = lab10.parser().parse_args(["photos"])
    assert (options.optimizer, options.learning_rate, options.batch, options.fine_tune) == ("adadelta", 1.0, 32, False)
    assert (options.rotation, options.zoom, options.shift, options.flip) == (5.0, 0.2, 0.2, True)
    assert lab10.parser().parse_args(["photos", "--fine-tune", "--no-flip"]).flip is False
    assert "tensorflow" not in sys.modules


def test_a_folder_without_parts_is_refused(lab10: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"must hold train/ and one of val, valid, validation, test"):
        lab10.main([str(tmp_path)])
    (tmp_path / "train").mkdir()
    (tmp_path / "test").mkdir()
    assert lab10.validation_folder(tmp_path) == tmp_path / "test"


def test_threads_share_the_cores(lab10: ModuleType) -> None:
    assert [lab10.threads(cores, processes) for cores, processes in ((2, 1), (2, 2), (2, 4), (16, 3))] == [2, 1, 1, 5]


def test_jobs_are_networks_and_what_learns(compare: ModuleType, lab10: ModuleType) -> None:
    job = compare.parse_job("mobilenet_v2:fine-tuned")
    assert (job.backbone, job.learns, job.name) == ("mobilenet_v2", "fine-tuned", "mobilenet_v2, fine-tuned")
    with pytest.raises(argparse.ArgumentTypeError, match=r"'small:hot' is no job; known: small, mobilenet_v2"):
        compare.parse_job("small:hot")
    assert compare.OUR_NAMES.keys() == lab10.BACKBONES.keys()
    assert compare.parser().parse_args(["--python", "p", "--processes", "1,4"]).processes == [1, 4]


def test_both_programs_get_the_same_settings(compare: ModuleType, lab10: ModuleType, tmp_path: Path) -> None:
    job = compare.parse_job("small:frozen")
    task = compare.Task(job=job, processes=2, folder=tmp_path, size_px=48, batch=8, epochs=3, seconds=1.0)
    theirs = compare.lab_command(Path("/env/bin/python"), task, "--epochs", "3")
    assert theirs[:5] == ["/env/bin/horovodrun", "-np", "2", "--gloo", "/env/bin/python"]
    options = lab10.parser().parse_args(theirs[6:])
    ours = compare.our_command("train", task, Path("cache"), Path("w.safetensors"))
    values = dict(word.split("=", 1) for word in ours if "=" in word)
    assert values["training.optimizer"] == options.optimizer == "adadelta"
    assert float(values["training.learning_rate"]) == options.learning_rate == 1.0
    assert int(values["data.size_px"]) == options.size
    assert int(values["training.batch_per_worker"]) == options.batch
    assert int(values["training.epochs"]) == options.epochs
    assert values["training.scaling"] == "linear"  # lab10.py multiplies by the number of processes
    lab = (options.rotation, options.zoom, options.shift, str(options.flip).lower())
    assert tuple(compare.VARIATIONS.values()) == lab
    assert ours[ours.index("--processes") + 1] == "2"


def test_the_split_is_ours(compare: ModuleType, fruit_folder: Path, tmp_path: Path) -> None:
    folder = compare.split_folder(fruit_folder, tmp_path / "split")
    count = {part: sum(1 for _ in (folder / part).rglob("*.bmp")) for part in ("train", "validation")}
    assert count == {"train": 192, "validation": 48}


def test_the_table_has_ratios_of_one_run(compare: ModuleType) -> None:
    common = {"job": "small, frozen", "processes": 2}
    lab = compare.Row(
        program="lab10", **common, input_images_per_s=100.0, model_images_per_s=900.0, images_per_s=90.0,
        epoch_time_s=4.0, start_up_s=20.0, accuracy=0.5, held_back_by="input 80 %",
    )  # fmt: skip
    ours = compare.Row(
        program="turnaround", **common, model_images_per_s=1800.0, images_per_s=1000.0, epoch_time_s=0.5,
        start_up_s=5.0, accuracy=0.75,
    )  # fmt: skip
    assert compare.table_text([lab, ours]).splitlines() == [
        "| small, frozen | input alone | model alone | training | s/epoch | start-up | accuracy | held back by |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        "| lab10, 2 | 100 | 900 | 90 | 4.00 s | 20.00 s | 50.0 % | input 80 % |",
        "| turnaround, 2 | - | 1,800 | 1,000 | 0.50 s | 5.00 s | 75.0 % | - |",
        "| turnaround is better by | - | 2.00 | 11.11 | 8.00 | 4.00 |  |  |",
    ]


# --- with the lab's stack


@pytest.fixture(scope="module")
def images(compare: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lab10")
    drawn = fruitbowl.generate(folder / "drawn", images=120, size_px=64, seed=0)
    return Path(compare.split_folder(drawn, folder / "split"))


def trained(images: Path, out: Path, *arguments: str, processes: int) -> Run:
    assert LAB_PYTHON is not None
    spread = [str(Path(LAB_PYTHON).parent / "horovodrun"), "-np", str(processes), "--gloo"]
    words = [*spread, LAB_PYTHON, str(BENCH / "lab10.py"), str(images), "--backbone", "small", "--size", "48"]
    words += ["--batch", "4", "--epochs", "2", "--out", str(out), *arguments]
    settings = {"PATH": f"{Path(LAB_PYTHON).parent}:{os.environ['PATH']}", "PYTHONPATH": str(BENCH.parents[1] / "src")}
    done = subprocess.run(
        words, env={**os.environ, **settings}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "RecorderWarning" not in done.stderr
    return Run.load(out)


@built
@pytest.mark.parametrize("processes", [1, 2])
def test_one_line_records_keras_under_horovod(images: Path, tmp_path: Path, processes: int) -> None:
    """An input that takes 20 ms an image is the limit, and the report says so by itself."""
    run = trained(images, tmp_path / "run", "--extra-work-ms", "20", processes=processes)
    assert (run.status.state, len(run.epochs)) == ("finished", 2)
    assert run.ranks == list(range(processes))
    assert run.machine["engine"] == "keras tensorflow horovod"
    assert (run.machine["workers"], run.machine["processes"]) == (processes, processes)
    assert run.machine["versions"]["horovod"] == "0.28.1"
    recipe = run.recipe
    assert (recipe["training"]["optimizer"], recipe["training"]["batch_per_worker"]) == ("adadelta", 4)
    assert recipe["training"]["learning_rate"] == 1.0  # as the lab sets it
    assert run.epochs[-1].learning_rate == processes  # as it was
    assert (recipe["images"]["num_train"], recipe["images"]["num_classes"]) == (96, 6)
    assert [epoch.steps for epoch in run.epochs] == [24 // processes] * 2
    assert bottleneck(run).kind == "input"
    findings = {finding.id: finding for finding in find_all(survey([tmp_path]))}
    assert "wait for their images" in findings["input-bound"].text


@built
def test_a_network_that_is_the_limit_is_not_called_input_bound(images: Path, tmp_path: Path) -> None:
    heavy = ("--backbone", "mobilenet_v2", "--fine-tune", "--size", "96", "--optimizer", "adam")
    run = trained(images, tmp_path / "run", *heavy, "--learning-rate", "0.001", processes=1)
    assert bottleneck(run).kind != "input"
    assert json.dumps(run.machine["cost"])


TWICE = """
import sys
import numpy as np
import tensorflow as tf
from turnaround.adapters.keras import TurnaroundCallback

class Batches(tf.keras.utils.Sequence):
    def __len__(self):
        return 6
    def __getitem__(self, index):
        random = np.random.default_rng(index)
        return random.random((5, 8), dtype=np.float32), random.integers(0, 2, 5)

def trained(data, callbacks, **settings):
    tf.keras.utils.set_random_seed(1)
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Input((8,), name="rows"), layers.Dense(4), layers.Dense(2)])
    model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(data, epochs=3, verbose=0, shuffle=False, callbacks=callbacks, **settings)
    return model.get_weights()

rows = (np.random.default_rng(0).random((40, 8), dtype=np.float32), np.arange(40) % 2)
cases = {
    "sequence": (Batches(), {}),
    "dataset": (tf.data.Dataset.from_tensor_slices(rows).batch(5), {}),
    "endless": (tf.data.Dataset.from_tensor_slices(rows).repeat().batch(5), {"steps_per_epoch": 6}),
    "dictionary": (tf.data.Dataset.from_tensor_slices(({"rows": rows[0]}, rows[1])).batch(5).prefetch(2), {}),
}
for name, (data, settings) in cases.items():
    recorder = TurnaroundCallback(f"{sys.argv[1]}/{name}")
    with_it, without = trained(data, [recorder], **settings), trained(data, [], **settings)
    assert all(np.array_equal(a, b) for a, b in zip(with_it, without)), name
    assert recorder._arrivals._times is not None, name
"""


@built
def test_watching_the_input_changes_no_weight(tmp_path: Path) -> None:
    assert LAB_PYTHON is not None
    settings = {"PYTHONPATH": str(BENCH.parents[1] / "src"), "TF_CPP_MIN_LOG_LEVEL": "2"}
    words = [LAB_PYTHON, "-c", TWICE, str(tmp_path)]
    done = subprocess.run(words, env={**os.environ, **settings}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for name in ("sequence", "dataset", "endless", "dictionary"):
        run = Run.load(tmp_path / name)
        assert len(run.epochs) == 3
        assert all(0 <= span.wait_s < 30 for span in run.spans(0))
