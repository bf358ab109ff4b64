"""Tests of the processes that decode images have as many of them as users have."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def processes(all_cores: None) -> None:
    """Before the fixtures of a module, which may say otherwise."""
