"""The words for machines that are taken away: what interruptions cost, and how often to save.

Enters: predictions with their interruptions (turnaround.forecast.preemption). Leaves: sentences.
"""

from __future__ import annotations

from collections.abc import Iterator

from turnaround.forecast.interval import Interval
from turnaround.forecast.question import InterruptedForecast, Prediction
from turnaround.words import about, counted, hardware, money

SAME = 1.02
"""Two times nearer than this are not worth a sentence."""


def interruptions_text(p: Prediction) -> str | None:
    """Return time and cost with interruptions, and the interval between checkpoints; None where nobody asked."""
    found = p.interrupted
    if found is None:
        return None
    rate = f"With {_figure(found.per_h)} interruption{'s' * (found.per_h != 1)} of the job an hour"
    time_s, goal = (
        (found.time_to_stable_s, "to a stable accuracy") if found.time_to_stable_s else (found.job_time_s, "")
    )
    if time_s is None:
        remedy = "Fewer hosts are lost less often." if p.hosts > 1 else "It needs machines that stay longer."
        return (
            f"{rate} the job of {hardware(p.workers, p.gpu)} does not get done, however often it saves: a start takes "
            f"about {about(found.costs.start_s.value)}, and hardly any would last until the first checkpoint. {remedy}"
        )
    goal = goal or f"for {p.epochs_planned} epochs"
    plain_s = p.best_known("time_to_stable_s" if found.time_to_stable_s else "job_time_s")
    instead = f" instead of {about(plain_s)}" if plain_s and about(plain_s) != about(time_s.value) else ""
    text = f"{rate}: about {_between(time_s)} {goal}{instead}"
    if found.checkpoint_every_s is not None:
        text += f", saving every {about(found.checkpoint_every_s)}"
    if found.cost is not None:
        text += f". Interrupted, {_costs(p, found, found.cost.value)}"
    return text + "."


def rate_text(per_h: float) -> str:
    """Return how often, in words: "once an hour", "10 times an hour"."""
    return "once an hour" if per_h == 1 else f"{_figure(per_h)} times an hour"


def _figure(per_h: float) -> str:
    return f"{per_h:,.0f}" if per_h >= 100 else f"{per_h:.3g}"


def _costs(p: Prediction, found: InterruptedForecast, cost: float) -> str:
    """Say which of the two costs is at which price."""
    kind = "at the spot price" if found.is_spot else "at the full price (no spot price is known)"
    text = f"the job costs about {_paid(cost, found.currency)} {kind}"
    undisturbed = p.best_known("cost")
    return text + (f"; undisturbed, at the full price, {_paid(undisturbed, p.currency)}" if undisturbed else "")


def _paid(cost: float, currency: str | None) -> str:
    return f"{money(cost)} {currency or ''}".rstrip()


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
    is_done = found.job_time_s is not None or found.time_to_stable_s is not None
    if found.checkpoint_every_s is not None and is_done:
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
