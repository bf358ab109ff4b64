"""The trained network in the formats of other programs. Each carries its description: classes, preprocessing.

    onnx          a graph for ONNX Runtime and many others; metadata `turnaround` holds the description as JSON
    torchscript   a graph for torch.jit.load, also from C++; extra file turnaround.json
    torch-export  a graph for torch.export.load; extra file turnaround.json
    safetensors   the weights alone, for timm or `small`; metadata `turnaround`

Nothing here is pickled by us: the two torch formats are zip archives that torch writes itself.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from turnaround.errors import MissingPartError, ModelError
from turnaround.model.network import build
from turnaround.use.graph import INPUT, OUTPUT, WithPreprocessing, description
from turnaround.use.trained import Trained

DESCRIPTION = "turnaround"
DESCRIPTION_FILE = "turnaround.json"
MAX_ONNX_BYTES = 2_000_000_000  # protobuf's limit for one file is 2 GiB
TO_GET_ONNX = "pip install 'turnaround[onnx]'"

Network = Callable[[Tensor], Tensor]
"""uint8 (N, size, size, 3) -> logits (N, classes), on the CPU."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """One format: how it is written, read back, described and used by others."""

    ending: str
    write: Callable[[Trained, Path], None]
    read: Callable[[Trained, Path], Network]
    describe: Callable[[Path], dict[str, Any]]
    """Return the description that a file carries."""
    imports: str
    """The imports of a program of somebody else, besides numpy and Pillow."""
    usage: tuple[str, ...]
    """Its lines of Python for the model card, from `images` to `logits`; {file} is the exported file."""
    is_graph: bool = True
    """The file holds the whole graph with its preprocessing; else the weights alone."""


def described(trained: Trained) -> str:
    return json.dumps(description(trained), ensure_ascii=True)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporters, which warn of their own deprecations and of operators that are not needed here."""
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        exporter.setLevel(level)


def _example(trained: Trained) -> Tensor:
    """Return two images: an exporter may take a one for a constant."""
    generator = torch.Generator().manual_seed(0)
    shape = (2, trained.size_px, trained.size_px, 3)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def _program(trained: Trained) -> torch.export.ExportedProgram:
    """Export for any number of images; the other sides are fixed."""
    any_number = {0: torch.export.Dim("N", min=1, max=2**20)}
    return torch.export.export(
        WithPreprocessing(trained), (_example(trained),), dynamic_shapes=(any_number,), strict=False
    )


# --- onnx


def _write_onnx(trained: Trained, path: Path) -> None:
    require_onnx()
    num_bytes = sum(tensor.nbytes for tensor in trained.module.state_dict().values())
    if num_bytes > MAX_ONNX_BYTES:
        raise ModelError(f"{num_bytes / 1e9:.1f} GB of weights do not fit into one ONNX file. Use --to torch-export.")
    with _quiet():
        program = torch.onnx.export(
            _program(trained), input_names=[INPUT], output_names=[OUTPUT], dynamo=True, verbose=False
        )
        assert program is not None
        program.model.metadata_props[DESCRIPTION] = described(trained)
        program.save(path, external_data=False)


def require_onnx() -> None:
    """onnxscript makes the graph, onnx writes it, onnxruntime checks it."""
    from importlib.util import find_spec

    missing = [name for name in ("onnx", "onnxruntime", "onnxscript") if find_spec(name) is None]
    if missing:
        raise MissingPartError(f"ONNX needs {', '.join(missing)}. Install with: {TO_GET_ONNX}")


def _onnx_session(path: Path) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def _read_onnx(trained: Trained, path: Path) -> Network:
    session = _onnx_session(path)
    return lambda images: torch.from_numpy(session.run([OUTPUT], {INPUT: images.numpy()})[0])


def _describe_onnx(path: Path) -> dict[str, Any]:
    text = _onnx_session(path).get_modelmeta().custom_metadata_map[DESCRIPTION]
    return dict(json.loads(text))


# --- torchscript and torch.export


def _write_torchscript(trained: Trained, path: Path) -> None:
    with _quiet():
        traced = torch.jit.trace(WithPreprocessing(trained), _example(trained))  # type: ignore[no-untyped-call]
        torch.jit.save(traced, str(path), _extra_files={DESCRIPTION_FILE: described(trained)})


def _read_torchscript(trained: Trained, path: Path) -> Network:
    with _quiet():
        module: Network = torch.jit.load(str(path))  # type: ignore[no-untyped-call]
    return module


def _describe_torchscript(path: Path) -> dict[str, Any]:
    held: dict[str, Any] = {DESCRIPTION_FILE: ""}
    with _quiet():
        torch.jit.load(str(path), _extra_files=held)  # type: ignore[no-untyped-call]
    return dict(json.loads(held[DESCRIPTION_FILE]))


def _write_torch_export(trained: Trained, path: Path) -> None:
    with _quiet():
        torch.export.save(_program(trained), path, extra_files={DESCRIPTION_FILE: described(trained)})


def _read_torch_export(trained: Trained, path: Path) -> Network:
    with _quiet():
        module: Network = torch.export.load(path).module()
    return module


def _describe_torch_export(path: Path) -> dict[str, Any]:
    held: dict[str, Any] = {DESCRIPTION_FILE: ""}
    with _quiet():
        torch.export.load(path, extra_files=held)
    return dict(json.loads(held[DESCRIPTION_FILE]))


# --- safetensors


def _write_safetensors(trained: Trained, path: Path) -> None:
    tensors = {name: tensor.contiguous() for name, tensor in trained.module.state_dict().items()}
    save_file(tensors, path, metadata={"format": "pt", DESCRIPTION: described(trained)})


def _read_safetensors(trained: Trained, path: Path) -> Network:
    """Load the weights into a new network, as anybody else would."""
    from dataclasses import replace

    network = build(replace(trained.recipe.model, weights="none"), num_classes=len(trained.classes), seed=1)
    network.module.load_state_dict(load_file(path))
    return WithPreprocessing(replace(trained, module=network.module.requires_grad_(False)))


def _describe_safetensors(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        return dict(json.loads(file.metadata()[DESCRIPTION]))


FORMATS = {
    "onnx": Format(
        ending=".onnx",
        write=_write_onnx,
        read=_read_onnx,
        describe=_describe_onnx,
        imports="onnxruntime",
        usage=(
            'session = onnxruntime.InferenceSession("{file}")',
            'about = json.loads(session.get_modelmeta().custom_metadata_map["turnaround"])',
            'logits = session.run(["logits"], {{"images": images}})[0]',
        ),
    ),
    "torchscript": Format(
        ending=".pt",
        write=_write_torchscript,
        read=_read_torchscript,
        describe=_describe_torchscript,
        imports="torch",
        usage=(
            'extra = {{"turnaround.json": ""}}',
            'network = torch.jit.load("{file}", _extra_files=extra)',
            'about = json.loads(extra["turnaround.json"])',
            "logits = network(torch.from_numpy(images)).numpy()",
        ),
    ),
    "torch-export": Format(
        ending=".pt2",
        write=_write_torch_export,
        read=_read_torch_export,
        describe=_describe_torch_export,
        imports="torch",
        usage=(
            'extra = {{"turnaround.json": ""}}',
            'network = torch.export.load("{file}", extra_files=extra).module()',
            'about = json.loads(extra["turnaround.json"])',
            "logits = network(torch.from_numpy(images)).detach().numpy()",
        ),
    ),
    "safetensors": Format(
        ending=".safetensors",
        write=_write_safetensors,
        read=_read_safetensors,
        describe=_describe_safetensors,
        imports="safetensors.torch, timm, torch",
        usage=(  # for timm's networks; `small` is turnaround's own
            'about = json.loads(safetensors.safe_open("{file}", framework="pt").metadata()["turnaround"])',
            'network = timm.create_model(about["model"], num_classes=len(about["classes"])).eval()',
            'network.load_state_dict(safetensors.torch.load_file("{file}"))',
            'mean, std = (torch.tensor(about["normalisation"][key]) for key in ("mean", "std"))',
            "pixels = (torch.from_numpy(images) / 255 - mean) / std",
            "logits = network(pixels.permute(0, 3, 1, 2).float()).detach().numpy()",
        ),
        is_graph=False,
    ),
}
"""Every format that `turnaround export --to` knows: a new one is a row here, and its three functions."""
