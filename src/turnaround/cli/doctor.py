"""`turnaround doctor`: what this machine has, and whether training can work on it."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

PROBE_TIMEOUT_S = 120
NETWORK_MB = 64
"""As large as the gradients of a small network, and more than a switch buffers."""


def doctor(
    start_up: Annotated[
        Path | None,
        typer.Option("--start-up", metavar="RUN", help="Show where the time before a run's first step went."),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the facts as JSON.")] = False,
) -> None:
    """Look at this machine: GPUs, versions, disk, processes.

    Started on several hosts (srun --nodes=2 --ntasks-per-node=1 turnaround doctor, or by torch.distributed.run) it
    measures the network between them.
    """
    from turnaround.reporting.terminal import print_json

    if start_up is not None:
        _start_up(start_up, json_=json_)
        return
    if (settings := _started_with_others()) is not None:
        _network(settings, json_=json_)
        return
    facts = examine()
    if json_:
        print_json(facts)
    else:
        _print(facts)
    if facts["problems"]:
        raise typer.Exit(1)


def _start_up(path: Path, *, json_: bool) -> None:
    """Print the parts of a run's last start, as its record has them."""
    from rich.table import Table

    from turnaround.errors import InputError
    from turnaround.record.reader import Run
    from turnaround.reporting.terminal import out, print_json

    recorded = Run.load(path).machine.get("start_up_s")
    parts_s = {str(part): s for part, s in recorded.items() if _is_time(s)} if isinstance(recorded, dict) else {}
    if not parts_s:
        raise InputError(
            f"{path} does not say where its start-up went: it was imported, recorded by another program or an earlier "
            "version, or ended before its first step. Train one: turnaround train SOURCE."
        )
    total_s, import_s = sum(parts_s.values()), parts_s.get("import", 0.0)
    if json_:
        return print_json({"start_up_s": parts_s, "total_s": total_s})
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("part of the start-up")
    for title in ("seconds", "share"):
        table.add_column(title, justify="right")
    for part, seconds in parts_s.items():
        table.add_row(part, f"{seconds:.2f}", f"{seconds / total_s if total_s else 0.0:.0%}", style=None)
    table.add_row("all", f"{total_s:.2f}", "", style="bold")
    out().print(table)
    return out().print(f"Loading code took {import_s:.1f} s, everything else {total_s - import_s:.1f} s.")


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9


def _started_with_others() -> dict[str, str] | None:
    """Return what processes need to meet that a launcher started together with this one; None for one alone."""
    import os

    from turnaround.launch.clusters import step_environment
    from turnaround.workers.environment import place

    settings = step_environment(os.environ)
    return None if place({**os.environ, **settings}).is_alone else settings


def _network(settings: dict[str, str], *, json_: bool) -> None:
    """Each process sends and receives; process 0 tells what an all-reduce got between the hosts."""
    import os

    from turnaround.errors import MissingPartError
    from turnaround.reporting.terminal import out, print_json
    from turnaround.workers.environment import place

    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        # Every process measures, since all of them are needed; only process 0 has figures and speaks.
        is_first = place({**os.environ, **settings}).rank == 0
        command = [sys.executable, "-m", "turnaround.workers.probe", str(answer), str(NETWORK_MB)]
        facts = _answer(command, answer if is_first else None, settings=settings, is_heard=is_first)
    if "error" in facts:
        raise MissingPartError(
            f"These processes cannot speak to each other ({facts['error']}). On several hosts, is the right network "
            "interface chosen? GLOO_SOCKET_IFNAME=eth0 says which, by the name that `ip address` shows."
        )
    if is_first and json_:
        print_json(facts)
    elif is_first:
        out().print(network_text(facts))


def network_text(facts: dict[str, Any]) -> str:
    """Return what was measured, and what it is for."""
    said = (
        f"{facts['processes']} processes on {facts['hosts']} host{'s' * (facts['hosts'] > 1)} agree through "
        f"{facts['backend']}: {facts['message_mb']} MB in {1000 * facts['elapsed_s']:.1f} ms"
    )
    if facts["gb_per_s"] is None:
        return f"{said}. One host has no network between hosts: start this on two or more to measure it."
    rate = f"{facts['gb_per_s']:.3g}"
    return f"{said}, {rate} GB/s between hosts. For forecasts: turnaround predict DIR --network {rate}"


def examine() -> dict[str, Any]:
    """Return the facts, and a sentence for each problem."""
    import shutil

    from turnaround.data.pixels import default_cache
    from turnaround.record.machine import describe

    machine = describe(workers=0, processes=0, engine="", launch="", device="")
    facts = {k: machine[k] for k in ("hostname", "os", "python", "cpu", "cores", "memory_gib", "gpus", "versions")}
    cache = default_cache()
    # The cache may not be there yet: its disk is that of the nearest folder that is.
    existing = next(p for p in (cache, *cache.parents) if p.exists())
    facts["cache"] = {"directory": str(cache), "free_gb": round(shutil.disk_usage(existing).free / 1e9, 1)}
    facts["torch"] = _torch_facts()
    facts["all_reduce"] = _all_reduce()
    facts["problems"] = _problems(facts)
    return facts


def _torch_facts() -> dict[str, Any]:
    """Asked of a process of its own: torch takes seconds to import, and may not import at all."""
    code = (
        "import json, torch; from turnaround.kernels import unavailable_reason; print(json.dumps({"
        "'cuda': torch.cuda.is_available(), 'gpus': torch.cuda.device_count(), 'cuda_version': torch.version.cuda, "
        "'mps': torch.backends.mps.is_available(), 'nccl': torch.distributed.is_nccl_available(), "
        "'gloo': torch.distributed.is_gloo_available(), 'no_kernels': unavailable_reason()}))"
    )
    return _answer([sys.executable, "-c", code], None)


def _all_reduce() -> dict[str, Any]:
    """Two real processes add up a tensor."""
    from turnaround.launch.local import loopback
    from turnaround.workers.engines import TORCH_AGENT

    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        module = ["-m", "turnaround.workers.probe", str(answer)]
        # Without a folder for its logs it makes one in /tmp, and leaves it there.
        spread = ["-m", TORCH_AGENT, "--nproc-per-node", "2", "--log-dir", folder]
        return _answer([sys.executable, *spread, *module], answer, settings=loopback())


def _answer(
    command: list[str], answer: Path | None, settings: dict[str, str] | None = None, *, is_heard: bool = True
) -> dict[str, Any]:
    """Return what a process says as JSON, in a file or on stdout; or why it said nothing. `is_heard`: it is asked."""
    import json
    import os

    from turnaround import safe_path

    # One thread: the probes are small, and where cores are few more threads only wait for each other.
    environment = {"OMP_NUM_THREADS": "1", **os.environ, **safe_path.settings(), **(settings or {})}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, env=environment)
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {PROBE_TIMEOUT_S} s"}
    if done.returncode != 0:
        return {"error": _reason(done.stderr)}
    if not is_heard:
        return {}
    facts: dict[str, Any] = json.loads(answer.read_text() if answer else done.stdout)
    return facts


def _reason(printed: str) -> str:
    """Return the first line that names an error: torch.distributed.run ends with a frame around its own report."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(\[rank\d+\]: ?)?[\w.]*(Error|Exception)\b.*:", line)]
    return (errors or lines[-1:] or ["no message"])[0]


def _problems(facts: dict[str, Any]) -> list[str]:
    problems = []
    if "error" in facts["torch"]:
        problems.append(
            f"torch does not import ({facts['torch']['error']}). Install it: pip install torch torchvision timm."
        )
    elif facts["gpus"] and not facts["torch"]["cuda"]:
        problems.append(
            "There is a GPU, but this torch cannot use it: install a torch build with CUDA that fits the driver."
        )
    if "error" in facts["torch"]:
        pass  # without torch nothing else can work: told above
    elif "error" in facts["all_reduce"]:
        problems.append(
            f"Two processes cannot speak to each other ({facts['all_reduce']['error']}): use --processes 1."
        )
    elif not facts["all_reduce"]["is_right"]:
        problems.append("Two processes added up a tensor and got it wrong. Do not train on several processes here.")
    problems += [
        f"{name} is not installed: networks other than `small` need it. pip install {name}"
        for name in ("torchvision", "timm")
        if facts["versions"][name] is None
    ]
    if facts["cache"]["free_gb"] < 2:
        problems.append(
            f"Only {facts['cache']['free_gb']} GB free for decoded images in {facts['cache']['directory']}."
        )
    return problems


def _kernels(unavailable_reason: str | None) -> str:
    if unavailable_reason is None:
        return "Triton compiles and runs them"
    return (
        f"none ({unavailable_reason}): training works, but slower. Triton needs a C compiler and the headers of Python "
        "(Debian: apt install gcc python3-dev)"
    )


def _print(facts: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    from turnaround.reporting.terminal import out

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    table.add_row("machine", f"{facts['hostname']}: {facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']} GiB")
    gpus = [f"{g['name']} ({g['memory_gib']} GiB)" for g in facts["gpus"]]
    table.add_row("GPUs", "\n".join(gpus) or "none: training runs on the CPU")
    if facts["torch"].get("cuda"):
        table.add_row("GPU kernels", escape(_kernels(facts["torch"]["no_kernels"])))
    table.add_row("system", f"{facts['os']}, Python {facts['python']}")
    table.add_row("versions", ", ".join(f"{name} {v or 'missing'}" for name, v in facts["versions"].items()))
    table.add_row("cache", f"{facts['cache']['directory']}, {facts['cache']['free_gb']} GB free")
    reduce = facts["all_reduce"]
    if "error" not in reduce:
        rate = f"{reduce['message_mb']} MB in {1000 * reduce['elapsed_s']:.1f} ms"
        table.add_row("two processes", f"agree through {reduce['backend']}: {rate}")
    out().print(table)
    for problem in facts["problems"]:
        out().print(f"[red]problem:[/red] {escape(problem)}")
    if not facts["problems"]:
        out().print("[green]Everything that training needs works here.[/green]")
