"""`turnaround report --for proposal`: the page, its figures as files, two sheets of paper, and refusals."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from analysis.build import LAB, Plan, build, import_table, rising
from console import Console, Done
from reporting.page.browsing import opened

Turnaround = Callable[..., Done]


@pytest.fixture
def turnaround(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Turnaround:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    return Console(monkeypatch, capsys)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for workers, epoch_s in ((1, 40.0), (2, 21.0), (4, 11.0)):
        build(tmp_path / f"runs/w{workers}", Plan(workers=workers, epoch_time_s=epoch_s, watts=200.0))
    build(tmp_path / "runs/r16", Plan(workers=16, processes=1, accuracy=rising(0.75)))
    return tmp_path / "runs"


def test_the_page_asks_shows_and_says_how_it_was_measured(turnaround: Turnaround, runs: Path, tmp_path: Path) -> None:
    flags = ("--workers", "8", "--trainings", "20", "--price", "2", "--electricity", "0.3", "--grid", "0.35")
    done = turnaround("report", runs, "--for", "proposal", "--out", "p.html", *flags)
    assert (done.code, done.out) == (0, "")
    page = (tmp_path / "p.html").read_text().replace("\N{NO-BREAK SPACE}", " ")
    for words in (
        "GPU-hours",
        "20 trainings on 8 T4",
        "cost at 2 per GPU-hour",
        "electricity at 0.3 per kWh",
        "emissions at 0.35 kg CO2e per kWh",
        "rehearsed, 1 run",
        "Rehearsed (16 workers)",
        "by their energy counters",
        "Strong scaling",
        "Weak scaling",
        "The request is a forecast from",
    ):
        assert words in page, words
    assert page.count("<svg") == 4
    assert "<script" not in page
    again = turnaround("report", runs, "--for", "proposal", "--out", "p.html")  # a page of ours may be replaced
    assert again.code == 0


def test_each_figure_is_a_file_with_its_values(turnaround: Turnaround, runs: Path, tmp_path: Path) -> None:
    turnaround("report", runs, "--for", "proposal", "--out", "p.html", "--figures", "figures/here")
    folder = tmp_path / "figures/here"
    names = ("accuracy", "efficiency", "strong-scaling", "weak-scaling")
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"{n}.{e}" for n in names for e in ("csv", "svg"))
    for name in names:
        ElementTree.parse(folder / f"{name}.svg")
    rows = list(csv.DictReader((folder / "efficiency.csv").read_text().splitlines()))
    assert [(row["workers"], row["kind"]) for row in rows][:3] == [
        ("1", "measured"),
        ("2", "measured"),
        ("4", "measured"),
    ]
    assert float(rows[2]["efficiency"]) == pytest.approx(40 / 11 / 4, rel=1e-4)
    accuracies = list(csv.DictReader((folder / "accuracy.csv").read_text().splitlines()))
    assert [(row["workers"], row["kind"]) for row in accuracies][-1] == ("16", "rehearsed")


def test_the_lab_has_no_energy_which_is_said(turnaround: Turnaround, tmp_path: Path) -> None:
    lab = import_table(LAB, tmp_path / "lab")
    asked = ("--for", "proposal", "--out", "p.html", "--job", "caltech", "--gpu", "V100", "--workers", "16")
    assert turnaround("report", lab, *asked).code == 0
    page = (tmp_path / "p.html").read_text().replace("\N{NO-BREAK SPACE}", " ")
    assert "not known" in page
    assert "All figures were imported from a table" in page
    assert "these runs measured the input pipeline" in page


def test_the_cost_is_that_of_the_price_table_in_whole_billing_units(
    turnaround: Turnaround, runs: Path, tmp_path: Path
) -> None:
    (tmp_path / "p.csv").write_text("kind,price,billing unit,currency\nT4,2,hour,EUR\n")
    asked = ("report", runs, "--for", "proposal", "--out", "p.html", "--workers", "4", "--trainings", "3")
    assert turnaround(*asked, "--prices", "p.csv").code == 0
    page = (tmp_path / "p.html").read_text().replace("\N{NO-BREAK SPACE}", " ")
    assert "cost at 2 EUR per GPU-hour, billed by the hour" in page
    assert "<td>24.00 EUR</td>" in page  # a training of minutes is a begun hour of 4 GPUs: 3 x 4 x 2
    (tmp_path / "other.csv").write_text("kind,price\nV100,2\n")
    done = turnaround(*asked, "--prices", "other.csv")
    assert "No cost: the price table has no T4, only V100." in done.err
    page = (tmp_path / "p.html").read_text()
    assert "price table has no" not in page
    assert "cost at" not in page


def test_reviewers_see_no_flags_and_how_sure_the_accuracy_is(
    turnaround: Turnaround, runs: Path, tmp_path: Path
) -> None:
    def page(workers: int) -> str:
        asked = ("--for", "proposal", "--out", "p.html", "--workers", str(workers))
        assert turnaround("report", runs, *asked).code == 0
        return (tmp_path / "p.html").read_text().replace("\N{NO-BREAK SPACE}", " ")

    assert "one host; the runs had at most 4 workers on one." in page(8)
    assert "not measured: rehearse it with: turnaround train SOURCE --workers 8 --processes 1" in page(8)
    assert "--hosts" not in page(8)
    assert ", rehearsed</td>" in page(16)
    assert ", measured</td>" in page(4)


def test_names_of_others_are_text(turnaround: Turnaround, tmp_path: Path) -> None:
    table = LAB.replace("caltech256", "<b>bold</b>").replace(",V100,", ",=1+1<i>,")
    asked = ("--for", "proposal", "--job", "bold", "--out", "p.html", "--figures", "f")
    assert turnaround("report", import_table(table, tmp_path / "lab"), *asked).code == 0
    page = (tmp_path / "p.html").read_text()
    assert "<b>bold" not in page
    assert "<i>" not in page
    assert not re.search(r"(?m)^=", (tmp_path / "f/efficiency.csv").read_text())


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--for", "paper", "--out", "p.html"), "--for"),
        (("--for", "proposal"), "--for proposal writes a page: add --out proposal.html"),
        (("--for", "proposal", "--out", "p.html", "--json"), "leave --json out"),
        (("--figures", "f"), "--figures is about a proposal: add --for proposal"),
        (("--workers", "4"), "--workers is about a proposal"),
        (("--trainings", "4", "--out", "p.html"), "--trainings is about a proposal"),
        (("--for", "proposal", "--out", "p.html", "--workers", "0"), "--workers must be 1 or more, received 0"),
        (("--for", "proposal", "--out", "p.html", "--trainings", "0"), "--trainings must be 1 or more, received 0"),
        (("--for", "proposal", "--out", "p.html", "--price", "-1"), "--price must be above 0"),
        (("--for", "proposal", "--out", "p.txt"), "a page is html"),
        (("--for", "proposal", "--out", "p.html", "--figures", "file"), "Cannot make the folder"),
    ],
)
def test_refusals(turnaround: Turnaround, runs: Path, tmp_path: Path, flags: tuple[str, ...], words: str) -> None:
    (tmp_path / "file").write_text("in the way")
    done = turnaround("report", runs, *flags)
    assert done.code != 0
    assert words in done.err
    assert "Traceback" not in done.err


@pytest.mark.browser
def test_it_prints_on_two_pages_also_with_much_to_tell(
    turnaround: Turnaround, runs: Path, tmp_path: Path, browser: Any
) -> None:
    for number, workers in enumerate((8, 16, 32, 64, 128, 256)):
        for gpu in ("Tesla T4", "NVIDIA A100-SXM4-80GB"):
            plan = Plan(workers=workers, gpu=gpu, epoch_time_s=40 / workers, watts=200.0, compute_processes=3)
            build(runs / f"a long name of a run {number} on {gpu}", plan)
        build(runs / f"rehearsed{number}", Plan(workers=3 * workers, processes=1, accuracy=rising(0.7 - 0.05 * number)))
    rates = ("--price", "2", "--electricity", "0.3", "--grid", "0.3", "--workers", "512")
    assert turnaround("report", runs, "--for", "proposal", "--out", "p.html", *rates).code == 0
    with opened(browser, tmp_path / "p.html") as page:
        assert page.locator("svg").count() == 4
        printed = page.pdf(prefer_css_page_size=True, print_background=True)
    assert len(re.findall(rb"/Type\s*/Page[^s]", printed)) <= 2  # by the fonts of this machine
