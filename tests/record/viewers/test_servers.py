"""A real training, seen in a real TensorBoard and a real MLflow server, both asked over HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from http_client import free_port
from turnaround.record.reader import Run

pytestmark = pytest.mark.frameworks
SOURCE = str(Path(__file__).parents[3] / "src")


def ask(address: str, body: dict[str, Any] | None = None) -> Any:
    request = urllib.request.Request(address, json.dumps(body).encode() if body is not None else None)
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.loads(answer.read())


@contextmanager
def server(arguments: list[str], folder: Path, address: str, *, path: str) -> Iterator[str]:
    """A program that answers at the address; it is ended with all that it has started."""
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments], cwd=folder, stdout=log, stderr=log, start_new_session=True
        )
        try:
            for _ in range(240):
                try:
                    urllib.request.urlopen(address + path, timeout=2).close()
                    break
                except OSError:
                    assert process.poll() is None, (folder / "server.log").read_text()
                    time.sleep(0.5)
            yield address
        finally:
            os.killpg(process.pid, 9)
            process.wait()


def turnaround_train(folder: Path, fruit: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    settings = ["data.size_px=32", "training.epochs=3", "training.checkpoint_every_s=0"]
    command = [sys.executable, "-m", "turnaround", "train", str(fruit), "--device", "cpu", "--out", str(folder / "run")]
    command += [*(part for setting in settings for part in ("--set", setting)), *arguments]
    return called(folder, command, **variables)


def called(folder: Path, command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False, cwd=folder
    )


@pytest.mark.parametrize("fault", ["", "kind=kill,step=9;kind=slow,ms=700"])  # slow: MLflow takes seconds to load
def test_a_training_in_both_resumed_if_need_be(fault: str, tmp_path: Path, fruit_folder: Path) -> None:
    port = free_port()
    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    arguments = ["mlflow", "server", "--backend-store-uri", store, "--host", "127.0.0.1", "--port", str(port)]
    arguments += ["--artifacts-destination", str(tmp_path / "artifacts"), "--workers", "1"]
    with server(arguments, tmp_path, f"http://127.0.0.1:{port}", path="/health") as mlflow:
        variables = {"MLFLOW_TRACKING_URI": mlflow, "MLFLOW_EXPERIMENT_NAME": "lab"}
        log = ("--log", "tensorboard,mlflow")
        done = turnaround_train(tmp_path, fruit_folder, *log, **variables, TURNAROUND_FAULT=fault)
        if fault:  # in the second epoch
            assert done.returncode == 1, done.stderr
            go_on = [sys.executable, "-m", "turnaround", "resume", str(tmp_path / "run"), "--device", "cpu", *log]
            done = called(tmp_path, go_on, **variables)
        assert done.returncode == 0, done.stderr
        assert "left out" not in done.stderr
        api = f"{mlflow}/api/2.0/mlflow"
        experiment = ask(f"{api}/experiments/get-by-name?experiment_name=lab")["experiment"]["experiment_id"]
        (found,) = ask(f"{api}/runs/search", {"experiment_ids": [experiment]})["runs"]
        history = ask(f"{api}/metrics/get-history?run_id={found['info']['run_id']}&metric_key=val_accuracy")["metrics"]
    run = Run.load(tmp_path / "run")
    assert (found["info"]["status"], found["info"]["run_name"]) == ("FINISHED", "run")
    assert [(m["step"], m["value"]) for m in history] == [(e.epoch, e.val_accuracy) for e in run.epochs]
    settings = {p["key"]: p["value"] for p in found["data"]["params"]}
    assert (settings["data.size_px"], settings["training.epochs"]) == ("32", "3")
    port = free_port()
    arguments = [
        "tensorboard.main",
        "--logdir",
        str(tmp_path),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--load_fast",
        "false",
    ]
    with server(arguments, tmp_path, f"http://127.0.0.1:{port}", path="/data/runs") as board:
        points = all_points(board, "accuracy/validation", count=len(run.epochs))
    assert [(step, round(value, 5)) for _, step, value in points] == [
        (e.epoch, round(e.val_accuracy, 5)) for e in run.epochs
    ]


def all_points(board: str, tag: str, *, count: int) -> list[Any]:
    """Of the only run. TensorBoard answers while it still reads its files: of a resumed run there are two."""
    points: list[Any] = []
    for _ in range(120):
        names = ask(f"{board}/data/runs")
        assert names in ([], ["run/logs/tensorboard"])
        with suppress(urllib.error.HTTPError):  # it does not know the tag yet
            points = ask(f"{board}/data/plugin/scalars/scalars?tag={tag}&run={names[0]}") if names else []
        if len(points) >= count:
            break
        time.sleep(0.25)
    return points


def test_a_server_that_is_not_there(tmp_path: Path, fruit_folder: Path) -> None:
    gone = f"http://127.0.0.1:{free_port()}"
    done = turnaround_train(tmp_path, fruit_folder, "--log", "mlflow", MLFLOW_TRACKING_URI=gone)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("mlflow is left out, the training goes on") == 1
    assert Run.load(tmp_path / "run").status.state == "finished"
