"""`turnaround predict` as a user sees it: the answer first, units everywhere, and how it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.build import LAB, import_table
from console import Console, Done
from forecast.conftest import real, rehearsal
from turnaround.launch.clusters.contract import NoAnswerError
from turnaround.launch.clusters.slurm.cluster import Slurm
from turnaround.launch.clusters.slurm.inventory import parse
from turnaround.launch.clusters.slurm.script import SlurmJob


@pytest.fixture
def predict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """The console script, in this process, on a terminal of 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return Console(monkeypatch, capsys, always=("predict",))


@pytest.fixture
def lab(tmp_path: Path) -> str:
    return str(import_table(LAB, tmp_path / "lab"))


def words(text: str) -> str:
    return " ".join(text.split())


def refused(done: Done, *expected: str) -> None:
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert [part for part in expected if part not in done.err] == []


def test_one_worker_is_not_rehearsed(tmp_path: Path, predict: Callable[..., Done]) -> None:
    """Two epochs on processors tell no stable accuracy; a rehearsal of one worker on one process was the advice."""
    real(tmp_path / "runs" / "one", 1, gpu="cpu", accuracy=(0.2, 0.4))
    done = predict(tmp_path / "runs", "--workers", "1")
    assert done.code == 0, done.err
    assert "rehearse" not in done.out
    assert "turnaround train SOURCE --workers 1\n" in done.out


# --- the lab's table


def test_the_lab_as_json(predict: Callable[..., Done], lab: str) -> None:
    done = predict(lab, "--workers", "16", "--gpu", "V100", "--json")
    assert (done.code, done.err) == (0, "")
    result = json.loads(done.out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert (result["workers"], result["gpu"], result["processes"], result["job"]) == (
        16,
        "V100",
        16,
        "caltech256, frozen",
    )
    assert result["epoch_time_s"]["value"] == pytest.approx(24, abs=1)
    assert result["job_time_s"]["value"] == pytest.approx(13.4 * 60, rel=0.05)
    assert result["epochs_to_stable"]["value"] == pytest.approx(38, abs=1)
    assert (result["reaches_stable"], result["cost"]) == (False, None)
    assert any("the input path was the limit" in warning for warning in result["warnings"])
    for key in ("images_per_s", "time_to_stable_s", "val_accuracy"):
        assert set(result[key]) == {"value", "low", "high"}
    assert result["basis"]
    assert result["pinned"]
    assert result["next_run"]["is_rehearsal"] is True


def test_the_lab_in_words(predict: Callable[..., Done], lab: str) -> None:
    done = predict(lab, "--workers", "16", "--gpu", "V100", "--price", "2.48")
    assert (done.code, done.err) == (0, "")
    assert max(len(line) for line in done.out.splitlines()) <= 80
    assert words(done.out).startswith(
        "16 V100 for caltech256, frozen: about 24 s an epoch, 13 min for 30 epochs, at a cost of 8.82. The accuracy "
        "will probably not be stable by then: that takes about 39 epochs, 17 min. Against 8 V100 that saves about "
        "2 min 30 s of 19 min 27 s to a stable accuracy, at twice the GPUs; the interval has room for no gain."
    )
    rows = [words(line) for line in done.out.splitlines()]
    assert "forecast 80 % interval" in rows
    assert any(row.startswith("validation accuracy 66.5 % 64.9 % to 68.2 %") for row in rows)
    assert [row for row in rows if row in ("based on", "assumed", "caveats", "run next")] == [
        "based on",
        "assumed",
        "caveats",
        "run next",
    ]
    assert rows[-1] == "turnaround train SOURCE --workers 16 --processes 1"


def test_a_range_marks_the_best(predict: Callable[..., Done], lab: str) -> None:
    done = predict(lab, "--workers", "1-32", "--gpu", "V100")
    assert (done.code, done.err) == (0, "")
    assert max(len(line) for line in done.out.splitlines()) <= 80
    assert "fastest to a stable accuracy" in words(done.out)
    rows = [words(line) for line in done.out.splitlines()]
    assert [row.split()[0] for row in rows if row.endswith("cheapest")] == ["1"]
    assert any(row.startswith("4 run 80 s") for row in rows)
    assert any(row.startswith("16 24 s 39*") for row in rows)
    assert "* later than the 30 epochs of the recipe" in rows
    assert "more gain less than 5 %" in words(done.out)


def test_a_list_as_json(predict: Callable[..., Done], lab: str) -> None:
    done = predict(lab, "--workers", "4,1,2", "--job", "fruit", "--price", "1", "--json")
    result = json.loads(done.out)
    assert [p["workers"] for p in result["predictions"]] == [1, 2, 4]
    assert result["best"]["by"] == "job time"
    # As measured: 662, 319 and 205 s for the job are 662, 638 and 820 GPU-seconds.
    assert (result["best"]["fastest"], result["best"]["cheapest"]) == (4, 2)
    long = json.loads(predict(lab, "--workers", "1-1000", "--job", "fruit", "--json").out)
    assert [p["workers"] for p in long["predictions"]] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000]


def test_a_measured_configuration_beside_its_forecast(predict: Callable[..., Done], lab: str) -> None:
    done = predict(lab, "--workers", "8", "--gpu", "v100")
    rows = [words(line) for line in done.out.splitlines()]
    assert "forecast 80 % interval measured" in rows
    assert any(row.startswith("an epoch 44 s") and row.endswith(" 44 s") for row in rows)
    assert "will be stable by then" in words(done.out)


def test_another_gpu_is_called_an_estimate(predict: Callable[..., Done], lab: str) -> None:
    done = predict(lab, "--workers", "16", "--gpu", "A100", "--job", "caltech")
    assert "(estimate from data sheets)" in words(done.out)
    assert "estimate 80 % interval" in words(done.out)


def test_a_target_that_is_out_of_reach(predict: Callable[..., Done], lab: str) -> None:
    done = predict(lab, "--workers", "16", "--gpu", "V100", "--target", "0.9")
    assert "It will not reach 90.0 %: the accuracy is forecast as 64.9 % to 68.2 %." in words(done.out)
    near = predict(lab, "--workers", "16", "--gpu", "V100", "--target", "0.67")
    assert "It will probably not reach 67.0 %" in words(near.out)
    reached = predict(lab, "--workers", "16", "--gpu", "V100", "--target", "0.6")
    assert "It should reach 60.0 % (forecast: 64.9 % to 68.2 %)." in words(reached.out)


# --- one GPU and rehearsals, saving and scoring


def test_one_gpu_and_rehearsals_then_the_truth(predict: Callable[..., Done], tmp_path: Path) -> None:
    real(tmp_path / "runs" / "real-1", 1)
    for n in (2, 4, 8, 16):
        rehearsal(tmp_path / "runs" / f"rehearsed-{n}", n)
    done = predict("runs", "--workers", "8", "--save")
    assert done.code == 0
    assert "saved in runs/forecasts.jsonl" in done.err
    assert "Only 1 worker was timed" in words(done.out)
    assert "4 of them rehearsed" in words(done.out)
    assert "saved forecasts" not in done.out
    real(tmp_path / "runs" / "real-8", 8)
    after = predict("runs", "--workers", "16")
    assert "saved forecasts against later runs: 5 figures, median error" in after.out
    assert "inside the 80 % interval" in after.out


def test_a_range_can_be_saved(predict: Callable[..., Done], lab: str) -> None:
    assert predict(lab, "--workers", "2,16", "--gpu", "V100", "--save", "--json").code == 0
    lines = [json.loads(line) for line in (Path(lab) / "forecasts.jsonl").read_text().splitlines()]
    assert [line["question"]["workers"] for line in lines] == [2, 16]


def test_leave_one_out_is_printed_from_four_counts_on(predict: Callable[..., Done], tmp_path: Path) -> None:
    for n in (1, 2, 4, 8):
        real(tmp_path / "runs" / f"real-{n}", n)
    done = predict("runs", "--workers", "16")
    assert "each measured time forecast from the others, error by workers: 1: " in words(done.out)


def test_damaged_and_running_runs_are_named(predict: Callable[..., Done], tmp_path: Path) -> None:
    for n in (1, 2):
        real(tmp_path / "runs" / f"real-{n}", n)
    real(tmp_path / "runs" / "going", 4, state="running")
    (real(tmp_path / "runs" / "[broken]", 8) / "machine.json").write_text("{")
    done = predict("runs", "--workers", "16")
    assert done.code == 0
    assert "left out: runs/[broken]: " in done.err
    assert "still running, with what they have: going" in done.err


# --- bad input


@pytest.mark.parametrize("workers", ["0", "-3", "2.5", "", "four", "8-4", "1,,2", "0-4", "1000000"])
def test_workers_that_cannot_be(predict: Callable[..., Done], lab: str, workers: str) -> None:
    refused(predict(lab, "--workers", workers), "--workers takes whole numbers from 1", f"Received: {workers!r}")


def test_other_flags_that_cannot_be(predict: Callable[..., Done], lab: str) -> None:
    refused(predict(lab, "--workers", "4", "--hosts", "8"), "--hosts 8 is more than --workers 4")
    refused(predict(lab, "--workers", "4", "--price", "0"), "--price must be above 0")
    refused(predict(lab, "--workers", "4", "--target", "68"), "--target is an accuracy between 0 and 1, received 68")
    refused(
        predict(lab, "--workers", "4", "--job", "cal", "--gpu", "Abacus"),
        "No data sheet for the GPU 'Abacus'",
        "Known: T4",
        "To add yours",
    )


def test_several_jobs_are_listed(predict: Callable[..., Done], lab: str) -> None:
    refused(
        predict(lab, "--workers", "16"),
        "Several jobs could answer: 'caltech256, frozen' (timed on T4 and V100); 'fruit, fine-tuned' (timed on T4).",
        "--job NAME",
    )


def test_places_without_runs(predict: Callable[..., Done], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refused(predict("empty", "--workers", "4"), "empty")
    refused(predict("nowhere", "--workers", "4"), "nowhere", "no such directory")


def test_the_real_command_needs_no_torch(tmp_path: Path, lab: str) -> None:
    (tmp_path / "torch.py").write_text("raise RuntimeError('torch was imported')\n")
    command = [sys.executable, "-m", "turnaround", "predict", lab, "--workers", "16", "--gpu", "V100", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["reaches_stable"] is False


def test_a_long_range_has_its_warnings_once(predict: Callable[..., Done], tmp_path: Path) -> None:
    real(tmp_path / "runs" / "real-1", 1)
    done = predict("runs", "--workers", "1-64")
    assert done.out.count("times away from what was measured") == 1
    assert "64 processes are 64 times away" in words(done.out)
    assert "run: figures without an interval as measured, where they were;" in words(done.out)


@pytest.mark.parametrize("workers", ["16", "8", "1-32"])
def test_a_narrow_terminal(
    predict: Callable[..., Done], lab: str, workers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    done = predict(lab, "--workers", workers, "--gpu", "V100", "--price", "2.48")
    too_wide = [line for line in done.out.splitlines() if len(line) > 40]
    assert [line for line in too_wide if "turnaround train" not in line] == []  # a command is for copying
    assert not any(line.strip() and not line.strip("- ") for line in done.out.splitlines())


def test_epochs_that_nobody_knows(predict: Callable[..., Done], tmp_path: Path) -> None:
    lab = import_table("name,workers,gpu,epoch_time_s\na,1,T4,20\nb,2,T4,11\n", tmp_path / "few")
    assert "the epochs of a job are not known, so the fastest" in words(predict(str(lab), "--workers", "1-4").out)


@pytest.fixture
def v100s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cluster of four nodes with four V100 each: up to four GPUs at once, more tonight."""
    nodes = "\n".join(f"gpu*|n{number}|gpu:v100:4|8|1000|infinite|idle" for number in range(4))
    monkeypatch.setenv("TURNAROUND_CONFIG", str(tmp_path / "no-settings"))
    monkeypatch.setattr(Slurm, "require", lambda self: None)
    monkeypatch.setattr(Slurm, "inventory", lambda self: parse(nodes))
    monkeypatch.setattr(Slurm, "past_waits", lambda self: [])
    monkeypatch.setattr(Slurm, "start_estimate_s", lambda self, job: 0.0 if job.processes <= 4 else 40_000.0)


def test_the_cluster_tells_how_many_gpus_a_host_has(predict: Callable[..., Done], lab: str, v100s: None) -> None:
    done = predict(lab, "--job", "cal", "--workers", "16", "--gpu", "V100", "--on", "slurm")
    assert "16 V100 on 4 hosts for caltech256, frozen" in words(done.out)
    assert "4 hosts: Slurm has 4 GPUs on each host" in words(done.out)
    for more, told in (
        (("--gpu", "A100"), "Slurm has no A100: it has v100. Ask about one of these with --gpu, or leave --on out."),
        (("--hosts", "2"), "--on slurm asks the cluster what --hosts tells: give one of the two."),
        (("--gpus-per-host", "2"), "--on slurm asks the cluster what --gpus-per-host tells: give one of the two."),
        (("--on", "slrum"), "Unknown --on 'slrum'. Did you mean 'slurm'?"),
        (("--workers", "64"), "16 hosts are asked for, but partition gpu has 4 that fit. Ask for fewer."),
        (("--partition", "gpus"), "Unknown partition 'gpus'. Did you mean 'gpu'?"),
    ):
        done = predict(lab, "--job", "cal", "--workers", "16", "--gpu", "V100", "--on", "slurm", *more)
        assert done.code == 2
        assert told in words(done.err)
    refused(predict(lab, "--workers", "16", "--gpu", "V100", "--partition", "gpu"), "--partition is for clusters")


def test_few_gpus_now_are_ready_before_many_tonight(predict: Callable[..., Done], lab: str, v100s: None) -> None:
    asked = (lab, "--job", "cal", "--workers", "1-32", "--gpu", "V100", "--on", "slurm")
    said = words(predict(*asked).out)
    assert said.startswith("4 V100, which would start at once, are ready before ")
    assert "in the ready" in said  # two columns more
    assert "no job here has shown how rough" in said
    assert (
        "no start of 5, 7, 10, 11 and 19 more workers on Slurm: with 5, 5 hosts are asked for, but partition gpu has 4"
        in said
    )
    assert "fastest to a stable accuracy 16 V100" in said  # 32 would never start
    by_count = {p["workers"]: p for p in json.loads(predict(*asked, "--json").out)["predictions"]}
    assert by_count[4]["queue"]["estimated_wait_s"] == 0
    assert by_count[16]["queue"]["ready_s"]["value"] > 10_000
    assert by_count[32]["queue"]["refused"].startswith("8 hosts are asked for")
    assert by_count[3]["queue"]["ready_s"]["value"] > 0  # each of them is asked about
    measured = by_count[4]  # 4 V100 were run: from now on it takes what it took
    assert measured["queue"]["ready_s"]["value"] == pytest.approx(
        measured["queue"]["wait_s"]["value"] + measured["measured"]["time_to_stable_s"]["value"]
    )


def test_the_queue_of_one_number_of_workers(predict: Callable[..., Done], lab: str, v100s: None) -> None:
    said = words(predict(lab, "--workers", "8", "--gpu", "V100", "--on", "slurm").out)
    assert said.startswith("8 V100 would wait about ")
    assert "in the queue" in said
    assert "from now to stable" in said


def test_a_cluster_that_does_not_answer(
    predict: Callable[..., Done], lab: str, v100s: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(self: Slurm, *about: object) -> float:
        raise NoAnswerError("Slurm does not answer.")

    asked = (lab, "--workers", "1-32", "--gpu", "V100", "--on", "slurm")
    for question in ("start_estimate_s", "inventory"):
        monkeypatch.setattr(Slurm, question, silent)
        done = predict(*asked)
        assert done.code == 0
        assert words(done.err) == "Without the queue: Slurm does not answer."
        assert words(done.out).startswith("caltech256, frozen: fastest to a stable accuracy 32 V100")
        found = json.loads(predict(*asked, "--json").out)
        assert {p["queue"] for p in found["predictions"]} == {None}


def test_no_slurm_here_says_what_to_do(
    predict: Callable[..., Done], lab: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    refused(
        predict(lab, "--workers", "8", "--gpu", "V100", "--on", "slurm"),
        "There is no Slurm here",
        "or leave out --on slurm to go on without a cluster.",
    )


def test_a_very_long_range_asks_first_what_the_answer_names(
    predict: Callable[..., Done], lab: str, v100s: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def estimate(self: Slurm, job: SlurmJob) -> float:
        asked.append(job.processes)
        return 0.0

    monkeypatch.setattr(Slurm, "start_estimate_s", estimate)
    monkeypatch.setattr("turnaround.study.cluster_queue.MAX_ASKED", 8)
    said = words(predict(lab, "--workers", "1-16", "--gpu", "V100", "--on", "slurm").out)
    # The ends, what was run and what is best; powers of two; the others (5 need more hosts than there are: not asked).
    assert asked == [1, 4, 12, 16, 2, 8, 3]
    assert "Slurm was not asked about " in said
    assert "none after 60 s. Ask for fewer numbers of workers" in said
    monkeypatch.setattr("turnaround.study.cluster_queue.MAX_ASKING_S", 0.0)
    asked.clear()
    predict(lab, "--workers", "1-16", "--gpu", "V100", "--on", "slurm")
    assert not asked


# --- machines that are taken away


def test_on_spot_machines(
    predict: Callable[..., Done], lab: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNAROUND_CONFIG", str(tmp_path))
    (tmp_path / "prices.toml").write_text('currency = "EUR"\n[V100]\nprice = 2.48\nspot_price = 0.74\n')
    asked = (lab, "--workers", "16", "--gpu", "V100", "--price", "2.48", "--interruptions", "12/day")
    said = words(predict(*asked).out)
    assert "With 0.5 interruptions of the job an hour: about " in said
    assert "EUR at the spot price; undisturbed, at the full price, " in said
    assert "cost, interrupted, 0.74 EUR per GPU-hour (spot)" in said
    assert "job of 30 epochs, interrupted" in said
    found = json.loads(predict(*asked, "--json").out)
    assert found["interrupted"]["per_h"] == 0.5
    assert found["interrupted"]["is_spot"] is True
    assert found["interrupted"]["cost"]["value"] < found["cost"]["value"]
    assert found["interrupted"]["job_time_s"]["value"] > found["job_time_s"]["value"]
    several = words(predict(lab, "--workers", "4-16", "--gpu", "V100", "--interruptions", "2/h").out)
    assert "interrupted" in several
    assert "to save as often as 16 V100 should: --set training.checkpoint_every_s=auto" in several
    refused(predict(lab, "--workers", "4", "--interruptions", "often"), "--interruptions takes a rate with its unit")


def test_without_a_rate_nothing_is_said_of_interruptions(predict: Callable[..., Done], lab: str) -> None:
    said = predict(lab, "--workers", "4-16", "--gpu", "V100").out
    assert "interrupted" not in said
    assert "interruptions" not in said


# --- the user's prices


def test_prices_by_kind_and_the_cheapest_within_a_tenth(predict: Callable[..., Done], lab: str, tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("kind,price,billing unit,currency\nV100,2.48,hour,EUR\n")
    done = predict(lab, "--workers", "16", "--gpu", "V100", "--prices", "p.csv")
    assert "at a cost of 39.68 EUR" in words(done.out)  # a begun hour of 16 is paid
    assert "cost of the job, 2.48 EUR per GPU-hour" in words(done.out)
    result = json.loads(predict(lab, "--workers", "1-32", "--gpu", "V100", "--prices", "p.csv", "--json").out)
    last = result["predictions"][-1]
    assert (last["currency"], last["cost_to_stable"]["value"]) == ("EUR", pytest.approx(32 * 2.48))
    times = {p["workers"]: p["time_to_stable_s"]["value"] for p in result["predictions"]}
    near = result["best"]["near_fastest"]
    assert times[near] <= 1.1 * times[result["best"]["fastest"]]
    told = words(predict(lab, "--workers", "1-32", "--gpu", "V100", "--prices", "p.csv").out)
    assert "Cheapest within 10 % of the fastest:" in told
    other = predict(lab, "--workers", "16", "--job", "fruit", "--prices", "p.csv", "--json")
    assert json.loads(other.out)["cost"] is None
    [hole] = [warning for warning in json.loads(other.out)["warnings"] if "price table" in warning]
    assert hole.startswith("No cost: the price table has no T4, only V100. Set it: turnaround prices set T4 PRICE")
    priced = predict(lab, "--workers", "16", "--job", "fruit", "--prices", "p.csv", "--price", "1", "--json")
    assert "price table" not in priced.out
    refused(predict(lab, "--workers", "16", "--prices", "none.csv"), "The price table 'none.csv' cannot be read")
