"""Published series -> cases: what was known, and the measurement that is held out. For forecast.py."""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, stdev

from turnaround.forecast.scaling import MORE_THAN_LINEAR

MIN_COUNTS = 3
MIN_BATCHES = 3
SPREAD_OF_BATCHES = 2.0
GPUS_PER_HOST = {"DGX-2": 16}
"""The column `nodes` is empty; a DGX-2 has 16 GPUs, a DGX-1 and a DGX A100 have 8."""
RETINANET_SINCE = (2, 0)
"""Rules version at which the benchmark `ssd` became another network on other images."""
SAME_WORK = {"resnet", "ssd", "retinanet", "sd", "rgat"}
"""Benchmarks of rcp_checker that are tested on, or stand there under a second name."""
NOT_COMPARABLE = {("unet3d", 28)}
"""Counted in images, not in epochs as its other points."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One point of a series: x is a number of GPUs or a global batch, y a step time or epochs."""

    x: int
    y: float
    hosts: int = 1
    sd: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """Points to learn from, and the one that is held out."""

    series: str
    known: tuple[Point, ...]
    asked: Point


def throughput_series(file: Path) -> tuple[dict[str, list[Point]], dict[str, int]]:
    """Series by name, one point for each GPU count (the median of its rows); what was left out, as counts."""
    rows: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    left_out: dict[str, int] = defaultdict(int)
    per_host = {}
    for row in _rows(file):
        gpus, rate = _positive(row["gpus"]), _positive(row["images_per_s"])
        if gpus is None or rate is None or row["precision"] not in ("AMP", "FP32", "TF32"):
            left_out["rows without a count, a rate or a precision"] += 1
            continue
        rows[row["series"]][int(gpus)].append(rate)
        per_host[row["series"]] = next((n for name, n in GPUS_PER_HOST.items() if name in row["gpu"]), 8)
    series = {}
    for name, counts in rows.items():
        points = [Point(x=n, y=n / median(r), hosts=math.ceil(n / per_host[name])) for n, r in sorted(counts.items())]
        if any(points[0].y > MORE_THAN_LINEAR * p.y for p in points):  # the smallest count was not measured properly
            left_out["series that scale more than linearly"] += 1
        elif len(points) < 2:
            left_out["series with a single GPU count"] += 1
        else:
            series[name] = points
    return series, left_out


def examples_of(file: Path) -> dict[str, str]:
    """The example of NVIDIA's that a series comes from, by series: one README, one network, one framework."""
    return {row["series"]: row["source_path"] for row in _rows(file)}


def epochs_series(file: Path) -> dict[str, list[Point]]:
    """Mean over the seeds for each batch. The benchmark `ssd` is two: SSD, and RetinaNet since rules 2.0."""
    rows: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in _rows(file):
        name, version = row["benchmark"], tuple(int(n) for n in row["first_rules_version"].split(".")[:2])
        if name == "ssd" and version >= RETINANET_SINCE:
            name = "ssd (RetinaNet)"
        rows[name][int(row["global_batch_size"])].append(float(row["epochs_to_converge"]))
    return {name: [_seeds(batch, e) for batch, e in sorted(points.items())] for name, points in rows.items()}


def mlperf_series(folder: Path) -> dict[str, list[Point]]:
    """The other benchmarks of MLPerf's reference points, each batch as it was first published."""
    points: dict[str, dict[int, Point]] = defaultdict(dict)
    for file in sorted(folder.glob("*/rcps_*.json")):
        for entry in json.loads(file.read_text(encoding="utf-8")).values():
            name, batch = entry["Benchmark"], int(entry["BS"])
            if name in SAME_WORK or (name, batch) in NOT_COMPARABLE:
                continue
            if "Epochs to converge" in entry:
                points[name].setdefault(batch, _seeds(batch, entry["Epochs to converge"]))
    return {name: [p for _, p in sorted(batches.items())] for name, batches in points.items()}


def _seeds(batch: int, values: Sequence[float]) -> Point:
    spread = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return Point(x=batch, y=mean(values), sd=spread)


def _rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def _positive(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value > 0 and math.isfinite(value) else None


def largest_held_out(series: dict[str, list[Point]]) -> list[Case]:
    """One case for each series with three or more counts."""
    kept = {name: points for name, points in series.items() if len(points) >= MIN_COUNTS}
    return [Case(series=name, known=tuple(points[:-1]), asked=points[-1]) for name, points in kept.items()]


def all_ahead(series: dict[str, list[Point]]) -> list[Case]:
    """Every larger count from every two or more of the smallest."""
    return [
        Case(series=name, known=tuple(points[:k]), asked=asked)
        for name, points in series.items()
        for k in range(2, len(points))
        for asked in points[k:]
    ]


def between_others(series: dict[str, list[Point]]) -> list[Case]:
    """Each count that has smaller and larger ones, from all others."""
    return [
        Case(series=name, known=tuple(p for p in points if p != asked), asked=asked)
        for name, points in series.items()
        for asked in points[1:-1]
    ]


def all_below(series: dict[str, list[Point]]) -> list[Case]:
    """Every smaller count from every two or more of the largest."""
    return [
        Case(series=name, known=tuple(points[k:]), asked=asked)
        for name, points in series.items()
        for k in range(1, len(points) - 1)
        for asked in points[:k]
    ]


def by_kind(cases: Sequence[Case]) -> dict[str, list[Case]]:
    """The cases by how far away, on which hosts, and how much efficiency was lost already."""

    def far(c: Case) -> float:
        return c.asked.x / c.known[-1].x

    def hosts(c: Case) -> int:
        return max(p.hosts for p in c.known)

    def lost(c: Case) -> float:
        return 1 - c.known[0].y / c.known[-1].y

    return {
        "to twice the largest count": [c for c in cases if far(c) <= 2],
        "4 times": [c for c in cases if far(c) == 4],
        "8 times": [c for c in cases if far(c) == 8],
        "one host": [c for c in cases if c.asked.hosts == 1],
        "first crossing of a host": [c for c in cases if hosts(c) == 1 < c.asked.hosts],
        "more hosts, several known": [c for c in cases if 1 < hosts(c) < c.asked.hosts],
        "lost so far: up to 2 %": [c for c in cases if lost(c) <= 0.02],
        "lost so far: 2 to 10 %": [c for c in cases if 0.02 < lost(c) <= 0.10],
        "lost so far: 10 to 30 %": [c for c in cases if 0.10 < lost(c) <= 0.30],
        "lost so far: above 30 %": [c for c in cases if lost(c) > 0.30],
    }


def from_one_count(series: dict[str, list[Point]]) -> list[Case]:
    """The smallest count alone, and the largest held out."""
    return [Case(series=name, known=tuple(points[:1]), asked=points[-1]) for name, points in series.items()]


def next_batch_held_out(series: dict[str, list[Point]]) -> list[Case]:
    """Each batch in turn is held out as the largest; known are the smaller ones, three or more over a factor of 2."""
    cases = []
    for name, points in series.items():
        for k in range(MIN_BATCHES, len(points)):
            if points[k - 1].x >= SPREAD_OF_BATCHES * points[0].x:
                cases.append(Case(series=name, known=tuple(points[:k]), asked=points[k]))
    return cases


def from_one_batch(series: dict[str, list[Point]]) -> list[Case]:
    """Every batch from every other one alone."""
    return [
        Case(series=name, known=(known,), asked=asked)
        for name, points in series.items()
        for known in points
        for asked in points
        if asked != known
    ]


def in_order(names: Iterable[str], salt: str = "") -> list[str]:
    """By the SHA-256 of salt and name."""
    return sorted(names, key=lambda name: hashlib.sha256((salt + name).encode()).hexdigest())
