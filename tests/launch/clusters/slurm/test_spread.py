"""How many hosts, and how many processes on each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from turnaround.errors import InputError
from turnaround.launch.clusters.slurm.inventory import parse, settings_for, spread

THERE = parse(
    "gpu*|n1|gpu:t4:2|8|64000|infinite|idle\n"
    "gpu*|n2|gpu:t4:2|8|64000|infinite|idle\n"
    "gpu*|n3|gpu:v100:4|8|64000|infinite|idle\n"
)


@pytest.fixture(autouse=True)
def own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TURNAROUND_CONFIG", str(tmp_path))
    return tmp_path / "slurm.toml"


def spread_of(wishes: dict[str, Any], processes: int, device: str = "auto", *, there: Any = THERE) -> tuple[int, int]:
    made = settings_for(wishes, processes=processes, device=device, there=there)
    return made.hosts, made.gpus_per_host


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((4, None, None), (1, 4)),
        ((4, None, 4), (1, 4)),
        ((4, None, 2), (2, 2)),
        ((6, None, 4), (2, 3)),  # all hosts alike
        ((7, None, 4), (7, 1)),
        ((4, 2, None), (2, 2)),
        ((4, 1, 2), (1, 4)),  # as asked; whether the cluster has that is another question
    ],
)
def test_the_fewest_hosts_that_have_room(asked: tuple[int, Any, Any], expected: tuple[int, int]) -> None:
    processes, hosts, most = asked
    assert spread(processes, hosts=hosts, most=most) == expected


def test_uneven_hosts_are_refused() -> None:
    with pytest.raises(InputError, match=r"4 processes cannot be spread evenly over 3 hosts\. .* divides it"):
        spread(4, hosts=3, most=None)
    with pytest.raises(InputError, match="1 process cannot be spread evenly over 2 hosts"):
        spread(1, hosts=2, most=None)


def test_the_cluster_decides_where_nobody_says() -> None:
    assert spread_of({"gpu": "t4"}, 4) == (2, 2)
    assert spread_of({"gpu": "v100"}, 4) == (1, 4)
    assert spread_of({}, 4) == (1, 4)  # any kind: the best node has four
    assert spread_of({"gpu": "t4"}, 4, there=None) == (1, 4)  # no cluster to ask
    assert spread_of({"gpu": "v100", "hosts": 2}, 4) == (2, 2)
    assert spread_of({"gpu": "v100", "gpus_per_host": 2}, 4) == (2, 2)


def test_the_file_may_say_how_many_a_host_has(own_settings: Path) -> None:
    own_settings.write_text('gpu = "v100"\ngpus_per_host = 1\n')
    assert spread_of({}, 4) == (4, 1)
    own_settings.write_text('gpu = "v100"\n')  # the default, 1, is not something that was said
    assert spread_of({}, 4) == (1, 4)


def test_a_kind_as_people_write_it() -> None:
    assert settings_for({"gpu": "V100"}, processes=1, device="auto", there=THERE).gpu == "v100"
    with pytest.raises(InputError, match=r"Unknown GPU kind 'h100'\. .*Valid: t4, v100"):
        settings_for({"gpu": "h100"}, processes=1, device="auto", there=THERE)


def test_without_gpus(own_settings: Path) -> None:
    """A processor is asked for each process: Slurm would give one for all."""
    own_settings.write_text('gpu = "v100"\n')  # what is usual here; --device cpu does without
    made = settings_for({}, processes=4, device="cpu", there=THERE)
    assert (made.gpu, made.gpus_per_host, made.hosts, made.cpus_per_gpu) == (None, 0, 1, 1)
    assert settings_for({"hosts": 2}, processes=4, device="cpu", there=THERE).hosts == 2
    assert settings_for({"cpus_per_gpu": 3}, processes=4, device="cpu", there=THERE).cpus_per_gpu == 3
    assert spread_of({"gpu": "t4"}, 2, "cpu") == (1, 2)  # said with this very command: a node with such GPUs
    own_settings.unlink()
    assert spread_of({"gpus_per_host": 0}, 2) == (1, 0)
