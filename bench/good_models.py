"""How good is the model, how soon? turnaround and other programs: the same photos, split, network and weights.

    python bench/good_models.py FOLDER --weights mobilenetv2_100.safetensors [--seeds 3] [--epochs 10] [--size 224]
        [--device cuda] [--loaders 16] [--programs fastai,timm,torchvision,tutorial] [--limit 240] [--json]

turnaround is run as the quick start says it, `turnaround train FOLDER` with the weights file and nothing else but the
seed, and `--epochs` or `--size` where they are not its defaults. The others are those of fine_tune_loops.py; a program
whose packages are not installed is named and left out. FOLDER has train/ and test/, or a fifth of each class is held
out once, for all. Programs take turns, seed by seed, each in a process of its own; times are those of the whole
command, with imports, decoding and the evaluation of every epoch. Nothing is decoded beforehand.

Printed for each program: accuracy on all test images after the last epoch and in the best one (which, chosen on these
images, is too good for everybody alike), seconds of the command, of which until its imports were done (turnaround:
until it trains), how many times longer than turnaround it took, and when turnaround first had its final accuracy.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean, stdev

from fine_tune_loops import NEEDS, PROGRAMS, FineTuneResult, FineTuneTask
from side_by_side import HERE, failure, machine_facts, read_all, started

from turnaround.data.folder import ImageTable, scan
from turnaround.errors import TurnaroundError
from turnaround.recipe import USUAL_EPOCHS
from turnaround.record.layout import RunDirectory
from turnaround.record.reader import Run

OURS = "turnaround"
HOLDOUT, SPLIT_SEED = 0.2, 0
USUAL_SIZE_PX = 224
"""What `turnaround train` takes for a network of timm."""
LOOKS_EVERY_S = 0.05
DIGITS = 6
"""Of an accuracy: enough for a million test images."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """One command. Without a curve where it failed: then `error` says why."""

    program: str
    seed: int
    command_s: float = 0.0
    imports_s: float = 0.0
    """Of turnaround: until it trains, decoding included."""
    curve: list[tuple[float, float]] = field(default_factory=list)
    """After each epoch: seconds since the command began, accuracy."""
    error: str | None = None

    @property
    def final(self) -> float:
        return self.curve[-1][1]

    @property
    def best(self) -> float:
        return max(accuracy for _, accuracy in self.curve)

    def reached_s(self, accuracy: float) -> float | None:
        """Return when the accuracy was there for the first time, or None when it never was."""
        return next((seconds for seconds, value in self.curve if value >= accuracy), None)


def copy_split(table: ImageTable, folder: Path) -> None:
    """Write the split that all get: class folders under train/ and test/, as copies: not everybody takes links."""
    for number, name in enumerate(table.files):
        part = "train" if number < table.num_train else "test"
        target = folder / part / table.classes[table.labels[number]]
        target.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(table.root / name, target / f"{number:07d}{Path(name).suffix}")


def our_command(task: FineTuneTask, out: Path, cache: Path) -> list[str]:
    """Return the quick start's command; what equals a default is not said."""
    command = [sys.executable, "-m", "turnaround", "train", task.folder, "--json", "--out", str(out)]
    command += ["--set", f"model.weights={task.weights}", "--set", f"training.seed={task.seed}"]
    command += ["--set", f"data.cache={cache}", "--device", task.device]
    if task.epochs != USUAL_EPOCHS:
        command += ["--epochs", str(task.epochs)]
    return command if task.size_px == USUAL_SIZE_PX else [*command, "--size", str(task.size_px)]


def train_ours(task: FineTuneTask, work: Path, *, limit_s: float) -> Training:
    """Train as a user does, with a cold cache, and note when each line of epochs.jsonl is there."""
    out, log = work / f"run-{task.seed}", work / "turnaround.log"
    command = our_command(task, out, work / f"cache-{task.seed}")
    begun_s = time.perf_counter()
    marks_s: list[float] = []
    with started(command, log) as process:
        while process.poll() is None and time.perf_counter() - begun_s < limit_s:
            new = epochs_written(out) - len(marks_s)
            marks_s += [time.perf_counter() - begun_s] * new
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=LOOKS_EVERY_S)
        command_s = time.perf_counter() - begun_s
    if process.returncode != 0:
        return Training(program=OURS, seed=task.seed, error=failure(process, log, limit_s=limit_s))
    run = Run.load(out)
    marks_s += [command_s] * (len(run.epochs) - len(marks_s))
    parts_s = run.turnaround_parts()
    return Training(
        program=OURS,
        seed=task.seed,
        command_s=command_s,
        imports_s=parts_s.get("decode", 0.0) + parts_s.get("start_up", 0.0),
        curve=[(s, round(epoch.val_accuracy, DIGITS)) for s, epoch in zip(marks_s, run.epochs, strict=True)],
    )


def epochs_written(out: Path) -> int:
    with suppress(OSError):
        return RunDirectory(out).epochs.read_bytes().count(b"\n")
    return 0


def train_other(name: str, task: FineTuneTask, work: Path, *, limit_s: float) -> Training:
    task_file, result_file, log = (work / f"{name}{suffix}" for suffix in (".json", "-result.json", ".log"))
    result_file.unlink(missing_ok=True)
    task_file.write_text(json.dumps({**asdict(task), "begun_at_s": time.time()}))
    begun_s = time.perf_counter()
    command = [sys.executable, str(HERE / "fine_tune_loops.py"), name, str(task_file), str(result_file)]
    with started(command, log) as process, suppress(subprocess.TimeoutExpired):
        process.wait(timeout=limit_s)
    command_s = time.perf_counter() - begun_s
    if not result_file.exists():
        return Training(program=name, seed=task.seed, error=failure(process, log, limit_s=limit_s))
    result = FineTuneResult(**json.loads(result_file.read_text()))
    return Training(program=name, seed=task.seed, command_s=command_s, imports_s=result.imports_s, curve=result.curve)


def missing_packages(program: str) -> list[str]:
    return [package for package in NEEDS[program] if importlib.util.find_spec(package) is None]


def compare(options: argparse.Namespace, work: Path) -> Iterator[Training]:
    """Train with every program, by turns, and yield each as soon as it is done."""
    table = scan(options.source, holdout=HOLDOUT, seed=SPLIT_SEED)
    folder = work / "photos"
    copy_split(table, folder)
    read_all(scan(folder, holdout=HOLDOUT, seed=SPLIT_SEED))
    for seed in range(options.seeds):
        task = FineTuneTask(
            folder=str(folder),
            num_classes=len(table.classes),
            model=options.weights.stem,
            weights=str(options.weights.resolve()),
            size_px=options.size,
            epochs=options.epochs,
            seed=seed,
            device=options.device,
            loaders=options.loaders,
            begun_at_s=0.0,
        )
        yield train_ours(task, work, limit_s=options.limit)
        for name in options.programs:
            yield train_other(name, task, work, limit_s=options.limit)


def percent(values: list[float]) -> str:
    spread = f" ({100 * stdev(values):.1f})" if len(values) > 1 else ""
    return f"{100 * mean(values):.1f}{spread}"


def table_text(trainings: list[Training]) -> str:
    """Return the table: means over seeds, standard deviations in brackets."""
    heads = ("final %", "best %", "command s", "imports s", "x ours", "ours was there")
    widths = (13, 13, 12, 12, 9, 17)
    lines = [f"{'':<14}" + "".join(f"{head:>{width}}" for head, width in zip(heads, widths, strict=True))]
    by_program = {
        name: [one for one in trainings if one.program == name] for name in dict.fromkeys(t.program for t in trainings)
    }
    ours = [one for one in by_program.get(OURS, []) if one.error is None]
    for name, all_of_it in by_program.items():
        done = [one for one in all_of_it if one.error is None]
        if not done:
            lines.append(f"{name:<14}{all_of_it[0].error}")
            continue
        final, command_s = mean(one.final for one in done), mean(one.command_s for one in done)
        cells = [percent([one.final for one in done]), percent([one.best for one in done]), f"{command_s:.1f}"]
        cells += [f"{mean(one.imports_s for one in done):.1f}"]
        cells += [f"{command_s / mean(one.command_s for one in ours):.2f}" if ours else "-", there_text(ours, final)]
        lines.append(f"{name:<14}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)))
        if len(done) < len(all_of_it):
            lines.append(f"    of {len(all_of_it)} trainings {len(all_of_it) - len(done)} failed")
    return "\n".join([*lines, "", *verdicts(by_program)])


def there_text(ours: list[Training], accuracy: float) -> str:
    reached_s = [one.reached_s(accuracy) for one in ours]
    seconds = [value for value in reached_s if value is not None]
    if not seconds:
        return "never"
    of_all = "" if len(seconds) == len(ours) else f" ({len(seconds)} of {len(ours)})"
    return f"{mean(seconds):.1f} s{of_all}"


def verdicts(by_program: dict[str, list[Training]]) -> Iterator[str]:
    """Yield for each other program whether ours is above (as accurate or more) and left (as quick or quicker) of it."""
    done = {name: [one for one in all_of_it if one.error is None] for name, all_of_it in by_program.items()}
    ours = done.pop(OURS, [])
    for name, theirs in done.items():
        if not (ours and theirs):
            continue
        points = round(100 * (mean(one.final for one in ours) - mean(one.final for one in theirs)), 2)
        times = mean(one.command_s for one in theirs) / mean(one.command_s for one in ours)
        words = f"{'above' if points >= 0 else 'BELOW'} and {'left of' if times >= 1 else 'RIGHT of'}"
        yield f"turnaround is {words} {name}: {points:+.1f} points, {times:.2f} times its speed"


def programs_of(text: str) -> list[str]:
    names = [name for name in text.split(",") if name not in ("", "none")]
    if unknown := [name for name in names if name not in PROGRAMS]:
        raise argparse.ArgumentTypeError(f"no program {unknown[0]!r}; there are {', '.join(PROGRAMS)} and none")
    return names


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a folder of photos, as `turnaround train` takes it")
    parser.add_argument("--weights", type=Path, required=True, help="a safetensors file, named as timm's network")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--size", type=int, default=224, help="side of the square images in pixels")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--loaders", type=int, default=len(os.sched_getaffinity(0)), help="their processes that read")
    parser.add_argument("--programs", type=programs_of, default=list(PROGRAMS), help="with commas; none: only ours")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds after which a command is ended")
    parser.add_argument("--work", type=Path, help="where photos and runs lie until the end; default: /tmp")
    parser.add_argument("--json", action="store_true", help="every training with its curve")
    return parser.parse_args()


def main() -> None:
    options = parse()
    if not options.weights.is_file():
        sys.exit(f"There is no weights file {str(options.weights)!r}.")
    left_out = {name: packages for name in options.programs if (packages := missing_packages(name))}
    for name, packages in left_out.items():
        print(f"{name} is left out: {', '.join(packages)} not installed", file=sys.stderr, flush=True)
    options.programs = [name for name in options.programs if name not in left_out]
    trainings: list[Training] = []
    with tempfile.TemporaryDirectory(prefix="good-models-", dir=options.work) as work:
        try:
            for training in compare(options, Path(work)):
                trainings.append(training)
                # At once: a comparison that is cut short has said something.
                print(json.dumps(asdict(training)), file=sys.stderr, flush=True)
        except TurnaroundError as error:
            sys.exit(str(error))
    machine = machine_facts(options.device)
    if options.json:
        print(json.dumps({"machine": machine, "left_out": left_out, "trainings": [asdict(one) for one in trainings]}))
        return
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    print(f"{options.source.name}: {options.weights.stem}, {options.epochs} epochs, {options.seeds} seeds")
    print(table_text(trainings))


if __name__ == "__main__":
    main()
