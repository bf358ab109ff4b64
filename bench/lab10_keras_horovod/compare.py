"""The lab's stack and turnaround: the same images, sizes and numbers of processes, one after the other.

    bash bench/lab10_keras_horovod/run.sh [FOLDER] [--job small:frozen] [--job mobilenet_v2:fine-tuned]
        [--processes 1,2] [--images 600] [--size 96] [--batch 32] [--epochs 4] [--seconds 5] [--out DIR] [--json]

run.sh makes the lab's environment first (environment.sh) and hands over its python. FOLDER holds class folders, with or
without train/ and validation/; without it fruit is drawn. A job is a network and what of it learns. Frozen ones are
trained with Adadelta at 1.0, others with Adam at 0.001, both times the number of processes; variations are the lab's.

What each figure is, for both programs:

    input alone   images/s of the varied batches without a network; the lab's generator, turnaround's gather and map
    model alone   images/s of training on a batch that is there already, gradients exchanged
    training      images/s of the steady epochs: all but the first; evaluation is not in it
    s/epoch       the same as a time
    start-up      from the command to the end of the first step: imports, decoding, compilation
    accuracy      on the validation images after the last epoch

The lab's runs are recorded by TurnaroundCallback; what `turnaround report` says about what holds them back is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parents[1] / "src"
LAB10 = HERE / "lab10.py"
OUR_NAMES = {"small": "small", "mobilenet_v2": "mobilenetv2_100", "vgg16": "vgg16", "resnet50": "resnet50"}
OPTIMIZERS = {"frozen": ("adadelta", 1.0), "fine-tuned": ("adam", 0.001)}
"""By what learns: that of the lab's second job, and one that can learn from random weights."""
VARIATIONS = {"rotation_degrees": 5, "zoom": 0.2, "shift": 0.2, "flip": "true"}
"""The lab's; lab10.py has them as its defaults."""
HOLDOUT, SEED, DRAWN_PX = 0.2, 0, 128
LIMIT_S, GRACE_S = 900.0, 10.0
LOG_LINES = 20
COLUMNS = ("input alone", "model alone", "training", "s/epoch", "start-up", "accuracy")


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A network, and what of it learns."""

    backbone: str
    learns: str

    @property
    def name(self) -> str:
        return f"{self.backbone}, {self.learns}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One program on one job with so many processes."""

    program: str
    job: str
    processes: int
    input_images_per_s: float | None = None
    """None where training takes no images in."""
    model_images_per_s: float | None = None
    images_per_s: float | None = None
    epoch_time_s: float | None = None
    start_up_s: float | None = None
    accuracy: float | None = None
    held_back_by: str = ""
    """By turnaround's own analysis of the run."""

    @property
    def figures(self) -> tuple[float | None, ...]:
        rates = (self.input_images_per_s, self.model_images_per_s, self.images_per_s)
        return (*rates, self.epoch_time_s, self.start_up_s, self.accuracy)


@dataclass(frozen=True, kw_only=True)
class Task:
    """What both programs are to do."""

    job: Workload
    processes: int
    folder: Path
    size_px: int
    batch: int
    epochs: int
    seconds: float

    @property
    def slug(self) -> str:
        return f"{self.job.backbone}-{self.job.learns}-{self.processes}"


def parse_job(text: str) -> Workload:
    """`small:frozen`."""
    backbone, _, learns = text.partition(":")
    if backbone not in OUR_NAMES or learns not in OPTIMIZERS:
        known = f"{', '.join(OUR_NAMES)}, each with :{' or :'.join(OPTIMIZERS)}"
        raise argparse.ArgumentTypeError(f"{text!r} is no job; known: {known}")
    return Workload(backbone=backbone, learns=learns)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("folder", type=Path, nargs="?", help="class folders; without it, fruit is drawn")
    made.add_argument("--python", type=Path, required=True, help="of the lab's environment; run.sh gives it")
    made.add_argument("--job", type=parse_job, action="append", dest="jobs", metavar="NETWORK:LEARNS")
    made.add_argument("--processes", type=lambda text: [int(n) for n in text.split(",")], default=[1, 2])
    made.add_argument("--images", type=int, default=600, help="how many are drawn, without FOLDER")
    made.add_argument("--size", type=int, default=96, help="side of the square images in pixels")
    made.add_argument("--batch", type=int, default=32, help="images of each process in a step")
    made.add_argument("--epochs", type=int, default=4)
    made.add_argument("--seconds", type=float, default=5.0, help="of each part that is measured alone")
    made.add_argument("--out", type=Path, help="keeps the runs, for turnaround report; must not exist yet")
    made.add_argument("--json", action="store_true")
    return made


# --- images


def split_folder(source: Path, folder: Path) -> Path:
    """train/ and validation/ as turnaround splits the images, so that both programs see the same."""
    from turnaround.data.folder import scan

    table = scan(source, holdout=HOLDOUT, seed=SEED)
    for number, (file, label) in enumerate(zip(table.files, table.labels, strict=True)):
        part = "train" if number < table.num_train else "validation"
        place = folder / part / table.classes[label] / f"{number:06d}{Path(file).suffix}"
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(table.root / file, place)
        except OSError:  # another file system
            shutil.copyfile(table.root / file, place)
    return folder


def images(options: argparse.Namespace, work: Path) -> Path:
    from turnaround import fruitbowl

    source = options.folder
    if source is None:
        source = fruitbowl.generate(work / "drawn", images=options.images, size_px=DRAWN_PX, seed=SEED)
    return split_folder(source, work / "images")


# --- running


@contextmanager
def _started(command: Sequence[str], log: Path, settings: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own, of which nothing is left afterwards; its results go beside its log."""
    paths = [str(SOURCES), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **settings}
    with log.open("ab") as errors, log.with_suffix(".out").open("wb") as results:
        process = subprocess.Popen(
            list(command),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=results,
            stderr=errors,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:  # it ends its own processes
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=GRACE_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run(command: Sequence[str], log: Path, settings: dict[str, str]) -> float:
    """To its end; returns when it was started, by the wall clock. Ends the comparison when the program fails."""
    started_at_s = time.time()
    with _started(command, log, settings) as process:
        try:
            status: int | str = process.wait(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            status = f"no end within {LIMIT_S:.0f} s"
    if status != 0:
        said = "".join(file.read_text(errors="replace") for file in (log.with_suffix(".out"), log))
        lines = said.splitlines()[-LOG_LINES:]
        raise SystemExit("\n".join([*lines, f"failed ({status}): {' '.join(map(str, command))}"]))
    return started_at_s


def lab_command(python: Path, task: Task, *arguments: str) -> list[str]:
    optimizer, rate = OPTIMIZERS[task.job.learns]
    settings = ["--backbone", task.job.backbone, "--size", str(task.size_px), "--batch", str(task.batch)]
    settings += ["--optimizer", optimizer, "--learning-rate", str(rate), "--seed", str(SEED)]
    settings += ["--fine-tune"] if task.job.learns == "fine-tuned" else []
    spread = [str(python.parent / "horovodrun"), "-np", str(task.processes), "--gloo"]
    return [*spread, str(python), str(LAB10), str(task.folder), *settings, *arguments]


def our_command(verb: str, task: Task, cache: Path, weights: Path, *arguments: str) -> list[str]:
    optimizer, rate = OPTIMIZERS[task.job.learns]
    settings = {
        "data.size_px": task.size_px,
        "data.cache": cache,
        "model.name": OUR_NAMES[task.job.backbone],
        "model.weights": weights if task.job.learns == "frozen" else "none",
        "model.fine_tune": "true" if task.job.learns == "fine-tuned" else "false",
        "training.epochs": task.epochs,
        "training.batch_per_worker": task.batch,
        "training.optimizer": optimizer,
        "training.learning_rate": rate,
        "training.scaling": "linear",
        "training.schedule": "constant",
        "training.warmup_epochs": 0,
        "training.weight_decay": 0,
        "training.seed": SEED,
        **{f"augment.{name}": value for name, value in VARIATIONS.items()},
    }
    where = ["--workers", str(task.processes), "--processes", str(task.processes), "--device", "cpu"]
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return [sys.executable, "-m", "turnaround", verb, str(task.folder), *where, *words, *arguments]


def lab_row(python: Path, task: Task, out: Path) -> Row:
    log, alone = out / f"lab10-{task.slug}.log", out / f"lab10-{task.slug}.json"
    settings = {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}", "TF_CPP_MIN_LOG_LEVEL": "2"}
    run(lab_command(python, task, "--alone", str(alone), "--seconds", str(task.seconds)), log, settings)
    directory = out / "lab10" / task.slug
    words = lab_command(python, task, "--epochs", str(task.epochs), "--out", str(directory))
    begun_s = run(words, log, settings)
    rates = json.loads(alone.read_text())
    return row_of("lab10", task, directory, begun_s, rates)


def our_row(task: Task, out: Path, work: Path) -> Row:
    log, weights = out / f"turnaround-{task.slug}.log", work / f"{task.job.backbone}.safetensors"
    if task.job.learns == "frozen" and not weights.exists():
        write_weights(weights, task)
    measured = our_command("bench", task, work / "cache-bench", weights, "--seconds", str(task.seconds), "--json")
    run(measured, log, {})
    rates = json.loads(log.with_suffix(".out").read_text())["rates"]
    directory = out / "turnaround" / task.slug
    cache = work / f"cache-{task.slug}"  # its own: every training decodes, as a first one does
    begun_s = run(our_command("train", task, cache, weights, "--json", "--out", str(directory)), log, {})
    return row_of("turnaround", task, directory, begun_s, rates)


def write_weights(path: Path, task: Task) -> None:
    """Random ones: a recipe with a frozen network asks for a file."""
    from safetensors.torch import save_file

    from turnaround.model.network import build
    from turnaround.recipe import ModelRecipe

    num_classes = sum(entry.is_dir() for entry in (task.folder / "train").iterdir())
    module = build(ModelRecipe(name=OUR_NAMES[task.job.backbone]), num_classes=num_classes, seed=SEED).module
    save_file({name: tensor.contiguous() for name, tensor in module.state_dict().items()}, path)


def row_of(program: str, task: Task, directory: Path, begun_s: float, rates: dict[str, Any]) -> Row:
    from turnaround.analysis.bottleneck import bottleneck
    from turnaround.analysis.summary import summarise
    from turnaround.record.reader import Run

    recorded = Run.load(directory)
    summary, verdict = summarise(recorded), bottleneck(recorded)
    first_step_at = recorded.status.first_step_at
    start_up_s = datetime.fromisoformat(first_step_at).timestamp() - begun_s if first_step_at else None
    share = f" {100 * verdict.share:.0f} %" if verdict.share is not None else ""
    return Row(
        program=program,
        job=task.job.name,
        processes=task.processes,
        input_images_per_s=_rate(rates, "input"),
        model_images_per_s=_rate(rates, "model"),
        images_per_s=summary.images_per_s,
        epoch_time_s=summary.epoch_time_s,
        start_up_s=start_up_s,
        accuracy=summary.final_val_accuracy,
        held_back_by=f"{verdict.kind}{share}",
    )


def _rate(rates: dict[str, Any], name: str) -> float | None:
    """turnaround bench tells the spread beside it."""
    value = rates.get(name)
    value = value.get("images_per_s") if isinstance(value, dict) else value
    return float(value) if isinstance(value, int | float) else None


# --- the table


def ratio(row: Row, rows: Sequence[Row]) -> list[float | None]:
    """How many times better turnaround is than this row's program: rates up, times down."""
    ours = next(r for r in rows if (r.program, r.job, r.processes) == ("turnaround", row.job, row.processes))
    pairs = list(zip(ours.figures[:5], row.figures[:5], strict=True))
    return [a / b if a and b else None for a, b in pairs[:3]] + [b / a if a and b else None for a, b in pairs[3:]]


def cells(row: Row) -> list[str]:
    *rates, epoch_s, start_s, accuracy = row.figures
    times = [f"{value:.2f} s" if value is not None else "-" for value in (epoch_s, start_s)]
    shown = [f"{value:,.0f}" if value is not None else "-" for value in rates]
    return [*shown, *times, "-" if accuracy is None else f"{100 * accuracy:.1f} %"]


def table_text(rows: Sequence[Row]) -> str:
    """Markdown: for each job and number of processes both programs, and the ratios."""
    lines = []
    for job in dict.fromkeys(row.job for row in rows):
        lines += ["", f"| {job} | {' | '.join(COLUMNS)} | held back by |", f"| --- |{' --- |' * (len(COLUMNS) + 1)}"]
        for processes in dict.fromkeys(row.processes for row in rows if row.job == job):
            both = [row for row in rows if (row.job, row.processes) == (job, processes)]
            for row in both:
                lines.append(f"| {row.program}, {processes} | {' | '.join(cells(row))} | {row.held_back_by or '-'} |")
            lab = next((row for row in both if row.program == "lab10"), None)
            if lab is not None and len(both) > 1:
                factors = ["-" if value is None else f"{value:.2f}" for value in ratio(lab, both)]
                lines.append(f"| turnaround is better by | {' | '.join(factors)} |  |  |")
    return "\n".join(lines[1:])


def heading(options: argparse.Namespace, folder: Path) -> str:
    count = {part: sum(1 for _ in (folder / part).rglob("*.*")) for part in ("train", "validation")}
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {len(os.sched_getaffinity(0))} cores, no GPU, load {os.getloadavg()[0]:.1f}; "
        f"{count['train']:,} training and {count['validation']:,} validation images, {options.size} px, batch "
        f"{options.batch} per process, {options.epochs} epochs"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))  # what was started ends too
    jobs = options.jobs or [parse_job("small:frozen"), parse_job("mobilenet_v2:fine-tuned")]
    with tempfile.TemporaryDirectory(prefix="lab10-") as temporary:
        work = Path(temporary)
        out = options.out or work / "out"
        out.mkdir(parents=True)
        folder = images(options, work)
        rows: list[Row] = []
        for job in jobs:
            for processes in options.processes:
                sizes = {"size_px": options.size, "batch": options.batch, "epochs": options.epochs}
                task = Task(job=job, processes=processes, folder=folder, seconds=options.seconds, **sizes)
                print(f"{job.name}, {processes} processes", file=sys.stderr, flush=True)
                rows += [lab_row(options.python, task, out), our_row(task, out, work)]
        if options.json:
            print(json.dumps({"about": heading(options, folder), "rows": [asdict(row) for row in rows]}))
        else:
            print(heading(options, folder), table_text(rows), sep="\n\n")


if __name__ == "__main__":
    main()
