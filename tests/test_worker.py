"""The entry point of a training's processes: what it does before it trains. Whole processes: tests/launch."""

from __future__ import annotations

import gc

import pytest

from turnaround import worker


def test_garbage_is_collected_again_once_the_code_is_loaded() -> None:
    frozen, kept = gc.get_freeze_count(), []

    def load() -> None:
        with worker.without_collections():
            kept.append({"is collected": gc.isenabled()})
            raise ImportError

    with pytest.raises(ImportError):
        load()
    assert kept == [{"is collected": False}]
    assert gc.isenabled()
    assert gc.get_freeze_count() > frozen
