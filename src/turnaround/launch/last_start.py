"""How a run was started last, by its recipe.json: on how many processes, where, with which shares.

A resume goes on in the same way. The run may be somebody else's, so each value is of the right kind here, or refused
with its name. A run that is older than the key has nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turnaround.errors import InputError, RunDirectoryError
from turnaround.launch.contract import checked_device
from turnaround.workers.shares import checked_share, processes_of

LAST_START = "launch"
"""The key of recipe.json."""
MAX_PROCESSES = 2**20
MAX_TEXT = 10_000


@dataclass(frozen=True, kw_only=True)
class LastStart:
    """The facts that `lifecycle` has written of the last start; None for what is not there."""

    processes: int | None = None
    wanted: int | None = None
    """More processes, which the run had until GPUs were gone."""
    device: str | None = None
    share: str | None = None
    is_private: bool = False

    @classmethod
    def of(cls, recipe: Mapping[str, Any]) -> LastStart:
        """Return what recipe.json says; RunDirectoryError for a value that no start has written."""
        facts = recipe.get(LAST_START)
        facts = facts if isinstance(facts, dict) else {}
        return cls(
            processes=_count(facts, "processes"),
            wanted=_count(facts, "wanted"),
            device=_checked(facts, "device", checked_device),
            share=_checked(facts, "share", checked_share),
            is_private=facts.get("private") is True,
        )

    def place(self, *, processes: int | None) -> tuple[str | None, str | None]:
        """Return device and share, for a resume that may ask for another number of processes.

        A device or a share for each of the processes before says nothing about other numbers of them.
        """
        device, share = self.device, self.share
        if processes in (None, self.processes):
            return device, share
        is_for_each = share is not None and processes_of(share) is not None
        return None if device is not None and "," in device else device, None if is_for_each else share


def _count(facts: Mapping[str, Any], name: str) -> int | None:
    value = facts.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_PROCESSES:
        raise _damaged(f"{LAST_START}.{name}", value, "a number of processes")
    return value


def _checked(facts: Mapping[str, Any], name: str, check: Any) -> str | None:
    value = facts.get(name)
    if value is None:
        return None
    if isinstance(value, str) and len(value) <= MAX_TEXT:
        try:
            return str(check(value))
        except (InputError, ValueError):  # of a number with thousands of digits
            pass
    raise _damaged(f"{LAST_START}.{name}", value, f"what --{name} takes")


def _damaged(name: str, value: object, wanted: str) -> RunDirectoryError:
    # Cut before it is made into text: a number of thousands of digits cannot be, and nobody reads a long one.
    told = f"a number of {value.bit_length()} bits" if isinstance(value, int) and value > 10**18 else repr(value)[:100]
    return RunDirectoryError(
        f"recipe.json is damaged: {name} must be {wanted}. Received: {told}. Remove it there, and say it to resume."
    )
