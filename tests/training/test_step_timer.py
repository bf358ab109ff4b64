"""The parts of a sampled step, on the host's clock and on a GPU's own timeline."""

from __future__ import annotations

import time

import pytest
import torch

from turnaround.record.schema import Span
from turnaround.training.step_timer import SPAN_EVERY_STEPS, StepTimer

CPU = torch.device("cpu")
NAP_S = 0.02


def steps(timer: StepTimer, updates: range, *, reduces: bool = False) -> list[Span]:
    spans: list[Span] = []
    for update in updates:
        timer.begin(update, epoch=3)
        for part in ("wait", "copy"):
            timer.mark(part)
        time.sleep(NAP_S / 4)
        if reduces:
            timer.last_gradient()
            time.sleep(NAP_S)
        timer.mark("compute")
        timer.mark("update")
        spans += timer.spans()
    return spans


def test_one_step_in_sixteen_is_taken_apart() -> None:
    found = steps(StepTimer(CPU), range(3 * SPAN_EVERY_STEPS))
    assert [span.step for span in found] == [9, 25, 41]  # counted from 1
    assert all(span.epoch == 3 for span in found)
    assert all(span.compute_s >= NAP_S / 4 for span in found)
    assert all(span.reduce_s == 0 for span in found)


def test_waiting_for_the_others_is_not_computing() -> None:
    (span,) = steps(StepTimer(CPU), range(8, 9), reduces=True)
    assert span.reduce_s >= NAP_S
    assert NAP_S / 4 <= span.compute_s < NAP_S
    (span,) = steps(StepTimer(CPU), range(8, 9))
    assert span.reduce_s == 0


def test_an_earlier_steps_last_gradient_is_forgotten() -> None:
    timer = StepTimer(CPU)
    steps(timer, range(8, 9), reduces=True)
    (span,) = steps(timer, range(24, 25))
    assert span.reduce_s == 0
    assert span.compute_s > 0


@pytest.mark.gpu
def test_on_a_gpu_no_mark_waits_for_it() -> None:
    cuda = torch.device("cuda")
    timer, square = StepTimer(cuda), torch.randn(8192, 8192, device=cuda)
    torch.mm(square, square)
    torch.cuda.synchronize()
    begun_s = time.perf_counter()
    timer.begin(8, epoch=1)
    timer.mark("wait")
    for _ in range(20):
        torch.mm(square, square)
    timer.mark("compute")
    timer.mark("update")
    queued_s = time.perf_counter() - begun_s
    (span,) = timer.spans(waits=True)
    assert span.compute_s > 2 * queued_s  # the GPU worked on when the host had long gone on
    assert span.wait_s < span.compute_s / 10
    assert timer.spans() == []
