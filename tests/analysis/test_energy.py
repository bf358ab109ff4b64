"""The energy of a run: the GPUs it uses, each once, over all hosts and starts; and what is not known is not zero."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from analysis.build import Plan, build
from turnaround.analysis.energy import EnergyRates, energy_to_epoch_wh, run_energy
from turnaround.analysis.workloads import survey
from turnaround.errors import InputError
from turnaround.record.layout import RunDirectory
from turnaround.record.reader import Run
from turnaround.record.schema import GpuSample, TelemetrySample, to_json
from turnaround.record.writer import write_lines

AT = "2026-03-01T09:00:00.000+00:00"


def gpu(index: int = 0, **told: object) -> GpuSample:
    return GpuSample(index=index, name="Tesla T4", **told)  # type: ignore[arg-type]


def sample(time_s: float, *gpus: GpuSample) -> TelemetrySample:
    return TelemetrySample(time_s=time_s, at=AT, gpus=list(gpus))


def counted(time_s: float, joules: float, index: int = 0, processes: int = 1, **told: object) -> TelemetrySample:
    used = gpu(index, energy_j=joules, energy_source="counter", run_processes=processes, **told)
    return sample(time_s, used)


def run_with(path: Path, by_host: dict[str, Sequence[TelemetrySample]], **plan: object) -> Run:
    build(path, Plan(**{"workers": 1, **plan}))  # type: ignore[arg-type]
    for host, samples in by_host.items():
        write_lines(RunDirectory(path).telemetry(host), (to_json(one) for one in samples))
    return Run.load(path)


def test_each_gpu_counts_once_whatever_the_number_of_processes_and_those_left_alone_do_not(tmp_path: Path) -> None:
    shared_by_us = gpu(0, energy_j=7200.0, energy_source="counter", run_processes=2)
    left_alone = gpu(1, energy_j=9999.0, energy_source="counter", run_processes=0)
    used = run_energy(run_with(tmp_path / "a", {"node1": [sample(60.0, shared_by_us, left_alone)]}, workers=2))
    assert (used.wh, used.source, used.num_gpus, used.num_shared) == (2.0, "counter", 1, 0)
    assert used.watts == pytest.approx(120.0)


def test_the_starts_of_a_resumed_run_are_added_also_on_another_gpu(tmp_path: Path) -> None:
    starts = [counted(10.0, 1800.0), counted(20.0, 3600.0), counted(1.0, 100.0, 3), counted(5.0, 1800.0, 3)]
    assert run_energy(run_with(tmp_path / "a", {"node1": starts})).wh == pytest.approx(1.5)


def test_hosts_are_added(tmp_path: Path) -> None:
    ranks = [{"host": host, "device": "cuda:0", "workers": [n]} for n, host in enumerate(("node1", "node 2"))]
    both = {"node1": [counted(9.0, 3600.0)], "node 2": [counted(9.0, 7200.0)]}
    run = run_with(tmp_path / "a", both, workers=2, machine={"ranks": ranks})
    assert (run_energy(run).wh, run_energy(run).num_gpus) == (3.0, 2)
    silent = run_with(tmp_path / "b", {"node1": both["node1"]}, workers=2, machine={"ranks": ranks})
    assert (run_energy(silent).wh, run_energy(silent).unknown) == (None, "GPU not sampled")


def test_a_gpu_that_nobody_could_see_makes_the_energy_unknown(tmp_path: Path) -> None:
    ranks = [{"host": "node1", "device": "cuda:0", "workers": [n]} for n in range(2)]  # each was shown its own GPU
    samples = [counted(1.0, 0.0), counted(9.0, 7200.0)]
    run = run_with(tmp_path / "a", {"node1": samples}, workers=2, machine={"ranks": ranks})
    assert run_energy(run).unknown == "GPU not sampled"


def test_older_records_have_their_power_integrated_over_the_devices_of_their_processes(tmp_path: Path) -> None:
    samples = [sample(float(t), gpu(4, power_w=500.0), gpu(5, power_w=100.0 + 10 * t)) for t in (1, 2, 3)]
    ranks = [{"host": "node1", "device": "cuda:1", "workers": [0]}]
    used = run_energy(run_with(tmp_path / "a", {"node1": samples}, machine={"ranks": ranks}))
    # The first second at its power, then two trapezia: 110 + 115 + 125 J.
    assert used.wh == pytest.approx(350 / 3600)
    assert used.source == "watts"


def test_what_is_not_known_is_not_zero(tmp_path: Path) -> None:
    def unknown(name: str, samples: Sequence[TelemetrySample], **plan: object) -> object:
        used = run_energy(run_with(tmp_path / name, {"node1": samples} if samples else {}, **plan))
        assert used.wh is None
        return used.unknown

    assert unknown("cpu", [sample(1.0)], gpu=None) == "no GPU"
    assert unknown("none", []) == "no telemetry"
    assert unknown("silent", [sample(1.0, gpu())]) == "neither counter nor power"
    assert unknown("empty", [sample(1.0)]) == "GPU not sampled"
    two = [sample(1.0, gpu(0, power_w=1.0), gpu(1, power_w=1.0))]
    assert unknown("which", two, machine={"ranks": None}) == "GPUs not told"
    assert unknown("odd", two, machine={"ranks": [{"host": "node1", "device": "cuda"}]}) == "GPUs not told"


@pytest.mark.parametrize("wrong", [-1.0, float("inf"), float("nan")])
def test_amounts_that_cannot_be_are_not_believed(tmp_path: Path, wrong: float) -> None:
    run = run_with(tmp_path / "a", {"node1": [counted(10.0, 3600.0), counted(20.0, wrong)]})
    assert run_energy(run).wh == 1.0
    powered = [sample(1.0, gpu(power_w=100.0)), sample(2.0, gpu(power_w=wrong))]
    assert run_energy(run_with(tmp_path / "b", {"node1": powered})).wh == pytest.approx(100 / 3600)


def test_programs_of_others_and_counters_that_began_again_are_noticed(tmp_path: Path) -> None:
    alone = [counted(float(t), 60.0 * t, compute_processes=1) for t in range(1, 40)]
    visited = [counted(float(t), 60.0 * t, compute_processes=2, energy_resets=1) for t in range(40, 50)]
    used = run_energy(run_with(tmp_path / "a", {"node1": [*alone, *visited]}))
    assert (used.num_shared, used.resets) == (1, 1)
    assert run_energy(run_with(tmp_path / "b", {"node1": alone})).num_shared == 0


def test_to_stable_are_the_epochs_until_there_and_what_is_outside_of_epochs(tmp_path: Path) -> None:
    run = Run.load(build(tmp_path / "a", Plan(workers=2, watts=180.0, accuracy=(0.5,) * 10)))
    used, each = run_energy(run), run.epochs[0].energy_wh
    assert used.wh is not None
    assert each is not None
    outside = used.wh - 10 * each
    assert outside > 0
    assert energy_to_epoch_wh(used, run.epochs, 4) == pytest.approx(outside + 4 * each)
    assert energy_to_epoch_wh(used, run.epochs, 4.5) == pytest.approx(outside + 4.5 * each)
    assert energy_to_epoch_wh(used, run.epochs, 10) == pytest.approx(used.wh)
    assert energy_to_epoch_wh(used, run.epochs, 11) is None


def test_a_configuration_has_the_median_and_a_rehearsal_none(tmp_path: Path) -> None:
    for number, watts in enumerate((100.0, 200.0, 300.0)):
        build(tmp_path / f"real{number}", Plan(workers=2, watts=watts))
    build(tmp_path / "rehearsed", Plan(workers=4, processes=1, watts=100.0))
    real, rehearsed = survey([tmp_path]).workloads[0].configurations
    assert real.energy_wh is not None
    assert real.gpu_watts is not None
    assert (real.gpu_watts.value, real.gpu_watts.count) == (pytest.approx(200.0), 3)
    assert real.energy_to_stable_wh is not None
    assert 0 < real.energy_to_stable_wh.value < real.energy_wh.value
    assert (rehearsed.energy_wh, rehearsed.gpu_watts) == (None, None)
    assert rehearsed.energies[0].wh is not None


@pytest.mark.parametrize(("name", "flag"), [("electricity", "--electricity"), ("grid", "--grid")])
@pytest.mark.parametrize("value", [-0.1, float("inf"), float("nan")])
def test_rates_that_cannot_be(name: str, flag: str, value: float) -> None:
    with pytest.raises(InputError, match=f"{flag} must be 0 or more .* received"):
        EnergyRates(**{name: value})


def test_rates_are_per_kwh_and_never_guessed() -> None:
    assert EnergyRates(electricity=0.3, grid=0.35).price(500.0) == pytest.approx(0.15)
    assert EnergyRates(grid=0.35).emissions_kg(2000.0) == pytest.approx(0.7)
    assert (EnergyRates().price(500.0), EnergyRates().emissions_kg(500.0)) == (None, None)
