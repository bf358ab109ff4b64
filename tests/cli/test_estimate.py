"""`turnaround estimate` as a user sees it: one real trial, and how it refuses."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

import turnaround
from console import Console
from forecast.test_estimate import HERE
from forking import ForkingParent
from launch.test_automatic import folder as linked_photos
from turnaround.errors import InputError, RunDirectoryError
from turnaround.launch import automatic
from turnaround.launch.automatic import MANY_IMAGES
from turnaround.launch.clusters.contract import NoAnswerError
from turnaround.launch.clusters.slurm.cluster import Slurm
from turnaround.launch.clusters.slurm.inventory import parse
from turnaround.recipe import Recipe

QUICK = ("--device", "cpu", "--seconds", "0.05", "--size", "32", "--batch", "16", "--model", "small", "--epochs", "2")


def words(text: str) -> str:
    return " ".join(text.split())


def test_from_zero_runs_to_a_score(
    fruit_folder: Path,
    tmp_path: Path,
    forking_parent: ForkingParent,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The whole story: an estimate, the run that it speaks of, and the score."""
    (tmp_path / "p.csv").write_text("kind,price,currency\nT4,0.35,EUR\nCPU,0.05,EUR\n")

    def turnaround(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [forking_parent.python, "-m", "turnaround", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done

    asked = (str(fruit_folder), *QUICK, "--gpu", "t4", "--workers", "1-4", "--prices", "p.csv")
    found = json.loads(turnaround("estimate", *asked, "--json").stdout)
    assert {(e["gpu"], e["workers"]) for e in found["estimates"]} >= {("CPU", 1), ("T4", 1), ("T4", 4)}
    first = found["estimates"][0]
    assert (first["gpu"], first["epochs_planned"], first["global_batch"], first["currency"]) == ("CPU", 2, 16, "EUR")
    for figure in ("epoch_time_s", "epochs_to_stable", "time_to_stable_s", "job_time_s", "cost", "cost_to_stable"):
        assert 0 < first[figure]["low"] <= first[figure]["value"] <= first[figure]["high"]
    assert found["estimates"][-1]["memory"]["fits"] == "yes"
    assert found["best"]["fastest"]["gpu"] == "T4"
    assert found["next_run"]["command"].startswith("turnaround train ")
    assert " --set data.size_px=32" in found["next_run"]["command"]  # the training that was estimated
    assert (tmp_path / "runs" / "forecasts.jsonl").is_file()

    trained = ("--device", "cpu", "--size", "32", "--batch", "16", "--model", "small", "--epochs", "2")
    turnaround("train", str(fruit_folder), *trained, "--workers", "1", "--out", "runs/one")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    told = Console(monkeypatch, capsys)("report", "runs")
    assert "estimated before any run" in words(told.out)
    assert "fruit, small, from scratch, 32 px, 1 CPU process, an epoch: estimated" in words(told.out).replace(
        fruit_folder.name, "fruit"
    )
    scores = json.loads(Console(monkeypatch, capsys)("report", "runs", "--json").out)["estimates"]
    assert {"epoch_time_s", "images_per_s", "job_time_s", "cost"} <= {score["figure"] for score in scores}
    forecast = Console(monkeypatch, capsys)("predict", "runs", "--workers", "2")
    assert "estimated before any run" in words(forecast.out)


@pytest.fixture
def estimate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Console:
    monkeypatch.chdir(tmp_path)
    return Console(monkeypatch, capsys, always=("estimate",))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing-here",), "nothing-here"),
        (("{fruit}", "--gpu", "v10"), "No data sheet for the GPU 'v10'. Known: "),
        (("{fruit}", "--gpu", " , "), "--gpu takes kinds of GPU, with commas"),
        (("{fruit}", "--workers", "0"), "--workers takes whole numbers from 1"),
        (("{fruit}", "--workers", "1-1000000"), "--workers takes whole numbers from 1 to 100,000"),
        (("{fruit}", "--workers", "8-4"), "Received: '8-4'"),
        (("{fruit}", "--gpus-per-host", "0"), "--gpus-per-host must be 1 or more"),
        (("{fruit}", "--network", "0"), "--network must be above 0"),
        (("{fruit}", "--prices", "none.csv"), "The price table 'none.csv' cannot be read"),
        (("{fruit}", "--prices", "bad.csv"), "row 2 (V100): price is -1; a price is above 0"),
        (("{fruit}", "--device", "mps"), "--device mps: there is no Apple GPU here"),
    ],
)
def test_bad_input_is_one_message(
    arguments: tuple[str, ...], message: str, fruit_folder: Path, tmp_path: Path, estimate: Console
) -> None:
    (tmp_path / "bad.csv").write_text("kind,price\nV100,-1\n")
    done = estimate(*(word.format(fruit=fruit_folder) for word in arguments))
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")  # nothing was decoded for it
    assert message in words(done.err)
    assert [path.name for path in tmp_path.iterdir()] == ["bad.csv"]


@pytest.fixture
def tried(
    fruit_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Console:
    """`estimate` of a trial that was one of ResNet-50 on processors; prices are none of the user's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TURNAROUND_CONFIG", str(tmp_path / "no-settings"))
    monkeypatch.setattr("turnaround.study.estimate.try_here", lambda recipe, **asked: HERE)
    return Console(monkeypatch, capsys, always=("estimate", str(fruit_folder)))


def test_energy_its_price_and_its_emissions(tried: Console) -> None:
    asked = ("--gpu", "t4,rtx6000", "--workers", "1", "--no-keep")
    said = words((done := tried(*asked)).out)
    assert "energy of job" in said
    assert "electricity" not in said
    assert "energy: 20 % to 100 % of the power of its board while a GPU trains, by its data sheet" in said
    assert "of the GPUs alone; not known for processors and RTX 6000" in said
    rows = [line for line in done.out.splitlines() if line.endswith("not known")]
    assert [row.split()[1] for row in rows] == ["CPU", "RTX"]
    said = words(tried(*asked, "--electricity", "0.3", "--grid", "0.4").out)
    assert "electricity" in said
    assert "CO2e of job" in said
    found = json.loads(tried(*asked, "--electricity", "0.3", "--grid", "0.4", "--json").out)
    cpu, t4, rtx = found["estimates"]
    assert [one["energy_wh"] is None for one in (cpu, t4, rtx)] == [True, False, True]
    assert t4["electricity_cost"]["value"] == pytest.approx(0.3 * t4["energy_wh"]["value"] / 1000)
    assert t4["emissions_kg"]["high"] == pytest.approx(0.4 * t4["energy_wh"]["high"] / 1000)
    refused = tried(*asked, "--grid", "-1")
    assert (refused.code, refused.out) == (2, "")
    assert "--grid must be 0 or more (kg of CO2e for one kWh), received -1" in words(refused.err)


def test_what_is_chosen_is_what_a_machine_with_a_gpu_trains(
    tried: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A laptop estimated a small network for a GPU that would train a large one; no run could ever score it."""
    photos = linked_photos(tmp_path / "photos", images=MANY_IMAGES, side_px=200)
    asked: list[Recipe] = []
    monkeypatch.setattr(automatic, "describe_gpus", list)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("turnaround.study.estimate.try_here", lambda recipe, **more: asked.append(recipe) or HERE)
    estimate = Console(tried.monkeypatch, tried.capture, always=("estimate", str(photos), "--no-keep"))
    said = words((done := estimate("--gpu", "t4", "--workers", "1", "--epochs", "3", "--set", "model.name=auto")).out)
    assert done.code == 0, done.err
    assert (asked[-1].model.name, asked[-1].size_px) == ("resnet18", 128)
    assert "model.name = resnet18 was chosen: 5,000 training images of about 200 px, and no trained weights" in said
    assert "That is what a machine with a GPU chooses; without one, train may choose otherwise." in said
    command = done.out.strip().splitlines()[-1]
    assert command.startswith(f"    turnaround train {photos} --workers 1 ")
    for key in ("training.epochs=3", "model.name=resnet18", "data.size_px=128", "augment.preset=light"):
        assert f" --set {key}" in command
    assert "model.name=auto" not in command
    assert json.loads(estimate("--gpu", "t4", "--workers", "1", "--json").out)["notes"][0].startswith("model.name =")
    said = words(estimate("--gpu", "cpu", "--workers", "1").out)  # nobody asks for a GPU
    assert asked[-1].model.name == "small"
    assert "That is what a machine with a GPU chooses" not in said


def test_every_figure_has_its_interval_on_a_narrow_screen(tried: Console, tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("kind,price,currency\nT4,0.35,EUR\nH100,4.2,EUR\n")
    asked = ("--gpu", "t4,h100", "--workers", "1-24", "--no-keep")
    done = tried(*asked, "--prices", "p.csv")
    assert max(map(len, done.out.split("\n  turnaround")[0].splitlines()[:-1])) <= 80
    between = r"[0-9.,]+(?: (?:ms|s|min|h|Wh|kWh))? \([0-9.,]+-[0-9.,]+\)"
    rows = [line for line in done.out.splitlines() if re.match(r"  [0-9]+ (T4|H100) ", line)]
    told = Counter(row[2:9] for row in rows for _ in re.findall(between, row))
    assert set(told.values()) == {7}  # an epoch, epochs, to stable, the job, two costs, energy
    assert "cost to stable cost of job" in words(done.out)
    assert done.out.count("(EUR, 80 %)") == 2
    (fastest, *_) = re.findall(r"Fastest .*?: ([0-9]+ H100)", words(done.out))
    assert any(row.startswith(f"  {fastest} ") for row in rows)  # 24, which is no power of two
    said = words(tried(*asked).out)
    assert "GPU-h of job" in said
    hours = re.findall(r"  1 CPU +([0-9]+ \([0-9-]+\) CPU-h)", tried(*asked).out)
    assert len(hours) == 1
    assert " EUR) measures step and epochs" in words(done.out)


def test_workers_without_images_are_named(tried: Console) -> None:
    """24,000 images of 32 a step are 750 workers."""
    asked = ("--gpu", "t4", "--no-keep", "--workers")
    left = "1,000 and 2,000 workers are left out: with 32 images a step each, the 24,000 training images are a full"
    assert left.replace("1,000 and 2,000", "1000 and 2000") in words(tried(*asked, "1,1000,2000").out)
    assert "748 to 760 workers" not in words(tried(*asked, "748-760").out)
    assert "751 to 760 workers are left out" in words(tried(*asked, "748-760").out)
    assert "left out" not in words(tried(*asked, "1,750").out)
    notes = json.loads(tried(*asked, "1,1000", "--json").out)["notes"]
    assert any(note.startswith("1000 workers are left out") for note in notes)


def test_the_answer_is_told_where_it_cannot_be_kept(tried: Console, fruit_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file in the way")
    done = tried("--gpu", "t4", "--workers", "1")
    assert done.code == 2
    assert "Fastest to a stable accuracy of the GPUs asked for: 1 T4" in words(done.out)
    assert words(done.err).startswith("error: The estimate is not kept, so no run will score it. Cannot write runs/")
    assert "Choose another directory with --out." in words(done.err)
    done = tried("--gpu", "t4", "--workers", "1", "--json")
    assert (done.code, json.loads(done.out)["best"]["fastest"]) == (2, {"gpu": "T4", "workers": 1})
    assert tried("--gpu", "t4", "--workers", "1", "--no-keep").code == 0
    with pytest.warns(UserWarning, match="The estimate is not kept, so no run will score it. Cannot write runs/"):
        report = turnaround.estimate(fruit_folder, gpus=["t4"], workers=[1], out="runs")
    assert report.of("t4", 1) is not None


def test_a_folder_without_runs_names_the_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = Console(monkeypatch, capsys)("predict", str(tmp_path), "--workers", "4")
    assert (done.code, done.out) == (2, "")
    assert "`turnaround estimate SOURCE` answers without any" in words(done.err)


@pytest.mark.parametrize(
    "verb",
    [
        ("predict", "runs", "--workers", "4"),
        ("report", "runs"),
        ("report", "runs", "--out", "page.html"),
        ("report", "runs", "--for", "proposal", "--out", "page.html"),
    ],
    ids=" ".join,
)
def test_a_folder_with_an_estimate_alone_names_the_run_that_narrows_it(
    verb: tuple[str, ...], tried: Console, fruit_folder: Path
) -> None:
    assert tried("--gpu", "t4", "--workers", "1,4", "--model", "resnet50").code == 0
    done = Console(tried.monkeypatch, tried.capture)(*verb)
    assert (done.code, done.out) == (2, "")
    assert words(done.err).startswith(
        f"error: runs has an estimate of {HERE.job} and no run yet. Make one there: what narrows the estimate most is "
        f"`turnaround train {fruit_folder} --workers "
    )
    assert words(done.err).endswith(" --set model.name=resnet50 --set augment.preset=light`.")


def test_python_is_told_of_an_estimate_alone_too(tried: Console) -> None:
    assert tried("--gpu", "t4", "--workers", "1,4").code == 0
    for asked in (lambda: turnaround.report("runs"), lambda: turnaround.predict("runs", workers=2)):
        with pytest.raises(RunDirectoryError, match=r"and no run yet\. Make one there: what narrows the estimate most"):
            asked()


# --- with the queue of a cluster


@pytest.fixture
def on_slurm(
    fruit_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Console:
    """Four nodes with four V100 each: up to four GPUs at once, more tonight. The trial is one of ResNet-50."""
    nodes = "\n".join(f"gpu*|n{number}|gpu:v100:4|8|1000|infinite|idle" for number in range(4))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TURNAROUND_CONFIG", str(tmp_path / "no-settings"))
    monkeypatch.setattr(Slurm, "require", lambda self: None)
    monkeypatch.setattr(Slurm, "inventory", lambda self: parse(nodes))
    monkeypatch.setattr(Slurm, "past_waits", lambda self: [])
    monkeypatch.setattr(Slurm, "start_estimate_s", lambda self, job: 0.0 if job.processes <= 4 else 400_000.0)
    monkeypatch.setattr("turnaround.study.estimate.try_here", lambda recipe, **asked: HERE)
    return Console(monkeypatch, capsys, always=("estimate", str(fruit_folder), "--on", "slurm", "--no-keep"))


def test_few_gpus_now_are_ready_before_many_tonight(on_slurm: Console) -> None:
    said = words((done := on_slurm("--workers", "1,2,4,8,16,32")).out)
    assert done.code == 0, done.err
    assert said.startswith("4 V100, which would start at once, are ready before 16 V100, which would wait about ")
    assert "a stable accuracy in about " in said
    assert "ready in" in said
    assert "no job here has shown how rough" in said
    assert "no start of 32 workers on Slurm: 8 hosts are asked for, but partition gpu has 4 that fit" in said
    assert "on hosts as Slurm has; " in said
    assert "without the queue" not in said
    assert set(re.findall(r"^  [0-9]+ ([A-Z]\w+)", done.out, re.MULTILINE)) == {"CPU", "V100"}  # its kinds


def test_the_queue_as_json(on_slurm: Console) -> None:
    found = json.loads(on_slurm("--workers", "1-32", "--gpu", "t4,v100", "--json").out)
    by_case = {(e["gpu"], e["workers"]): e for e in found["estimates"]}
    four, sixteen = by_case["V100", 4], by_case["V100", 16]
    assert (four["hosts"], sixteen["hosts"], by_case["T4", 16]["hosts"]) == (1, 4, 2)  # four GPUs a host as it has
    assert (four["queue"]["estimated_wait_s"], sixteen["queue"]["estimated_wait_s"]) == (0, 400_000)
    for e in (four, sixteen):
        ready, wait, time = e["queue"]["ready_s"], e["queue"]["wait_s"], e["time_to_stable_s"]
        assert ready["value"] == pytest.approx(wait["value"] + time["value"])
        assert ready["low"] < ready["value"] < ready["high"]
    assert by_case["V100", 32]["queue"]["refused"].startswith("8 hosts are asked for")
    assert by_case["V100", 3]["queue"]["estimated_wait_s"] == 0  # each of them is asked about
    assert by_case["T4", 4]["queue"] is by_case["CPU", 1]["queue"] is None
    assert (found["queue"]["cluster"], found["queue"]["ready_first"]) == ("Slurm", {"gpu": "V100", "workers": 4})
    assert found["queue"]["why_left_out"] is None
    assert "Slurm has no T4: times without a queue" in found["queue"]["notes"]


@pytest.mark.parametrize("question", ["inventory", "past_waits", "start_estimate_s"])
def test_a_cluster_that_does_not_answer_loses_no_estimate(
    question: str, on_slurm: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(self: Slurm, *about: object) -> float:
        raise NoAnswerError("Slurm does not answer: its controller may be down. Try again later.")

    monkeypatch.setattr(Slurm, question, silent)
    done = on_slurm("--gpu", "v100", "--workers", "1,4")
    said = words(done.out)
    assert done.code == 0, done.err
    assert said.startswith("Without the queue: Slurm does not answer: its controller may be down. Try again later.")
    assert "Fastest to a stable accuracy of the GPUs asked for: 4 V100" in said
    assert "ready in" not in said
    found = json.loads(on_slurm("--gpu", "v100", "--workers", "1,4", "--json").out)
    assert found["queue"]["why_left_out"].startswith("Slurm does not answer")
    assert [e["queue"] for e in found["estimates"]] == [None] * len(found["estimates"])
    assert found["best"]["fastest"] == {"gpu": "V100", "workers": 4}


def test_what_no_cluster_could_start_is_refused_before_the_trial(
    on_slurm: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(*about: object, **asked: object) -> None:
        raise AssertionError("nothing is measured for it")

    monkeypatch.setattr("turnaround.study.estimate.try_here", measured)
    for more, told in (
        (("--gpu", "a100,t4"), "Slurm has no A100 or T4: it has v100. Ask about one of these with --gpu, or leave"),
        (("--gpus-per-host", "2"), "--on slurm asks the cluster what --gpus-per-host tells: give one of the two."),
        (("--partition", "gpus"), "Unknown partition 'gpus'. Did you mean 'gpu'?"),
        (("--workers", "64"), "16 hosts are asked for, but partition gpu has 4 that fit. Ask for fewer."),
        (("--on", "skypilot"), "--on skypilot writes the file of one training and follows nothing"),
        (("--on", "local", "--partition", "gpu"), "--partition is for clusters"),
    ):
        done = on_slurm(*more)
        assert (done.code, done.out) == (2, "")
        assert told in words(done.err)


def test_the_queue_from_python(on_slurm: Console, fruit_folder: Path) -> None:
    report = turnaround.estimate(fruit_folder, workers=[4, 16], on="slurm", partition="gpu")
    four = report.of("v100", 4)
    assert four is not None
    assert four.prediction.queue is not None
    assert four.prediction.queue.estimated_wait_s == 0
    assert [(p.gpu, p.workers) for p in report.queued] == [("V100", 4), ("V100", 16)]
    with pytest.raises(InputError, match="Unknown partition 'gpus'"):
        turnaround.estimate(fruit_folder, on="slurm", partition="gpus")
