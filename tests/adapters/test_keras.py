"""A Keras script with one added line: the example of docs/any-loop.md, and what may happen to such a script."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.examples import example, page_of, run_script
from turnaround.analysis.workloads import survey
from turnaround.findings import find_all
from turnaround.record.reader import Run

pytestmark = pytest.mark.frameworks
ADDED = ', callbacks=[TurnaroundCallback("runs/mine")]'


def test_one_added_line(tmp_path: Path) -> None:
    done = run_script(example("keras"), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    run = Run.load(tmp_path / "runs" / "mine")
    assert run.status.state == "finished"
    assert len(run.epochs) == 6
    assert all(0 <= e.val_accuracy <= 1 and 0 <= e.train_accuracy <= 1 and e.val_loss > 0 for e in run.epochs)
    assert [(e.steps, e.images) for e in run.epochs] == [(15, 300)] * 6
    assert all(e.learning_rate == 0.001 and e.evaluation_time_s for e in run.epochs)
    recipe = run.recipe
    assert recipe["model"]["name"] == "small"
    assert recipe["training"]["batch_per_worker"] == 20
    assert (recipe["training"]["epochs"], recipe["training"]["optimizer"]) == (6, "adam")
    assert (recipe["images"]["num_train"], recipe["images"]["num_validation"]) == (300, 100)
    assert (recipe["images"]["num_classes"], recipe["data"]["size_px"]) == (2, 16)
    assert recipe["workers"]["engine"] == "keras torch"
    assert len(run.spans(0)) >= 10
    assert all(span.compute_s > 0 for span in run.spans(0))
    found = survey([tmp_path])
    assert found.workloads[0].configurations[0].bottleneck is not None
    # Six epochs of a second have nothing to be said of them; nothing in such a record stands in the way of looking.
    assert all(finding.evidence for finding in find_all(found))
    assert "script.py, small, 16 px" in page_of(tmp_path)


def test_the_weights_are_the_same_with_and_without(tmp_path: Path) -> None:
    seeded = example("keras").replace("import numpy as np\n", "import numpy as np\n\nkeras.utils.set_random_seed(3)\n")
    assert ADDED in seeded
    show = "print(*[float(w.sum()) for w in model.get_weights()])\n"
    printed = [run_script(code + show, tmp_path).stdout for code in (seeded, seeded.replace(ADDED, ""))]
    assert printed[0] == printed[1] != ""


GENERATOR = """
class Batches(keras.utils.PyDataset):
    batch_size = 25
    def __len__(self): return 8
    def __getitem__(self, index):
        import time; time.sleep(0.25)
        return images[index * 25 : index * 25 + 25], labels[index * 25 : index * 25 + 25]
for layer in model.layers[:-1]: layer.trainable = False
falling = keras.optimizers.schedules.CosineDecay(0.1, 16)
model.compile(keras.optimizers.Adam(falling), keras.losses.SparseCategoricalCrossentropy(), metrics=["accuracy"])
mine = TurnaroundCallback("runs/slow", data="fruit")
model.fit(Batches(), epochs=3, validation_data=(images[200:], labels[200:]), verbose=0, callbacks=[mine])
"""


def test_a_generator_that_is_slow(tmp_path: Path) -> None:
    done = run_script(example("keras").replace(ADDED, "") + GENERATOR, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    run = Run.load(tmp_path / "runs" / "slow")
    assert run.recipe["training"]["batch_per_worker"] == 25
    assert run.recipe["images"]["num_validation"] == 200
    assert (run.recipe["model"]["fine_tune"], run.recipe["data"]["source"]) == (False, "fruit")
    assert [e.images for e in run.epochs] == [200] * 3
    assert run.epochs[0].learning_rate > run.epochs[2].learning_rate
    bottleneck = survey([tmp_path]).workloads[0].configurations[0].bottleneck
    assert bottleneck is not None
    assert (bottleneck.kind, bottleneck.is_strong) == ("input", True)


FAILING = """
class Fails(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1: raise RuntimeError("no more power")
try:
    model.fit(images, labels, epochs=4, verbose=0, callbacks=[TurnaroundCallback("runs/failed"), Fails()])
finally:
    TurnaroundCallback("runs/untouched")
"""


def test_a_training_that_fails(tmp_path: Path) -> None:
    done = run_script(example("keras").replace(ADDED, "") + FAILING, tmp_path)
    assert done.returncode == 1
    assert "no more power" in done.stderr
    run = Run.load(tmp_path / "runs" / "failed")
    assert (run.status.state, run.status.cause) == ("failed", "RuntimeError: no more power")
    assert len(run.epochs) == 2
    assert not (tmp_path / "runs" / "untouched").exists()


def test_two_fits_are_two_runs_and_a_broken_model_is_no_harm(tmp_path: Path) -> None:
    code = example("keras").replace(ADDED, "") + "mine = TurnaroundCallback('runs/mine')\n"
    code += "for _ in range(2): model.fit(images, labels, epochs=2, verbose=0, callbacks=[mine])\n"
    code += "broken = TurnaroundCallback('runs/broken'); broken.on_epoch_end(None, logs=3); print('on')\n"
    done = run_script(code, tmp_path)
    assert (done.returncode, done.stdout) == (0, "on\n")
    assert "mine is taken: this run is recorded in runs/mine-2" in done.stderr
    assert done.stderr.count("RecorderWarning: turnaround.Recorder: TypeError") == 1
    assert [len(Run.load(tmp_path / "runs" / name).epochs) for name in ("mine", "mine-2")] == [2, 2]
