"""The report for programs: plain numbers where people read percent, and settings by the names that people read."""

from __future__ import annotations

from pathlib import Path

from analysis.build import Plan, build
from turnaround.analysis.workloads import survey
from turnaround.findings import Evidence, Finding
from turnaround.reporting.survey_json import finding_payload, survey_payload


def test_a_share_has_no_unit_for_programs() -> None:
    evidence = (
        Evidence(run="a", what="accuracy", value=0.8, unit="share"),
        Evidence(run="a", what="epoch time", value=2.0, unit="s"),
    )
    finding = Finding(id="leak", severity="problem", text="A leak.", evidence=evidence, advice="", job="j")
    assert finding_payload(finding)["evidence"] == [
        {"run": "a", "what": "accuracy", "value": 0.8, "unit": ""},
        {"run": "a", "what": "epoch time", "value": 2.0, "unit": "s"},
    ]


def test_settings_have_names_and_values_as_people_read_them(tmp_path: Path) -> None:
    build(tmp_path / "a", Plan())
    build(tmp_path / "b", Plan(training={"learning_rate": 0.4}))
    (job,) = survey_payload(survey([tmp_path]), [])["jobs"]
    assert [case["configuration"]["settings"] for case in job["cases"]] == [
        [{"what": "learning rate", "value": value, "matters_for": "accuracy"}] for value in ("0.05", "0.4")
    ]
