"""What a study keeps of what was asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from turnaround.errors import InputError
from turnaround.record.host import private
from turnaround.study.state import agree_with_before

ASKED: dict[str, Any] = {
    "source": "/home/anna the secret/photos",
    "recipe": {
        "data": {"source": "/home/anna the secret/photos", "cache": "/home/anna the secret/cache", "holdout": 0.2},
        "model": {"weights": "imagenet"},
    },
}


def test_a_private_study_names_no_folder_and_goes_on(tmp_path: Path) -> None:
    with private():
        agree_with_before(tmp_path, ASKED)
        text = (tmp_path / "study.json").read_text()
        assert "secret" not in text
        kept = json.loads(text)
        assert kept["source"] == kept["recipe"]["data"]["source"] == "photos"
        assert kept["recipe"]["data"]["holdout"] == 0.2
        agree_with_before(tmp_path, ASKED)
        with pytest.raises(InputError, match="holds a study with another source"):
            agree_with_before(tmp_path, {**ASKED, "source": "/home/anna the secret/pictures"})
        agree_with_before(tmp_path / "program", {"command": "python /home/anna/lab.py --gpus {workers}"})
        assert "anna" not in (tmp_path / "program" / "study.json").read_text()


def test_a_study_that_was_not_private_goes_on_privately(tmp_path: Path) -> None:
    agree_with_before(tmp_path, ASKED)
    assert "secret" in (tmp_path / "study.json").read_text()
    with private():
        agree_with_before(tmp_path, ASKED)
    assert "secret" not in (tmp_path / "study.json").read_text()
