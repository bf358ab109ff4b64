"""A private record has no folders in it, and whoever began the run finds them again."""

import json
import socket

import pytest

from turnaround.errors import RunDirectoryError
from turnaround.record import places
from turnaround.record.host import private

RECIPE = {
    "data": {"source": "/home/anna/photos", "cache": "on", "split_by_photo": None},
    "model": {"name": "small", "weights": "/data/anna/w.safetensors"},
    "images": {"classes": ["anna"], "warnings": ["The cache '/scratch/anna/cache' has no room, at 3 images/s."]},
    "launch": {"processes": 2},
}


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(places.getpass, "getuser", lambda: "anna")
    return tmp_path / "state"


def test_paths_are_names_and_are_found_again(state):
    assert places.without_paths(RECIPE) is RECIPE
    with private():
        written = places.without_paths(RECIPE)
        assert written["data"] == {"source": "photos", "cache": "on", "split_by_photo": None}
        assert written["model"]["weights"] == "w.safetensors"
        assert written["images"] == {"classes": ["anna"], "warnings": ["The cache 'cache' has no room, at 3 images/s."]}
        assert places.with_passed_paths(written)["data"] == RECIPE["data"]  # what a process of this start does
        assert places.without_paths(written)["launch"] == written["launch"]  # a restart, which reads it first
    assert "anna" not in json.dumps({key: value for key, value in written.items() if key != "images"})
    (file,) = (state / "turnaround" / "private").iterdir()
    assert (state / "turnaround" / "private").stat().st_mode & 0o77 == 0
    assert places.with_passed_paths(written) == written
    with private():
        again = places.with_paths(written)
        assert (again["data"], again["model"]) == (RECIPE["data"], RECIPE["model"])
        assert places.without_paths(again)["launch"] == written["launch"]
    file.write_text("[]")
    with pytest.raises(RunDirectoryError, match="Go on where it began, or put that file there"):
        places.with_paths(written)


@pytest.mark.parametrize("token", ["../../x", "A" * 32, 7, ["x"]])
def test_a_token_of_others_opens_nothing(token):
    with pytest.raises(RunDirectoryError, match="no token of ours"):
        places.with_paths({**RECIPE, "launch": {"places": token}})


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("Cannot write /home/anna/runs/a/status.json: full.", "Cannot write status.json: full."),
        ("'/data/my files/x.png' is damaged", "'my files/x.png' is damaged"),
        ("3 images/s, 1/2 of it, user anna, annabel", "3 images/s, 1/2 of it, user user, annabel"),
        ("see https://example.org/a/b", "see https://example.org/a/b"),
    ],
)
def test_messages_name_no_folder(text, kept):
    assert places.redacted(text) == text
    with private():
        assert places.redacted(text) == kept
        assert socket.gethostname() not in places.redacted(f"on {socket.gethostname()}: x").split()
