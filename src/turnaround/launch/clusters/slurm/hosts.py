"""Slurm's short form for many hosts: n[1-3,07],gpu-a -> n1, n2, n3, n07, gpu-a."""

from __future__ import annotations

import itertools
import re

MAX_HOSTS = 100_000
"""More is no cluster but a damaged text."""


def expand(short: str) -> tuple[str, ...]:
    """The hosts by name; none for Slurm's (null) and for an empty text."""
    if short.strip() in ("", "(null)", "None assigned", "None"):
        return ()
    # commas between hosts, not those inside brackets
    words = re.findall(r"(?:[^,\[]|\[[^\]]*\])+", short.strip())
    hosts = itertools.chain.from_iterable(_expand_word(word) for word in words)
    return tuple(itertools.islice(hosts, MAX_HOSTS))


def _expand_word(word: str) -> itertools.chain[str]:
    """n[1-2]-r[0,5]: every bracket with every other."""
    parts = re.split(r"\[([^\]]*)\]", word)
    choices = [_numbers(part) if index % 2 else [part] for index, part in enumerate(parts)]
    return itertools.chain("".join(choice) for choice in itertools.product(*choices))


def _numbers(text: str) -> list[str]:
    """08-10,12 -> 08, 09, 10, 12: leading zeros stay."""
    numbers: list[str] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if last.isdecimal() and first.isdecimal():
            end = min(int(last), int(first) + MAX_HOSTS)
            numbers += [str(number).zfill(len(first)) for number in range(int(first), end + 1)]
        else:
            numbers.append(part)
    return numbers
