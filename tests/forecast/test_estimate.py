"""An answer from zero runs: what it rests on, what it chooses, what it would run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forecast.test_prior import RESNET50
from turnaround.analysis.energy import EnergyRates
from turnaround.analysis.prices import Price, PriceTable
from turnaround.errors import InputError
from turnaround.forecast.estimate import Estimate, EstimateQuestion, TrialFacts, choices, estimate_all
from turnaround.forecast.interval import Interval

HERE = TrialFacts(
    job="photos, resnet50, fine-tuned, 224 px",
    network=RESNET50,
    num_train=24_000,
    num_validation=6_000,
    batch=32,
    epochs=30,
    gradient_bytes=96e6,
    device="CPU",
    precision="fp32",
    gpu_precision="amp",
    images_per_s=Interval(value=5.0, low=4.0, high=6.0),
    decode_images_per_s=1000.0,
    cores=2,
)


def asked(
    *gpus: str, workers: tuple[int, ...] = (1, 2, 4, 8, 16), prices: dict[str, float] | None = None
) -> EstimateQuestion:
    table = PriceTable(prices={kind: Price(per_hour=each, currency="EUR") for kind, each in (prices or {}).items()})
    return EstimateQuestion(gpus=gpus, workers=workers, prices=table)


def one(estimates: list[Estimate], gpu: str, workers: int) -> Estimate:
    return next(e for e in estimates if (e.prediction.gpu, e.prediction.workers) == (gpu, workers))


def test_every_kind_and_count() -> None:
    found = estimate_all(HERE, asked("cpu", "v100", "NVIDIA H100 80GB HBM3"))
    assert [(e.prediction.gpu, e.prediction.workers) for e in found] == [
        *(("CPU", n) for n in (1, 2)),
        *((kind, n) for kind in ("V100", "H100") for n in (1, 2, 4, 8, 16)),
    ]
    p = one(found, "V100", 16).prediction
    assert (p.hosts, p.global_batch, p.epochs_planned, p.kind) == (2, 512, 30, "estimate from data sheets")
    for e in found:
        p = e.prediction
        for figure in (p.epoch_time_s, p.epochs_to_stable, p.time_to_stable_s, p.job_time_s, p.images_per_s):
            assert figure is not None
            assert 0 < figure.low < figure.value < figure.high
    here = one(found, "CPU", 1).prediction
    assert here.epoch_time_s is not None
    assert here.epoch_time_s.value == pytest.approx(24_000 / 5.0)
    assert here.kind == "forecast"


def test_more_gpus_are_faster_and_less_sure() -> None:
    found = estimate_all(HERE, asked("a100"))
    epochs = [one(found, "A100", n).prediction.epoch_time_s for n in (1, 8, 16)]
    assert all(e is not None for e in epochs)
    first, eighth, sixteenth = (e for e in epochs if e is not None)
    assert first.value > 6 * eighth.value
    # The second host: nobody has told the network.
    assert sixteenth.high / sixteenth.low > eighth.high / eighth.low > first.high / first.low
    known = replace(asked("a100"), network=25.0)
    sure = one(estimate_all(HERE, known), "A100", 16).prediction.epoch_time_s
    assert sure is not None
    assert sure.high < sixteenth.high
    assert sure.value < eighth.value


def test_a_gpu_here_is_carried_over() -> None:
    here = replace(HERE, device="H200", precision="bf16", images_per_s=Interval(value=4700.0, low=4600.0, high=4800.0))
    found = estimate_all(here, asked("h200", "v100", workers=(1,)))
    own, other = (one(found, kind, 1).prediction for kind in ("H200", "V100"))
    assert own.epoch_time_s is not None
    assert other.epoch_time_s is not None
    assert own.epoch_time_s.value == pytest.approx(24_000 / 4700, rel=0.01)
    assert (own.kind, other.kind) == ("forecast", "estimate from data sheets")
    assert other.epoch_time_s.low <= 24_000 / 1180 <= other.epoch_time_s.high  # NVIDIA's figure of a V100
    assert other.epoch_time_s.relative_width > own.epoch_time_s.relative_width


def test_features_that_are_kept_cost_one_pass() -> None:
    frozen = replace(HERE, network=replace(RESNET50, is_frozen=True, keeps_features=True))
    kept, again = (one(estimate_all(facts, asked("v100")), "V100", 1).prediction for facts in (frozen, HERE))
    assert kept.epoch_time_s is not None
    assert again.epoch_time_s is not None
    assert kept.epoch_time_s.value < again.epoch_time_s.value / 20
    assert kept.job_time_s is not None
    assert kept.job_time_s.value > 24_000 / 10_000  # the one pass


def test_prices_choose() -> None:
    found = estimate_all(HERE, asked("t4", "h100", prices={"T4": 0.35, "H100": 7.0}))
    best = choices(found)
    assert best is not None
    assert best.is_priced
    assert (best.fastest.prediction.gpu, best.cheapest is not None) == ("H100", True)
    assert best.cheapest is not None
    assert best.cheapest.prediction.gpu == "T4"
    p = best.fastest.prediction
    assert p.cost is not None
    assert p.job_time_s is not None
    assert p.cost_to_stable is not None
    assert p.cost.value == pytest.approx(p.workers * p.job_time_s.value * 7 / 3600)
    assert p.cost_to_stable.value < p.cost.value
    assert p.currency == "EUR"
    near, fastest = best.near_fastest.prediction.time_to_stable_s, p.time_to_stable_s
    assert near is not None
    assert fastest is not None
    assert near.value <= 1.1 * fastest.value
    assert (best.near_fastest.paid or 0) <= (best.fastest.paid or 0)


def test_kinds_without_a_price_are_not_called_cheap() -> None:
    best = choices(estimate_all(HERE, asked("t4", "h100", prices={"T4": 0.35})))
    assert best is not None
    assert (best.is_priced, best.cheapest) == (False, None)
    assert best.near_fastest.prediction.gpu == best.fastest.prediction.gpu
    alone = choices(estimate_all(HERE, asked("h100")))
    assert alone is not None
    assert alone.cheapest is not None  # hours of one kind can be compared


def test_what_does_not_fit_is_no_choice() -> None:
    large = replace(HERE, batch=4096, num_train=10**6)
    found = estimate_all(large, asked("t4", workers=(1,)))
    assert found[0].memory.fits == "no"
    assert choices(found) is None


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"gpus": ("v10",)}, "No data sheet for the GPU 'v10'. Known: "),
        ({"gpus_per_host": 0}, "--gpus-per-host must be 1 or more, received 0"),
        ({"network": -1.0}, "--network must be above 0"),
    ],
)
def test_bad_questions(question: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(asked("v100"), **question)  # type: ignore[arg-type]


def test_more_workers_than_images() -> None:
    with pytest.raises(InputError, match=r"1,000 workers of 32 images a step are more than the 24,000 training images"):
        estimate_all(HERE, asked("v100", workers=(1000, 2000)))
    assert [e.prediction.workers for e in estimate_all(HERE, asked("v100", workers=(750, 751)))] == [750]


def test_the_start_up_is_that_of_the_trial_on_this_machine_and_a_guess_elsewhere() -> None:
    """A short job on a GPU is mostly its start: seconds that the trial has taken itself are not guessed."""
    gpu = replace(
        HERE, device="V100", precision="amp", images_per_s=Interval(value=4e3, low=3.9e3, high=4.1e3), epochs=1
    )
    quick, slow = (
        estimate_all(replace(gpu, start_up_s=start_s), asked("v100", "a100", workers=(1,))) for start_s in (5.0, 50.0)
    )
    here, there = (one(slow, kind, 1).prediction.job_time_s for kind in ("V100", "A100"))
    assert here is not None
    assert there is not None
    difference = here.value - one(quick, "V100", 1).prediction.job_time_s.value  # type: ignore[union-attr]
    assert difference == pytest.approx(45.0)
    assert here.low > 0.6 * 50
    assert there == one(quick, "A100", 1).prediction.job_time_s


# --- energy


def test_energy_is_a_share_of_the_boards_power_over_the_time() -> None:
    rates = EnergyRates(electricity=0.3, grid=0.4)
    found = estimate_all(HERE, replace(asked("cpu", "t4", "h100", "rtx 6000", workers=(1, 4)), rates=rates))
    assert one(found, "CPU", 1).prediction.energy_wh is None
    assert one(found, "RTX 6000", 1).prediction.energy_wh is None  # its board's power is in no sheet that is sure
    for kind, watts in (("T4", 70), ("H100", 700)):
        p, four = (one(found, kind, n).prediction for n in (1, 4))
        assert p.energy_wh is not None
        assert p.energy_to_stable_wh is not None
        assert p.job_time_s is not None
        assert p.electricity_cost is not None
        assert p.emissions_kg is not None
        # The start is a small part of the job here: half of the board's power over the whole job.
        assert p.energy_wh.value == pytest.approx(0.5 * watts * p.job_time_s.value / 3600, rel=0.1)
        assert p.energy_wh.high <= 1.05 * watts * p.job_time_s.high / 3600
        assert p.energy_wh.high / p.energy_wh.low > p.job_time_s.high / p.job_time_s.low
        assert p.energy_to_stable_wh.value < p.energy_wh.value
        assert p.electricity_cost.value == pytest.approx(0.3 * p.energy_wh.value / 1000)
        assert p.emissions_kg.high == pytest.approx(0.4 * p.energy_wh.high / 1000)
        assert four.energy_wh is not None
        assert p.energy_wh.value < four.energy_wh.value < 1.5 * p.energy_wh.value


@pytest.mark.parametrize(
    ("epoch_s", "epochs", "wh"),
    # An H200: an epoch as measured, epochs, and what its counter told from the first step to the end (docs/LOG.md).
    [(0.20, 10, 0.200), (0.59, 10, 0.697), (0.177, 12, 0.253), (0.108, 12, 0.176), (0.765, 6, 0.731)],
)
def test_the_interval_holds_what_short_trainings_on_an_h200_used(epoch_s: float, epochs: int, wh: float) -> None:
    rate = Interval.exact(24_000 / epoch_s)
    decoded = replace(HERE, decode_images_per_s=1e6, start_up_s=6.0)
    here = replace(decoded, device="H200", precision="bf16", images_per_s=rate, epochs=epochs)
    used = one(estimate_all(here, asked("h200", workers=(1,))), "H200", 1).prediction.energy_wh
    assert used is not None
    assert used.low <= wh <= used.high


def test_a_counter_of_the_trial_tells_its_own_kind_alone() -> None:
    here = replace(HERE, device="H200", precision="bf16", images_per_s=Interval.exact(4700.0))
    counted = replace(here, training_watts=500.0)
    unknown, known = (estimate_all(facts, asked("h200", "t4", workers=(1,))) for facts in (here, counted))
    own, guessed = (one(found, "H200", 1).prediction.energy_wh for found in (known, unknown))
    assert own is not None
    assert guessed is not None
    assert own.high / own.low < 0.7 * guessed.high / guessed.low
    assert one(known, "T4", 1) == one(unknown, "T4", 1)
