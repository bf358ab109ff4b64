"""Whether an engine's packages are here. No torch: `turnaround train` asks before it decodes a single image."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from turnaround.errors import MissingPartError

INSTALL_HOROVOD = "HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=1 pip install --no-build-isolation --no-cache-dir horovod"
HINT = (
    "It is compiled against the torch that is installed and needs cmake and a C++ compiler; .ci/horovod in our sources "
    "does it for torch 2.13. Or leave out --engine horovod: the engine `torch` needs nothing more."
)


def require(engine: str) -> None:
    """`MissingPartError`, with the command that helps, when the engine's packages are not here or not compiled."""
    if engine != "horovod":
        return
    package = find_spec("horovod")
    if package is None:
        raise MissingPartError(f"The engine horovod is not installed. Install it: {INSTALL_HOROVOD}\n{HINT}")
    # `import horovod.torch` succeeds without its extension, and prints a warning on stdout.
    folders = [Path(folder) / "torch" for folder in package.submodule_search_locations or ()]
    if not any(file for folder in folders for file in folder.glob("mpi_lib_v2*.so")):
        raise not_built("its extension for PyTorch is missing")


def not_built(why: str) -> MissingPartError:
    """Horovod's Python part is here and its compiled part is not, or not as needed."""
    return MissingPartError(
        f"Horovod is installed, but was not built for PyTorch ({why}). Build it again: pip uninstall -y horovod && "
        f"{INSTALL_HOROVOD}\n{HINT}"
    )
