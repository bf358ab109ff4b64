"""The ceilings of a machine for people: a table of rates, and the sentence that names the limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from turnaround.analysis.bottleneck import Ceilings, ceilings
from turnaround.words import percent

PARTS = {
    "decode": "decoding image files, all cores",
    "input": "input alone: batches as the network takes them",
    "augmentation": "augmentation alone",
    "all_reduce": "exchange of gradients alone",
    "backbone": "frozen backbone: its one pass over the images",
    "model": "model alone: its steps, no input",
    "training": "training",
}
LIMITS = {
    "model": "The model is the limit: training reaches {share} of what the model does alone. Faster hardware, a "
    "smaller network or lower precision would help; a faster input would not.",
    "input": "The input is the limit: training reaches {share} of what the model does alone, and would be at most "
    "{gain:.2f} times faster with an input that costs nothing. Where the pixels live: {pixels}",
    "communication": "The exchange of gradients is the limit: training reaches {share} of what the model does alone, "
    "and would be at most {gain:.2f} times faster without. Larger batches per worker or a faster network help.",
    "host": "What surrounds the model is the limit: training reaches {share} of what the model does alone, and would "
    "be at most {gain:.2f} times faster without. Usual causes: few cores for many processes, batches too small.",
}


MAX_OF_CEILING = 1.05
"""Largest plausible share of the model's own rate: training cannot be faster, so above this the measurement is off."""
UNSTEADY = (
    "Training came out at {share} of what the model does alone, which cannot be: this machine was busy with something "
    "else, or each part was measured for too short a time. Measure again when it is quiet, with more --seconds."
)


def rates_of(facts: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return all rates by part, decoding among them."""
    return {"decode": facts["decode"], **facts["rates"]}


def verdict(facts: Mapping[str, Any]) -> Ceilings:
    return ceilings({name: rate["images_per_s"] for name, rate in rates_of(facts).items()})


def bench_table(facts: Mapping[str, Any]) -> RenderableType:
    """Return every part with its spread over the rounds, then the verdict."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("")
    for heading in ("images/s", "slowest", "fastest"):
        table.add_column(heading, justify="right", no_wrap=True)
    rates = rates_of(facts)
    for name, words in PARTS.items():
        if name in rates:
            rate = rates[name]
            table.add_row(words, *(f"{rate[key]:,.0f}" for key in ("images_per_s", "low", "high")))
    return Group(table, Text(), Text(sentence(facts)))


def sentence(facts: Mapping[str, Any]) -> str:
    """Say what limits training, and the most that fixing it could gain."""
    limits = verdict(facts)
    share = percent(limits.share_of_ceiling)
    if limits.share_of_ceiling > MAX_OF_CEILING:
        return UNSTEADY.format(share=share)
    pixels = facts.get("choices", {}).get("pixels", {})
    where = f"{pixels.get('value', 'unknown')}: {pixels.get('reason', 'not recorded')}."
    return LIMITS[limits.limit].format(share=share, gain=limits.most_gain, pixels=where)
