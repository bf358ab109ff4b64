"""One module of a library without the rest of it, and the library as it is for everybody afterwards."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from turnaround.lean_imports import empty_packages, module_alone, not_installed


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package whose `__init__.py` is dear, with two modules and constants that one of them asks it for."""
    package = tmp_path / "dear_library"
    package.mkdir()
    (package / "__init__.py").write_text("from dear_library.constants import SIDE\nimport dear_library.huge\n")
    (package / "constants.py").write_text("SIDE = 224\n")
    (package / "huge.py").write_text("")
    (package / "part.py").write_text("from dear_library import SIDE\nside = SIDE\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield "dear_library"
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_module_alone_runs_no_other_file_of_its_package(library: str) -> None:
    part = module_alone(f"{library}.part", others={library: f"{library}.constants"})
    assert part.side == 224
    assert library not in sys.modules
    assert f"{library}.huge" not in sys.modules


def test_who_imports_the_package_afterwards_finds_the_whole_of_it_and_the_very_module(library: str) -> None:
    part = module_alone(f"{library}.part", others={library: f"{library}.constants"})
    whole = __import__(library)
    assert whole.SIDE == 224
    assert f"{library}.huge" in sys.modules
    assert sys.modules[f"{library}.part"] is part


def test_a_package_that_is_loaded_stays_as_it_is(library: str) -> None:
    whole = __import__(library)
    with empty_packages({library: None}):
        assert sys.modules[library] is whole
    assert sys.modules[library] is whole


def test_what_an_empty_package_does_not_have_is_an_error(library: str) -> None:
    with pytest.raises(ImportError):
        module_alone(f"{library}.part")  # asks for a constant, and nobody said where it is
    assert library not in sys.modules
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        module_alone("no_such_library.part")


def test_a_module_is_as_if_not_installed_for_a_while(library: str) -> None:
    with not_installed(library), pytest.raises(ModuleNotFoundError):
        __import__(library)
    assert __import__(library).SIDE == 224
    with not_installed(library):  # it is loaded now: whoever has it keeps it
        assert __import__(library).SIDE == 224
