"""One module of a large library without the rest of it.

`import timm` loads 1,200 networks, and with them torchvision and a hub's client: 3.5 s of computing for one network
(two cores, 2026-11-18) and 5.7 s on an H200 machine, most of a short training's start. What a training needs of it is
one file, and the few that this file imports.

    module_alone      a module, without running the `__init__.py` of the packages it lies in
    empty_packages    the packages that are empty meanwhile
    not_installed     modules whose import fails for a while, as if they were not there

Everything here may fail with another version of the library: callers then import it as a whole. No torch.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any


def module_alone(name: str, *, others: Mapping[str, str | None] | None = None) -> ModuleType:
    """Import a module without running the `__init__.py` of the packages it lies in, nor those of `others`."""
    parts = name.split(".")[:-1]
    with empty_packages({".".join(parts[: i + 1]): None for i in range(len(parts))} | dict(others or {})):
        return importlib.import_module(name)


@contextmanager
def empty_packages(packages: Mapping[str, str | None]) -> Iterator[None]:
    """Let packages be empty for a while: only their folders are known, and what one module of theirs has, if named.

    They are removed afterwards, so that somebody else's `import timm` finds the whole one, and in it the very modules
    that were loaded here. Those that are loaded already stay as they are.
    """
    empty: list[str] = []
    try:
        for name, constants in packages.items():
            if name not in sys.modules:
                sys.modules[name] = _EmptyPackage(name, _folders(name), constants)
                empty.append(name)
        yield
    finally:
        for name in empty:
            del sys.modules[name]


@contextmanager
def not_installed(*names: str) -> Iterator[None]:
    """Let the import of modules fail for a while, as if they were not there; those that are loaded stay."""
    blocked = [name for name in names if name not in sys.modules]
    for name in blocked:
        sys.modules[name] = None  # type: ignore[assignment]  # importlib's own mark
    try:
        yield
    finally:
        for name in blocked:
            del sys.modules[name]


class _EmptyPackage(ModuleType):
    """A package of which only the folders are known, and where a module is named, what that module has."""

    def __init__(self, name: str, folders: list[str], constants: str | None) -> None:
        super().__init__(name)
        self.__path__, self._constants = folders, constants

    def __getattr__(self, name: str) -> Any:
        if self._constants is None or (name.startswith("__") and name != "__version__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self._constants), name)


def _folders(package: str) -> list[str]:
    parent = package.rpartition(".")[0]
    spec = PathFinder.find_spec(package, sys.modules[parent].__path__ if parent else None)
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    return list(spec.submodule_search_locations)
