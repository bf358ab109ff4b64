"""A run directory is made once, found again, and every refusal says what to do."""

import shlex
from pathlib import Path

import pytest

from turnaround.errors import RunDirectoryError, StorageError
from turnaround.record import layout
from turnaround.record.layout import RunDirectory, default_run_path
from turnaround.record.schema import Status, to_json
from turnaround.record.writer import write_json


def make_run(path: Path, state: str = "finished") -> RunDirectory:
    directory = RunDirectory.create(path)
    write_json(directory.recipe, {"data": {"source": "fruitbowl"}, "model": {"name": "small"}})
    write_json(directory.status, to_json(Status(state=state, started_at="2026-03-01T09:02:10+00:00")))
    return directory


def test_the_paths_are_those_of_the_design(tmp_path):
    run = RunDirectory(tmp_path)
    assert run.recipe == tmp_path / "recipe.json"
    assert [path.name for path in (run.machine, run.status)] == ["machine.json", "status.json"]
    assert [path.name for path in (run.epochs, run.evaluation)] == ["epochs.jsonl", "evaluation.json"]
    assert [path.name for path in (run.checkpoint, run.logs)] == ["checkpoint", "logs"]
    assert [run.lock.name, run.job_script.name, run.page.name] == ["run.lock", "job.sh", "page.html"]
    assert run.spans(3) == tmp_path / "spans-3.jsonl"
    assert run.telemetry("node01.cluster") == tmp_path / "telemetry-node01.cluster.jsonl"
    assert run.telemetry("../../etc/passwd").parent == tmp_path


def test_ranks_and_hosts_are_found_by_their_files(tmp_path):
    run = RunDirectory(tmp_path)
    for path in (
        run.spans(10),
        run.spans(2),
        run.telemetry("b"),
        run.telemetry("a"),
        tmp_path / "spans-x.jsonl",
    ):
        path.touch()
    assert run.span_ranks() == [2, 10]
    assert run.telemetry_hosts() == ["a", "b"]


@pytest.mark.parametrize("name", ["plain", "with space", "quote'd", "-dash", "ünïcode", "new\nline"])
def test_create_makes_the_directory_and_its_parents(tmp_path, name):
    run = RunDirectory.create(tmp_path / "runs" / name)
    assert run.logs.is_dir()
    assert RunDirectory.open(make_run(tmp_path / f"other {name}").path)


def test_create_accepts_an_empty_directory_and_what_a_failed_start_left(tmp_path):
    run = RunDirectory.create(tmp_path)
    run.lock.write_text("{}")
    (tmp_path / ".recipe.json.123-0a1b2c3d.tmp").touch()
    assert RunDirectory.create(tmp_path) == run


def test_create_refuses_another_run_and_says_which_one_it_is(tmp_path):
    run = make_run(tmp_path / "a run")
    with pytest.raises(RunDirectoryError) as caught:
        RunDirectory.create(run.path)
    message = str(caught.value)
    for words in (
        "already holds a run",
        "fruitbowl with small",
        "state finished",
        "2026-03-01T09:02:10",
        "--out",
    ):
        assert words in message
    assert f"turnaround resume {shlex.quote(str(run.path))}" in message


@pytest.mark.parametrize("content", [b"", b"\xff\x00", b"[" * 5000, b"[1]", b'{"data": 3, "model": []}'])
def test_create_refuses_a_run_whose_files_are_damaged(tmp_path, content):
    (tmp_path / "recipe.json").write_bytes(content)
    (tmp_path / "status.json").write_bytes(content)
    with pytest.raises(RunDirectoryError, match="unreadable recipe, state unknown"):
        RunDirectory.create(tmp_path)


def test_create_refuses_a_directory_of_something_else(tmp_path):
    for name in ("thesis.tex", "a", "b", "c"):
        (tmp_path / name).touch()
    with pytest.raises(
        RunDirectoryError, match=r"not empty: it holds other files \(a, b, c, \.\.\.\)\. Empty it.*--out"
    ):
        RunDirectory.create(tmp_path)
    assert (tmp_path / "thesis.tex").exists()
    assert not (tmp_path / "logs").exists()


def test_create_refuses_a_run_without_recipe(tmp_path):
    (tmp_path / "epochs.jsonl").touch()
    with pytest.raises(RunDirectoryError, match=r"parts of a run without its recipe\.json \(epochs\.jsonl\)"):
        RunDirectory.create(tmp_path)


def test_create_refuses_a_file(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunDirectoryError, match="is a file, not a directory"):
        RunDirectory.create(tmp_path / "file")


@pytest.mark.parametrize("path", ["/proc/turnaround/run", "nul\0byte"])
def test_create_where_nothing_can_be_created(path):
    with pytest.raises(StorageError, match="Cannot create the run directory"):
        RunDirectory.create(Path(path))


def test_create_below_a_file(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"Not a directory.*--out"):
        RunDirectory.create(tmp_path / "file" / "run")


def test_open_says_why_not_and_what_was_meant(tmp_path):
    make_run(tmp_path / "fruit-4-workers")
    with pytest.raises(RunDirectoryError, match=r"no such directory.*Did you mean .*fruit-4-workers"):
        RunDirectory.open(tmp_path / "fruit-4-wrkers")
    with pytest.raises(
        RunDirectoryError, match=r"is not a run directory: no recipe\.json\. Runs below it: fruit-4-workers\."
    ):
        RunDirectory.open(tmp_path)
    with pytest.raises(RunDirectoryError, match=r"it is a file. Did you mean .*fruit-4-workers"):
        RunDirectory.open(tmp_path / "fruit-4-workers" / "status.json")
    (tmp_path / "nothing").mkdir()
    with pytest.raises(RunDirectoryError, match=r"no recipe\.json\. Check the path"):
        RunDirectory.open(tmp_path / "nothing")
    with pytest.raises(RunDirectoryError, match="is not a run directory"):
        RunDirectory.open(Path("nul\0byte"))


def test_the_default_path_is_the_first_that_is_free(tmp_path):
    assert default_run_path(tmp_path / "runs", "fruit") == tmp_path / "runs" / "fruit"
    for expected in ("fruit", "fruit-2", "fruit-3"):
        path = default_run_path(tmp_path, "fruit")
        assert path == tmp_path / expected
        RunDirectory.create(path)


@pytest.mark.fault(29, "a run's name may hold anything: its folder stays below its root")
@pytest.mark.parametrize(
    ("name", "folder"), [("", "run"), ("..", "run"), ("/data/my fruit", "data-my fruit"), ("a\n/b", "a-b")]
)
def test_the_default_path_stays_below_its_root(tmp_path, name, folder):
    assert default_run_path(tmp_path, name) == tmp_path / folder


def test_the_default_path_of_a_very_long_name_can_be_made(tmp_path):
    first = RunDirectory.create(default_run_path(tmp_path, "ä" * 300))
    assert RunDirectory.create(default_run_path(tmp_path, "ä" * 300)) != first


def test_a_run_that_begins_while_another_command_looks_is_named_as_one(tmp_path, monkeypatch):
    """The recipe comes between the list of names and the look for it: no foreign file, but a run."""
    look = layout.names_in

    def look_beside_a_start(path, **options):
        names = look(path, **options)
        if path == tmp_path / "run" and not names:
            make_run_files(path)
        return names

    def make_run_files(path):
        write_json(path / "status.json", to_json(Status(state="running", started_at="2026-03-01T09:02:10+00:00")))
        write_json(path / "recipe.json", {"data": {"source": "fruitbowl"}, "model": {"name": "small"}})

    monkeypatch.setattr(layout, "names_in", look_beside_a_start)
    with pytest.raises(RunDirectoryError, match="already holds a run"):
        RunDirectory.create(tmp_path / "run")
