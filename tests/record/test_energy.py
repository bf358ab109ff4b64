"""Joules of GPUs: by their counter, else by their power; counters that go back, fail, or do not exist."""

import time
from types import SimpleNamespace

import pytest

from turnaround.record.energy import EnergyMeter, OwnGpuEnergy
from turnaround.record.gpus import nvml_session, uuid_of, visible_gpus


class Board:
    """One GPU as NVML shows it: what is None is not supported."""

    def __init__(self, counter_mj=None, power_mw=None):
        self.counter_mj, self.power_mw = counter_mj, power_mw


def nvml():
    def told(value):
        if value is None:
            raise RuntimeError("Not Supported")
        return value

    return SimpleNamespace(
        nvmlDeviceGetTotalEnergyConsumption=lambda board: told(board.counter_mj),
        nvmlDeviceGetPowerUsage=lambda board: told(board.power_mw),
    )


class Clock:
    now_s = 100.0

    def __call__(self):
        return self.now_s


def meter_of(*boards):
    clock = Clock()
    return EnergyMeter(nvml(), list(enumerate(boards)), now_s=clock), clock


def test_the_counter_is_counted_from_the_beginning_on():
    board = Board(counter_mj=9_000_000, power_mw=50_000)
    meter, _ = meter_of(board)
    assert meter.read()[0].joules == 0.0
    board.counter_mj += 2_500
    assert (meter.read()[0].joules, meter.read()[0].source) == (2.5, "counter")


def test_without_a_counter_power_is_integrated():
    board = Board(power_mw=100_000)
    meter, clock = meter_of(board)
    clock.now_s += 10
    board.power_mw = 200_000
    energy = meter.read()[0]
    assert (energy.joules, energy.source) == (1500.0, "watts")


def test_a_counter_that_goes_back_began_again_at_zero():
    board = Board(counter_mj=5_000)
    meter, clock = meter_of(board)
    board.counter_mj = 6_000
    meter.read()
    board.counter_mj = 400
    clock.now_s += 1
    energy = meter.read()[0]
    assert (energy.joules, energy.resets) == (pytest.approx(1.4), 1)


def test_a_counter_that_only_steps_back_adds_nothing():
    """What it shows is years of energy, not that of a second."""
    board = Board(counter_mj=9e12)
    meter, clock = meter_of(board)
    for counter_mj in (9e12 - 5, 9e12 + 1_995):
        board.counter_mj = counter_mj
        clock.now_s += 1
        energy = meter.read()[0]
    assert (energy.joules, energy.resets) == (pytest.approx(2.0), 0)


@pytest.mark.parametrize("kind", ["counter_mj", "power_mw"])
def test_an_answer_that_is_missing_is_made_up_for_by_the_next(kind):
    board = Board(**{kind: 1000})
    meter, clock = meter_of(board)
    setattr(board, kind, None)
    clock.now_s += 5
    assert meter.read() == {}  # not known now: no 0 in its place
    setattr(board, kind, 3000)
    clock.now_s += 5
    assert meter.read()[0].joules == pytest.approx({"counter_mj": 2.0, "power_mw": 20.0}[kind])


def test_a_gpu_that_tells_nothing_has_no_energy_which_is_not_zero():
    meter, _ = meter_of(Board(), Board(counter_mj=1))
    assert set(meter.read()) == {1}


def test_a_driver_that_hangs_in_another_thread_holds_nobody_up(monkeypatch):
    monkeypatch.setattr("turnaround.record.energy.LOCK_TIMEOUT_S", 0.01)
    meter, _ = meter_of(Board(counter_mj=1))
    with meter._lock:
        assert meter.read() == {}


@pytest.mark.gpu
def test_the_real_counter_agrees_with_the_counter_read_beside_it():
    with nvml_session() as session:
        gpus = visible_gpus(session)
        index, handle = gpus[0]
        before_mj = session.nvmlDeviceGetTotalEnergyConsumption(handle)
        meter = EnergyMeter(session, gpus)
        time.sleep(2.0)
        energy = meter.read()[index]
        after_mj = session.nvmlDeviceGetTotalEnergyConsumption(handle)
    assert energy.source == "counter"
    # The counter moves in steps of some 20 to 100 ms: at most two of them lie between the readings.
    assert energy.joules == pytest.approx((after_mj - before_mj) / 1000, rel=0.15)
    assert 10 < energy.joules / 2.0 < 1500


def test_the_own_gpu_of_a_process_by_its_counter_alone():
    module = nvml()
    boards = [Board(counter_mj=5_000_000), Board(power_mw=70_000)]
    module.nvmlInit = module.nvmlShutdown = lambda: None
    module.nvmlDeviceGetCount = lambda: 2
    module.nvmlDeviceGetHandleByIndex = boards.__getitem__
    module.nvmlDeviceGetUUID = lambda board: f"GPU-{boards.index(board)}"
    counted, in_watts, unknown = (OwnGpuEnergy(uuid, nvml=module) for uuid in ("GPU-0", "GPU-1", ""))
    boards[0].counter_mj += 3_000
    assert counted.used_energy_j() == 3.0
    assert in_watts.used_energy_j() is unknown.used_energy_j() is None  # nobody samples its power: not known, not 0


@pytest.mark.gpu
def test_a_real_gpu_that_this_process_is_not_shown(monkeypatch):
    with nvml_session() as module:
        uuid = uuid_of(module, module.nvmlDeviceGetHandleByIndex(0))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # as for a process beside the one that computes on it
    own = OwnGpuEnergy(uuid)
    first_j = own.used_energy_j()
    assert first_j is not None
    assert own.used_energy_j() >= first_j >= 0
