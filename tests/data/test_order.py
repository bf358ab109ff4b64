"""Which image goes where: pure in (seed, epoch), every image once, and no worker with fewer than two images."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from turnaround.data.order import epoch_order, share_bounds, step_bounds, worker_bounds
from turnaround.errors import DataError
from turnaround.workers.shares import even_shares, hosted_by


def order(seed: int, epoch: int, num_images: int = 500) -> list[int]:
    return epoch_order(seed=seed, epoch=epoch, num_images=num_images).tolist()


def slices(num_images: int, batch_per_worker: int, workers: int) -> list[list[tuple[int, int]]]:
    """Per step the (start, stop) of every worker."""
    bounds = step_bounds(num_images=num_images, global_batch=batch_per_worker * workers, workers=workers)
    return [[worker_bounds(start=a, stop=b, worker=w, workers=workers) for w in range(workers)] for a, b in bounds]


def test_the_order_of_an_epoch_never_changes() -> None:
    """Old runs stay reproducible: a change of these values is a change of every run."""
    assert order(0, 1, 10) == [5, 3, 7, 8, 2, 4, 1, 0, 6, 9]
    assert order(7, 3, 10) == [2, 5, 9, 7, 3, 0, 6, 8, 4, 1]


def test_the_order_is_a_permutation_that_depends_on_seed_and_epoch_alone() -> None:
    first = order(5, 2)
    np.random.seed(1)  # a global state that must not matter
    assert order(5, 2) == first
    assert sorted(first) == list(range(500))
    assert first != list(range(500))


def test_seed_and_epoch_are_not_interchangeable() -> None:
    orders = [tuple(order(seed, epoch)) for seed in range(12) for epoch in range(12)]
    assert len(set(orders)) == len(orders)


def test_orders_of_neighbouring_epochs_are_unrelated() -> None:
    places = np.array([np.argsort(order(0, epoch)) for epoch in range(6)], dtype=float)
    correlation = np.corrcoef(places) - np.eye(6)
    assert np.abs(correlation).max() < 0.2  # 4.5 standard errors of 500 unrelated places


def test_every_place_is_equally_likely() -> None:
    """20,000 orders of four images: all 24 of them about equally often (chi square, 23 degrees of freedom)."""
    counts: dict[tuple[int, ...], int] = {}
    for epoch in range(20_000):
        found = tuple(order(1, epoch, 4))
        counts[found] = counts.get(found, 0) + 1
    expected = 20_000 / 24
    assert len(counts) == 24
    assert sum((n - expected) ** 2 / expected for n in counts.values()) < 60


@pytest.mark.fault(39, "any number of images: each once in an epoch, none repeated, none dropped")
@settings(deadline=None)
@given(st.integers(2, 400), st.integers(2, 40), st.integers(1, 16))
def test_every_image_once_and_two_a_worker_at_least(num_images: int, batch: int, workers: int) -> None:
    assume(num_images >= 2 * workers)
    steps = slices(num_images, batch, workers)
    taken = [i for step in steps for start, stop in step for i in range(start, stop)]
    assert taken == list(range(num_images))  # contiguous, in order, each once
    for step in steps:
        sizes = [stop - start for start, stop in step]
        assert min(sizes) >= 2
        assert max(sizes) - min(sizes) <= 1


@settings(deadline=None)
@given(st.integers(2, 400), st.integers(2, 40), st.integers(1, 16))
def test_all_steps_but_the_last_have_the_global_batch(num_images: int, batch: int, workers: int) -> None:
    assume(num_images >= 2 * workers)
    sizes = [step[-1][1] - step[0][0] for step in slices(num_images, batch, workers)]
    assert all(size == batch * workers for size in sizes[:-1])
    assert sizes[-1] < (batch + 2) * workers  # at most what was left is added


@settings(deadline=None)
@given(st.integers(1, 64), st.integers(1, 64), st.integers(0, 1000), st.integers(0, 200))
def test_slices_do_not_depend_on_how_workers_are_spread(workers: int, processes: int, start: int, size: int) -> None:
    assume(processes <= workers)
    spread = []
    for rank in range(processes):
        hosted = hosted_by(rank, even_shares(workers=workers, processes=processes))
        spread += [worker_bounds(start=start, stop=start + size, worker=w, workers=workers) for w in hosted]
    alone = [worker_bounds(start=start, stop=start + size, worker=w, workers=workers) for w in range(workers)]
    assert spread == alone
    assert alone[0][0] == start
    assert alone[-1][1] == start + size


@pytest.mark.fault(39, "validation is never padded: each image once on any number of processes")
@settings(deadline=None)
@given(st.integers(0, 1000), st.integers(1, 64))
def test_evaluation_shares_cover_each_image_once(num_images: int, size: int) -> None:
    shares = [share_bounds(num_images=num_images, rank=rank, size=size) for rank in range(size)]
    assert [i for start, stop in shares for i in range(start, stop)] == list(range(num_images))
    counts = [stop - start for start, stop in shares]
    assert max(counts) - min(counts) <= 1


@settings(deadline=None)
@given(st.integers(0, 1000), st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_evaluation_shares_by_hosted_workers_cover_each_image_once(num_images: int, hosted: list[int]) -> None:
    count, found = sum(hosted), list[int]()
    for rank, parts in enumerate(hosted):
        start, stop = share_bounds(num_images=num_images, rank=sum(hosted[:rank]), size=count, parts=parts)
        assert abs((stop - start) - num_images * parts / count) < 1
        found += range(start, stop)
    assert found == list(range(num_images))


def test_a_small_rest_joins_the_step_before_it() -> None:
    def bounds(num_images: int) -> list[tuple[int, int]]:
        return step_bounds(num_images=num_images, global_batch=16, workers=4)

    assert bounds(40) == [(0, 16), (16, 32), (32, 40)]
    assert bounds(39) == [(0, 16), (16, 39)]
    assert bounds(9) == [(0, 9)]


@pytest.mark.fault(39, "fewer images than a step needs: refused")
def test_too_few_images_are_refused_with_what_to_do() -> None:
    with pytest.raises(
        DataError, match=r"4 workers need at least 8 training images \(two each\); there are 7"
    ) as error:
        step_bounds(num_images=7, global_batch=16, workers=4)
    assert "fewer workers or more images" in str(error.value)
    assert step_bounds(num_images=8, global_batch=16, workers=4) == [(0, 8)]
