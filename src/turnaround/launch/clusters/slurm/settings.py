"""The resources that a job asks the cluster for: from the user's file, overridden by flags.

~/.config/turnaround/slurm.toml (the folder can be set with TURNAROUND_CONFIG), every key optional:

    partition = "gpu"
    account = "physics"
    time = "04:00:00"
    gpu = "v100"                 # kind and number: --gres=gpu:v100:4
    gpus_per_host = 4
    cpus_per_gpu = 8
    memory_per_gpu = "32G"
    setup = ["module load cuda", "source ~/venv/bin/activate"]
    sbatch = ["--mail-type=FAIL"]
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from turnaround.errors import InputError, one_of

MAX_LEAD_S = 65535
"""Slurm's own limit for --signal."""

# What job_script decides, as long and short options: a second, contradicting line would win without a word.
OURS = {
    "--partition": "partition",
    "--account": "account",
    "--qos": "qos",
    "--time": "time",
    "--gres": "gpu and gpus_per_host",
    "--gpus": "gpu and gpus_per_host",
    "--gpus-per-node": "gpu and gpus_per_host",
    "--gpus-per-task": "gpu and gpus_per_host",
    "--nodes": "hosts",
    "--cpus-per-task": "cpus_per_gpu",
    "--cpus-per-gpu": "cpus_per_gpu",
    "--mem": "memory_per_gpu",
    "--mem-per-cpu": "memory_per_gpu",
    "--mem-per-gpu": "memory_per_gpu",
    "--signal": "signal_lead_s",
}
FIXED = ["--ntasks", "--ntasks-per-node", "--output", "--error", "--open-mode", "--requeue", "--no-requeue", "--array"]
FIXED += ["--job-name", "--chdir", "--wrap", "--parsable", "--wait"]
SHORT = {"-p": "--partition", "-A": "--account", "-q": "--qos", "-t": "--time", "-G": "--gpus", "-N": "--nodes"}
SHORT |= {"-c": "--cpus-per-task", "-n": "--ntasks", "-o": "--output", "-e": "--error", "-a": "--array"}
SHORT |= {"-J": "--job-name", "-D": "--chdir", "-W": "--wait"}


@dataclass(frozen=True, kw_only=True)
class SlurmSettings:
    """One job's wishes; None leaves a thing to the cluster's own default. Checked when it is made."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: str | None = None
    """The time limit as Slurm writes it: MINUTES, HH:MM:SS, D-HH, D-HH:MM:SS ..."""
    gpu: str | None = None
    """The kind of GPU as the cluster calls it; None takes any."""
    gpus_per_host: int = 1
    """0 trains on CPUs."""
    hosts: int = 1
    cpus_per_gpu: int | None = None
    """CPUs for each GPU; without GPUs, for each process."""
    memory_per_gpu: str | None = None
    """The same for memory: 32G, 800M."""
    signal_lead_s: int = 120
    """So long before the time limit the program is told to save and stop."""
    max_requeues: int = 100
    """So often a job whose time is up puts itself back into the queue; pre-emptions do not count."""
    interface: str | None = None
    """The network interface between hosts; None finds the one that leads to the other hosts (interface.py)."""
    python: str | None = None
    """The interpreter on the compute nodes; None: `python` where `setup` prepares one, otherwise this one's path."""
    setup: tuple[str, ...] = ()
    """Lines of bash before anything is started: modules, a virtual environment."""
    sbatch: tuple[str, ...] = ()
    """More options for sbatch, one a line: --exclude=n07."""

    def __post_init__(self) -> None:
        for check in (_check_types, _check_words, _check_numbers, _check_time, _check_lines):
            check(self)

    @property
    def time_limit_s(self) -> int | None:
        return None if self.time is None else seconds(self.time)

    @classmethod
    def load(cls, overrides: Mapping[str, Any] | None = None) -> SlurmSettings:
        """Return the user's file, if there is one, and on top what the flags say; a flag that is None says nothing."""
        file = own_file()
        table = _read(file)
        if table:
            _made(cls, table, where=f"Your Slurm settings, {file}")  # so that a message blames the right place
        return _made(cls, {**table, **_said(overrides)}, where="Slurm settings")


def names_said(overrides: Mapping[str, Any]) -> frozenset[str]:
    """Return the keys that the user has set, in the file or by a flag: what a default is does not show in the value."""
    return frozenset({**_read(own_file()), **_said(overrides)})


def parsed(typed: Iterable[str]) -> dict[str, Any]:
    """`qos=normal`, `cpus_per_gpu=8` -> values by the types of their keys; lines (setup, sbatch) may come repeatedly.

    The keys themselves are checked with all others, by `load`.
    """
    kinds = {field.name: str(field.type) for field in fields(SlurmSettings)}
    found: dict[str, Any] = {}
    for setting in typed:
        key, equals, value = (part.strip() for part in setting.partition("="))
        if not equals or not key:
            raise InputError(f"--slurm wants key=value, for example cpus_per_gpu=8. Received: {setting!r}.")
        if kinds.get(key, "").startswith("tuple"):
            found[key] = [*found.get(key, []), value]
        else:
            # At most 18 digits: Python refuses to read numbers of thousands of digits, with an error of its own.
            is_number = kinds.get(key, "").startswith("int") and re.fullmatch(r"[+-]?\d{1,18}", value, flags=re.ASCII)
            found[key] = int(value) if is_number else value
    return found


def _said(overrides: Mapping[str, Any] | None) -> dict[str, Any]:
    return {key: value for key, value in (overrides or {}).items() if value is not None}


def own_file() -> Path:
    """Return the user's file of settings for a cluster; it need not exist."""
    folder = os.environ.get("TURNAROUND_CONFIG")
    return (Path(folder).expanduser() if folder else Path.home() / ".config" / "turnaround") / "slurm.toml"


def seconds(time: str) -> int:
    """Parse a time limit in any of Slurm's spellings; a lone number is minutes, as Slurm reads it."""
    days, dash, clock = time.rpartition("-")
    if not re.fullmatch(r"(\d{1,6}-\d{1,6}(:\d{1,6}){0,2})|(\d{1,9}(:\d{1,9}){0,2})", time, flags=re.ASCII):
        raise InputError(
            f"time = {time!r} is not a time limit. Write MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, DAYS-HOURS "
            'or DAYS-HOURS:MINUTES:SECONDS, for example "04:00:00" or "2-12".'
        )
    # Slurm's own rule: behind a number of days the first figure is hours, otherwise the last one is seconds, unless it
    # stands alone: then it is minutes.
    parts = [int(part) for part in clock.split(":")]
    if dash:
        hours, minutes, rest = [*parts, 0, 0][:3]
    elif len(parts) == 3:
        hours, minutes, rest = parts
    else:
        hours, (minutes, rest) = 0, [*parts, 0][:2]
    return int(days or 0) * 86400 + hours * 3600 + minutes * 60 + rest


def megabytes(memory: str) -> int:
    """`32G` as Slurm reads it: K, M, G or T; without a letter, megabytes."""
    match = re.fullmatch(r"(\d{1,12})([KMGT]?)B?", memory.upper(), flags=re.ASCII)
    if not match or int(match[1]) == 0:
        raise InputError(f"memory_per_gpu = {memory!r} is not an amount of memory. Write for example '32G' or '800M'.")
    factor = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2}[match[2]]
    return max(1, int(int(match[1]) * factor))


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(
            f"Your Slurm settings cannot be read: {file}: {error}. "
            'Correct the file (lines such as partition = "gpu"), or move it away.'
        ) from None


def _made(cls: type[SlurmSettings], table: Mapping[str, Any], *, where: str) -> SlurmSettings:
    names = tuple(field.name for field in fields(cls))
    for key in table:
        if key not in names:
            raise InputError(f"{where}: {one_of('key', key, names)}")
    try:
        known: dict[str, Any] = {k: tuple(value) if isinstance(value, list) else value for k, value in table.items()}
        return cls(**known)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _check_types(settings: SlurmSettings) -> None:
    for field in fields(settings):
        value = getattr(settings, field.name)
        if value is None and "None" in str(field.type):
            continue
        if str(field.type).startswith("str"):
            if not isinstance(value, str):
                raise InputError(f'{field.name} = {value!r} must be text in quotes: {field.name} = "{value}".')
        elif str(field.type).startswith("int"):
            if not isinstance(value, int) or isinstance(value, bool):
                raise InputError(f"{field.name} = {value!r} must be a whole number.")
        elif not isinstance(value, tuple) or not all(isinstance(line, str) for line in value):
            raise InputError(f'{field.name} = {value!r} must be a list of lines: {field.name} = ["..."].')


def _check_words(settings: SlurmSettings) -> None:
    """Names go into option lines that Slurm reads by rules of its own: no spaces, quotes or leading dashes."""
    for name in ("partition", "account", "qos", "gpu", "interface"):
        value = getattr(settings, name)
        if value is not None and not re.fullmatch(r"\w[\w.,+@/-]*", value):
            raise InputError(f"{name} = {value!r} cannot be a name in Slurm: use letters, digits, and . _ -")
    if settings.python is not None and (not settings.python or "\n" in settings.python):
        raise InputError(f"python = {settings.python!r} is no program. Give its name or its path on the compute nodes.")


def _check_numbers(settings: SlurmSettings) -> None:
    least = {"gpus_per_host": 0, "hosts": 1, "cpus_per_gpu": 1, "signal_lead_s": 1, "max_requeues": 0}
    for name, lowest in least.items():
        value = getattr(settings, name)
        if value is not None and value < lowest:
            raise InputError(f"{name} = {value} must be at least {lowest}.")
    if settings.gpu is not None and settings.gpus_per_host == 0:
        raise InputError(f"gpu = {settings.gpu!r} with gpus_per_host = 0 asks for a kind and for none of it: drop one.")
    if settings.memory_per_gpu is not None:
        megabytes(settings.memory_per_gpu)


def _check_time(settings: SlurmSettings) -> None:
    limit_s, lead_s = settings.time_limit_s, settings.signal_lead_s
    if limit_s == 0:
        raise InputError(f'time = {settings.time!r} leaves no time at all. Give at least a minute: "1".')
    if lead_s > MAX_LEAD_S or (limit_s is not None and lead_s >= limit_s):
        limit = f"{MAX_LEAD_S} s, Slurm's own limit" if limit_s is None else f"the time limit ({limit_s} s)"
        raise InputError(
            f"signal_lead_s = {lead_s} is not below {limit}: the program would be told to stop before it "
            "starts. Make it smaller, or ask for more time."
        )


def _check_lines(settings: SlurmSettings) -> None:
    for name in ("setup", "sbatch"):
        for line in getattr(settings, name):
            if not line.strip() or any(ord(character) < 32 for character in line if character != "\t"):
                raise InputError(f"{name} has the line {line!r}: give one command in each, without line breaks.")
    for line in settings.sbatch:
        word = re.split(r"[=\s]", line)[0]
        if not re.fullmatch(r"--[a-z][a-z-]*|-[A-Za-z]", word):
            raise InputError(
                f"sbatch has the line {line!r}: write an option as --name=value, for example --exclude=n07."
            )
        option = SHORT.get(word, word)
        if option in OURS:
            raise InputError(f"sbatch has the line {line!r}: set {OURS[option]} instead.")
        if option in FIXED:
            raise InputError(f"sbatch has the line {line!r}, but turnaround decides {option} itself. Remove the line.")
