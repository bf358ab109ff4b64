"""A token that survives a restart, where nobody else can read it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from turnaround.web.tokens import kept_token


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "turnaround" / "tokens"


def test_the_same_purpose_has_the_same_token(home: Path) -> None:
    token, is_kept = kept_token("watch /a")
    assert (kept_token("watch /a"), is_kept) == ((token, True), True)
    assert kept_token("watch /b")[0] != token
    assert len(token) == 32
    files = sorted(home.iterdir())
    assert len(files) == 2
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert not any("watch" in file.name or file.stem == "a" for file in files)


@pytest.mark.parametrize("damage", ["readable", "short", "link", "binary"])
def test_a_token_that_others_may_know_is_made_anew(home: Path, tmp_path: Path, damage: str) -> None:
    token, _ = kept_token("watch /a")
    (file,) = home.iterdir()
    if damage == "readable":
        file.chmod(0o644)
    elif damage == "short":
        file.write_text("x")
    elif damage == "binary":
        file.write_bytes(os.urandom(32))
    else:
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    again, is_kept = kept_token("watch /a")
    assert (again != token, is_kept) == (True, True)
    assert kept_token("watch /a")[0] == again
    assert not file.is_symlink()


def test_without_a_place_it_lives_as_long_as_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    (first, is_kept), (second, _) = kept_token("watch /a"), kept_token("watch /a")
    assert not is_kept
    assert first != second


def test_the_home_of_the_user_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "relative/is/ignored")
    monkeypatch.setenv("HOME", str(tmp_path))
    kept_token("watch /a")
    assert len(list((tmp_path / ".local" / "state" / "turnaround" / "tokens").iterdir())) == 1
