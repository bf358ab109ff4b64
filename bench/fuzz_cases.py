"""What is broken on purpose, and what reads it: recipes, run directories, logs, checkpoints, images."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fuzz_changes import applied, byte_changes, file_changes, header_changes, values
from hypothesis import strategies as st
from PIL import Image

from turnaround import recipes
from turnaround.analysis.balance import balance
from turnaround.analysis.bottleneck import bottleneck
from turnaround.analysis.workloads import survey_runs
from turnaround.data.decode import decode_bytes
from turnaround.errors import TurnaroundError
from turnaround.findings import find_all
from turnaround.launch import failure
from turnaround.recipe import SECTIONS, Recipe
from turnaround.record import heartbeat
from turnaround.record.layout import RunDirectory
from turnaround.record.reader import Run
from turnaround.reporting.charts import glyphs_for
from turnaround.reporting.survey_json import survey_payload
from turnaround.reporting.survey_text import Screen, survey_lines


@dataclass(frozen=True)
class Sample:
    """A finished run, and a folder to play in."""

    run: Path
    folder: Path

    def files(self, *patterns: str) -> list[str]:
        return sorted(str(p.relative_to(self.run)) for pattern in patterns for p in self.run.glob(pattern))


def recipe_case(sample: Sample) -> st.SearchStrategy[Any]:
    texts = [recipes.text(name).encode() for name in recipes.names()] + [recipes.keys_text().encode()]
    keys = [f"{s}.{name}" for s, kind in SECTIONS.items() for name in kind.__dataclass_fields__]
    override = st.builds(lambda key, value: f"{key}={value}", st.sampled_from(keys), values)
    overrides = st.lists(override | st.text(max_size=20), max_size=3)
    return st.tuples(st.sampled_from(texts), st.lists(byte_changes, max_size=4), overrides)


def read_recipe(sample: Sample, case: Any) -> None:
    data, changes, overrides = case
    path = sample.folder / "recipe.toml"
    path.write_bytes(applied(data, changes))
    recipe = recipes.find(str(path), overrides).resolved()
    assert recipes.find(str(path), overrides).resolved() == recipe
    assert Recipe.from_dict(recipe.to_dict()) == recipe


def run_case(sample: Sample) -> st.SearchStrategy[Any]:
    names = sample.files("*.json", "*.jsonl")
    return st.lists(st.tuples(st.sampled_from(names), file_changes), min_size=1, max_size=3)


def read_run(sample: Sample, case: Any) -> None:
    folder = sample.folder / "run"
    for name in sample.files("*.json", "*.jsonl"):
        changes = [change for file, change in case if file == name]
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(applied(content_of(sample.run / name), changes))
    run = Run.load(folder)
    said: list[TurnaroundError] = []
    for question in (
        *(lambda name=name: getattr(run, name) for name in ("status", "machine", "recipe", "evaluation", "epochs")),
        *(run.telemetry, run.telemetry_notes, run.turnaround_parts, lambda: run.is_rehearsal, lambda: run.best),
        *(lambda: Recipe.from_record(run.recipe), lambda: balance(run), lambda: bottleneck(run)),
        lambda: reported(run),
    ):
        try:
            question()
        except TurnaroundError as error:
            said.append(error)
    if said:
        raise said[0]


def reported(run: Run) -> None:
    """As `turnaround report` does it."""
    found = survey_runs([run])
    findings = find_all(found)
    json.dumps(survey_payload(found, findings))
    survey_lines(found, findings, Screen(width=80, glyphs=glyphs_for("utf-8")))


def log_case(_sample: Sample) -> st.SearchStrategy[Any]:
    return st.lists(file_changes, min_size=1, max_size=3)


def read_logs(sample: Sample, case: Any) -> None:
    """What processes have left for their launcher."""
    directory = RunDirectory(sample.folder / "logs-of")
    shutil.rmtree(directory.path, ignore_errors=True)
    directory.logs.mkdir(parents=True)
    failure.write_failure(directory, rank=0, error=RuntimeError("x"), step=3)
    (directory.logs / "pulse-1.json").write_text(
        '{"rank":1,"host":"h","pid":1,"step":2,"doing":"computes","beats":4,"ticks":2,"program_s":1.5}'
    )
    for path in list(directory.logs.iterdir()):
        path.write_bytes(applied(path.read_bytes(), case))
    heartbeat.HeartbeatMonitor(directory, patience_s=1.0).look()
    heartbeat.program_s(directory)
    error = failure.first_cause(directory, exit_status=1, log=directory.logs / "x.log")
    assert isinstance(error, TurnaroundError)


def checkpoint_case(sample: Sample) -> st.SearchStrategy[Any]:
    folder = saved(sample)
    names = sorted(str(path.relative_to(folder)) for path in folder.glob("*/*"))
    names += [name for name in names if name.endswith(".json")] * 4  # where JSON can lie
    return st.lists(st.tuples(st.sampled_from(names), file_changes), min_size=1, max_size=2)


def read_checkpoint(sample: Sample, case: Any) -> None:
    """The newest valid one, put into the network and the optimiser that it was saved from."""
    from turnaround.training import checkpoint

    whole, folder = saved(sample), sample.folder / "checkpoint"
    for path in whole.glob("*/*"):
        name = str(path.relative_to(whole))
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(applied(content_of(path), [change for file, change in case if file == name]))
    path, _ = checkpoint.newest_valid(folder)
    if path is not None:
        module, optimizer = network()
        manifest = checkpoint.restore(path, module=module, optimizer=optimizer)
        assert manifest.position.name == path.name
        assert sum(manifest.clock_s.values()) >= 0.0
        assert all(len(row) == 3 for row in (*manifest.totals, *manifest.noise))


@cache
def saved(sample: Sample) -> Path:
    """Two checkpoints of a network of a few weights."""
    from turnaround.training.checkpoint import Manifest, save
    from turnaround.training.position import TrainingPosition

    module, optimizer = network()
    folder = sample.folder / "saved"
    for epoch, step in ((1, 0), (1, 3)):
        clock_s: Any = {"training": 2.5, "program": 9.0}
        sums = [[1.5, 3.0, 8.0]] if step else []
        position = TrainingPosition(epochs_done=epoch, step_in_epoch=step, global_step=5 + step)
        manifest = Manifest(position=position, clock_s=clock_s, totals=sums, noise=[[4.0, 0.1, 0.2]])
        save(folder, module=module, optimizer=optimizer, manifest=manifest)
    return folder


def network() -> Any:
    import torch
    from torch import nn

    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    module(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    return module, optimizer


@cache
def pictures() -> list[bytes]:
    """A valid file of every format that is read, in several modes."""
    made = []
    gradient = Image.linear_gradient("L").resize((48, 32))
    for kind, modes in {
        "JPEG": ("L", "RGB", "CMYK"),
        "PNG": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"),
        "WEBP": ("RGB", "RGBA"),
        "BMP": ("1", "L", "P", "RGB"),
        "GIF": ("L", "P"),
        "TIFF": ("1", "L", "P", "RGB", "RGBA", "CMYK", "I;16", "I", "F"),
    }.items():
        for mode in modes:
            file = io.BytesIO()
            through = gradient.convert("I") if mode == "I;16" else gradient.convert("RGB")
            picture = gradient.convert(mode) if mode in ("I", "F", "1", "L", "LA") else through.convert(mode)
            picture.save(file, format=kind, exif=_turned() if kind in ("JPEG", "WEBP", "PNG") else b"")
            made.append(file.getvalue())
    frames = [Image.new("RGB", (20, 10), colour) for colour in ("red", "blue")]
    for kind in ("GIF", "WEBP", "PNG", "TIFF"):
        file = io.BytesIO()
        frames[0].save(file, format=kind, save_all=True, append_images=frames[1:])
        made.append(file.getvalue())
    return made


def _turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif.tobytes()


def image_case(_sample: Sample) -> st.SearchStrategy[Any]:
    changes = st.lists(header_changes | byte_changes, min_size=1, max_size=3)
    return st.tuples(st.sampled_from(pictures()), changes)


def read_image(sample: Sample, case: Any) -> None:
    data, changes = case
    pixels = decode_bytes(applied(data, changes), size_px=16, path=sample.folder / "x.jpg")
    assert pixels.shape == (16, 16, 3)


@cache
def content_of(path: Path) -> bytes:
    return path.read_bytes()


KINDS: dict[str, tuple[Callable[[Sample], st.SearchStrategy[Any]], Callable[[Sample, Any], None]]] = {
    "recipe": (recipe_case, read_recipe),
    "run": (run_case, read_run),
    "logs": (log_case, read_logs),
    "checkpoint": (checkpoint_case, read_checkpoint),
    "image": (image_case, read_image),
}
