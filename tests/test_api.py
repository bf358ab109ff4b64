"""turnaround from Python: the documented examples, the types, and what importing it costs."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import turnaround as ta
from forking import ForkingParent
from turnaround import api, cli
from turnaround.errors import DataError, InputError, RunDirectoryError
from use_helpers import validation_images

DOCUMENT = Path(__file__).parents[1] / "docs" / "python.md"
BLOCKS = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.fixture(scope="module")
def documented(session_folder: Path, forking_parent: ForkingParent) -> tuple[Path, dict[str, Any], str]:
    """The document's examples, run in an empty folder: the folder, what they leave, what they print."""
    folder, names, told = session_folder / "documented", {}, io.StringIO()
    folder.mkdir()
    assert len(BLOCKS) >= 5
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(folder), contextlib.redirect_stdout(told):
        patch.setenv("TURNAROUND_CACHE", str(session_folder / "cache"))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setattr(sys, "executable", forking_parent.python)
        for block in BLOCKS:
            exec(compile(block, str(DOCUMENT), "exec"), names)
    return folder, names, told.getvalue()


def test_the_documents_examples_run(documented: tuple[Path, dict[str, Any], str]) -> None:
    folder, names, told = documented
    assert "cannot be read as an image: not an image (starts with '<html>')" in told
    assert "48 of 48" in told
    assert names["forecast"].epoch_time_s.value > 0
    assert (names["evaluated"].accuracy in (0.0, 1.0), len(names["evaluated"].images)) == (True, 1)
    assert {path.name for path in folder.iterdir()} == {
        "runs",
        "orange.png",
        "labels.csv",
        "fruit.pt",
        "fruit.pt.md",
    }


def test_importing_is_torch_free_until_something_is_classified(trained_run: Path) -> None:
    code = (
        "import sys, turnaround as ta\n"
        "assert not {'torch', 'numpy', 'typer'} & set(sys.modules), 'import turnaround must stay quick'\n"
        f"run = ta.load({str(trained_run)!r}); run.accuracy; run.summary; ta.report([run.path])\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=False)
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_the_names_are_those_of_the_api() -> None:
    assert sorted(ta.__all__) == sorted(api.__all__)
    assert {name: getattr(ta, name) for name in ta.__all__} == {name: getattr(api, name) for name in api.__all__}
    assert set(ta.__all__) <= set(dir(ta))
    with pytest.raises(AttributeError, match="module 'turnaround' has no attribute 'trian'"):
        ta.trian  # noqa: B018


def test_no_module_hides_a_function_of_the_api() -> None:
    """An imported submodule becomes an attribute of its package: none may bear the name of a public function."""
    package = Path(ta.__file__).parent
    modules = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert modules & set(ta.__all__) == set()


def test_every_public_function_has_types_and_words() -> None:
    tree = ast.parse(Path(api.__file__).read_text(encoding="utf-8"))
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")]
    functions = [n for n in functions if "overload" not in map(ast.unparse, n.decorator_list)]  # the last one has words
    assert len(functions) >= 10
    assert [n.name for n in functions if n.returns is None or not ast.get_docstring(n)] == []


def test_a_run_in_hand(trained_run: Path) -> None:
    run = ta.load(trained_run, device="cpu")
    assert repr(run) == f"TrainedRun({str(trained_run)!r})"
    assert (run.path, run.accuracy) == (trained_run, run.record.evaluation.top1)
    assert (run.summary.epochs, len(run.classes)) == (3, 6)
    files, _ = validation_images(trained_run)
    assert run.classify(files[0], top=2) == run.classify_all(files[:1], top=2)[0]
    with pytest.raises(DataError, match="'picture 1' cannot be read as an image"):
        run.classify(b"nothing")
    assert run.classify(files[:2]) == run.classify_all(files[:2]) == run.classify(tuple(files[:2]))
    with pytest.raises(InputError, match="A set of 1 pictures has no order"):
        run.classify({files[0]})  # type: ignore[call-overload]


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> object:
    """What the command line says to the same question."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["turnaround", *map(str, arguments), "--json"])
        with pytest.raises(SystemExit):
            cli.main()
    return json.loads(capsys.readouterr().out)


def test_report_and_predict_say_what_the_command_line_says(
    documented: tuple[Path, dict[str, Any], str], capsys: pytest.CaptureFixture[str]
) -> None:
    two_runs = documented[0] / "runs"
    report = ta.report([two_runs])
    assert json.loads(json.dumps(report.as_json())) == printed(capsys, "report", two_runs)
    assert "1 CPU process" in report.text()
    assert ta.report(two_runs).as_json() == ta.report(str(two_runs)).as_json() == report.as_json()
    job = report.survey.workloads[0].name
    assert ta.report([two_runs], job=job).as_json() == report.as_json()
    forecast = ta.predict(str(two_runs), workers=4)
    assert json.loads(json.dumps(forecast.as_json())) == printed(capsys, "predict", two_runs, "--workers", 4)
    larger = ta.predict(str(two_runs), workers=4, batch_per_worker=128, input_limit=1e6)
    flags = ("--workers", 4, "--batch-per-worker", 128, "--input-limit", 1e6)
    assert json.loads(json.dumps(larger.as_json())) == printed(capsys, "predict", two_runs, *flags)
    assert larger.global_batch == 512


def test_tables_of_runs_and_of_epochs(trained_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnaround.reporting.notebook.find_spec", lambda name: None)  # as where pandas is missing
    run = ta.load(trained_run)
    epochs = run.table()
    assert [row["epoch"] for row in epochs] == [1, 2, 3]
    assert epochs[-1]["val_accuracy"] == run.accuracy
    (row,) = ta.table(str(trained_run))
    assert (row["directory"], row["epochs"], row["final_val_accuracy"]) == (str(trained_run), 3, run.accuracy)
    assert row["evaluation_s"] > 0
    assert not [value for value in row.values() if isinstance(value, dict | list | tuple)]


def test_tables_are_data_frames_where_pandas_is_installed(trained_run: Path) -> None:
    pandas = pytest.importorskip("pandas")
    assert isinstance(ta.table(trained_run), pandas.DataFrame)
    assert list(ta.load(trained_run).table()["epoch"]) == [1, 2, 3]


def test_what_a_notebook_shows(trained_run: Path, tmp_path: Path) -> None:
    odd = tmp_path / "<b>odd</b>"
    shutil.copytree(trained_run, odd)
    shown = ta.load(odd)._repr_html_()
    assert "&lt;b&gt;odd&lt;/b&gt;" in shown
    assert "<b>" not in shown
    assert shown.count("<tr>") == 2
    whole = ta.report(odd)._repr_html_()
    assert shown in whole
    assert f"<p>{len(ta.report(odd).findings)} finding" in whole
    assert "<script" not in whole


def test_check_and_resume_say_what_the_command_line_says(
    documented: tuple[Path, dict[str, Any], str], fruit_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("fresh_apple", "rotten_apple"):
        (tmp_path / name).mkdir()
        for file in sorted((fruit_folder / name).iterdir())[:10]:  # comparing all 240 with each other takes 5 s
            shutil.copy(file, tmp_path / name)
    found = ta.check_images(str(tmp_path))
    assert json.loads(json.dumps(found.payload())) == printed(capsys, "check", tmp_path)
    finished = ta.resume(documented[0] / "runs" / "fruit")
    assert finished.summary.epochs == 2
    assert json.loads(json.dumps(asdict(finished.summary))) == printed(capsys, "resume", finished.path)
    with pytest.raises(InputError, match="has 2 epochs behind it already"):
        ta.resume(finished.path, epochs=1)


def test_a_study_goes_on_from_either_side(
    session_folder: Path, forking_parent: ForkingParent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNAROUND_CACHE", str(session_folder / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(sys, "executable", forking_parent.python)
    monkeypatch.chdir(tmp_path)
    settings = {"data.images": 240, "training.epochs": 1, "data.size_px": 32}
    report = ta.run_study("fruitbowl", rehearse=[2], device="cpu", settings=settings)
    assert [run.workers for run in report._summaries] == [2]
    assert Path("runs/fruitbowl-study").is_dir()
    again = ta.run_study("fruitbowl", rehearse=[2], device="cpu", settings=settings)  # nothing is run twice
    assert again.as_json()["runs"] == report.as_json()["runs"]
    with pytest.raises(InputError, match="A study needs configurations"):
        ta.run_study("fruitbowl")


def test_refusals(tmp_path: Path, trained_run: Path) -> None:
    with pytest.raises(RunDirectoryError, match="is not a run directory"):
        ta.load(tmp_path)
    with pytest.raises(InputError, match="No job of these runs is called 'qqq'"):
        ta.report([trained_run], job="qqq")
    with pytest.raises(InputError, match="Unknown --device 'tpu'"):
        ta.train("fruitbowl", device="tpu", out=tmp_path / "x")
    with pytest.raises(InputError, match=r"training\.epochs must be of type int"):
        ta.train("fruitbowl", settings={"training.epochs": "many"}, out=tmp_path / "x")


def test_a_study_refuses_early_what_every_run_would_refuse(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing_like_it"):
        ta.run_study("fruitbowl", workers=[1], out=tmp_path / "s", settings={"model.name": "nothing_like_it"})
    assert not (tmp_path / "s").exists()
