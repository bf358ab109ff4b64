"""Somebody else's program: its words, and what is seen of it from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from turnaround import safe_path
from turnaround.analysis.speed import job_speedups
from turnaround.analysis.summary import summarise
from turnaround.analysis.workloads import survey
from turnaround.errors import InputError
from turnaround.findings import find_all
from turnaround.record.layout import RunDirectory
from turnaround.record.reader import Run
from turnaround.record.schema import JobStatus, Status, to_json
from turnaround.record.writer import write_json
from turnaround.study.lifecycle import Work
from turnaround.study.outside import tail
from turnaround.study.plan import PlannedRun, plan
from turnaround.study.program import Program
from turnaround.study.state import RunState, state_of

TWO = PlannedRun(workers=2, processes=2, seed=7)


# --- words


def test_placeholders_are_filled_after_splitting() -> None:
    program = Program.parse("python 'my lab.py' --gpus={workers} --seed {seed} --to {out}/x --log '{epoch}-{\"a\":1}'")
    words = program.filled(TWO, Path("/a folder; rm -rf x/2w"))
    assert words == [
        *("python", "my lab.py", "--gpus=2", "--seed", "7", "--to", "/a folder; rm -rf x/2w/x"),
        *("--log", '{epoch}-{"a":1}'),
    ]
    assert program.filled(TWO, Path("{seed}"))[6] == "{seed}/x"  # what was filled in is not filled in again
    assert Program.parse("python lab/lab10.py {workers}").name == "lab10"
    assert Program.parse("./train {workers}").name == "train"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("  ", r"--command is empty"),
        ("python 'lab10.py", r"cannot be split into words: No closing quotation"),
        ("python a.py {workers} | tee log", r"not run by a shell, which '\|' needs.*sh -c"),
        ("N=1 python a.py {workers}", r"not run by a shell, which 'N=1' needs\. Write env"),
        ("python a.py {worker}", r"has \{worker\}; did you mean \{workers\}\?"),
    ],
)
def test_commands_that_would_not_run_as_meant(command: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Program.parse(command)


def test_several_configurations_need_their_placeholder() -> None:
    program = Program.parse("python a.py")
    with pytest.raises(InputError, match=r"no \{workers\}, so that its 2 configurations \(1, 4 workers\)"):
        program.refuse_if_unfit(plan(workers=[1, 4], rehearse=[], seeds=[0], devices=4))
    program.refuse_if_unfit(plan(workers=[4], rehearse=[], seeds=[0, 1], devices=4))


def test_a_program_that_is_not_here_is_said_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"starts with 'no-such-program-2'"):
        Program.parse("no-such-program-{workers}").refuse_if_missing([TWO], tmp_path)
    Program.parse(f"{sys.executable} {{workers}}").refuse_if_missing([TWO], tmp_path)


def test_the_work_of_a_study_is_one_watched_command(tmp_path: Path) -> None:
    """Whoever starts it elsewhere needs nothing but these words."""
    work = Work(folder=tmp_path, program=Program.parse("python a.py -- {workers}"))
    state = RunState(planned=TWO, directory=tmp_path / TWO.name, standing="interrupted")
    words = work.command(state)
    assert words[1:5] == ["-m", "turnaround.study.outside", "--run", str(tmp_path / "2w-seed7")]
    assert words[-5:] == ["--", "python", "a.py", "--", "2"]
    assert work.shown(state) == (
        f"TURNAROUND_RUN_DIR={tmp_path}/2w-seed7 TURNAROUND_WORKERS=2 TURNAROUND_SEED=7 python a.py -- 2"
    )


# --- from outside


def watched(tmp_path: Path, script: str, run: PlannedRun = TWO) -> list[str]:
    (tmp_path / "a.py").write_text(script)
    program = Program.parse(f"{sys.executable} {tmp_path / 'a.py'} {{workers}}")
    return program.watched(run, tmp_path / run.name, tmp_path / f"{run.name}.log")


def watch(
    tmp_path: Path, script: str, run: PlannedRun = TWO, *, job_id: str | None = None
) -> subprocess.CompletedProcess[str]:
    own = {**os.environ, "SLURM_JOB_ID": job_id} if job_id else None
    words = watched(tmp_path, script, run)
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=180, env=own)


def test_a_program_that_knows_nothing_of_us(tmp_path: Path) -> None:
    script = """
        import os, sys, time
        print(*(os.environ[f"TURNAROUND_{name}"] for name in ("RUN_DIR", "WORKERS", "SEED")), sys.argv[1])
        time.sleep(0.3)
    """
    done = watch(tmp_path, "\n".join(line[8:] for line in script.splitlines()))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "2w-seed7.log").read_text().split() == [str(tmp_path / "2w-seed7"), "2", "7", "2"]
    run = Run.load(tmp_path / "2w-seed7")
    assert (run.status.state, run.status.cause) == ("finished", None)
    assert 0.3 <= run.status.time_s["program"] < 30
    summary = summarise(run)
    assert (summary.workers, summary.is_recorded, summary.exit_code, summary.epochs) == (2, False, 0, 0)
    assert summary.job == f"{sys.executable} {tmp_path / 'a.py'} {{workers}}"
    assert summary.job_time_s == run.status.time_s["program"]


def test_a_program_finds_its_own_folder_first_as_always(tmp_path: Path) -> None:
    """What keeps our own processes from code in the current folder is not for a program of the user."""
    script = "import os, sys; print(sys.flags.safe_path, os.environ.get('TURNAROUND_SAFE_PATH'))"
    own = {**os.environ, **safe_path.settings({})}
    done = subprocess.run(watched(tmp_path, script), env=own, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "2w-seed7.log").read_text() == "False None\n"


@pytest.mark.parametrize(
    ("script", "code", "cause"),
    [
        ("import sys; print('one'); sys.exit('no\\x1b[31m room')", 1, "exit status 1. Its last words: one / no [31m"),
        ("import os; os.kill(os.getpid(), 9)", -9, "was killed by signal 9 (SIGKILL). It printed nothing."),
    ],
)
def test_how_it_failed_is_told(tmp_path: Path, script: str, code: int, cause: str) -> None:
    assert watch(tmp_path, script).returncode in (1, 137)
    run = Run.load(tmp_path / TWO.name)
    assert run.status.state == "failed"
    assert cause in str(run.status.cause)
    assert f"{TWO.name}.log" in str(run.status.cause)
    assert summarise(run).exit_code == code


def test_a_program_that_cannot_be_started(tmp_path: Path) -> None:
    program = tmp_path / "a.sh"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    words = Program.parse(f"{program} {{workers}}").watched(TWO, tmp_path / TWO.name, tmp_path / "log")
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=180)
    assert (done.returncode, done.stderr) == (1, "")
    found = state_of(TWO, tmp_path)
    assert found.standing == "failed"
    assert f"{program} 2 could not be started: No such file or directory." == found.cause


def test_it_begins_anew_and_keeps_what_was_there(tmp_path: Path) -> None:
    script = "import os, pathlib; pathlib.Path(os.environ['TURNAROUND_RUN_DIR'], 'weights').write_text('x')"
    assert watch(tmp_path, f"{script}; raise SystemExit(3)").returncode == 3
    assert watch(tmp_path, script).returncode == 0
    assert Run.load(tmp_path / TWO.name).status.state == "finished"
    assert Run.load(tmp_path / ".earlier" / TWO.name).status.state == "failed"
    assert (tmp_path / ".earlier" / TWO.name / "weights").read_text() == "x"
    assert [case.summaries[0].state for case in survey([tmp_path]).workloads[0].configurations] == ["finished"]


SUBMITTED_AT = "2026-03-01T09:00:00+00:00"


def submitted(tmp_path: Path) -> RunDirectory:
    """A run as it is when its job, number 12, begins."""
    directory = RunDirectory(tmp_path / TWO.name)
    directory.logs.mkdir(parents=True)
    directory.job_script.write_text("#!/bin/bash\n")
    slurm = JobStatus(job_id="12", hosts=["n1", "n2"])
    write_json(directory.status, to_json(Status(state="queued", submitted_at=SUBMITTED_AT, job=slurm)))
    return directory


def test_what_a_batch_system_brought_stays(tmp_path: Path) -> None:
    directory = submitted(tmp_path)
    assert watch(tmp_path, "pass", job_id="12").returncode == 0
    status = Run.load(directory.path).status
    assert (status.state, status.submitted_at) == ("finished", SUBMITTED_AT)
    assert status.job is not None
    assert status.job.job_id == "12"
    assert summarise(Run.load(directory.path)).hosts == 2
    assert directory.job_script.exists()


def test_a_job_that_slurm_has_put_back_begins_anew(tmp_path: Path) -> None:
    directory = submitted(tmp_path)
    record = "from turnaround import Recorder; rec = Recorder('x', epochs=3); rec.epoch(val_accuracy=0.{})"
    assert watch(tmp_path, f"{record.format(1)}; raise SystemExit(1)", job_id="12").returncode == 1
    assert Run.load(directory.path).status.state == "interrupted"
    assert watch(tmp_path, f"{record.format(2)}; rec.close()", job_id="12").returncode == 0
    run = Run.load(directory.path)
    assert [epoch.val_accuracy for epoch in run.epochs] == [0.2]
    assert (run.status.state, run.status.submitted_at) == ("finished", SUBMITTED_AT)
    assert run.status.job is not None
    assert run.status.job.job_id == "12"
    assert [e.val_accuracy for e in Run(RunDirectory(tmp_path / ".earlier" / TWO.name)).epochs] == [0.1]
    assert directory.job_script.exists()


def test_a_warning_that_time_is_up_ends_it_for_good(tmp_path: Path) -> None:
    directory, script = submitted(tmp_path), "import time; print('here', flush=True); time.sleep(60)"
    words, log = watched(tmp_path, script), tmp_path / f"{TWO.name}.log"
    with subprocess.Popen(words, env={**os.environ, "SLURM_JOB_ID": "12"}) as process:
        wait_for(lambda: log.exists() and log.read_text() == "here\n")
        for _ in range(3):  # it comes again and again
            process.send_signal(signal.SIGUSR2)
            time.sleep(0.1)
        assert process.wait(timeout=120) != 0
    status = Run.load(directory.path).status
    assert status.state == "failed"
    assert "its job's time limit was near, or others go first. Give it more time (--time)" in str(status.cause)


RECORDED = """
import json, os, pathlib
run = pathlib.Path(os.environ["TURNAROUND_RUN_DIR"])
(run / "machine.json").write_text(json.dumps({"workers": 2, "processes": 2, "device": "cpu"}))
(run / "status.json").write_text(json.dumps({"state": STATE, "time_s": {"program": 0.01, "training_steady": 0.005}}))
(run / "recipe.json").write_text(json.dumps(
    {"data": {"source": "photos"}, "training": {"epochs": 3, "batch_per_worker": 8}, "workers": {"count": 2}}))
"""


@pytest.mark.parametrize(
    ("said", "end", "state"),
    [
        ("finished", "", "finished"),
        ("running", "", "finished"),  # it forgot to close its record, and ended well
        ("running", "raise SystemExit(4)", "failed"),
        ("finished", "raise SystemExit(4)", "failed"),
        ("diverged", "raise SystemExit(4)", "diverged"),
    ],
)
def test_a_record_of_its_own_is_completed(tmp_path: Path, said: str, end: str, state: str) -> None:
    watch(tmp_path, RECORDED.replace("STATE", repr(said)) + end)
    run = Run.load(tmp_path / TWO.name)
    assert run.status.state == state
    assert (run.status.cause is None) == (state != "failed")
    assert run.status.time_s["training_steady"] == 0.005
    assert run.status.time_s["program"] > 0.01  # from the start of the program, not of its recorder
    summary = summarise(run)
    assert (summary.is_recorded, summary.exit_code, summary.job) == (True, 4 if end else 0, "photos")


SLOW = """
import os, pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
pathlib.Path(sys.argv[0]).with_name("ready").write_text(str(child.pid))
time.sleep(600)
"""
STUBBORN = """
import pathlib, signal, sys
signal.signal(signal.SIGTERM, lambda *_: pathlib.Path(sys.argv[0]).with_name("asked").touch())
"""


@pytest.mark.parametrize("stubborn", [False, True])
def test_stopped_it_leaves_nothing_running_and_no_run(tmp_path: Path, stubborn: bool) -> None:
    process = subprocess.Popen(watched(tmp_path, (STUBBORN if stubborn else "") + SLOW))
    wait_for(lambda: (tmp_path / "ready").exists() and (tmp_path / "ready").read_text() != "")
    family = psutil.Process(process.pid).children(recursive=True)
    assert int((tmp_path / "ready").read_text()) in [one.pid for one in family]
    process.terminate()
    if stubborn:  # it would get its time; a second request ends that
        wait_for(lambda: (tmp_path / "asked").exists())
        assert process.poll() is None
        process.terminate()
    assert process.wait(timeout=120) == 75
    assert psutil.wait_procs(family, timeout=180)[1] == []
    assert state_of(TWO, tmp_path).standing == "missing"


def test_what_a_program_leaves_behind_is_ended(tmp_path: Path) -> None:
    assert watch(tmp_path, SLOW.replace("time.sleep(600)\n", "")).returncode == 0
    pid = int((tmp_path / "ready").read_text())
    wait_for(lambda: not psutil.pid_exists(pid))


@pytest.mark.skipif(sys.platform != "linux", reason="the end of a parent is told by Linux only")
def test_it_ends_with_whoever_started_it(tmp_path: Path) -> None:
    code = f"import subprocess, time; subprocess.Popen({watched(tmp_path, SLOW)!r}); time.sleep(600)"
    study = subprocess.Popen([sys.executable, "-c", code])
    wait_for(lambda: (tmp_path / "ready").exists() and (tmp_path / "ready").read_text() != "")
    family = psutil.Process(study.pid).children(recursive=True)
    assert len(family) == 3
    os.kill(study.pid, signal.SIGKILL)
    study.wait()
    assert psutil.wait_procs(family, timeout=180)[1] == []


def test_the_last_words(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"old\nfirst\n\n \xff second\nthird\rfourth\n")
    assert tail(log, 4) == "\ufffd second / third / fourth"
    assert tail(log, log.stat().st_size) == ""
    log.write_text("x" * 1_000_000)
    assert tail(log, 0) == "x" * 300
    assert tail(tmp_path / "none", 0) == ""


# --- what is said about it


def timed(folder: Path, workers: int, wall_s: float, code: int = 0) -> None:
    run = folder / f"{workers}w-seed0"
    watch_words = ["python", "a.py", str(workers)]
    run.mkdir(parents=True)
    machine = {"workers": workers, "processes": workers, "device": None, "command": watch_words}
    state = "failed" if code else "finished"
    write_json(run / "machine.json", {**machine, "program": {"exit_code": code, "wall_s": wall_s}})
    write_json(run / "status.json", {"state": state, "cause": "so" if code else None, "time_s": {"program": wall_s}})
    sections = {"data": {"source": None}, "training": {"epochs": None, "batch_per_worker": None}}
    write_json(
        run / "recipe.json",
        {"name": run.name, "program": "python a.py {workers}", "workers": {"count": workers}, **sections},
    )


def test_wall_times_are_compared_and_what_is_missing_is_said(tmp_path: Path) -> None:
    timed(tmp_path, 1, 10.0)
    timed(tmp_path, 2, 6.0)
    timed(tmp_path, 4, 1.0, code=3)
    found = survey([tmp_path])
    [job] = found.workloads
    assert job.name == "python a.py {workers}"
    assert {c.workers: round(up.value, 3) for c, up in job_speedups(job).items()} == {1: 1.0, 2: 1.667}
    findings = {finding.id: finding for finding in find_all(found)}
    assert "time-lost-outside-training" not in findings  # nobody knows
    missing = findings["program-not-recorded"]
    assert "no accuracies, no epochs" in missing.text
    assert "2 workers 1.67 times as fast" in missing.text
    assert "docs/any-loop.md" in missing.advice
    failed = findings["run-failed"]
    assert failed.text == "4w-seed0 failed (so)."
    assert [(e.what, e.value) for e in failed.evidence] == [("exit code", "3")]
    assert "--retry" in failed.advice
    assert json.dumps([finding.text for finding in findings.values()])


def wait_for(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    latest_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < latest_s, "it did not happen in time"
        time.sleep(0.02)
