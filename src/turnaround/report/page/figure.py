"""One picture of the page, as plain values that plotly draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One plotly figure as plain JSON values; colours come from the page, so that light, dark and paper work."""

    id: str
    """Unique in its job; small letters, digits and hyphens."""
    section: str
    """``curves``, ``time``, ``scaling``, ``inside``, ``gpus``, ``training`` or ``classes``."""
    title: str
    caption: str
    """One or two sentences: what is shown, by which rule, what was assumed; units."""
    alt: str
    """The message in words, for people who do not see the picture."""
    data: list[dict[str, Any]]
    """Plotly traces without colours. ``meta={"series": i, "role": r}`` says what a trace is; the page colours it by
    that. ``series`` is the place of the configuration in the job, of the part in a stack, or of the GPU. Roles:

    - lines and points in the colour of their series: train, validation, rehearsal, running, measured, forecast, law,
      stable
    - areas in the same colour, faint: band (repeats or interval), overfit
    - in grey: ideal
    - bars: measured, part (one colour for each part of a stack)
    - matrix: a heat map, whose colour scale the page gives

    Dashes, symbols and patterns are in the traces already, so that nothing rests on colour alone."""
    layout: dict[str, Any]
    """Axes with titles and units; no colours, no template, no fonts."""
