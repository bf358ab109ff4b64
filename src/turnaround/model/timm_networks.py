"""Networks of timm by name: one of them without the other 1,200, or the whole library where that does not work.

`import timm` loads every network, torchvision and a hub's client. A training needs the file of its own network, so that
is loaded alone (lean_imports.py): 0.03 s of computing instead of 3.5 (two cores, 2026-11-18). Which file that is, is
read from the text of the files: each network is a function of its name.
"""

from __future__ import annotations

import importlib
import re
import sys
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from turnaround.lean_imports import empty_packages, module_alone, not_installed

HUB = "huggingface_hub"
EMPTY = {
    # Empty but for what the files of networks ask them for.
    "timm": "timm.version",
    "timm.data": "timm.data.constants",
    "timm.models": None,
    # Of torchvision they take one class (a batch norm that is frozen), and take no offence without the rest.
    "torchvision": None,
    "torchvision.ops": None,
}
NOT_NEEDED = ("torchvision.models",)


class Timm(Protocol):
    """What we ask of timm: the library itself, or `OneFamily`."""

    def create_model(self, model_name: str, **options: Any) -> Any:
        """Make a network."""

    def get_pretrained_cfg(self, model_name: str, **options: Any) -> Any:
        """Return the facts about the trained weights of a network, or None."""

    def list_models(self, **options: Any) -> list[str]:
        """Return names, of networks or (`pretrained`) of their weights."""


class OneFamily:
    """The networks of one file of timm."""

    def __init__(self, registry: ModuleType, factory: ModuleType) -> None:
        self._registry, self.create_model = registry, factory.create_model
        self.get_pretrained_cfg = registry.get_pretrained_cfg

    def list_models(self, **options: Any) -> list[str]:
        """Return the names that timm would, as far as their files are loaded."""
        return self._registry.list_models(**options)  # type: ignore[no-any-return]


def timm_for(name: str, *, downloads: bool = True) -> Timm:
    """Return timm, or as much of it as a network of this name needs; an ImportError where it is not installed.

    `downloads` tells whether trained weights may be fetched: without them the hub's client is left out, too.
    """
    if "timm" not in sys.modules and (family := family_of(name.partition(".")[0])) is not None:
        with suppress(Exception):  # another version of timm, whose files are arranged otherwise
            return _one_family(family, downloads=downloads)
    return importlib.import_module("timm")


@cache
def family_of(network: str) -> str | None:
    """Return the module of timm that has a network; None where no file says so."""
    spec = find_spec("timm")
    if spec is None or not spec.submodule_search_locations:
        return None
    defines = re.compile(rf"^def {re.escape(network)}\(", re.MULTILINE)
    for file in sorted((Path(spec.submodule_search_locations[0]) / "models").glob("*.py")):
        if defines.search(file.read_text(encoding="utf-8", errors="replace")):
            return f"timm.models.{file.stem}"
    return None


def _one_family(module: str, *, downloads: bool) -> OneFamily:
    with not_installed(*NOT_NEEDED, *(() if downloads else (HUB,))), empty_packages(EMPTY):
        for name in (module, "timm.models._factory"):
            module_alone(name)
        hub = sys.modules["timm.models._hub"]
        if downloads and not hub.has_hf_hub() and find_spec(HUB):
            importlib.reload(hub)  # loaded before for a network that fetched nothing; its functions see what is new
    return OneFamily(sys.modules["timm.models._registry"], sys.modules["timm.models._factory"])
