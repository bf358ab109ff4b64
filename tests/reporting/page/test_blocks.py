"""Which blocks a page has, in which order, and that what others have named stays text."""

from __future__ import annotations

from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from analysis.build import LAB, Plan, build, import_table, rising
from reporting.page.figure_study import EVIL, study_job
from turnaround.analysis.workloads import LeftOut, Survey, survey
from turnaround.errors import RunDirectoryError
from turnaround.findings import find_all
from turnaround.forecast.sweep import forecasters_of
from turnaround.record.files import read_json
from turnaround.record.writer import write_json
from turnaround.reporting.page.blocks import Block, PageView, anchor, job_key, page_blocks

PICTURE = "data:image/jpeg;base64,AAAA"


def view_of(found: Survey) -> PageView:
    forecasters = {job.name: forecasters_of(job) for job in found.workloads}
    return PageView(
        survey=found,
        title="lab",
        now="today",
        findings=tuple(find_all(found)),
        forecasters=forecasters,
        command="again",
    )


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> PageView:
    return view_of(survey([import_table(LAB, tmp_path_factory.mktemp("lab"))]))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> PageView:
    folder = tmp_path_factory.mktemp("study") / EVIL.replace("/", "")
    study_job(folder)
    return view_of(survey([folder]))


@pytest.fixture(scope="module")
def lab_blocks(lab: PageView) -> tuple[Block, ...]:
    return page_blocks(lab)


@pytest.fixture(scope="module")
def study_blocks(study: PageView) -> tuple[Block, ...]:
    return page_blocks(study)


def text_of(blocks: tuple[Block, ...], end: str) -> str:
    (html,) = (block.html for block in blocks if block.id.endswith(end))
    return unescape(html).replace("\u00a0", " ")


def test_the_answer_is_first_and_the_footer_last(lab: PageView, lab_blocks: tuple[Block, ...]) -> None:
    blocks = lab_blocks
    ids = [block.id for block in blocks]
    assert len(ids) == len(set(ids)) == len({anchor(block_id) for block_id in ids})
    key = job_key("caltech256, frozen")
    assert ids[:4] == ["answer", "contents", f"{key}/heading", f"{key}/charts"]
    order = [f"{key}/figure/final-accuracy", f"{key}/findings", f"{key}/table", f"{key}/section/scaling"]
    assert [block_id for block_id in ids if block_id in order] == order
    folded = {block.fold for block in blocks if block.fold}
    assert folded <= set(ids)
    assert all(block.fold == "" for block in blocks if block.id.endswith(("/findings", "/table", "/heading")))
    assert ids[-1] == "footer"
    assert ids.index(f"{key}/forecast") < ids.index(f"{key}/runs")
    answer = text_of(blocks, "answer")
    assert 'class="sentence"' not in answer  # of several jobs: one table instead of many headlines
    assert "Leaderboard" in answer
    assert "7 runs of 2 jobs; all imported: stated by others, not measured here." in answer
    sentence = "8 V100 finish 30 epochs first, in 23 min 07 s with 67.2 % accuracy"
    assert sentence in text_of(blocks, f"{key}/heading")
    assert "4 T4 finish 10 epochs first" in text_of(blocks, f"{job_key('fruit, fine-tuned')}/heading")
    alone = page_blocks(replace(lab, survey=replace(lab.survey, workloads=lab.survey.workloads[:1])))
    assert sentence in text_of(alone, "answer")
    assert sentence not in text_of(alone, f"{key}/heading")
    contents = text_of(blocks, "contents")
    for block in blocks:
        assert block.heading in block.html  # the contents use the headings' own names
        assert not block.heading or f'<a href="#{anchor(block.id)}">{block.heading}</a>' in contents


def test_findings_have_their_evidence_and_the_next_step(lab_blocks: tuple[Block, ...]) -> None:
    html = text_of(lab_blocks, f"{job_key('caltech256, frozen')}/findings")
    assert html.index('class="badge problem"') < html.index('class="badge caution"') < html.index('class="badge note"')
    assert "epoch time: model4 81 s, model5 80 s" in html
    assert "<b>Next:</b> Measure the input alone (turnaround bench)" in html


def test_a_page_names_no_flag_that_it_has_not(lab_blocks: tuple[Block, ...]) -> None:
    html = text_of(lab_blocks, f"{job_key('caltech256, frozen')}/forecast")
    assert "one host" in html
    assert "for more)" not in html


def test_an_interrupted_run_has_the_command_that_goes_on_with_it(tmp_path: Path) -> None:
    curve = rising(0.8, epochs=4, pace=3.0)
    path = build(tmp_path / "my run", Plan(accuracy=curve, state="interrupted", training={"epochs": 10}))
    view = view_of(survey([tmp_path]))
    blocks = page_blocks(view)
    assert [block.id for block in blocks][:3] == ["answer", "interrupted", "contents"]
    told = text_of(blocks, "interrupted")
    assert f"was interrupted after 4 of 10 epochs. To go on: <code>turnaround resume '{path}'</code>" in told
    assert "interrupted" not in [block.id for block in page_blocks(replace(view, is_live=True))]  # its card says so


def test_ids_stay_when_a_job_is_added(lab: PageView, lab_blocks: tuple[Block, ...]) -> None:
    last = replace(lab, survey=replace(lab.survey, workloads=lab.survey.workloads[1:]))
    assert {block.id for block in page_blocks(last)} < {block.id for block in lab_blocks}


def test_a_study_has_figures_in_sections_and_says_what_is_rehearsed(study_blocks: tuple[Block, ...]) -> None:
    blocks = study_blocks
    drawn = [block.id.rpartition("/")[2] for block in blocks if block.figure]
    assert {"accuracy", "loss", "confusion"} <= set(drawn)
    sections = [block.id for block in blocks if "/section/" in block.id]
    assert sections[0].endswith("/curves")
    assert [block.id.rpartition("/")[2] for block in blocks if block.figure][:2] == ["accuracy", "time-to-target"]
    assert '<span class="tag">rehearsed</span>' in text_of(blocks, "/table")
    assert "8 runs, 1 of them rehearsed" in text_of(blocks, "answer")
    assert "999" not in text_of(blocks, "/table")  # the rehearsal's own time
    assert "Still going, shown as far as it has come: going." in text_of(blocks, "answer")


def test_precision_recall_and_f1_of_every_class(study_blocks: tuple[Block, ...]) -> None:
    html = text_of(study_blocks, "/class-metrics")
    assert "30 validation images." in html
    # F1 of the three: 16 / 18, 18 / 24 and 14 / 18 (of 10 rotten apples 7 were recognised, 8 were taken for one).
    assert "F1 80.6 %, precision 83.9 %, recall 80.0 %" in html
    assert '<button type="button" class="sort">precision</button>' in html
    rows = html[html.index("<tbody>") :].split("<tr>")[1:]
    assert [row.count("<td") for row in rows] == [6, 6, 6]
    for shown in ("77.8 %", "87.5 %", "70.0 %", "fresh apple (3)"):
        assert shown in rows[2]
    assert "calibration" not in html  # this record has none


def test_pictures_of_confused_classes(study: PageView, study_blocks: tuple[Block, ...]) -> None:
    (job,) = study.survey.workloads
    assert not any(block.id.endswith("/confused") for block in study_blocks)
    shown = replace(study, thumbnails={job.name: {"rotten apple": (PICTURE,), "fresh apple": (PICTURE, PICTURE)}})
    (html,) = (block.html for block in page_blocks(shown) if block.id.endswith("/confused"))
    assert "<b>rotten apple</b> taken for <b>fresh apple</b>: 3 of 10 images" in html
    assert html.count(f'<img src="{PICTURE}"') >= 3
    assert f"<b>{EVIL}</b>" not in html
    assert "&lt;img src=x onerror=alert(1)&gt;" in html


def test_the_most_confident_mistakes(study: PageView, study_blocks: tuple[Block, ...]) -> None:
    told = text_of(study_blocks, "/mistakes")
    assert "Which of its 6 mistakes" in told  # the record is from before they were kept
    path = Path(study.survey.workloads[0].configurations[0].summaries[0].directory) / "evaluation.json"
    before = read_json(path)
    one = {"file": "test/a.png", "true": "rotten apple", "predicted": EVIL, "confidence": 0.987}
    write_json(path, {**before, "top1": 0.9, "mistakes": [one]})
    try:
        view = view_of(survey([path.parents[1]]))
        (job,) = view.survey.workloads
        shown = replace(view, mistakes={job.name: {"test/a.png": PICTURE}})
        (html,) = (block.html for block in page_blocks(shown) if block.id.endswith("/mistakes"))
        assert "taken for <b>&lt;img src=x onerror=alert(1)&gt;</b>, 98.7\u00a0% sure" in html
        assert html.count(f'<img src="{PICTURE}"') == 1
        assert "No pictures: the folder of images is not here" in text_of(page_blocks(view), "/mistakes")
    finally:
        write_json(path, before)


def test_nothing_that_others_have_named_becomes_markup(study: PageView) -> None:
    hostile = "</script><script>alert(1)</script>"
    left_out = (LeftOut(directory=hostile, error=RunDirectoryError(f"{EVIL} \u202e turned")),)
    view = replace(
        study, title=EVIL, command=EVIL, now=EVIL, notes=(EVIL,), survey=replace(study.survey, left_out=left_out)
    )
    blocks = page_blocks(view)
    for block in blocks:
        assert "<script" not in block.html
        assert "<img" not in block.html
        assert "\u202e" not in block.html
    assert hostile in text_of(blocks, "left-out")


def test_how_past_forecasts_did(lab: PageView, lab_blocks: tuple[Block, ...], tmp_path: Path) -> None:
    from turnaround.forecast.interval import Interval
    from turnaround.forecast.score import Score

    job = "caltech256, frozen"
    forecast = Interval(value=90, low=70, high=120)
    score = Score(
        saved_at="", job=job, workers=8, gpu="V100", figure="job_time_s", forecast=forecast, measured=100, runs=1
    )
    key = job_key(job)
    assert "turnaround predict --save" in text_of(lab_blocks, f"{key}/forecast")
    told = text_of(page_blocks(replace(lab, scores=(score,))), f"{key}/forecast")
    assert "saved forecasts against later runs: 1 figures, median error 10 %, 1 of 1 inside the 80 % interval" in told
    assert "epoch times of 4 V100 and 8 V100 (2 runs)" in told
