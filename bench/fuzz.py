"""Whatever is in the files, only our own errors come out: recipes, run directories, checkpoints and images, mutated.

    python bench/fuzz.py [--cases 10000] [--seed 0] [--json]

Each kind of file gets so many cases (hypothesis): valid files changed byte by byte, cut, doubled, with wrong numbers in
their headers; JSON whose values were replaced, removed and renamed. What reads them may return, or raise an error of
errors.py. Any other exception, a case over 20 s, or more than 1 GiB of memory is a failure, and hypothesis shows the
smallest case. tests/fuzz runs a few hundred cases of each kind.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from PIL import Image

from turnaround import recipes
from turnaround.analysis.balance import balance
from turnaround.analysis.bottleneck import bottleneck
from turnaround.analysis.findings import find_all
from turnaround.analysis.jobs import jobs_of
from turnaround.data.decode import decode_bytes
from turnaround.errors import TurnaroundError
from turnaround.launch import failure
from turnaround.recipe import SECTIONS, Recipe
from turnaround.record import pulse
from turnaround.record.layout import RunDirectory
from turnaround.record.reader import Run
from turnaround.report.charts import glyphs_for
from turnaround.report.survey_json import survey_payload
from turnaround.report.survey_text import Screen, survey_lines

LONGEST_CASE_S = 20.0
MOST_BYTES = 2**30


# --- mutations

Change = Callable[[bytes], bytes]
places = st.floats(0, 1, allow_nan=False)
"""Where in a file, as a share of its length."""
numbers = st.sampled_from([0, 1, 127, 128, 255, 256, 32767, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1])


def _put(place: int, new: bytes, *, instead: int) -> Change:
    return lambda data: data[: place % (len(data) + 1)] + new + data[place % (len(data) + 1) + instead :]


def _at(share: float, new: bytes, *, instead: int) -> Change:
    return lambda data: _put(int(share * len(data)), new, instead=instead)(data)


def _number(place: int, value: int, width: int, order: str) -> Change:
    number = (value % 256**width).to_bytes(width, "big" if order == "big" else "little")
    return _put(place, number, instead=width)


byte_changes: st.SearchStrategy[Change] = st.one_of(
    st.builds(lambda p, v: _at(p, bytes([v]), instead=1), places, st.integers(0, 255)),
    st.builds(lambda p: lambda data: data[: int(p * len(data))], places),
    st.builds(lambda p, new: _at(p, new, instead=0), places, st.binary(max_size=20)),
    st.builds(lambda p, n: _at(p, b"", instead=n), places, st.integers(1, 200)),
    st.builds(lambda p, times: lambda data: data[: int(p * len(data))] * times, places, st.integers(2, 5)),
)
header_changes: st.SearchStrategy[Change] = st.one_of(
    st.builds(lambda p, v: _put(p, bytes([v]), instead=1), st.integers(0, 90), st.integers(0, 255)),
    st.builds(_number, st.integers(0, 90), numbers, st.sampled_from([2, 4]), st.sampled_from(["big", "little"])),
)

scalars = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    st.sampled_from([10**400, -1, 0, 1e308, -1e308, 2**63, "x" * 5000, "\x1b[31m</script>", "2026-13-45T99:99", ""]),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@dataclass(frozen=True)
class JsonChange:
    """Of one place in a JSON value, counted through."""

    place: int
    what: str
    value: Any

    def __call__(self, content: Any) -> Any:
        spots = list(_spots(content))
        if not spots:
            return self.value
        inside, key = spots[self.place % len(spots)]
        if self.what == "replace":
            inside[key] = self.value
        elif self.what == "remove":
            del inside[key]
        elif isinstance(inside, dict):
            inside[str(self.value)[:20]] = inside.pop(key)
        else:
            inside.append(inside[key])
        return content


def _spots(content: Any) -> Any:
    """Every (container, key) in a JSON value."""
    pairs = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in list(pairs):
        yield content, key
        yield from _spots(value)


json_changes = st.builds(
    JsonChange, st.integers(0, 500), st.sampled_from(["replace", "replace", "remove", "rename"]), values
)


def in_json(change: JsonChange) -> Change:
    """The change in a file of JSON, or in one line of a file of lines."""

    def changed(data: bytes) -> bytes:
        try:
            return json.dumps(change(json.loads(data))).encode()
        except ValueError:
            lines = data.split(b"\n")
            number = change.place % len(lines)
            with contextlib.suppress(ValueError):
                lines[number] = json.dumps(change(json.loads(lines[number]))).encode()
            return b"\n".join(lines)

    return changed


file_changes = st.one_of(byte_changes, json_changes.map(in_json), json_changes.map(in_json))


# --- what is mutated, and what reads it


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
    found = jobs_of([run])
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
    failure.tell(directory, rank=0, error=RuntimeError("x"), step=3)
    (directory.logs / "pulse-1.json").write_text(
        '{"rank":1,"host":"h","pid":1,"step":2,"doing":"computes","beats":4,"ticks":2,"program_s":1.5}'
    )
    for path in list(directory.logs.iterdir()):
        path.write_bytes(applied(path.read_bytes(), case))
    pulse.Watch(directory, patience_s=1.0).look()
    pulse.program_s(directory)
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
        position = checkpoint.restore(path, module=module, optimizer=optimizer)
        assert position.name == path.name
        assert sum(position.clock_s.values()) >= 0.0
        assert all(len(row) == 3 for row in (*position.totals, *position.noise))


@cache
def saved(sample: Sample) -> Path:
    """Two checkpoints of a network of a few weights."""
    from turnaround.training.checkpoint import Position, save

    module, optimizer = network()
    folder = sample.folder / "saved"
    for epoch, step in ((1, 0), (1, 3)):
        clock_s: Any = {"training": 2.5, "program": 9.0}
        sums = [[1.5, 3.0, 8.0]] if step else []
        position = Position(
            epoch=epoch, update=5 + step, clock_s=clock_s, scaler={}, step=step, totals=sums, noise=[[4.0, 0.1, 0.2]]
        )
        save(folder, module=module, optimizer=optimizer, position=position)
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


def applied(data: bytes, changes: list[Change]) -> bytes:
    for change in changes:
        data = change(data)
    return data


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


# --- the hunt


@dataclass(kw_only=True)
class Tally:
    """Of one kind."""

    cases: int = 0
    ours: int = 0
    """Cases that ended in an error of errors.py."""
    slowest_s: float = 0.0
    memory_mib: float = 0.0
    """How much the process grew at most, over all cases."""


def hunt(kind: str, sample: Sample, *, cases: int, number: int = 0) -> Tally:
    """Raises what came out and should not have, with the smallest case."""
    strategy, read = KINDS[kind]
    cases_of_it, tally = strategy(sample), Tally()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    @seed(number)
    @settings(max_examples=cases, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(cases_of_it)
    def one(case: Any) -> None:
        begun_s = time.process_time()  # the machine may have other work
        try:
            read(sample, case)
        except TurnaroundError:
            tally.ours += 1
        taken_s = time.process_time() - begun_s
        tally.cases, tally.slowest_s = tally.cases + 1, max(tally.slowest_s, taken_s)
        assert taken_s < LONGEST_CASE_S, f"took {taken_s:.0f} s"

    one()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * (1 if sys.platform == "darwin" else 1024)
    tally.memory_mib = grown / 2**20
    assert grown < MOST_BYTES, f"{kind}: {grown / 2**20:.0f} MiB of memory"
    return tally


def trained(folder: Path) -> Path:
    """A small real run."""
    from turnaround.data import fruitbowl
    from turnaround.launch.conduct import Request, start

    images = fruitbowl.generate(folder / "images", images=60, size_px=32, seed=3)
    wanted = ["data.size_px=32", "training.epochs=3", "training.checkpoint_every_s=0", f"data.cache={folder / 'cache'}"]
    asked = Request(out=folder / "trained", show=lambda *_: None, device="cpu", shows_progress=False)
    return start(recipes.find(str(images), wanted), asked).path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000, help="of each kind")
    parser.add_argument("--kind", choices=KINDS, action="append", help="only this one; may be repeated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    tallies: dict[str, Tally] = {}
    with tempfile.TemporaryDirectory() as name:
        sample = Sample(trained(Path(name)), Path(name))
        for kind in options.kind or KINDS:
            tallies[kind] = tally = hunt(kind, sample, cases=options.cases, number=options.seed)
            if not options.json:
                print(
                    f"{kind:<11} {tally.cases:>7,} cases, {tally.ours:>7,} ended in an error of ours, slowest "
                    f"{1000 * tally.slowest_s:,.0f} ms, {tally.memory_mib:,.0f} MiB more memory",
                    flush=True,
                )
    if options.json:
        print(json.dumps({kind: vars(tally) for kind, tally in tallies.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
