"""Judgements of a curve that are made once: parts of a page ask for the same one, a live page at each change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from typing import Any, TypeVar, cast

import numpy as np

MAX_CURVES = 4096
"""Some kilobytes each, with what is said of them."""

Judge = TypeVar("Judge", bound=Callable[..., Any])


def cached_by_curve(judge: Judge) -> Judge:
    """A function of a curve and of details; its answers must not be changed by whoever gets them."""

    @lru_cache(maxsize=MAX_CURVES)
    def once(curve: bytes, *details: Any, **named: Any) -> Any:
        return judge(np.frombuffer(curve, dtype=np.float64), *details, **named)

    @wraps(judge)
    def ask(curve: Sequence[float], *details: Any, **named: Any) -> Any:
        # By its bytes, since NaN is not equal to itself.
        return once(np.asarray(curve, dtype=np.float64).reshape(-1).tobytes(), *details, **named)

    return cast(Judge, ask)
