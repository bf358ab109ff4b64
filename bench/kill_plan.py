"""What bench/kill.py sends to whom, and when: a pure function of the seed and the number of a training."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from turnaround.launch.contract import WORKER_MODULE
from turnaround.workers.engines import TORCH_AGENT

STEPS_PER_EPOCH, EPOCHS = 8, 3
STARTING = ("command", "directory", "processes", "decoding", "told", "heartbeat")
"""Events of a start, in their order: the command runs, its folder is there, a process of the training is there, images
are being decoded, the processes were told where they are, the first of them has opened the training."""
TRAINING = ("step", "saving", "epoch", "finished")
SIGNALS = ("KILL", "TERM", "INT", "HUP", "STOP CONT", "INT INT", "TERM KILL", "KILL", "TERM", "STOP")
VICTIMS = ("launcher", "group", "agent", "worker", "worker", "decoder")


@dataclass(frozen=True, kw_only=True)
class Strike:
    """One signal, or two in a row, to one victim, some time after an event."""

    event: str
    at: int
    """The step or the epoch of the event, where it has one."""
    delay_s: float
    victim: str
    which: int
    """Among several of its kind: modulo their number."""
    signals: str
    between_s: float

    def __str__(self) -> str:
        where = f"{self.event} {self.at}" if self.event in ("step", "epoch") else self.event
        return f"{self.signals} to {self.victim} {self.delay_s:.2f} s after {where}"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training and what is to happen to it."""

    number: int
    processes: int
    is_cold: bool
    restarts: int
    strikes: tuple[Strike, ...]


def planned(number: int, *, seed: int, most_processes: int, within_steps: bool) -> Case:
    """By chance, and the same for the same seed and number."""
    chance = random.Random(f"{seed}/{number}")  # noqa: S311
    processes, count = chance.randint(1, most_processes), 6 if within_steps else chance.randint(2, 4)
    steps = sorted(chance.sample(range(2, STEPS_PER_EPOCH * EPOCHS), count))
    strikes = []
    for step in steps:
        signals, victim = chance.choice(SIGNALS), chance.choice(VICTIMS)
        event = chance.choice(STARTING if chance.random() < 0.5 else TRAINING)
        if within_steps:
            signals, victim, event = "KILL", "worker", "step"
        if signals == "STOP" and victim not in ("agent", "worker"):
            signals = "STOP CONT"  # who stops the command for ever waits for ever
        strikes.append(
            Strike(
                event=event,
                at=step if event == "step" else 1 + step // STEPS_PER_EPOCH,
                delay_s=chance.choice(
                    (0.0, chance.uniform(0.0, 0.2), chance.uniform(0.0, 0.2 if within_steps else 1.0))
                ),
                victim=victim,
                which=chance.randrange(8),
                signals=signals,
                between_s=chance.uniform(0.05, 3.0),
            )
        )
    is_cold, restarts = chance.random() < 0.5, chance.choice((0, 0, 2))
    return Case(number=number, processes=processes, is_cold=is_cold, restarts=restarts, strikes=tuple(strikes))


def kind_of(words: Sequence[str]) -> str | None:
    """The kind of victim that a command line belongs to; the agent names the module of its workers too."""
    if TORCH_AGENT in words:
        return "agent"
    if WORKER_MODULE in words:
        return "worker"
    return "decoder" if any("spawn_main" in word for word in words) else None


def is_of_python(text: str) -> bool:
    """Whether what a command printed ends with a Ctrl-C of Python's own start: nobody is there yet to say it better.

    The only frames of ours are those of the files that are loaded before `main` can listen.
    """
    frames = re.findall(r'File "[^"]*/src/turnaround/([^"]+)"', text[text.index("Traceback") :])
    return text.rstrip().endswith("KeyboardInterrupt") and {*frames} <= {"__init__.py", "__main__.py", "errors.py"}
