"""turnaround and what people use today: the same files, the same network, the same machine, one after the other.

    python bench/jpeg_set.py SET
    python bench/side_by_side.py SET [--model resnet50] [--frozen] [--fine-tuned] [--size 224] [--batch 256]
        [--device cuda] [--loaders 16] [--seconds 20] [--limit 240] [--json]

The contenders are those of plain_loops.py and `turnaround train` as a user would run it. Each runs in a process of its
own with a time limit, on the training images of turnaround's split, with the lab's variations (rotation 5 degrees, zoom
and shift 0.2, flip). Prints for each the images/s of the input alone and of training, how many times faster turnaround
is, and when the first epoch ends, counted from the start of the program with nothing decoded beforehand.

What the columns mean for turnaround: training is its steady epochs, all but the first; the input alone is what one of
their steps waits for its batch and spends on copying and varying it (wait_s + copy_s of the record), since a run has no
input without training. Evaluation is in none of the columns.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path

from plain_loops import CONTENDERS, ROTATION_DEGREES, SHIFT, ZOOM, Result, Task

from turnaround.analysis.summary import steady_epochs
from turnaround.data.folder import ImageTable, scan
from turnaround.errors import InterruptedRunError, TurnaroundError
from turnaround.record.reader import Run

HERE = Path(__file__).resolve().parent
NAMES = {
    "torchvision": "torchvision ImageFolder + v2 + DataLoader",
    "timm": "timm's loader and prefetcher",
    "keras": "Keras-style generator, one thread",
    "turnaround": "turnaround",
}
HOLDOUT, SEED = 0.2, 0
MIN_STEADY_EPOCHS = 2
ENOUGH_EPOCHS = 1000
"""The run is stopped when it has been measured for long enough."""
STOP_LIMIT_S = 10.0
STOPPED_BY_US = (-signal.SIGKILL, -signal.SIGTERM, InterruptedRunError.exit_code)
LOG_LINES = 20


@dataclass(frozen=True, kw_only=True)
class Row:
    """One contender in one mode. Without figures where it failed: then `error` says why."""

    contender: str
    mode: str
    input_images_per_s: float | None = None
    training_images_per_s: float | None = None
    first_epoch_end_s: float | None = None
    parts_s: dict[str, float] | None = None
    """Of turnaround: decode, start_up, training_cold."""
    error: str | None = None


def link_training_images(table: ImageTable, folder: Path) -> None:
    """The training part of turnaround's split as class folders of links, for those that know no split."""
    for name in table.classes:
        (folder / name).mkdir(parents=True)
    for number in range(table.num_train):
        file = table.root / table.files[number]
        name = table.classes[table.labels[number]]
        (folder / name / f"{number:07d}{file.suffix}").symlink_to(file.absolute())


def read_all(table: ImageTable) -> None:
    """Every file once, so that none of the contenders pays for a cold disk."""
    with ThreadPoolExecutor(8) as pool:
        for _ in pool.map(lambda name: len((table.root / name).read_bytes()), table.files, chunksize=64):
            pass


def write_weights(path: Path, *, model: str, num_classes: int) -> None:
    """Random ones, the same for all: a recipe with a frozen network asks for a file."""
    from safetensors.torch import save_file

    from turnaround.model.network import build
    from turnaround.recipe import ModelRecipe

    module = build(ModelRecipe(name=model), num_classes=num_classes, seed=SEED).module
    save_file({name: tensor.contiguous() for name, tensor in module.state_dict().items()}, path)


@contextmanager
def started(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own, of which nothing is left afterwards."""
    path = os.pathsep.join([str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")])
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": path.rstrip(os.pathsep)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def failure(process: subprocess.Popen[bytes], log: Path, *, limit_s: float) -> str:
    """Why there is no result, in a line; the end of its log goes to stderr, since the log is removed."""
    lines = log.read_text(errors="replace").strip().splitlines() or [""]
    print(*lines[-LOG_LINES:], sep="\n", file=sys.stderr, flush=True)
    if process.returncode in STOPPED_BY_US:
        return f"no result within {limit_s:.0f} s"
    return f"exit status {process.returncode}: {lines[-1][:200]}"


def run_plain(name: str, task: Task, work: Path, *, limit_s: float) -> list[Row]:
    """One of plain_loops.py in all modes."""
    task_file, result_file, log = (work / f"{name}{suffix}" for suffix in (".json", "-result.json", ".log"))
    task_file.write_text(json.dumps(asdict(replace(task, begun_at_s=time.time()))))
    command = [sys.executable, str(HERE / "plain_loops.py"), name, str(task_file), str(result_file)]
    with started(command, log) as process, suppress(subprocess.TimeoutExpired):
        process.wait(timeout=limit_s)
    if not result_file.exists():
        return [Row(contender=name, mode=mode, error=failure(process, log, limit_s=limit_s)) for mode in task.modes]
    result = Result(**json.loads(result_file.read_text()))
    return [
        Row(
            contender=name,
            mode=mode,
            input_images_per_s=result.input_images_per_s,
            training_images_per_s=result.training_images_per_s[mode],
            first_epoch_end_s=result.first_epoch_end_s[mode],
        )
        for mode in task.modes
    ]


def turnaround_command(source: Path, task: Task, *, mode: str, out: Path, cache: Path) -> list[str]:
    settings = {
        "data.size_px": task.size_px,
        "data.holdout": HOLDOUT,
        "data.cache": cache,
        "model.name": task.model,
        "model.weights": task.weights,
        "model.fine_tune": "true" if mode == "fine-tuned" else "false",
        "training.epochs": ENOUGH_EPOCHS,
        "training.batch_per_worker": task.batch,
        "training.seed": SEED,
        "augment.rotation_degrees": ROTATION_DEGREES,
        "augment.zoom": ZOOM,
        "augment.shift": SHIFT,
        "augment.flip": "true",
    }
    command = [sys.executable, "-m", "turnaround", "train", str(source), "--json", "--out", str(out)]
    command += ["--device", task.device, "--workers", "1", "--processes", "1"]
    return command + [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def run_turnaround(source: Path, task: Task, work: Path, *, mode: str, limit_s: float) -> Row:
    """Until its steady epochs add up to the seconds that are asked for; then it is stopped as by a Ctrl-C."""
    out, log = work / f"turnaround-{mode}", work / f"turnaround-{mode}.log"
    cache = work / f"cache-{mode}"  # one for each mode: both start cold
    with started(turnaround_command(source, task, mode=mode, out=out, cache=cache), log) as process:
        deadline_s = time.perf_counter() + limit_s
        while process.poll() is None and time.perf_counter() < deadline_s and not is_measured(out, task.seconds):
            time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):  # it ends the epoch first, and saves
            process.wait(timeout=max(STOP_LIMIT_S, deadline_s - time.perf_counter()))
    if not is_measured(out, 0.0):
        return Row(contender="turnaround", mode=mode, error=failure(process, log, limit_s=limit_s))
    return turnaround_row(Run.load(out), mode=mode)


def is_measured(out: Path, seconds: float) -> bool:
    """Whether there are enough steady epochs, and a step among them that was taken apart."""
    with suppress(TurnaroundError):  # it may have only begun
        run = Run.load(out)
        steady = steady_epochs(run.epochs)
        spans = run.spans() if run.ranks else []
        long_enough = len(steady) >= MIN_STEADY_EPOCHS and sum(e.epoch_time_s for e in steady) >= seconds
        return long_enough and any(span.epoch > 1 for span in spans)
    return False


def turnaround_row(run: Run, *, mode: str) -> Row:
    steady = steady_epochs(run.epochs)
    images = sum(epoch.images or 0 for epoch in steady)
    images_per_step = images / sum(epoch.steps or 0 for epoch in steady)
    input_s = statistics.median(span.wait_s + span.copy_s for span in run.spans() if span.epoch > 1)
    parts_s = run.turnaround_parts()
    before_s = {part: parts_s.get(part, 0.0) for part in ("decode", "start_up", "training_cold")}
    return Row(
        contender="turnaround",
        mode=mode,
        input_images_per_s=images_per_step / input_s,
        training_images_per_s=images / sum(epoch.epoch_time_s for epoch in steady),
        first_epoch_end_s=sum(before_s.values()),
        parts_s=before_s,
    )


def times_faster(rows: list[Row], row: Row, column: str) -> float | None:
    """turnaround's figure of the same mode, divided by this one's."""
    (ours,) = (r for r in rows if r.contender == "turnaround" and r.mode == row.mode)
    mine, theirs = getattr(ours, column), getattr(row, column)
    return mine / theirs if mine and theirs else None


def table_text(rows: list[Row], *, num_images: int) -> str:
    lines = []
    for mode in dict.fromkeys(row.mode for row in rows):
        head = f"{'input alone':>12}{'ratio':>8}{'training':>12}{'ratio':>8}{'end of first epoch':>20}"
        lines += ["", f"{mode + ', images/s':<44}{head}"]
        for row in (row for row in rows if row.mode == mode):
            if row.error:
                lines.append(f"{NAMES[row.contender]:<44}{row.error}")
                continue
            ratios = [times_faster(rows, row, column) for column in ("input_images_per_s", "training_images_per_s")]
            texts = [f"{ratio:.1f}" if ratio else "-" for ratio in ratios]
            lines.append(
                f"{NAMES[row.contender]:<44}{row.input_images_per_s:>12,.0f}{texts[0]:>8}"
                f"{row.training_images_per_s:>12,.0f}{texts[1]:>8}{row.first_epoch_end_s:>18,.1f} s"
            )
            if row.parts_s:
                lines.append(
                    f"    of which waiting for {num_images:,} images to be decoded {row.parts_s['decode']:.1f} s, "
                    f"start-up {row.parts_s['start_up']:.1f} s, first epoch {row.parts_s['training_cold']:.1f} s"
                )
    return "\n".join([*lines, "", "ratio: turnaround / this one"])


def compare(options: argparse.Namespace, work: Path) -> tuple[Task, ImageTable, list[Row]]:
    table = scan(options.source, holdout=HOLDOUT, seed=SEED)
    task = Task(
        folder=str(work / "train"),
        num_train=table.num_train,
        num_classes=len(table.classes),
        model=options.model,
        weights=str(work / "weights.safetensors"),
        modes=options.modes or ["frozen"],
        size_px=options.size,
        batch=min(options.batch, table.num_train),
        device=options.device,
        loaders=options.loaders,
        seconds=options.seconds,
        begun_at_s=0.0,
    )
    link_training_images(table, Path(task.folder))
    write_weights(Path(task.weights), model=task.model, num_classes=task.num_classes)
    read_all(table)
    rows: list[Row] = []
    ours = [run_turnaround(options.source, task, work, mode=mode, limit_s=options.limit) for mode in task.modes]
    told(ours)  # first: every ratio needs it
    for name in CONTENDERS:
        rows += told(run_plain(name, task, work, limit_s=options.limit))
    return task, table, [*rows, *ours]


def told(rows: list[Row]) -> list[Row]:
    """Each row on stderr as soon as it is known: a comparison that is cut short has said something."""
    for row in rows:
        print(json.dumps({key: value for key, value in asdict(row).items() if value is not None}), file=sys.stderr)
    return rows


def machine_facts(device: str) -> dict[str, object]:
    import torch

    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    versions = {package: version(package) for package in ("torch", "torchvision", "timm")}
    precision = "bf16" if device == "cuda" else "fp32"
    return {"device": name, "precision": precision, "cores": len(os.sched_getaffinity(0)), **versions}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a folder of images, as `turnaround train` takes it")
    parser.add_argument("--model", default="small", help="small, or a name that timm knows")
    for mode in ("frozen", "fine-tuned"):
        parser.add_argument(f"--{mode}", dest="modes", action="append_const", const=mode, help="may be given both")
    parser.add_argument("--size", type=int, default=64, help="side of the square images in pixels")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--loaders", type=int, default=len(os.sched_getaffinity(0)), help="processes that read images")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement, after a warm-up")
    parser.add_argument("--work", type=Path, help="where decoded images lie until the end; default: /tmp")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds after which a contender is ended")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> None:
    options = parse()
    with tempfile.TemporaryDirectory(prefix="side-by-side-", dir=options.work) as work:
        task, table, rows = compare(options, Path(work))
    machine = machine_facts(task.device)
    if options.json:
        settings = {k: v for k, v in asdict(task).items() if k not in ("folder", "weights", "begun_at_s")}
        print(json.dumps({"machine": machine, "settings": settings, "rows": [asdict(row) for row in rows]}))
        return
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    print(
        f"{task.model}, {task.size_px} px, batch {task.batch}, {task.loaders} loader processes, "
        f"{task.num_train:,} training images in {task.num_classes} classes, {task.seconds:g} s each"
    )
    print(table_text(rows, num_images=len(table.files)))


if __name__ == "__main__":
    main()
