"""The lab's sentences agree with its table: where the time of a run went."""

from __future__ import annotations

from pathlib import Path

from analysis.build import LAB, import_table
from turnaround.analysis.workloads import survey
from turnaround.reporting.run_text import parts_sentence


def test_the_time_of_a_tables_run_is_mostly_its_epochs(tmp_path: Path) -> None:
    runs = {run.name: run for job in survey([import_table(LAB, tmp_path)]).workloads for run, _ in job.members}
    assert parts_sentence(runs["model6"]).startswith("epochs 22 min, ")
    assert parts_sentence(runs["model6"]).endswith(" 67 s")
    assert parts_sentence(runs["model3"]) == "epochs 1 h 38 min"
