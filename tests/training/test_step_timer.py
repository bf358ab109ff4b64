"""The parts of a sampled step, on the host's clock and on a GPU's own timeline."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch

from turnaround.record.schema import Span
from turnaround.training import clock
from turnaround.training.clock import SPAN_EVERY_STEPS, StepTimer
from turnaround.training.noise import MEASURE_EVERY_STEPS, RARELY_EVERY_STEPS, NoiseMeter
from turnaround.training.position import TrainingPosition

CPU = torch.device("cpu")
NAP_S = 0.02


class HostClock:
    """A host's clock that a test moves: on a busy machine a nap of 5 ms may take 50."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: self.now_s))

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> HostClock:
    return HostClock(monkeypatch)


def steps(host: HostClock, timer: StepTimer, numbers: range, *, reduces: bool = False) -> list[Span]:
    spans: list[Span] = []
    for number in numbers:
        timer.begin(TrainingPosition(epochs_done=2, step_in_epoch=number, global_step=number))
        for part in ("wait", "copy"):
            timer.mark(part)
        host.sleep(NAP_S / 4)
        if reduces:
            timer.last_gradient()
            host.sleep(NAP_S)
        timer.mark("compute")
        timer.mark("update")
        spans += timer.spans()
    return spans


def test_one_step_in_sixteen_is_taken_apart(host: HostClock) -> None:
    found = steps(host, StepTimer(CPU), range(3 * SPAN_EVERY_STEPS))
    assert [span.step for span in found] == [11, 27, 43]  # counted from 1
    assert all(span.epoch == 3 for span in found)
    assert [span.compute_s for span in found] == pytest.approx([NAP_S / 4] * 3)
    assert all(span.reduce_s == 0 for span in found)


def test_a_timed_step_is_an_ordinary_one() -> None:
    """A step whose noise is measured takes more passes, so its parts would not be those of the others."""
    timed = {number for number in range(2000) if StepTimer(CPU).is_due(number)}
    assert len(timed) == 125
    for every_steps in (MEASURE_EVERY_STEPS, RARELY_EVERY_STEPS):
        meter = NoiseMeter(window_steps=1, every_steps=every_steps)
        assert not any(meter.is_due(number) for number in timed)


def test_waiting_for_the_others_is_not_computing(host: HostClock) -> None:
    (span,) = steps(host, StepTimer(CPU), range(10, 11), reduces=True)
    assert (span.compute_s, span.reduce_s) == pytest.approx((NAP_S / 4, NAP_S))
    (span,) = steps(host, StepTimer(CPU), range(10, 11))
    assert span.reduce_s == 0


def test_an_earlier_steps_last_gradient_is_forgotten(host: HostClock) -> None:
    timer = StepTimer(CPU)
    steps(host, timer, range(10, 11), reduces=True)
    (span,) = steps(host, timer, range(26, 27))
    assert span.reduce_s == 0
    assert span.compute_s > 0


@pytest.mark.gpu
def test_on_a_gpu_no_mark_waits_for_it() -> None:
    cuda = torch.device("cuda")
    timer, square = StepTimer(cuda), torch.randn(8192, 8192, device=cuda)
    torch.mm(square, square)
    torch.cuda.synchronize()
    begun_s = time.perf_counter()
    timer.begin(TrainingPosition(step_in_epoch=10, global_step=10))
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
