"""turnaround from Python: the documented examples, the types, and what importing it costs."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import subprocess
import sys
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
    assert {path.name for path in folder.iterdir()} == {"runs", "orange.png", "fruit.pt", "fruit.pt.md"}


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
    with pytest.raises(InputError, match=r"Received: 2 in a list. For many there is run.classify_all"):
        run.classify(files[:2])  # type: ignore[arg-type]


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


def test_refusals(tmp_path: Path, trained_run: Path) -> None:
    with pytest.raises(RunDirectoryError, match="is not a run directory"):
        ta.load(tmp_path)
    with pytest.raises(InputError, match="No job of these runs is called 'qqq'"):
        ta.report([trained_run], job="qqq")
    with pytest.raises(InputError, match="Unknown --device 'tpu'"):
        ta.train("fruitbowl", device="tpu", out=tmp_path / "x")
    with pytest.raises(InputError, match=r"training\.epochs must be of type int"):
        ta.train("fruitbowl", settings={"training.epochs": "many"}, out=tmp_path / "x")


def test_settings_are_written_as_set_takes_them() -> None:
    assert [api._as_text(value) for value in (True, None, 3, 0.5, "adam")] == ["true", "none", "3", "0.5", "adam"]
