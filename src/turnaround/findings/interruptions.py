"""The words for machines that are taken away: what interruptions cost, and how often to save.

Enters: predictions with their interruptions (turnaround.forecast.preemption). Leaves: sentences.
"""

from __future__ import annotations

from collections.abc import Iterator

from turnaround.forecast.interval import Interval
from turnaround.forecast.question import InterruptedForecast, Prediction
from turnaround.words import about, counted, hardware, money, number

SAME = 1.02
"""Two times nearer than this are not worth a sentence."""


def interruptions_text(p: Prediction) -> str | None:
    """Return time and cost with interruptions, and the interval between checkpoints; None where nobody asked."""
    found = p.interrupted
    if found is None:
        return None
    rate = f"With {found.per_h:.3g} interruption{'s' * (found.per_h != 1)} of the job an hour"
    time_s, goal = (
        (found.time_to_stable_s, "to a stable accuracy") if found.time_to_stable_s else (found.job_time_s, "")
    )
    if time_s is None:
        return (
            f"{rate} {hardware(p.workers, p.gpu)} would hardly ever get anywhere: a start takes about "
            f"{about(found.costs.start_s.value)}, and few would last so long."
        )
    goal = goal or f"for {p.epochs_planned} epochs"
    plain = p.time_to_stable_s if found.time_to_stable_s else p.job_time_s
    instead = f" instead of {about(plain.value)}" if plain and about(plain.value) != about(time_s.value) else ""
    text = f"{rate}: about {_between(time_s)} {goal}{instead}"
    if found.checkpoint_every_s is not None:
        text += f", saving every {about(found.checkpoint_every_s)}"
    if found.cost is not None:
        kind = "at the spot price" if found.is_spot else "at the same price"
        against = f", {money(p.cost.value)} without" if p.cost else ""
        text += f"; the job costs about {money(found.cost.value)} {kind}{against}"
    return text + "."


def rate_text(per_h: float) -> str:
    """Return how often, in words: "once an hour", "10 times an hour"."""
    return "once an hour" if per_h == 1 else f"{number(per_h)} times an hour"


def interruptions_notes(p: Prediction, *, of_many: bool = False) -> Iterator[str]:
    """Yield what the figures rest on, and what to set; `of_many`: other numbers of workers are told beside it."""
    found = p.interrupted
    if found is None:
        return
    costs = found.costs
    pause = f"{about(costs.pause_s.value)} for a checkpoint"
    pause += "" if costs.is_pause_measured else " (assumed: no run has counted its checkpoints)"
    yield f"a start takes about {about(costs.start_s.value)}, as measured, and the training waits {pause}"
    if costs.is_wait_measured:
        yield f"about {about(costs.wait_s.value)} until another machine is there, as jobs of these runs have waited"
    else:
        yield "another machine is there at once: no run here has waited for one"
    if costs.lost_s is not None:
        seen = counted(costs.interruptions_seen, "interruption")
        yield f"{seen} of these runs lost about {about(costs.lost_s)} of work each"
    if found.checkpoint_every_s is not None:
        keys = f"training.checkpoint_every_s=auto --set training.interruptions_per_h={found.per_h:g}"
        which = f"to save as often as {hardware(p.workers, p.gpu)} should" if of_many else "to save so often"
        yield f"{which}: --set {keys}{_gain(found)}"


def _gain(found: InterruptedForecast) -> str:
    usual, best = found.usual_job_time_s, found.job_time_s
    if usual is None or best is None or usual.value < SAME * best.value:
        return ""
    return f"; every 60 s, as usual, the job would take about {about(usual.value)}, not {about(best.value)}"


def _between(time_s: Interval) -> str:
    return f"{about(time_s.value)} ({about(time_s.low)} to {about(time_s.high)})"
