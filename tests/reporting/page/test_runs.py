"""Each run: what it was asked for, what it ran on, and in what it differs from the others."""

from __future__ import annotations

from pathlib import Path

from analysis.build import Plan, build, rising
from turnaround.analysis.workloads import survey
from turnaround.reporting.page.runs import RunCards, run_cards


def cards(folder: Path) -> RunCards:
    return run_cards(survey([folder]).workloads[0])


def test_what_all_share_is_told_once_and_the_rest_with_each_run(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        build(tmp_path / name, Plan(training={"seed": seed}, machine={"hostname": f"node{seed}"}))
    found = cards(tmp_path)
    assert [card.name for card in found.cards] == ["a", "b"]
    assert dict(found.recipe)["training.optimizer"] == "sgd"
    assert "training.seed" not in dict(found.recipe)
    assert [dict(card.recipe) for card in found.cards] == [{"training.seed": "0"}, {"training.seed": "1"}]
    assert [dict(card.machine) for card in found.cards] == [{"hostname": "node0"}, {"hostname": "node1"}]
    assert [(fact.name, fact.text) for fact in found.cards[1].differs] == [("seed", "1")]
    assert "optimizer" in {fact.name for fact in found.facts}


def test_a_single_run_has_everything_in_common_with_itself(tmp_path: Path) -> None:
    build(tmp_path / "a", Plan())
    found = cards(tmp_path)
    assert found.cards[0].recipe == found.cards[0].differs == ()
    assert dict(found.machine)["versions.torch"] == "2.8"


def test_a_rehearsal_has_no_times(tmp_path: Path) -> None:
    build(tmp_path / "real", Plan(workers=1, accuracy=rising(epochs=8), epoch_time_s=61.0))
    build(tmp_path / "rehearsed", Plan(workers=4, processes=1, accuracy=rising(epochs=8)))
    real, rehearsed = (dict(card.figures) for card in cards(tmp_path).cards)
    assert real["an epoch"] == "61 s"
    assert real["submit to finish"].startswith("8 min 13 s: other epochs 7 min 07 s")
    assert set(rehearsed) == {"epochs", "validation accuracy", "best epoch", "training accuracy"}


def test_choices_have_their_reasons_and_long_values_are_cut(tmp_path: Path) -> None:
    chosen = {"precision": {"value": "fp32", "reason": "plain arithmetic"}}
    build(tmp_path / "a", Plan(machine={"choices": chosen, "os": "x" * 500}, state="failed", cause="No space."))
    found = cards(tmp_path)
    machine = dict(found.machine)
    assert machine["choices.precision"] == "fp32 (plain arithmetic)"
    assert machine["os"] == f"{'x' * 240}... (500 letters)"
    assert (found.cards[0].state, found.cards[0].cause) == ("failed", "No space.")
