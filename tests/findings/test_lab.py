"""The lab's table through import, survey and find_all: what a careful reader says about it, with the figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.build import LAB, import_table
from turnaround.analysis.workloads import survey
from turnaround.findings import Finding, find_all

CALTECH, FRUIT = "caltech256, frozen", "fruit, fine-tuned"


def by_id(table: str, tmp_path: Path) -> dict[tuple[str, str], Finding]:
    found = find_all(survey([import_table(table, tmp_path)]))
    return {(finding.job, finding.id): finding for finding in found}


def check(found: dict[tuple[str, str], Finding]) -> None:
    """The findings 1, 2, 3 and the efficiency of 4, each in its own words."""
    falls = found[FRUIT, "accuracy-falls-with-workers"].text
    assert "falls from 95.6 % on 2 T4 to 92.2 % on 4 T4 (3.4 points; one run each" in falls
    assert "the global batch grew from 64 to 128 and the number of updates halved" in falls
    assert "weight" not in falls
    assert "--set training.scaling=auto" in found[FRUIT, "accuracy-falls-with-workers"].advice
    assert "--set training.batch_total=64" in found[FRUIT, "accuracy-falls-with-workers"].advice

    no_gain = found[CALTECH, "faster-gpu-no-gain"]
    assert no_gain.text == (
        "4 V100 take as long as 4 T4 (80 s and 81 s an epoch) although a V100 has 2.8 times the memory bandwidth: "
        "these runs measured the input pipeline (306 images/s), not the GPUs."
    )
    rates = {e.run: e.value for e in no_gain.evidence if e.unit == "images/s"}
    assert rates == {"model4": pytest.approx(24_485 / 81), "model5": pytest.approx(24_485 / 80)}

    linear = found[CALTECH, "more-than-linear"].text
    assert "2 -> 4 T4 is 2.58 times faster (209 s and 81 s an epoch) on 2 times the workers: more than linear" in linear
    assert "a cold cache or a shared machine" in linear

    efficiency = found[CALTECH, "efficiency-falls"]
    assert efficiency.text == (
        "8 V100 are 1.82 times as fast as 4 V100 (80 s -> 44 s an epoch) on 2 times the workers: 91 % efficiency."
    )
    assert efficiency.severity == "note"


def test_the_table_speaks_for_itself(tmp_path: Path) -> None:
    found = by_id(LAB, tmp_path)
    check(found)
    # The report's 2 T4 does not fit its own job: 30 x 209 s > 5,910 s.
    assert "6,270 s, more than its whole job of 5,910 s" in found[CALTECH, "times-contradict"].text
    # Two runs of the same 4 workers differ by 1.0 point, so 1.7 points over all prove nothing.
    assert (CALTECH, "accuracy-falls-with-workers") not in found
    assert "lie within 1.7 points" in found[CALTECH, "noise-larger-than-difference"].text
    assert "2 min 35 s (76 %)" in found[FRUIT, "time-lost-outside-training"].text
    assert "8 V100 with 23 min 07 s for the job" in found[CALTECH, "best-for-speed"].text
    assert "8 V100 19 min 27 s at 67.2 %" in found[CALTECH, "own-plateau-only"].text
    assert "do not rank the configurations" in found[CALTECH, "own-plateau-only"].text
    assert "it overfits by 19.2 points" in found[CALTECH, "memorising"].text


def test_only_what_the_table_can_carry_is_said(tmp_path: Path) -> None:
    ids = {finding_id for _, finding_id in by_id(LAB, tmp_path)}
    assert ids == {
        "faster-gpu-no-gain",
        "more-than-linear",
        "times-contradict",
        "accuracy-falls-with-workers",
        "time-lost-outside-training",
        "efficiency-falls",
        "noise-larger-than-difference",
        "one-seed-only",
        "memorising",
        "best-for-speed",
        "best-for-cost",
        "best-for-accuracy",
        "own-plateau-only",
    }


@pytest.mark.photos
def test_the_labs_own_file(samples: Path, tmp_path: Path) -> None:
    table = (samples / "lab" / "runs.csv").read_text()
    assert table.split() == LAB.split()
    check(by_id(table, tmp_path))


def test_most_severe_first_and_the_same_every_time(tmp_path: Path) -> None:
    runs = import_table(LAB, tmp_path)
    found = find_all(survey([runs]))
    order = ["problem", "caution", "note"]
    severities = [order.index(finding.severity) for finding in found]
    assert severities == sorted(severities)
    assert found == find_all(survey([runs]))
    for finding in found:
        assert finding.text.endswith(".")
        assert finding.advice.endswith((".", ")"))
        assert finding.evidence
