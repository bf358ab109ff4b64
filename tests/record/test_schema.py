"""Values survive JSON, errors name the field, and the documentation is in step."""

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnaround.errors import RunDirectoryError
from turnaround.record.coding import KEY, plain
from turnaround.record.schema import (
    FORMAT_VERSION,
    ClassResult,
    EpochRecord,
    Evaluation,
    GpuSample,
    Imported,
    Span,
    State,
    Status,
    TelemetrySample,
    TimePart,
    from_json,
    to_json,
)

KINDS = (EpochRecord, Status, Evaluation, ClassResult, Imported, Span, TelemetrySample, GpuSample)
DOCUMENT = (Path(__file__).parents[2] / "docs" / "record-format.md").read_text("utf-8")
LINE = {
    "epoch": 1,
    "train_loss": 1.5,
    "train_accuracy": 0.5,
    "val_loss": 1.4,
    "val_accuracy": 0.6,
    "epoch_time_s": 10,
    "images_per_s": 100.0,
    "learning_rate": 0.1,
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_documented(kind):
    keys = [field.metadata.get(KEY, field.name) for field in dataclasses.fields(kind)]
    missing = [key for key in keys if f"`{key}`" not in DOCUMENT]
    assert not missing, f"docs/record-format.md says nothing about {missing} of {kind.__name__}"


def test_every_word_of_the_vocabularies_is_documented():
    assert [word for word in get_args(State) + get_args(TimePart) if f"`{word}`" not in DOCUMENT] == []
    assert f"format {FORMAT_VERSION}" in DOCUMENT


def test_the_documented_examples_are_what_we_write():
    examples = re.findall(r"```json (\w+)\n(.*?)\n```", DOCUMENT)
    assert len(examples) == 6
    for name, text in examples:
        kind = next(kind for kind in KINDS if kind.__name__ == name)
        assert to_json(from_json(kind, json.loads(text))) == json.loads(text)


numbers = st.floats(allow_nan=False, allow_infinity=False)
counts = st.integers(0, 10**12)
VALUES = {
    "list[int] | None": st.none() | st.lists(st.integers(1, 99)),
    "int": counts,
    "float": numbers,
    "int | None": counts | st.none(),
    "float | None": numbers | st.none(),
    "str | None": st.text() | st.none(),
}


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_record_survives_json(data):
    for kind in (EpochRecord, Span):
        hints = {field.name: str(getattr(field.type, "__name__", field.type)) for field in dataclasses.fields(kind)}
        record = kind(**{name: data.draw(VALUES[hint]) for name, hint in hints.items()})
        assert from_json(kind, json.loads(json.dumps(to_json(record), allow_nan=False))) == record


def test_a_number_that_is_none_is_null_and_comes_back_as_nan_or_none():
    payload = to_json(
        from_json(EpochRecord, LINE | {"train_loss": math.nan, "val_loss": math.inf, "noise_scale": math.nan})
    )
    assert payload["train_loss"] is payload["val_loss"] is payload["noise_scale"] is None
    record = from_json(EpochRecord, payload)
    assert math.isnan(record.train_loss)
    assert math.isnan(record.val_loss)
    assert record.noise_scale is None


def test_numbers_too_large_for_a_float_are_no_numbers():
    record = from_json(EpochRecord, LINE | {"val_loss": 10**400, "noise_scale": json.loads("1e999")})
    assert math.isnan(record.val_loss)
    assert record.noise_scale is None


def test_keys_of_a_newer_writer_are_ignored_and_optional_ones_may_be_missing():
    record = from_json(EpochRecord, LINE | {"shoe_size": 43})
    assert (record.segment, record.steps) == (1, None)
    assert from_json(Status, {"state": "running", "time_s": {"decode": 1, "new_part": "?"}}).time_s == {"decode": 1.0}


def test_a_whole_number_may_be_written_as_a_float():
    assert from_json(EpochRecord, LINE | {"epoch": 2.0}).epoch == 2


@pytest.mark.parametrize(
    ("kind", "payload", "words"),
    [
        (EpochRecord, LINE | {"epoch": "one"}, "epoch: expected a whole number, received 'one'"),
        (EpochRecord, LINE | {"epoch": 1.5}, "epoch: expected a whole number, received 1.5"),
        (EpochRecord, LINE | {"epoch": True}, "epoch: expected a whole number, received True"),
        (EpochRecord, LINE | {"epoch": 10**400}, "epoch: expected a whole number"),
        (EpochRecord, LINE | {"epoch": None}, "epoch: expected a whole number, received None"),
        (EpochRecord, LINE | {"val_loss": "low"}, "val_loss: expected a number, received 'low'"),
        (EpochRecord, {"epoch": 1}, "train_loss: missing"),
        (EpochRecord, [1], "content: expected an object, received [1]"),
        (
            EpochRecord,
            LINE | {"format": 2},
            "format 2 by a newer turnaround; this one reads up to 1. Upgrade",
        ),
        (EpochRecord, LINE | {"format": "1"}, "format: expected a version number, received '1'"),
        (Status, {"state": "sleeping"}, "state: expected one of queued, running"),
        (Status, {"state": ["running"]}, "state: expected one of"),
        (Status, {"state": "running", "cause": 3}, "cause: expected a text, received 3"),
        (Status, {"state": "running", "time_s": 3}, "time_s: expected an object, received 3"),
        (
            Status,
            {"state": "running", "time_s": {"decode": "x"}},
            "time_s.decode: expected a number, received 'x'",
        ),
        (TelemetrySample, {"time_s": 1, "at": "", "gpus": 8}, "gpus: expected a list, received 8"),
        (TelemetrySample, {"time_s": 1, "at": "", "gpus": [{"index": 0}]}, "gpus[0].name: missing"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_received(kind, payload, words):
    with pytest.raises(RunDirectoryError, match=re.escape(words)):
        from_json(kind, payload)


def test_a_huge_wrong_value_makes_a_short_message():
    with pytest.raises(RunDirectoryError) as caught:
        from_json(EpochRecord, LINE | {"epoch": "x" * 10**6})
    assert len(str(caught.value)) < 200


def test_an_evaluation_with_a_large_matrix_survives():
    record = Evaluation(
        epoch=1,
        num_images=2,
        top1=0.5,
        top5=None,
        loss=1.0,
        classes=["a", "</script>"],
        per_class=[
            ClassResult(name="a", num_images=2, accuracy=0.5),
            ClassResult(name="b", num_images=0, accuracy=None),
        ],
        confusion=[[1, 1], [0, 0]],
    )
    assert from_json(Evaluation, json.loads(json.dumps(to_json(record)))) == record
    with pytest.raises(RunDirectoryError, match=r"confusion\[1\]\[0\]: expected a whole number, received 'x'"):
        from_json(Evaluation, to_json(record) | {"confusion": [[1, 1], ["x", 0]]})


def test_a_key_that_is_not_the_fields_name_is_used_both_ways():
    record = Imported(source="runs.csv", format="table", epochs=30)
    assert to_json(record) | {"format": FORMAT_VERSION, "source_format": "table"} == to_json(record)
    assert from_json(Imported, to_json(record)) == record
    with pytest.raises(RunDirectoryError, match="source_format: missing"):
        from_json(Imported, {"source": "runs.csv"})


def test_scalars_of_numpy_and_paths_become_plain_json():
    value = {
        "loss": np.float32(0.5),
        "count": np.int64(3),
        "nan": np.float64("nan"),
        "path": Path("a/b"),
        1: (True,),
    }
    assert plain(value) == {"loss": 0.5, "count": 3, "nan": None, "path": "a/b", "1": [True]}
