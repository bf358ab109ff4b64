"""`turnaround prices` as a user sees it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from console import Console


@pytest.fixture
def prices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Console:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TURNAROUND_CONFIG", str(tmp_path / "config"))
    return Console(monkeypatch, capsys, always=("prices",))


def test_set_show_remove(prices: Console, tmp_path: Path) -> None:
    assert "none are built in" in prices().out
    done = prices("set", "v100", "2.48", "--spot", "0.74", "--billing", "minute", "--currency", "eur")
    assert (done.code, done.err) == (0, "")
    shown = [line.split() for line in done.out.splitlines()]
    assert shown[0] == ["One", "GPU", "for", "one", "hour,", "in", "EUR"]
    assert shown[2] == ["V100", "2.48", "0.74", "minute", "you"]
    assert str(tmp_path / "config" / "prices.toml") in "".join(done.out.split())
    assert prices("set", "A100", "4").code == 0
    table = json.loads(prices("--json").out)
    assert (table["currency"], [row["kind"] for row in table["prices"]]) == ("EUR", ["A100", "V100"])
    assert table["prices"][1]["billing_unit"] == "minute"
    assert "A100" not in prices("remove", "a100").out
    assert "removed" in prices("clear").out
    assert "none are built in" in prices().out


def test_a_table_is_taken_over(prices: Console, tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("kind,price,currency\nV100,2.48,EUR\nT4,0.35,EUR\n")
    prices("set", "V100", "9")
    done = prices("import", "p.csv")
    assert done.code == 0
    assert [line.split()[:2] for line in done.out.splitlines()[2:4]] == [["T4", "0.35"], ["V100", "2.48"]]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["set", "V100", "-2.5"], "-2.5 is below 0, which nothing here can be"),
        (["set", "V100", "0"], "The price is 0; a price is above 0"),
        (["set", "V100", "2", "--spot", "0"], "--spot is 0; a price is above 0"),
        (["set", "V10", "2"], "Did you mean 'V100'?"),
        (["set", "V100", "2", "--currency", "taler"], "Unknown currency 'taler'"),
        (["set", "V100", "2", "--billing", "day"], "Unknown --billing 'day'"),
        (["set", "V100", "two"], "'PRICE'"),
        (["remove", "V100"], "The price table is empty"),
        (["import", "none.csv"], "cannot be read"),
        (["import", "p.csv", "--cloud", "aws"], "--cloud is for SkyPilot's catalog"),
        (["import", "skypilot"], "SkyPilot is not installed"),
    ],
)
def test_bad_input(prices: Console, monkeypatch: pytest.MonkeyPatch, words: list[str], expected: str) -> None:
    for name in ("sky", "sky.catalog", "sky.clouds", "sky.clouds.service_catalog"):
        monkeypatch.setitem(sys.modules, name, None)
    done = prices(*words)
    assert (done.code, done.out) == (2, "")
    assert expected in " ".join(done.err.replace("│", " ").split())
    assert json.loads(prices("--json").out)["prices"] == []


def test_one_that_is_not_in_the_table(prices: Console) -> None:
    prices("set", "V100", "2")
    done = prices("remove", "T4")
    assert (done.code, done.out) == (2, "")
    assert "Unknown kind 'T4'" in done.err
    assert "V100" in done.err
