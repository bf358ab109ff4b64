"""A few hundred mutated files of each kind; `python bench/fuzz.py --cases 10000` hunts for longer."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[2] / "bench"
CASES = {"recipe": 300, "run": 200, "logs": 200, "checkpoint": 150, "image": 600}


@pytest.fixture(scope="module")
def fuzz() -> Iterator[ModuleType]:
    """The command, by its path: tests have a `fuzz` too. What it imports is found in its folder."""
    spec = importlib.util.spec_from_file_location("bench_fuzz", BENCH / "fuzz.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_fuzz"] = module  # its dataclasses look themselves up there
    sys.path.append(str(BENCH))
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(BENCH))


@pytest.mark.fault(22, "run directories and checkpoints mutated at random: values or our errors (bench/fuzz.py)")
@pytest.mark.fault(38, "recipe files mutated at random: a recipe or our error")
@pytest.mark.fault(40, "images and their headers mutated at random: pixels or our error")
@pytest.mark.parametrize("kind", CASES)
def test_only_our_errors_come_out(kind: str, fuzz: ModuleType, trained_run: Path, tmp_path: Path) -> None:
    found = fuzz.hunt(kind, fuzz.Sample(trained_run, tmp_path), cases=CASES[kind])
    assert found.cases >= CASES[kind] / 2  # hypothesis may come to an end of what there is


def test_what_should_not_come_out_is_found(
    fuzz: ModuleType, trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hunt itself: an exception that is not ours is raised, with the case."""
    monkeypatch.setattr("fuzz_cases.decode_bytes", lambda data, size_px, path: {}[len(data)])
    with pytest.raises(KeyError):
        fuzz.hunt("image", fuzz.Sample(trained_run, tmp_path), cases=5)
