"""The black-box kill harness: its plan follows from its seed, and its judgement finds what differs."""

from __future__ import annotations

import json
import multiprocessing.spawn
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from turnaround.launch.contract import LaunchPlan
from turnaround.launch.handshake import StartMessage
from turnaround.launch.local import command
from turnaround.record.coding import CRC
from turnaround.record.layout import RunDirectory
from turnaround.record.writer import write_lines

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(scope="module")
def kill() -> Iterator[ModuleType]:
    sys.path.append(str(BENCH))
    import kill
    import kill_plan

    kill.plan = kill_plan  # type: ignore[attr-defined]
    yield kill
    sys.path.remove(str(BENCH))


def test_the_plan_is_a_function_of_seed_and_number(kill: ModuleType) -> None:
    def plans(seed: int) -> list[object]:
        return [kill.planned(n, seed=seed, most_processes=2, within_steps=False) for n in range(200)]

    assert plans(7) == plans(7) != plans(8)
    strikes = [strike for case in plans(7) for strike in case.strikes]  # type: ignore[attr-defined]
    assert 0.4 < sum(strike.event in kill.plan.STARTING for strike in strikes) / len(strikes) < 0.6
    assert {strike.victim for strike in strikes} == set(kill.plan.VICTIMS)
    assert {strike.signals for strike in strikes} == set(kill.plan.SIGNALS)
    assert {strike.event for strike in strikes} == {*kill.plan.STARTING, *kill.plan.TRAINING}
    assert not [s for s in strikes if s.signals == "STOP" and s.victim not in ("agent", "worker")]


def test_every_kind_of_victim_is_known_by_the_command_that_starts_it(kill: ModuleType) -> None:
    """Else it is never struck, and nobody notices."""
    message = StartMessage(device="cpu", network="small", begun_at_s=1.0)
    spawned = multiprocessing.spawn.get_command_line(pipe_handle=3)
    one, two = (LaunchPlan(directory=RunDirectory(Path("run")), message=message, processes=n) for n in (1, 2))
    assert kill.plan.kind_of(command(one)) == "worker"
    assert kill.plan.kind_of(command(two)) == "agent"
    assert kill.plan.kind_of([os.fsdecode(word) for word in spawned]) == "decoder"
    assert kill.plan.kind_of([sys.executable, "-c", "from multiprocessing.resource_tracker import main"]) is None


@pytest.mark.parametrize(
    ("frames", "is_pythons"),
    [
        (["<frozen runpy>", "/usr/lib/python3.11/warnings.py"], True),
        (["<frozen runpy>", "/src/turnaround/__main__.py", "/src/turnaround/errors.py"], True),
        (["<frozen runpy>", "/src/turnaround/__main__.py", "/src/turnaround/cli/train.py"], False),
    ],
)
def test_a_ctrl_c_while_python_starts_is_pythons_own(frames: list[str], is_pythons: bool, kill: ModuleType) -> None:
    lines = ["Traceback (most recent call last):", *(f'  File "{frame}", line 1, in <module>' for frame in frames)]
    assert kill.plan.is_of_python("\n".join([*lines, "KeyboardInterrupt\n"])) is is_pythons
    assert not kill.plan.is_of_python("\n".join([*lines, "ValueError: x\n"]))


@pytest.fixture
def training(kill: ModuleType, trained_run: Path, tmp_path: Path) -> object:
    """A training that has ended, beside the undisturbed one."""
    case = kill.Case(number=3, processes=1, is_cold=True, restarts=0, strikes=())
    shared = kill.Setting(
        folder=tmp_path, device="cpu", settings=(), limit_s=9.0, tally=kill.Tally()
    )  # fmt: skip
    training = kill.Training(case, shared)
    shutil.copytree(trained_run, tmp_path / "undisturbed-1")
    shutil.copytree(trained_run, training.out.path)
    (training.home / "tmp").mkdir()
    return training


def test_the_same_training_is_the_same(training: object) -> None:
    assert (list(training._differences()), list(training._untidy())) == ([], [])  # type: ignore[attr-defined]


def _other_weights(training: object) -> None:
    earlier, last = training.out.checkpoints()[-2:]  # type: ignore[attr-defined]
    shutil.copy(earlier.weights, last.weights)


def _left_over(training: object) -> None:
    (training.out.path / ".status.json.7-0123abcd.tmp").touch()  # type: ignore[attr-defined]


def _other_curve(training: object) -> None:
    text = training.out.epochs.read_text()  # type: ignore[attr-defined]
    lines = [json.loads(line) for line in text.splitlines()]
    lines[0]["train_loss"] += 1e-9
    write_lines(training.out.epochs, [{k: v for k, v in line.items() if k != CRC} for line in lines])  # type: ignore[attr-defined]


def _not_finished(training: object) -> None:
    status = json.loads(training.out.status.read_text())  # type: ignore[attr-defined]
    training.out.status.write_text(json.dumps({**status, "state": "failed"}))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_other_weights, "differs by"),
        (_left_over, "has other files than an undisturbed training: ['.status.json"),
        (_other_curve, "another record"),
        (_not_finished, "is failed after"),
    ],
)
def test_what_differs_is_said(change: object, words: str, training: object) -> None:
    change(training)  # type: ignore[operator]
    is_lost = change is not _left_over
    problems = training._differences() if is_lost else training._untidy()  # type: ignore[attr-defined]
    assert words in " ".join(problems)


def test_what_is_left_over_is_named(training: object) -> None:
    (training.cache / "building-host-7-abc").mkdir(parents=True)  # type: ignore[attr-defined]
    (training.home / "tmp" / "x").touch()  # type: ignore[attr-defined]
    assert training._leftovers() == ["tmp/x", "cache/building-host-7-abc"]  # type: ignore[attr-defined]


def test_no_benchmark_hides_a_module_of_python() -> None:
    """Whoever starts one of them has its folder first in the path: a `queue.py` there would stop all others."""
    assert {path.stem for path in BENCH.glob("*.py")} & sys.stdlib_module_names == set()
