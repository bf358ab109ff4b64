"""The user's slurm.toml and the flags on top of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from turnaround.errors import InputError
from turnaround.launch.clusters.slurm.settings import SlurmSettings, megabytes, own_file, seconds


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TURNAROUND_CONFIG", str(tmp_path))
    return tmp_path / "slurm.toml"


def test_without_a_file_all_is_the_clusters_default(file: Path) -> None:
    assert own_file() == file
    assert SlurmSettings.load() == SlurmSettings()
    assert SlurmSettings().time_limit_s is None


def test_the_file_without_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TURNAROUND_CONFIG", raising=False)
    assert own_file() == Path.home() / ".config" / "turnaround" / "slurm.toml"


def test_a_file_and_flags_on_top(file: Path) -> None:
    file.write_text('partition = "gpu"\ngpu = "t4"\nsetup = ["module load cuda"]\ntime = "4:00:00"\n')
    settings = SlurmSettings.load({"gpu": "v100", "hosts": 2, "partition": None})
    assert (settings.partition, settings.gpu, settings.hosts) == ("gpu", "v100", 2)
    assert settings.setup == ("module load cuda",)
    assert settings.time_limit_s == 4 * 3600


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('partitoin = "x"', r"Your Slurm settings, .*slurm.toml: Unknown key 'partitoin'. Did you mean 'partition'\?"),
        ("hosts = '2'", r"Your Slurm settings, .*: hosts = '2' must be a whole number"),
        ("hosts = true", "hosts = True must be a whole number"),
        ("time = 60", 'time = 60 must be text in quotes: time = "60"'),
        ('setup = "module load cuda"', r'setup = .* must be a list of lines: setup = \["..."\]'),
        ("setup = [1]", "must be a list of lines"),
        ('time = "4h"', "time = '4h' is not a time limit. Write MINUTES, .*for example"),
        ("hosts = [", r"cannot be read: .*Correct the file \(lines such as"),
    ],
)
def test_what_is_wrong_in_the_file(text: str, message: str, file: Path) -> None:
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        SlurmSettings.load()


def test_a_file_that_cannot_be_read(file: Path) -> None:
    file.mkdir()
    with pytest.raises(InputError, match="cannot be read"):
        SlurmSettings.load()


def test_a_wrong_flag_does_not_blame_the_file(file: Path) -> None:
    file.write_text('partition = "gpu"\n')
    with pytest.raises(InputError, match=r"^Slurm settings: hosts = 0 must be at least 1"):
        SlurmSettings.load({"hosts": 0})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"partition": "a b"}, "partition = 'a b' cannot be a name in Slurm"),
        ({"account": "--evil"}, "cannot be a name"),
        ({"gpu": "v100\n#SBATCH --x"}, "cannot be a name"),
        ({"gpus_per_host": -1}, "gpus_per_host = -1 must be at least 0"),
        ({"cpus_per_gpu": 0}, "cpus_per_gpu = 0 must be at least 1"),
        ({"gpu": "t4", "gpus_per_host": 0}, "asks for a kind and for none of it"),
        ({"memory_per_gpu": "much"}, "memory_per_gpu = 'much' is not an amount of memory"),
        ({"memory_per_gpu": "0"}, "not an amount of memory"),
        ({"time": "0"}, "leaves no time at all"),
        ({"time": "1", "signal_lead_s": 60}, r"signal_lead_s = 60 is not below the time limit \(60 s\)"),
        ({"signal_lead_s": 70000}, "not below 65535 s, Slurm's own limit"),
        ({"python": ""}, "python = '' is no program"),
        ({"setup": ("a\nb",)}, "without line breaks"),
        ({"sbatch": ("",)}, "give one command in each"),
        ({"sbatch": ("exclude=n1",)}, "write an option as --name=value"),
        ({"sbatch": ("--time=4",)}, "'--time=4': set time instead"),
        ({"sbatch": ("-p gpu",)}, "'-p gpu': set partition instead"),
        ({"sbatch": ("--mem-per-gpu 3",)}, "set memory_per_gpu instead"),
        ({"sbatch": ("--array=1-9",)}, "turnaround decides --array itself"),
    ],
)
def test_what_cannot_be_meant(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SlurmSettings(**wrong)


@pytest.mark.parametrize(
    ("time", "expected_s"),
    [
        *(("90", 5400), ("1:30", 90), ("04:00:00", 14400), ("2-12", 216000)),
        *(("1-00:30", 88200), ("1-01:01:01", 90061), ("infinite", None), ("1-", None), ("", None), ("1:2:3:4", None)),
    ],
)
def test_times_as_slurm_reads_them(time: str, expected_s: int | None) -> None:
    if expected_s is None:
        with pytest.raises(InputError, match="is not a time limit"):
            seconds(time)
    else:
        assert seconds(time) == expected_s


def test_memory_as_slurm_reads_it() -> None:
    assert [megabytes(text) for text in ("800", "800M", "32G", "1t", "512K", "16GB")] == [
        *(800, 800, 32768, 1024**2, 1, 16384)
    ]
