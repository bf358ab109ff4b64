"""Each kind of remark has its words."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest

from forecast.conftest import real
from turnaround.analysis.bottleneck import Bottleneck
from turnaround.analysis.compare import Fact
from turnaround.analysis.configurations import ConfigurationRuns
from turnaround.analysis.gpu_kinds import data_sheet
from turnaround.analysis.times_in_doubt import ImpossibleSpeed, RunsTogether
from turnaround.analysis.workloads import survey
from turnaround.findings.forecast_warnings import warning_text
from turnaround.findings.forecasts import Answer, assumption_text, basis_text, pinned_text
from turnaround.forecast import remarks as r
from turnaround.forecast.predict import fit_forecaster
from turnaround.forecast.question import Prediction, Question

FACT = Fact(id="batch", value="64", matters_for="both")


def test_what_is_left_open_names_each_reason_once_with_the_law_it_is_about() -> None:
    one, fall = r.Pinned(reason="one count", counts=(4,)), r.Pinned(reason="typical fall", fall=0.005)
    remarks = r.Remarks(pinned=(("time", "c1", one), ("time", "c2", one), ("accuracy", "fall", fall)))
    answer = Answer(
        job="job", workers=4, gpu="T4", processes=4, hosts=1, global_batch=None, epochs_planned=None, remarks=remarks
    )
    assert list(answer.pinned) == ["time: c1", "time: c2", "accuracy: fall"]
    assert answer.left_open == [f"time: {pinned_text(one)}", f"accuracy: {pinned_text(fall)}"]


@pytest.fixture
def configuration(tmp_path: Path) -> ConfigurationRuns:
    real(tmp_path / "a", 4, epoch_time_s=80.0)
    return survey([tmp_path]).workloads[0].configurations[0]


def test_pinned() -> None:
    one = {n: pinned_text(r.Pinned(reason="one count", counts=(n,))) for n in (1, 4)}
    assert one[1] == "only 1 process was learnt from: typical of published series"
    assert one[4].startswith("only 4 processes were learnt from")
    assert pinned_text(r.Pinned(reason="two counts", counts=(1, 4))) == (
        "1 and 4 processes cannot tell what the second one costs (c1) from what every doubling costs (c2): their ratio "
        "is that of published series"
    )
    noise = r.Pinned(reason="noise scale", noise_scale=500.4, factor=2.5)
    assert pinned_text(noise).endswith("the measured noise scale, 500 images, within a factor of 2.5")
    assert pinned_text(r.Pinned(reason="typical critical batch")).endswith("rehearse a second batch")
    assert pinned_text(r.Pinned(reason="typical fall", fall=0.005)) == (
        "one global batch only: 0.5 points for each doubling"
    )
    assert "nothing in an epoch is taken as never shrinking" in pinned_text(
        r.Pinned(reason="one count of epochs", counts=(4,))
    )
    assert "these epochs cannot tell what never shrinks" in pinned_text(r.Pinned(reason="no overhead"))


def test_every_warning_has_words(configuration: ConfigurationRuns) -> None:
    run = configuration.summaries[0]
    verdict = Bottleneck(
        kind="input",
        share=0.5,
        most_gain=2.0,
        reason="input spans",
        figures={"wait": 0.4, "copy": 0.1, "num_steps": 20},
    )
    examples: dict[type, tuple[Any, str]] = {
        r.SetAside: (
            r.SetAside(configurations=(configuration,), reason="time settings", facts=(FACT,)),
            "Set aside: 4 H200: their times are those of other settings (batch 64).",
        ),
        r.Exclusion: (
            r.Exclusion(
                processes=2, time_s=209.0, against_processes=4, against_time_s=81.0, efficiency=1.29, unit="epoch"
            ),
            "2 processes (209 s an epoch) set aside: against 4 (81 s) the scaling is 129 % of linear, so the two are "
            "not comparable.",
        ),
        r.DoubtfulTime: (
            r.DoubtfulTime(kind="too slow", processes=8, against_processes=4, factor=3.04),
            "8 processes take 3.0 times as long as the smaller counts lead to expect: if that run was disturbed",
        ),
        r.RepeatsApart: (
            r.RepeatsApart(configuration=configuration, least_s=104.0, most_s=208.0),
            "Runs of 4 H200 took 104 s and 208 s an epoch: they are not the same work, or one was disturbed.",
        ),
        r.FarFromMeasured: (
            r.FarFromMeasured(processes=64, factor=16.0, counts=(1, 4), tested_factor=8.0),
            "64 processes are 16 times away from what was measured (1 to 4); the law was tested up to 8 times.",
        ),
        r.FirstHosts: (
            r.FirstHosts(hosts=2, extra_s=0.08, bytes_per_s=1.25e9, is_network_known=True),
            "No run was on more than one host: from no extra cost up to 80 ms a step for 2 hosts on 1.25 GB/s.",
        ),
        r.BatchFarFromRun: (
            r.BatchFarFromRun(batch=16_384, largest=256, tested_factor=16.0),
            "A global batch of 16384 is 64 times the largest that was run (256); the law was tested up to 16 times.",
        ),
        r.BatchesClose: (r.BatchesClose(smallest=64, largest=96), "are less than a factor of 2 apart."),
        r.FasterGpuNoFaster: (
            r.FasterGpuNoFaster(fast=configuration, slow=configuration, bandwidth_ratio=2.8, images_per_s=306.1),
            "4 H200 were no faster than 4 H200 (80 s and 80 s an epoch), though they have 2.8 times the memory "
            "bandwidth: the input path was the limit, about 306 images/s for 4 workers, not the GPUs. The interval is "
            "wider for it.",
        ),
        r.WaitsForInput: (r.WaitsForInput(bottleneck=verdict), "The input path holds these runs up: "),
        r.NotPriced: (
            r.NotPriced(gpu="RTX 4090", priced=("A100", "V100")),
            "No cost: the price table has no RTX 4090, only A100, V100. Set it: turnaround prices set 'RTX 4090' PRICE"
            "; or give --price.",
        ),
        r.InputLimitReached: (r.InputLimitReached(images_per_s=1400.0), "1,400 images/s on each host"),
        r.InputLimitBeaten: (
            r.InputLimitBeaten(limit=400.0, source="told", configuration=configuration, images_per_s=556.5),
            "An input limit of 400 images/s, as told, contradicts 4 H200, which read 556 images/s on each host: the "
            "limit must lie above.",
        ),
        r.ImpossibleTimes: (
            r.ImpossibleTimes(found=(ImpossibleSpeed(run=run, images_per_s_each=9e6, limit=960_000.0),)),
            "a would train 9,000,000 images/s on each H200, where 960,000 are beyond any network: its times are "
            "probably hours or minutes, taken for seconds. The forecast is in the same wrong unit: import the table "
            "again.",
        ),
        r.JobTooShort: (
            r.JobTooShort(configuration=configuration, run="model3", epochs_s=6270.0, job_s=5910.0),
            "model3 (4 H200) contradicts itself: its epochs are 6,270 s together, more than its whole job of 5,910 s.",
        ),
        r.TooFast: (
            r.TooFast(smaller=configuration, larger=configuration, speedup=2.58),
            "4 H200 are 2.58 times as fast as 4 H200 on 1 times the workers: more than linear, so one of the two is "
            "not comparable, and the forecast rests on both.",
        ),
        r.SharedHosts: (
            r.SharedHosts(pairs=(RunsTogether(first=run, second=run, both_s=62.0),)),
            "ran on the same host for 62 s at the same time: their times are not those of a machine of their own. The "
            "forecast rests on them: repeat them one after the other.",
        ),
        r.Missing: (r.Missing(what="fixed overhead"), "start-up is missing from the job time."),
        r.MoreProcessesThanCores: (r.MoreProcessesThanCores(cores=2), "has 2 cores: more processes than cores"),
        r.CoresInUse: (
            r.CoresInUse(cores=2, measured=1, workers=2),
            "Only 1 CPU process was timed, with threads on all 2 cores of the host: 2 CPU processes would share them",
        ),
        r.OneCountTimed: (r.OneCountTimed(workers=1), "Only 1 worker was timed: "),
        r.NotMeasuredGpu: (r.NotMeasuredGpu(gpu="T4"), "No T4 was measured: "),
        r.NoStableEpoch: (r.NoStableEpoch(at_least=20.0), "(one takes at least 20 epochs)"),
        r.TargetNotSeen: (r.TargetNotSeen(target=0.66), "No curve of these runs reaches 66 %"),
    }
    assert set(examples) == set(get_args(r.Warning_))
    for warning, words in examples.values():
        assert words in warning_text(warning)
    slow = warning_text(r.FirstHosts(hosts=2, extra_s=None, bytes_per_s=0.3e9))
    assert "is a guess, and the upper end has room for a slow network (0.3 GB/s)." in slow
    assert "so there is no forecast of that" in warning_text(r.NoStableEpoch(at_least=None))


def test_assumptions_with_and_without_the_option_that_says_otherwise() -> None:
    one = r.OneHost(most_workers=8)
    assert assumption_text(one) == "one host; the runs had at most 8 workers on one (--hosts for more)"
    assert assumption_text(one, flags=False) == "one host; the runs had at most 8 workers on one"
    kind = r.MostMeasuredKind(gpu="V100", others=("T4",))
    assert assumption_text(kind) == "V100: most was measured on it (T4 too: --gpu chooses)"
    assert assumption_text(kind, flags=False) == "V100: most was measured on it"
    assert assumption_text(r.SettingsKept(facts=(FACT,))) == "the settings batch 64; others were set aside"
    usual = r.HostsOfUsualSize(hosts=8, workers_each=8)
    assert assumption_text(usual) == (
        "8 hosts, up to 8 workers each: no run says how many fit on one (--hosts says otherwise)"
    )
    told = r.HostsAsTold(hosts=1, workers_each=8, source=None)
    assert assumption_text(told) == "1 host: as you said, 8 GPUs on each host"
    hosts = r.HostsAsInRuns(hosts=8, workers_each=4)
    assert assumption_text(hosts) == "8 hosts, up to 4 workers each, as in the runs"


def test_what_figures_rest_on(configuration: ConfigurationRuns) -> None:
    assert basis_text(r.TimesBasis(unit="step", configurations=(configuration,))) == "step times of 4 H200 (1 run)"
    batches = r.BatchesBasis(what="final accuracies", batches=(64, 128), rehearsed=1)
    assert basis_text(batches) == "final accuracies at global batches of 64, 128, 1 of them rehearsed"
    t4, v100 = data_sheet("T4"), data_sheet("V100")
    assert t4 is not None
    assert v100 is not None
    text = basis_text(
        r.DataSheetBasis(source=t4, destination=v100, precision="amp", target_precision="amp", speed_ratio=2.79)
    )
    assert text.startswith(
        "V100 in amp is taken as 2.79 times as fast as T4 in amp, by memory bandwidth and arithmetic"
    )
    assert "NVIDIA T4 Tensor Core GPU data sheet" in text


def test_an_answer_is_its_prediction_with_words(tmp_path: Path) -> None:
    for workers in (1, 2):
        real(tmp_path / str(workers), workers)
    prediction = fit_forecaster(survey([tmp_path]), Question(workers=8)).predict(8)
    answer = Answer.of(prediction)
    assert all(getattr(answer, field.name) == getattr(prediction, field.name) for field in fields(Prediction))
    told = answer.as_json()
    assert list(told)[-6:] == ["basis", "warnings", "pinned", "assumed", "leave_one_out", "next_run"]
    assert "remarks" not in told
    assert told["basis"] == answer.basis
    assert answer.rests_on == list(answer.basis)
