"""The plain loops of docs/any-loop.md: alone, and as two processes of torch.distributed.run."""

from __future__ import annotations

from pathlib import Path

from adapters.examples import example, run_script
from forking import ForkingParent
from http_client import free_port
from turnaround.analysis.workloads import survey
from turnaround.findings.labels import label_of
from turnaround.record.reader import Run


def test_a_loop_of_ones_own(tmp_path: Path, forking_parent: ForkingParent) -> None:
    done = run_script(example("any-loop"), tmp_path, python=forking_parent.python)
    assert (done.returncode, done.stderr) == (0, "")
    run = Run.load(tmp_path / "runs" / "mine")
    assert (run.status.state, len(run.epochs)) == ("finished", 5)
    assert survey([tmp_path]).workloads[0].configurations[0].bottleneck is not None


def test_one_and_two_processes(tmp_path: Path, forking_parent: ForkingParent) -> None:
    meet = ("--master-addr", "127.0.0.1", "--master-port", str(free_port()))
    several = ("-m", "torch.distributed.run", "--nproc-per-node", "2", *meet)
    for name, launcher in (("one", ()), ("two", several)):
        code = example("ddp").replace("runs/mine", f"runs/{name}")
        python = forking_parent.python_with_agent
        done = run_script(code, tmp_path, launcher=launcher, python=python, NCCL_SOCKET_IFNAME="lo")
        assert done.returncode == 0, done.stderr
    one, two = (Run.load(tmp_path / "runs" / name) for name in ("one", "two"))
    assert (one.ranks, two.ranks) == ([0], [0, 1])
    assert (two.machine["workers"], two.machine["processes"], two.machine["launch"]) == (2, 2, "torch")
    assert [(e.steps, e.images) for e in two.epochs] == [(8, 300)] * 4
    (job,) = survey([tmp_path]).workloads
    assert [label_of(case) for case in job.configurations] == ["1 CPU process", "2 CPU processes"]
