"""Each run of a job: what it was asked for, what it ran on, and in what it differs from the others.

What all runs share is told once; a run's own card has only what is not the same in all of them.
"""

from __future__ import annotations

import json
import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from zlib import crc32

from turnaround.analysis.compare import Fact, Matters, machine_facts, recipe_facts, result_facts
from turnaround.analysis.configurations import Workload
from turnaround.analysis.energy import RunEnergy
from turnaround.analysis.summary import RunSummary
from turnaround.findings.energy import energy_text
from turnaround.findings.labels import fact_name, fact_text, label_of
from turnaround.record.reader import Run
from turnaround.reporting.run_text import parts_sentence
from turnaround.words import accuracy, duration

Pairs = tuple[tuple[str, str], ...]
Value = TypeVar("Value", Fact, str)

MAX_LETTERS = 240
"""Letters of one value; the run directory has all of them."""
SKIPPED = frozenset({"format", "name", "command", "ranks"})
"""Keys of recipe.json and machine.json that are told elsewhere, or mean nothing to people."""


@dataclass(frozen=True, kw_only=True)
class ShownFact:
    """A fact about a run, for people."""

    name: str
    text: str
    matters_for: Matters


@dataclass(frozen=True, kw_only=True)
class RunCard:
    """One run."""

    key: str
    """The same from one rendering to the next."""
    name: str
    configuration: str
    state: str
    cause: str
    is_rehearsal: bool
    figures: Pairs
    """Names and values, for people."""
    differs: tuple[ShownFact, ...]
    """Facts that are not the same in all runs of the job, with this run's value."""
    recipe: Pairs
    machine: Pairs
    directory: str


@dataclass(frozen=True, kw_only=True)
class RunCards:
    """All runs of a job."""

    cards: tuple[RunCard, ...]
    facts: tuple[ShownFact, ...]
    """The same in all of them."""
    recipe: Pairs
    machine: Pairs


def run_cards(job: Workload) -> RunCards:
    """Return the cards in the job's order."""
    members = [(label_of(c), *pair) for c in job.configurations for pair in c.members]
    records = [record for _, _, record in members]
    energies = [energy for c in job.configurations for energy in c.energies]
    facts = [_facts(record) for record in records]
    recipes, machines = [_recipe(record) for record in records], [_flat(record.machine) for record in records]
    same_facts, same_recipe, same_machine = _shared(facts), _shared(recipes), _shared(machines)
    cards = [
        RunCard(
            key=f"run-{crc32(summary.directory.encode('utf-8', 'surrogatepass')):08x}",
            name=summary.name,
            configuration=label,
            state=summary.state,
            cause=record.status.cause or "",
            is_rehearsal=summary.is_rehearsal,
            figures=(*_figures(summary), *_energy(summary, energies[place])),
            differs=tuple(_shown(fact) for id_, fact in facts[place].items() if id_ not in same_facts),
            recipe=_without(recipes[place], same_recipe),
            machine=_without(machines[place], same_machine),
            directory=summary.directory,
        )
        for place, (label, summary, record) in enumerate(members)
    ]
    return RunCards(
        cards=tuple(cards),
        facts=tuple(map(_shown, same_facts.values())),
        recipe=tuple(same_recipe.items()),
        machine=tuple(same_machine.items()),
    )


def _facts(run: Run) -> dict[str, Fact]:
    facts = (*recipe_facts(run), *result_facts(run), *machine_facts(run))
    return {fact.id: fact for fact in facts}


def _shown(fact: Fact) -> ShownFact:
    name = FIELD_WORDS.get(fact.id) or fact_name(fact.id)
    return ShownFact(name=name, text=fact_text(fact), matters_for=fact.matters_for)


FIELD_WORDS = {"workers.engine": "communication backend"}
"""Names of facts where there is room for the field's word, which says more than the record's own."""


def _shared(each: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
    """Return what every one has, with the same value."""
    seen: defaultdict[str, list[Value]] = defaultdict(list)
    for content in each:
        for key, value in content.items():
            seen[key].append(value)
    return {key: values[0] for key, values in seen.items() if len(values) == len(each) and len(set(values)) == 1}


def _without(content: Mapping[str, str], shared: Mapping[str, str]) -> Pairs:
    return tuple((key, value) for key, value in content.items() if key not in shared)


def _figures(run: RunSummary) -> Iterator[tuple[str, str]]:
    """Yield the results by name. A rehearsal's times are nobody's, so it has none."""
    planned = f" of {run.epochs_planned}" if run.epochs_planned and run.epochs_planned != run.epochs else ""
    yield "epochs", f"{run.epochs}{planned}"
    if run.stopped_early is not None:
        yield "stopped early", run.stopped_early
    if run.final_val_accuracy is not None:
        yield "validation accuracy", accuracy(run.final_val_accuracy)
    if run.best_val_accuracy is not None and run.best_epoch is not None:
        of_many = f", the best of {run.epochs}: optimistic" if run.epochs > 1 else ""
        yield "best epoch", f"{run.best_epoch} with {accuracy(run.best_val_accuracy)}{of_many}"
    if run.final_train_accuracy is not None:
        yield "training accuracy", accuracy(run.final_train_accuracy)
    if run.is_rehearsal:
        return
    if run.epoch_time_s is not None:
        yield "an epoch", duration(run.epoch_time_s)
    if run.job_time_s is not None:
        parts = parts_sentence(run)
        yield "submit to finish", f"{duration(run.job_time_s)}{f': {parts}' if parts else ''}"


def _energy(run: RunSummary, used: RunEnergy) -> Iterator[tuple[str, str]]:
    """Yield the energy of a run on GPUs; nothing of a rehearsal, nor of one that others have told of."""
    if not run.is_imported and not run.is_rehearsal and used.unknown != "no GPU":
        yield "energy of the GPUs", energy_text(used)


def _recipe(run: Run) -> dict[str, str]:
    values = _flat(run.recipe)
    command = run.recipe.get("command")
    if isinstance(command, list) and len(command) > 1:
        values["command"] = _short(shlex.join(["turnaround", *map(str, command[1:])]))
    return values


def _flat(content: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """Nested keys joined by dots, values as text; what is empty is left out."""
    flat: dict[str, str] = {}
    for key, value in content.items():
        if not before and key in SKIPPED:
            continue
        if isinstance(value, dict) and set(value) == {"value", "reason"}:  # a choice of the run itself
            flat[f"{before}{key}"] = _short(f"{_text(value['value'])} ({value['reason']})")
        elif isinstance(value, dict):
            flat |= _flat(value, f"{before}{key}.")
        elif value not in (None, "", []):
            flat[f"{before}{key}"] = _short(_text(value))
    return flat


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and all(isinstance(item, str | int | float) for item in value):
        return ", ".join(str(item) for item in value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else str(value)


def _short(text: str) -> str:
    return text if len(text) <= MAX_LETTERS else f"{text[:MAX_LETTERS]}... ({len(text):,} letters)"
