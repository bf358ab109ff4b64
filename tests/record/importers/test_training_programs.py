"""Logs of other training programs: files that they wrote (`written/`), their own writers, and the same files spoilt.

`written/` holds what Ultralytics 8.4.190 (yolo classify train), Transformers 5.22.2 and Lightning 2.6.6 wrote on
2026-11-16 in a training of three epochs, as it was but for paths. W&B exports a history only from its server, so those
files are made here by the columns that its documentation names.
"""

from __future__ import annotations

import importlib.util
import json
import math
import shutil
import sqlite3
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from turnaround.errors import InputError, MissingPartError
from turnaround.record.importers import wandb as wandb_importer
from turnaround.record.importers.read import read_runs, recognise
from turnaround.record.importers.values import ImportedRun, ImportOptions, Reading

WRITTEN = Path(__file__).parent / "written"


def read(path: Path, **given: object) -> Reading:
    return read_runs(path, options=ImportOptions(**given))  # type: ignore[arg-type]


def only(path: Path, **given: object) -> ImportedRun:
    (run,) = read(path, **given).runs
    return run


def copied(name: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(WRITTEN / name, tmp_path / name))


# --- Ultralytics


@pytest.mark.parametrize("inside", ["", "results.csv"])
def test_ultralytics_folder_and_file(inside: str) -> None:
    run = only(WRITTEN / "ultralytics" / inside, name="yolo")
    assert (run.name, run.format, run.network, run.dataset) == ("yolo", "ultralytics", "yolov8n-cls", "/data/fruit")
    assert (run.workers, run.gpu, run.batch_per_worker, run.seed) == (1, "cpu", 8, 0)
    first, second, _ = run.curve
    assert (first.train_loss, first.val_loss, first.val_accuracy) == (0.65531, 0.69335, 0.5)
    assert (first.epoch_time_s, first.learning_rate) == (1.17565, 0.000555667)
    assert second.epoch_time_s == pytest.approx(3.25793 - 1.17565)


@pytest.mark.parametrize(
    ("device", "workers", "batch"),
    [("device: 0,1", 2, 4), ("device:\n- 0\n- 1\n- 2\n- 3", 4, 2), ("device: null", 1, None), ("device: '0'", 1, 8)],
)
def test_the_batch_of_ultralytics_is_that_of_all_gpus(
    device: str, workers: int, batch: int | None, tmp_path: Path
) -> None:
    folder = copied("ultralytics", tmp_path)
    settings = (folder / "args.yaml").read_text().replace("device: cpu", device)
    (folder / "args.yaml").write_text(settings)
    run = only(folder)
    assert (run.workers, run.batch_per_worker, run.gpu) == (workers, batch, None)
    assert run.batch_total == (8 if batch is None else None)


def test_without_its_settings_and_with_another_task(tmp_path: Path) -> None:
    folder = copied("ultralytics", tmp_path)
    (folder / "args.yaml").unlink()
    notes = read(folder).notes
    assert notes[-1] == "There is no args.yaml beside results.csv: network, data and batch are not known."
    (folder / "args.yaml").write_text("task: detect\n")
    (folder / "results.csv").write_text("epoch,time,train/box_loss,metrics/mAP50(B),lr/pg0\n1,1,1,0.5,0.1\n")
    with pytest.raises(
        InputError, match=r"Ultralytics of the task 'detect', not of classification: it has 'metrics/map"
    ):
        read(folder)


def test_a_line_of_ultralytics_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    folder = copied("ultralytics", tmp_path)
    text = (folder / "results.csv").read_text()
    (folder / "results.csv").write_text(text.replace("3.25793,0.68119", "3.25793,oops"))
    reading = read(folder)
    assert [item.where for item in reading.left_out] == ["line 3"]
    assert "train/loss must be a number, received 'oops'" in reading.left_out[0].reason
    assert [record.epoch for record in reading.runs[0].curve] == [1, 3]
    assert math.isnan(reading.runs[0].curve[1].epoch_time_s)  # two epochs after the one before


# --- timm


def update_summary() -> Callable[..., None]:
    """timm's own function, without the rest of timm, which takes seconds to import."""
    package = importlib.util.find_spec("timm")
    if package is None or package.origin is None:
        pytest.skip("timm is not installed here")
    spec = importlib.util.spec_from_file_location("timm_summary", Path(package.origin).parent / "utils" / "summary.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    write: Callable[..., None] = module.update_summary
    return write


def test_the_summary_that_timm_writes(tmp_path: Path) -> None:
    write, folder = update_summary(), tmp_path / "20261116-resnet50-224"
    folder.mkdir()
    for epoch in range(3):
        measured = {"loss": 1.0 - 0.1 * epoch, "top1": 50.25 + epoch, "top5": 90.0}
        train = {"loss": 2.0 - epoch}
        write(epoch, train, measured, str(folder / "summary.csv"), lr=0.1, write_header=epoch == 0)
    settings = (
        "amp: true\namp_dtype: bfloat16\nbatch_size: 64\ndata_dir: /data/pets\ndataset: ''\nmodel: resnet50\nseed: 42\n"
    )
    (folder / "args.yaml").write_text(settings)
    run = only(folder, workers=4, gpu="V100")
    assert (run.name, run.format, run.network, run.dataset) == (folder.name, "timm", "resnet50", "/data/pets")
    assert (run.workers, run.batch_per_worker, run.precision, run.seed) == (4, 64, "bf16", 42)
    assert [(e.epoch, e.val_accuracy, e.train_loss) for e in run.curve] == [
        (1, 0.5025, 2.0),
        (2, 0.5125, 1.0),
        (3, 0.5225, 0.0),
    ]
    assert run.curve[0].learning_rate == 0.1


# --- Hugging Face


def test_a_trainers_state() -> None:
    reading = read(WRITTEN / "huggingface" / "trainer_state.json", workers=1)
    (run,) = reading.runs
    assert (run.name, run.format, run.batch_per_worker, run.images_per_epoch) == ("huggingface", "huggingface", 8, 50)
    assert run.job_time_s == pytest.approx(2.3341)
    assert run.epoch_time_s == pytest.approx(2.3341 / 3)
    assert [(e.epoch, e.val_accuracy) for e in run.curve] == [(1, 0.25), (2, 0.25), (3, 0.25)]
    logged = [1.488853931427002, 0.9764516353607178, 1.4468365907669067]
    assert run.curve[0].train_loss == pytest.approx(sum(logged) / 3)
    assert reading.notes == ()


def test_the_newest_checkpoint_of_a_training_that_was_cut_off(tmp_path: Path) -> None:
    state = json.loads((WRITTEN / "huggingface" / "trainer_state.json").read_text())
    for step, entries in ((7, 4), (14, 9)):
        folder = tmp_path / "vit" / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        (folder / "trainer_state.json").write_text(json.dumps(state | {"log_history": state["log_history"][:entries]}))
    run = only(tmp_path / "vit")
    assert (run.name, run.epochs, run.state) == ("vit", 2, "interrupted")


def test_a_state_that_was_cut_off_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "trainer_state.json"
    file.write_text((WRITTEN / "huggingface" / "trainer_state.json").read_text()[:900])
    with pytest.raises(InputError, match=r"trainer_state\.json, line 3\d: not whole JSON"):
        read(file)
    file.write_text('{"log_history": 3}')
    with pytest.raises(InputError, match="its log_history is no list"):
        read(file)
    file.write_text('{"log_history": [{"epoch": 1.0, "perplexity": 3.0}]}')
    with pytest.raises(InputError, match="no accuracy and no loss among what was logged: 'perplexity'"):
        read(file)


# --- Lightning


def test_the_metrics_of_lightning_with_training_loss() -> None:
    run = only(WRITTEN / "lightning" / "version_0")
    assert (run.name, run.format, run.batch_per_worker) == ("lightning-version_0", "lightning", 8)
    assert [e.epoch for e in run.curve] == [1, 2, 3]
    first = run.curve[0]
    assert (first.train_loss, first.val_accuracy) == (1.3212183713912964, 0.2708333432674408)
    assert (first.val_loss, first.learning_rate) == (1.2446389198303223, 0.1)


def test_a_training_loss_of_steps_alone_is_averaged_and_bad_lines_are_named(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    file.write_text("epoch,step,train_loss_step,val_acc\n0,1,2.0,\n0,3,1.0,\n0,3,,0.5\n1,5,x,\n1,7,,0.6\nhalf,8,,0.7\n")
    reading = read(file)
    first = reading.runs[0].curve[0]
    assert (first.train_loss, first.val_accuracy) == (1.5, 0.5)
    assert [item.where for item in reading.left_out] == ["line 5", "line 7"]


# --- W&B

HISTORY = [
    {"_step": 0, "_runtime": 2.0, "_timestamp": 1e9, "train/loss": 2.0},
    {"_step": 1, "_runtime": 3.0, "_timestamp": 1e9, "train/loss": 1.0},
    {"_step": 2, "_runtime": 4.0, "_timestamp": 1e9, "epoch": 0, "val/acc": 0.5, "examples": "a picture"},
    {"_step": 3, "_runtime": 9.0, "_timestamp": 1e9, "epoch": 1, "val/acc": 0.75, "val/loss": "NaN"},
]


def as_csv(rows: list[dict[str, object]]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return "\n".join([",".join(columns), *(",".join(str(row.get(name, "")) for name in columns) for row in rows)])


def as_columns(rows: list[dict[str, object]]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return json.dumps({name: {str(place): row.get(name) for place, row in enumerate(rows)} for name in columns})


@pytest.mark.parametrize(
    "text",
    [
        as_csv(HISTORY),  # type: ignore[arg-type]
        json.dumps(HISTORY),
        "\n".join(json.dumps(row) for row in HISTORY),
        as_columns(HISTORY),  # type: ignore[arg-type]
    ],
)
def test_an_exported_history(text: str, tmp_path: Path) -> None:
    (tmp_path / "history.out").write_text(text)
    run = only(tmp_path / "history.out", workers=2)
    assert (run.format, run.name, run.workers) == ("wandb", "history", 2)
    assert [(e.epoch, e.val_accuracy) for e in run.curve] == [(1, 0.5), (2, 0.75)]
    assert run.curve[0].train_loss == 1.5
    assert run.curve[1].epoch_time_s == 5.0
    assert math.isnan(run.curve[0].epoch_time_s)


def test_a_history_without_epochs_says_what_was_counted(tmp_path: Path) -> None:
    rows = [{"_step": step, "_runtime": step, "loss": 1.0} for step in range(4)]
    (tmp_path / "h.json").write_text(json.dumps(rows))
    reading = read(tmp_path / "h.json", workers=1)
    assert reading.runs[0].epochs == 4
    assert reading.notes == ("h: no epoch was logged: the values of 'loss' were counted as epochs, in their order.",)


def test_histories_that_are_not_whole(tmp_path: Path) -> None:
    lines = [json.dumps(row) for row in HISTORY]
    (tmp_path / "h.jsonl").write_text("\n".join([*lines[:3], lines[3][:20]]))
    with pytest.raises(InputError, match=r"h\.jsonl, line 4: not whole JSON"):
        read(tmp_path / "h.jsonl")
    (tmp_path / "h.csv").write_text("_step,_runtime,val/acc\n0,1,0.5\n1,2,high\n")
    reading = read(tmp_path / "h.csv")
    assert [item.where for item in reading.left_out] == ["line 3"]


def framed(messages: list[bytes], *, block_bytes: int = 32 * 1024) -> bytes:
    """A file as W&B writes it: pieces of messages in blocks, each with a checksum."""
    content = bytearray(b":W&B\xe1\xbe\x00")
    for message in messages:
        rest, is_first = message, True
        while rest or is_first:
            room = block_bytes - len(content) % block_bytes
            if room < 7:
                content += bytes(room)
                continue
            piece, rest = rest[: room - 7], rest[room - 7 :]
            kind = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}[is_first, not rest]
            content += struct.pack("<IHB", zlib.crc32(piece, zlib.crc32(bytes([kind]))), len(piece), kind) + piece
            is_first = False
    return bytes(content)


def test_messages_of_an_offline_file_whole_cut_off_and_damaged(tmp_path: Path) -> None:
    messages = [b"a" * 10, b"b" * 70_000, b"c" * (32 * 1024 - 40), b"d"]
    content, file = framed(messages), tmp_path / "run-x.wandb"
    assert list(wandb_importer._messages(file, content)) == messages
    assert list(wandb_importer._messages(file, content[:-3])) == messages[:-1]  # a crash within the last one
    with pytest.raises(InputError, match=r"run-x\.wandb: damaged at byte 7 \(its checksum does not fit\)"):
        list(wandb_importer._messages(file, content.replace(b"aaa", b"axa", 1)))
    with pytest.raises(InputError, match="are not those of a run of W&B"):
        list(wandb_importer._messages(file, b":W&B\x00\x00\x00"))


def test_an_offline_folder_without_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb.proto.wandb_internal_pb2", None)
    (tmp_path / "run-x.wandb").write_bytes(framed([b"a"]))
    assert recognise(tmp_path)[0].name == "wandb"
    with pytest.raises(MissingPartError, match=r"kept offline, .* pip install 'turnaround\[wandb\]'"):
        read(tmp_path)


# --- trackio


def project(path: Path, rows: list[tuple[str, int, object]]) -> Path:
    """A database with trackio's tables, of version 0.43."""
    with sqlite3.connect(path) as database:
        database.execute(
            "CREATE TABLE metrics (id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT, timestamp TEXT, run_name TEXT, "
            "step INTEGER, metrics TEXT, log_id TEXT, space_id TEXT)"
        )
        database.execute("CREATE TABLE configs (id INTEGER PRIMARY KEY, run_id TEXT, run_name TEXT, config TEXT)")
        for name, step, logged in rows:
            instant = f"2026-11-16T14:23:{step:02d}.5+00:00"
            database.execute(
                "INSERT INTO metrics (run_id, timestamp, run_name, step, metrics) VALUES (?, ?, ?, ?, ?)",
                (name, instant, name, step, logged),
            )
        config = b'{"batch_size": 32, "model": "vit", "world_size": 2}'
        database.execute("INSERT INTO configs (run_id, run_name, config) VALUES ('a', 'a', ?)", (config,))
    database.close()
    return path


def test_a_project_of_trackio(tmp_path: Path) -> None:
    rows: list[tuple[str, int, object]] = [
        ("a", 0, b'{"train/loss": 2.0}'),
        ("a", 1, b'{"epoch": 0, "val/accuracy": 0.5}'),
        ("a", 9, b'{"epoch": 1, "val/accuracy": 0.75}'),
        ("b", 0, '{"epoch": 0, "val": {"acc": 0.25}}'),
        ("c", 0, '{"other": 1}'),
    ]
    reading = read(project(tmp_path / "fruit.db", rows))
    a, b = reading.runs
    assert (a.name, a.workers, a.batch_per_worker, a.network) == ("a", 2, 32, "vit")
    assert [(e.epoch, e.val_accuracy) for e in a.curve] == [(1, 0.5), (2, 0.75)]
    assert (a.curve[0].train_loss, a.curve[1].epoch_time_s) == (2.0, 8.0)
    assert (b.name, b.val_accuracy) == ("b", 0.25)
    assert [(item.where, item.reason) for item in reading.left_out] == [
        ("run 'c'", "no accuracy and no loss among what was logged: 'other'")
    ]


def test_databases_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"x\.db, row 1: not a JSON object"):
        read(project(tmp_path / "x.db", [("a", 0, b'{"val/acc": 0.')]))
    with pytest.raises(InputError, match=r"--name is for one run; .* has 2"):
        read(project(tmp_path / "y.db", [(name, 0, '{"loss": 1}') for name in "ab"]), name="mine")
    with pytest.raises(InputError, match="without a single logged row"):
        read(project(tmp_path / "z.db", []))
    with sqlite3.connect(tmp_path / "other.db") as database:
        database.execute("CREATE TABLE experiments (id INTEGER)")
    database.close()
    with pytest.raises(InputError, match="is a SQLite database, but none of trackio: it has experiments"):
        read(tmp_path / "other.db")
    (tmp_path / "cut.db").write_bytes((tmp_path / "x.db").read_bytes()[:3000])
    with pytest.raises(InputError, match="the database cannot be read"):
        read(tmp_path / "cut.db")


# --- any table of a program


KERAS_LOG = "epoch,accuracy,loss,val_accuracy,val_loss\n0,0.5,1.2,0.4,1.3\n1,0.6,1.0,0.5,1.1\n"
HISTORY_LOG = "_step,_runtime,epoch,val/acc,train/loss\n1,2.5,1,0.5,1.2\n2,5.0,2,0.6,1.0\n"


@pytest.mark.parametrize(
    "log",
    [
        (WRITTEN / "ultralytics" / "results.csv").read_text(),
        (WRITTEN / "lightning" / "version_0" / "metrics.csv").read_text(),
        KERAS_LOG,
        HISTORY_LOG,
    ],
    ids=["ultralytics", "lightning", "keras", "wandb"],
)
def test_a_table_that_ends_within_a_line_is_not_believed_to_its_end(log: str, tmp_path: Path) -> None:
    """Half a line has half a number at its end, which is no number of the program's."""
    path = tmp_path / "metrics.csv"
    number = log.rstrip("\n").count("\n") + 1
    before, _, last = log.rstrip("\n").rpartition("\n")
    path.write_text(f"{before}\n{last.rpartition(',')[0].rpartition(',')[0]}")
    (skipped,) = read(path).left_out
    assert (skipped.where, skipped.reason) == (
        f"line {number}",
        "the file ends within this line: it was cut off, or is still written",
    )
    path.write_text(f"{log}{last},7\n")  # a cell too many: nobody knows which
    (skipped,) = read(path).left_out
    assert (skipped.where, skipped.reason[:36]) == (f"line {number + 1}", "it has 1 more cells than the header:")
    path.write_text(log.rstrip("\n"))  # saved by an editor: whole
    assert read(path).left_out == ()
