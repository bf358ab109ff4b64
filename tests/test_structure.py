"""The architecture as tests: import directions, no torch on the reading side, sizes, and docs that match the tree."""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import turnaround
from turnaround.workers import environment
from turnaround.workers.engines import ENGINES

PACKAGE = Path(turnaround.__file__).parent
REPOSITORY = Path(__file__).parents[1]
FILES = sorted(PACKAGE.rglob("*.py"))
FOLDERS = sorted({file.parent for file in FILES})
GPU_LIBRARIES = {"torch", "timm", "torchvision"}

# Which room may import which; a room may always import itself, errors and words. The flow of docs/architecture.md:
#   recipe -> data -> training (model, workers) -> record  |  cli <- reporting <- study, forecast <- analysis <- record
MAY_IMPORT = {
    "errors": set(),
    "words": set(),
    "web": set(),
    "choice": set(),
    "lean_imports": set(),
    "optimizers": {"lean_imports"},
    "interruptions": set(),
    "recipe": {"optimizers", "interruptions"},
    "recipes": {"recipe"},
    "patience": set(),
    "record": {"patience", "cores", "safe_path"},
    "recorder": {"record"},
    "adapters": {"recorder"},
    "kernels": set(),
    "cores": set(),
    "safe_path": set(),
    "children": {"cores", "safe_path"},
    "fruitbowl": {"children"},
    "data": {"choice", "recipe", "kernels", "children", "fruitbowl", "patience"},
    "check": {"data", "children"},
    "model": {"recipe", "kernels", "lean_imports"},
    "workers": {"record"},
    "training": {"choice", "optimizers", "interruptions", "recipe", "kernels", "data", "model", "workers", "record"},
    "use": {"recipe", "recipes", "fruitbowl", "data", "model", "workers", "training", "record", "web"},
    "launch": {"choice", "optimizers", "recipe", "data", "check", "record", "cores", "children", "safe_path"},
    "analysis": {"interruptions", "record"},
    "findings": {"optimizers", "interruptions", "record", "analysis", "forecast"},
    "forecast": {"interruptions", "record", "analysis"},
    "study": {
        "recipe",
        "recipes",
        "record",
        "launch",
        "analysis",
        "findings",
        "forecast",
        "cores",
        "children",
        "safe_path",
    },
    "reporting": {"recipe", "data", "check", "record", "analysis", "findings", "forecast", "study", "web"},
    "cli": {
        "children",
        "interruptions",
        "recipe",
        "recipes",
        "data",
        "check",
        "record",
        "launch",
        "analysis",
        "findings",
        "forecast",
        "study",
        "reporting",
        "safe_path",
        "web",
    },
    "api": {
        "interruptions",
        "recipe",
        "recipes",
        "data",
        "check",
        "record",
        "launch",
        "analysis",
        "findings",
        "forecast",
        "study",
        "reporting",
        "recorder",
        "results",
    },
    "results": {"record", "analysis", "findings", "reporting"},
    "worker": {"children", "launch", "record", "analysis", "reporting"},
    "worker_server": {"children", "launch", "record", "reporting", "worker"},
    "__main__": {"cli", "errors", "launch", "safe_path"},
    "__init__": {"api"},
}
KERNELS = ("model/grouped_norm_triton.py", "model/depthwise_triton.py", "data/inputs_triton.py")
"""A kernel's parameters are its pointers and sizes."""
READING_SIDE = (
    "errors",
    "words",
    "web",
    "recipe",
    "recipes",
    "record",
    "recorder",
    "launch",
    "study",
    "analysis",
    "findings",
    "forecast",
    "reporting",
    "cli",
    "api",
    "results",
    "worker",
    "worker_server",
)
GPU_SIDE_OF_DATA = {"augment.py", "batches.py", "first_read.py", "inputs.py", "inputs_triton.py", "mixing.py"}
LAZY_GPU_IMPORTS = {"data/source.py"}  # fetching a known set asks torchvision for it
# Modules of the GPU side's rooms that the reading side shares: they import no torch.
SHARED = {"turnaround.workers.environment", "turnaround.workers.engines", "turnaround.workers.shares"}
SHARED_WITH = ("recipe", "launch", "cli", "recorder", "worker", "worker_server")
# The entry point of every training process, and the verbs that ask a trained network, stand on the reading side's
# doorstep and open the GPU side's door: inside a function, so that nothing is loaded before it is needed.
ENTRY_POINT = {
    "worker.py": {
        "turnaround.training.bench_run",
        "turnaround.training.run",
        "turnaround.training.clock",
        "turnaround.training.loading",
    },
    "worker_server.py": {"turnaround.training.run", "turnaround.training.loading"},
    "cli/train.py": {"turnaround.training.preview"},
    "cli/check.py": {"turnaround.use.label_check", "turnaround.use.predictor"},
    "cli/classify.py": {"turnaround.use.images", "turnaround.use.predictor"},
    "cli/evaluate.py": {"turnaround.use.evaluate", "turnaround.use.predictor"},
    "cli/export.py": {"turnaround.use.export", "turnaround.use.trained"},
    "cli/serve.py": {"turnaround.use.predictor", "turnaround.use.server"},
    "api.py": {"turnaround.use.predictor", "turnaround.use.evaluate"},
    "results.py": {"turnaround.use.predictor", "turnaround.use.export"},
}


@dataclass(frozen=True)
class Import:
    """One imported module, and whether it is imported inside a function."""

    module: str
    is_lazy: bool

    @property
    def library(self) -> str:
        return self.module.partition(".")[0]

    @property
    def room(self) -> str:
        return self.module.split(".")[1] if self.module.count(".") else "__init__"


def name_of(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


def room_of(file: Path) -> str:
    return name_of(file).split("/")[0].removesuffix(".py")


@functools.cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@functools.cache
def nodes(file: Path) -> list[ast.AST]:
    return list(ast.walk(tree(file)))


def dotted(node: ast.AST) -> str:
    """`torch.load` of the function that is called; nothing of one that is itself computed."""
    if isinstance(node, ast.Attribute):
        return f"{owner}.{node.attr}" if (owner := dotted(node.value)) else ""
    return node.id if isinstance(node, ast.Name) else ""


@functools.cache
def imports(file: Path) -> list[Import]:
    """Everything a file imports; `from turnaround import recipes` is an import of turnaround.recipes."""
    return list(_imports(tree(file), is_lazy=False))


def by_file(offences: Callable[[Path], Iterable[str]]) -> dict[str, list[str]]:
    """Of every file that breaks a rule, how: tests expect none. One test for all files takes a tenth of the time of
    one for each."""
    return {name_of(file): found for file in FILES if (found := list(offences(file)))}


def _imports(node: ast.AST, *, is_lazy: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            continue  # an expression imports nothing
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, is_lazy) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"relative import in line {child.lineno}"
            module = child.module or ""
            if module == "turnaround" or (PACKAGE.parent / module.replace(".", "/")).is_dir():
                yield from (Import(f"{module}.{alias.name}", is_lazy) for alias in child.names)
            else:
                yield Import(module, is_lazy)
        else:
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from _imports(child, is_lazy=is_lazy or is_function)


# --- (i) import directions


def test_the_table_names_every_room() -> None:
    assert {room_of(file) for file in FILES} <= set(MAY_IMPORT)


def test_a_room_imports_only_the_rooms_before_it() -> None:
    def offences(file: Path) -> Iterator[str]:
        room = room_of(file)
        allowed = MAY_IMPORT[room] | {room, "errors", "words"}
        exceptions = ENTRY_POINT.get(name_of(file), set()) | (SHARED if room in SHARED_WITH else set())
        found = [i for i in imports(file) if i.library == "turnaround" and i.module not in exceptions]
        return (i.module for i in found if i.room not in allowed)

    assert by_file(offences) == {}


@pytest.mark.parametrize("name", ENTRY_POINT)
def test_the_door_to_the_gpu_side_is_opened_inside_a_function(name: str) -> None:
    opened = [i for i in imports(PACKAGE / name) if i.module in ENTRY_POINT[name]]
    assert {i.module for i in opened} == ENTRY_POINT[name]
    assert all(i.is_lazy for i in opened)


def test_torch_stays_on_the_gpu_side() -> None:
    def offences(file: Path) -> Iterator[str]:
        room, found = room_of(file), [i for i in imports(file) if i.library in GPU_LIBRARIES]
        if room == "data" and file.name not in GPU_SIDE_OF_DATA:
            found = [i for i in found if not i.is_lazy or name_of(file) not in LAZY_GPU_IMPORTS]
        elif room in ("model", "training", "workers", "use"):  # the core runs with torch alone
            found = [i for i in found if i.library != "torch" and not i.is_lazy]
        elif room not in (*READING_SIDE, "optimizers"):
            found = []  # optimizers: the command line lists them; what makes one is loaded when it is made
        return (i.module for i in found)

    assert by_file(offences) == {}


def test_the_reading_side_does_not_import_modules_of_the_gpu_side() -> None:
    """data, and the environment in workers, are shared: only their modules without torch."""
    gpu_side = tuple(f"turnaround.data.{name.removesuffix('.py')}" for name in GPU_SIDE_OF_DATA)

    def offences(file: Path) -> Iterator[str]:
        is_reading = room_of(file) in READING_SIDE and name_of(file) not in ENTRY_POINT
        return (i.module for i in imports(file) if is_reading and i.module.startswith(gpu_side))

    assert by_file(offences) == {}


def test_the_walk_sees_lazy_imports_and_names(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text("import a.b\nfrom turnaround import recipes\ndef f():\n    if 1:\n        from torch import nn\n")
    assert imports(file) == [Import("a.b", False), Import("turnaround.recipes", False), Import("torch", True)]
    assert [i.room for i in imports(file)][1] == "recipes"


# --- (ii) the same, by running it


def python(*arguments: str, without_torch: Path | None = None) -> subprocess.CompletedProcess[str]:
    path = [str(without_torch)] if without_torch else []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*path, str(PACKAGE.parent)])}
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)


def test_importing_the_reading_side_leaves_torch_out() -> None:
    modules = [
        "turnaround." + name_of(file).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for file in FILES
        if room_of(file) in (*READING_SIDE, "data") and file.name not in GPU_SIDE_OF_DATA
    ]
    code = f"import importlib, sys\nfor m in {modules!r}: importlib.import_module(m)\n"
    code += f"print(sorted({GPU_LIBRARIES!r} & set(sys.modules)))"
    done = python("-c", code)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


@pytest.fixture
def without_torch(tmp_path: Path) -> Path:
    """A folder that makes torch and its companions raise when imported."""
    for name in GPU_LIBRARIES:
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('{name} was imported')\n")
    return tmp_path


COMMANDS = ("--help", "train --help", "classify --help", "serve --help", "recipes", "recipes keys")
ALL_IN_ONE = """
import sys
from turnaround import cli
for words in sys.argv[1:]:
    sys.argv = ["turnaround", *words.split()]
    try:
        cli.main()
    except SystemExit as ended:
        print("ended", words, ended.code)
"""


def test_the_command_line_answers_without_torch(without_torch: Path) -> None:
    dry_run = "train fruitbowl --dry-run"
    done = python("-m", "turnaround", *dry_run.split(), without_torch=without_torch)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
    done = python("-c", ALL_IN_ONE, *COMMANDS, dry_run, without_torch=without_torch)
    assert (done.returncode, done.stderr) == (0, "")
    answers = re.split(r"(?m)^ended (.*) 0\n", done.stdout)
    assert answers[1::2] == [*COMMANDS, dry_run]
    assert all(answers[0:-1:2])


def test_the_folder_without_torch_works(without_torch: Path) -> None:
    assert "torch was imported" in python("-c", "import torch", without_torch=without_torch).stderr


# --- (iii) sizes


def test_a_file_stays_readable() -> None:
    lines = {name_of(file): len(file.read_text(encoding="utf-8").splitlines()) for file in FILES}
    assert {name: count for name, count in lines.items() if count > 450} == {}


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for file in FILES:
        for node in nodes(file):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{name_of(file)}:{node.name}", node


def test_a_function_fits_a_screen() -> None:
    def lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
        docstring = node.body[0] if ast.get_docstring(node) is not None else None
        taken = 0 if docstring is None else (docstring.end_lineno or 0) - docstring.lineno + 1
        return (node.end_lineno or 0) - node.lineno + 1 - taken

    assert {name: lines(node) for name, node in functions() if lines(node) > 60} == {}


def test_a_function_has_seven_parameters_at_most() -> None:
    def count(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
        arguments = node.args
        named = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        return len([name for name in named if name not in ("self", "cls")])

    # A verb's parameters are its flags: the function that bears the name of its file in cli/.
    verbs = {f"cli/{verb}.py:{verb}" for verb in (file.stem for file in (PACKAGE / "cli").glob("*.py"))}
    signature_of_torch = "model/grouped_norm.py:_batch_norm"
    exempt = {name for name, _ in functions() if name.startswith(KERNELS)} | {signature_of_torch}
    long = {name: count(node) for name, node in functions() if count(node) > 7 and name not in verbs}
    assert {name: n for name, n in long.items() if name not in exempt} == {}


# --- (iv), (v) docs that match the tree


def test_a_folders_docstring_names_its_modules() -> None:
    unnamed, gone = [], []
    for folder in (folder for folder in FOLDERS if folder != PACKAGE):
        docstring = ast.get_docstring(tree(folder / "__init__.py")) or ""
        modules = [file.name for file in sorted(folder.glob("*.py")) if file.name != "__init__.py"]
        missing = [name for name in modules if not re.search(rf"(?<![\w.]){re.escape(name)}\b", docstring)]
        unnamed += [f"{name_of(folder)}/{name}" for name in missing] or ([] if docstring else [name_of(folder)])
        named = re.findall(r"(?m)^ {4}(\w+\.py)\b", docstring)
        gone += [f"{name_of(folder)}/{name}" for name in named if not (folder / name).is_file()]
    assert (unnamed, gone) == ([], [])


def documented_tree() -> list[tuple[int, str]]:
    """(indent, name) of each line of the fenced block under the heading that speaks of a tree."""
    text = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    block = re.search(r"(?im)^#+ .*\btree\b.*\n(?:(?!#).*\n)*?```.*\n((?:.*\n)*?)```", text)
    lines = block[1].splitlines() if block else []
    return [(len(line) - len(line.lstrip()), line.split()[0]) for line in lines if line.strip()]


def tree_paths(lines: list[tuple[int, str]]) -> list[str]:
    """The lines' paths from the repository's root: a folder ends in a slash, its content is indented."""
    paths, parents = [], []
    for indent, name in lines:
        parents = [parent for parent in parents if parent[0] < indent]
        paths.append("".join(parent[1] for parent in parents) + name)
        if name.endswith("/"):
            parents.append((indent, name))
    return paths


def test_the_documented_tree_is_the_tree() -> None:
    paths = tree_paths(documented_tree())
    assert paths, "docs/architecture.md has no tree"
    assert [path for path in paths if not (REPOSITORY / path).exists()] == []
    assert [path for path in paths if path.endswith("/") != (REPOSITORY / path).is_dir()] == []
    # Every room is in it; of a room whose files are listed, every file is.
    rooms = {f"src/turnaround/{name_of(folder)}/" for folder in FOLDERS if folder != PACKAGE}
    assert rooms - set(paths) == set()
    for room in (*rooms, "src/turnaround/"):
        listed = {path for path in paths if path.startswith(room) and path.removeprefix(room).endswith(".py")}
        listed = {path for path in listed if "/" not in path.removeprefix(room)}
        there = {room + file.name for file in (REPOSITORY / room).glob("*.py") if not file.name.startswith("__")}
        assert not listed or there - listed == set()


def test_how_a_tree_is_read() -> None:
    lines = [(0, "src/turnaround/"), (2, "errors.py"), (2, "data/"), (4, "folder.py"), (2, "recipe.py"), (0, "tests/")]
    assert tree_paths(lines) == [
        "src/turnaround/",
        "src/turnaround/errors.py",
        "src/turnaround/data/",
        "src/turnaround/data/folder.py",
        "src/turnaround/recipe.py",
        "tests/",
    ]


@pytest.mark.parametrize("document", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_the_files_that_documents_name_are_there(document: str) -> None:
    text = (REPOSITORY / document).read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:[a-z_]+/)*[a-z_0-9]+\.py|(?:[a-z_]+/)+)`", text))
    assert named
    assert [name for name in sorted(named) if not any((root / name).exists() for root in (PACKAGE, REPOSITORY))] == []


def test_a_class_name_means_one_thing() -> None:
    names = Counter(node.name for file in FILES for node in nodes(file) if isinstance(node, ast.ClassDef))
    # The adapters' callback has the same name in every framework: users import it from the framework's own module.
    assert {name for name, count in names.items() if count > 1} <= {"TurnaroundCallback"}


# --- (vi) no pickle


def test_nothing_unpickles() -> None:
    def offences(file: Path) -> Iterator[str]:
        yield from {i.library for i in imports(file)} & {"pickle", "dill", "cloudpickle", "joblib", "shelve"}
        for node in (node for node in nodes(file) if isinstance(node, ast.Call)):
            call = dotted(node.func)
            keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if call == "torch.load" and keywords.get("weights_only") != "True":
                yield "torch.load without weights_only=True"
            if call in ("np.load", "numpy.load") and keywords.get("allow_pickle") != "False":
                yield "np.load without allow_pickle=False"
            if call == "torch.save":
                yield call

    assert by_file(offences) == {}


# --- (vii) who asks the launchers

VARIABLES_OF_LAUNCHERS = {
    *(name for engine in ENGINES.values() for name in engine.rank_variables),
    *(name for names in environment.OTHERS.values() for name in names[:4] if name),
    *(environment.STEP_OF_SLURM, "TF_CONFIG"),
}
READERS_OF_LAUNCHERS = {
    "workers/engines.py": VARIABLES_OF_LAUNCHERS,
    "workers/environment.py": VARIABLES_OF_LAUNCHERS,
    # What a step of Slurm knows becomes the variables of the engine, before anybody reads those.
    "launch/clusters/slurm/step.py": {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_ID"},
}


def test_one_file_reads_what_launchers_say() -> None:
    """A second reader does not know the engine that is added next: of its processes each would think it is alone."""

    def offences(file: Path) -> Iterator[str]:
        texts = {node.value for node in nodes(file) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
        yield from sorted((texts & VARIABLES_OF_LAUNCHERS) - READERS_OF_LAUNCHERS.get(name_of(file), set()))

    assert by_file(offences) == {}


def test_the_process_that_begins_with_the_command_imports_little() -> None:
    heavy = {"typer", "rich", "numpy", "psutil", *GPU_LIBRARIES}
    done = python("-c", f"import sys, turnaround.launch.preload\nprint(sorted({heavy!r} & set(sys.modules)))")
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


# --- (viii) every directory listing is closed


def test_every_directory_listing_is_closed() -> None:
    """A listing that an exception leaves half read is collected much later, as a warning in somebody else's code."""

    def offences(file: Path) -> Iterator[str]:
        items = (item for node in nodes(file) if isinstance(node, ast.With) for item in node.items)
        closed = {id(item.context_expr) for item in items}
        for node in (node for node in nodes(file) if isinstance(node, ast.Call)):
            if dotted(node.func) == "os.scandir" and id(node) not in closed:
                yield f"line {node.lineno}: os.scandir outside a with statement"

    assert by_file(offences) == {}
