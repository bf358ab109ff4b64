"""The arithmetic of shares: who hosts how many workers, and which shares would be faster."""

from __future__ import annotations

import itertools
import random

import pytest

from turnaround.errors import InputError
from turnaround.workers.shares import (
    MIN_GAIN,
    better_shares,
    checked_share,
    even_shares,
    fastest_shares,
    hosted_by,
    processes_of,
    shares_of,
    slowest_s,
)


def test_even_shares_differ_by_one_at_most() -> None:
    assert even_shares(workers=16, processes=2) == (8, 8)
    assert even_shares(workers=4, processes=3) == (1, 1, 2)
    for workers, processes in itertools.combinations_with_replacement(range(1, 12), 2):
        shares = even_shares(workers=processes, processes=workers)
        assert sum(shares) == processes
        assert max(shares) - min(shares) <= 1


def test_every_worker_has_one_host_and_hosts_have_neighbours() -> None:
    assert [hosted_by(rank, (11, 1, 4)) for rank in range(3)] == [range(11), range(11, 12), range(12, 16)]


@pytest.mark.parametrize(
    ("text", "written"), [("auto", "auto"), ("Even", "even"), ("11,5", "11,5"), (" 11 , 05", "11,5"), ("16", "16")]
)
def test_a_share_is_written_down_in_one_way(text: str, written: str) -> None:
    assert checked_share(text) == written
    assert processes_of(written) == {"11,5": 2, "16": 1}.get(written)


@pytest.mark.parametrize("text", ["", "fast", "11,", "11;5", "-1,17", "1.5,2", "auto,5", "²,3"])
def test_a_share_that_is_none(text: str) -> None:
    with pytest.raises(InputError, match=r"--share takes auto, even, or the workers of each process.*Received: "):
        checked_share(text)


def test_a_process_without_a_worker() -> None:
    with pytest.raises(InputError, match=r"--share 16,0: a process without a worker would have nothing to do\. Leave"):
        checked_share("16,0")


def test_shares_that_fit() -> None:
    assert shares_of("11,5", workers=16, processes=2) == (11, 5)
    assert shares_of("auto", workers=16, processes=2) == shares_of("even", workers=16, processes=2) == (8, 8)


def test_shares_for_other_processes() -> None:
    with pytest.raises(
        InputError, match=r"--share 11,5 is for 2 processes, and there are 3\. Give one number for each"
    ):
        shares_of("11,5", workers=16, processes=3)


def test_shares_of_other_workers() -> None:
    with pytest.raises(InputError, match=r"--share 11,5 places 16 workers, and there are 8\. Use --workers 16, or num"):
        shares_of("11,5", workers=8, processes=2)


def test_a_process_that_is_twice_as_fast_hosts_twice_as_many() -> None:
    assert fastest_shares([1.0, 2.2], workers=16) == (11, 5)
    assert fastest_shares([0.1, 0.2, 0.1], workers=10) == (4, 2, 4)
    assert fastest_shares([1.0, 1.0, 1.0], workers=4) == (2, 1, 1)  # of equal ones the lower rank
    assert fastest_shares([1.0, 1000.0], workers=4) == (3, 1)  # every process has one


def test_no_other_shares_are_faster() -> None:
    numbers = random.Random(7)
    for _ in range(40):
        processes = numbers.randint(2, 4)
        seconds = [numbers.uniform(0.1, 3.0) for _ in range(processes)]
        workers = numbers.randint(processes, 9)
        best = min(
            slowest_s(shares, seconds)
            for shares in itertools.product(range(1, workers + 1), repeat=processes)
            if sum(shares) == workers
        )
        assert slowest_s(fastest_shares(seconds, workers=workers), seconds) == best


def test_a_change_must_be_worth_it() -> None:
    found = better_shares((8, 8), [1.0, 3.0])
    assert found is not None
    assert found.shares == (12, 4)
    assert found.gain == pytest.approx(0.5)
    assert better_shares((12, 4), [1.0, 3.0]) is None
    # From (8, 8) at 1.2 x to (9, 7): 9.6 -> 9.0, which is less than a tenth.
    assert fastest_shares([1.0, 1.2], workers=16) == (9, 7)
    assert better_shares((8, 8), [1.0, 1.2]) is None
    assert MIN_GAIN > 1 - 9.0 / 9.6


def test_changes_end_though_a_part_of_the_work_does_not_grow() -> None:
    """A step takes each process `fixed` seconds and so many for a worker: shares settle near the balance."""
    for fixed, each in itertools.product((0.0, 1.0, 20.0), ((1.0, 3.0), (1.0, 1.0), (5.0, 1.0))):
        shares = even_shares(workers=32, processes=2)
        for _ in range(40):
            times = [fixed + share * each_s for share, each_s in zip(shares, each, strict=True)]
            found = better_shares(shares, [time_s / share for time_s, share in zip(times, shares, strict=True)])
            if found is None:
                break
            shares = found.shares
        else:
            pytest.fail(f"never settles: {fixed}, {each}")
        best = min(max(fixed + n * each[0], fixed + (32 - n) * each[1]) for n in range(1, 32))
        assert max(fixed + shares[0] * each[0], fixed + shares[1] * each[1]) < 1.25 * best
