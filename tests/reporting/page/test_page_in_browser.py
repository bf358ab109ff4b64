"""The page in Chromium: drawn, sorted, saved, printed; readable on a phone, by keyboard and by a screen reader."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import ANY

import pytest

from analysis.build import Plan, build
from reporting.page.browsing import PHONE_PX, opened, shot, unfold, violations, wait_until_drawn
from reporting.page.figure_study import EVIL, study_job, with_evaluation
from turnaround.record.files import read_json
from turnaround.record.importers.read import read_runs
from turnaround.record.importers.values import ImportOptions
from turnaround.record.importers.write import write_runs
from turnaround.record.writer import write_json
from turnaround.reporting.page.build import write_page

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of eight runs, one of them and one class named by somebody who means no good."""
    folder = tmp_path_factory.mktemp("study")
    study_job(folder / "runs")
    recipe = folder / "runs" / "1gpu-seed0" / "recipe.json"
    write_json(recipe, {**read_json(recipe), "name": EVIL})
    return write_page([folder / "runs"], out=folder / "page.html")


@pytest.fixture(scope="module")
def lab(samples: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lab")
    write_runs(read_runs(samples / "lab" / "runs.csv", options=ImportOptions()).runs, folder / "lab")
    return write_page([folder / "lab"], out=folder / "page.html")


@pytest.fixture(scope="module")
def drawn(browser: Any, study: Path) -> Iterator[Page]:
    """The study's page with all its figures, for tests that leave it as usable as they found it: to load it is dear."""
    with opened(browser, study) as page:  # a dialog would be told on leaving
        unfold(page)
        wait_until_drawn(page)
        yield page


@pytest.fixture(scope="module")
def on_a_phone(browser: Any, study: Path) -> Iterator[Page]:
    """The same on a narrow screen, in the dark."""
    with opened(browser, study, width=PHONE_PX, color_scheme="dark") as page:
        unfold(page)
        wait_until_drawn(page)
        yield page


SCREENS = [("drawn", 1280), ("on_a_phone", PHONE_PX)]
"""The fixture, and how wide its page may be."""


@pytest.mark.photos
@pytest.mark.parametrize(("width", "schemes"), [(1280, ("light", "dark")), (PHONE_PX, ("dark", "light"))])
def test_the_labs_page(browser: Any, lab: Path, width: int, schemes: tuple[Any, Any]) -> None:
    """In the scheme that it is opened in, and in the other, to which the reader's system changes while it is open."""
    with opened(browser, lab, width=width, color_scheme=schemes[0]) as page:
        board = page.locator("table[data-table=leaderboard]")
        assert board.locator("tbody tr").count() == 7
        answer = page.locator(".sentence").first.inner_text().replace("\u00a0", " ")
        assert answer.startswith(
            "8 V100 finish 30 epochs first, in 23 min 07 s with 67.2 % accuracy; 16 would need about 13 min"
        )
        assert wait_until_drawn(page) == 6  # of each job those that carry its answer
        for scheme in schemes:
            page.emulate_media(color_scheme=scheme)
            wait_until_drawn(page)
            shot(page, f"lab-{width}-{scheme}")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert violations(page) == []


@pytest.mark.parametrize(("screen", "width"), SCREENS)
def test_a_study(screen: str, width: int, request: pytest.FixtureRequest) -> None:
    page: Page = request.getfixturevalue(screen)
    assert wait_until_drawn(page) > 10
    shot(page, f"study-{width}")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    closed = page.locator("details:not([open])").element_handles()
    for details in closed:
        details.evaluate("(element) => { element.open = true; }")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert violations(page) == []
    for details in closed:
        details.evaluate("(element) => { element.open = false; }")


@pytest.mark.parametrize(("width", "scrolls"), [(1280, False), (PHONE_PX, True)])
def test_a_matrix_of_many_classes_keeps_its_cells_and_scrolls_in_its_own_box(
    browser: Any, tmp_path: Path, width: int, scrolls: bool
) -> None:
    classes = [f"class {number}" for number in range(40)]
    build(tmp_path / "runs" / "one", Plan(workers=1))
    confusion = [[9 if true == taken else int(taken == 7) for taken in range(40)] for true in range(40)]
    with_evaluation(tmp_path / "runs" / "one", classes, confusion)
    with opened(browser, write_page([tmp_path / "runs"], out=tmp_path / "page.html"), width=width) as page:
        unfold(page)
        plot = page.locator("figure[data-block$='/figure/confusion'] .plot.drawn")
        plot.wait_for(state="attached", timeout=60_000)
        shot(page, f"matrix-{width}")
        cell_px = plot.evaluate("place => place._fullLayout.xaxis._length / 40")
        assert cell_px >= 8
        assert plot.evaluate("place => place.scrollWidth > place.clientWidth") is scrolls
        assert plot.evaluate("place => place.tabIndex === 0") is scrolls
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert violations(page) == []


@pytest.mark.parametrize(("screen", "width"), SCREENS)
def test_classes_are_sorted_by_a_column(screen: str, width: int, request: pytest.FixtureRequest) -> None:
    page: Page = request.getfixturevalue(screen)
    table = page.locator("table[data-table$='-classes']")
    f1 = "rows => rows.map(row => Number(row.cells[1].dataset.key))"
    table.locator("th .sort", has_text="F1").click()
    values = table.locator("tbody tr").evaluate_all(f1)
    assert values == sorted(values)
    assert len(set(values)) == 3
    table.locator("th .sort", has_text="F1").click()
    assert table.locator("tbody tr").evaluate_all(f1) == values[::-1]
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_names_of_runs_and_classes_are_text(drawn: Page) -> None:
    assert drawn.locator("img").count() == 0
    assert drawn.locator(".run summary", has_text=EVIL).count() == 1
    epochs = drawn.locator("[data-block$='/figure/accuracy'] .xtick text").all_text_contents()
    assert epochs == ["1", "5", "10", "15", "20", "25", "30"]
    ticks = drawn.locator("[data-block$='/figure/confusion'] .ytick text").all_text_contents()
    assert any("<img" in tick for tick in ticks)


def test_a_table_is_sorted_by_keyboard(drawn: Page) -> None:
    table = drawn.locator("[data-block$='/table'] table")
    heading = table.locator("th", has_text="s/epoch")
    names = table.locator("tbody th")
    assert names.first.inner_text() == "1 T4"
    heading.locator("button").focus()
    drawn.keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") == "ascending"
    assert [name.split()[0] for name in names.all_inner_texts()] == ["4", "2", "1", "8"]  # the rehearsal has none
    drawn.keyboard.press("Space")
    assert heading.get_attribute("aria-sort") == "descending"
    assert [name.split()[0] for name in names.all_inner_texts()] == ["1", "2", "4", "8"]
    assert table.locator("th[aria-sort]").count() == 1


def test_the_first_key_leads_past_the_bar(browser: Any, study: Path) -> None:
    with opened(browser, study) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        assert page.evaluate("location.hash") == "#page"


def test_a_figure_is_saved(browser: Any, study: Path) -> None:
    saved = {}
    with opened(browser, study, color_scheme="dark", accept_downloads=True) as page:
        figure = page.locator("[data-block$='/figure/accuracy']")
        for kind in ("png", "svg"):
            with page.expect_download() as download:
                figure.locator(f"[data-save={kind}]").click()
            assert download.value.suggested_filename == f"accuracy-by-epoch.{kind}"
            saved[kind] = Path(download.value.path()).read_bytes()
    assert struct.unpack(">I", saved["png"][16:20]) == (2000,)  # its width
    assert saved["svg"].startswith(b"<svg")
    assert b"rgb(255, 255, 255)" in saved["svg"]  # light, whatever the screen is


def test_light_and_dark_are_chosen_and_remembered(browser: Any, study: Path) -> None:
    with opened(browser, study, color_scheme="light") as page:
        wait_until_drawn(page)
        ink = "document.querySelector('.plot .xtick text').style.fill"
        before = page.evaluate(ink)
        assert page.locator("#theme").inner_text() == "Dark theme"
        page.locator("#theme").click()
        assert page.locator("#theme").inner_text() == "Light theme"
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(15, 19, 25)"
        page.wait_for_function(f"before => {ink} !== before", arg=before)  # the figures follow when there is time
        page.reload()
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        assert violations(page) == []


def test_it_prints(drawn: Page) -> None:
    drawn.emulate_media(color_scheme="dark")
    content = drawn.pdf(format="A4")
    assert content.startswith(b"%PDF")
    assert content.count(b"/Type /Page\n") > 4
    drawn.emulate_media(media="print")
    assert drawn.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert drawn.locator(".downloads").first.is_hidden()
    assert drawn.locator("#theme").is_hidden()
    drawn.emulate_media(media="screen", color_scheme="light")


def test_everything_is_printed_even_before_the_page_is_ready(browser: Any, study: Path) -> None:
    """Also what is folded away, and before the library that draws has been unpacked; afterwards all is as it was."""
    at_once = """document.addEventListener("DOMContentLoaded", () => setTimeout(() => {
        window.hadLibrary = Boolean(window.Plotly);
        window.dispatchEvent(new Event("beforeprint"));
        window.numPrinted = document.querySelectorAll(".plot.drawn .main-svg .xtick").length;
        window.drawn = document.querySelectorAll(".plot.drawn").length;
        window.dispatchEvent(new Event("afterprint"));
    }))"""
    with opened(browser, study, script=at_once) as page:
        count = page.locator("figure.plotted").count()
        page.wait_for_function("window.drawn !== undefined")
        assert page.evaluate("window.hadLibrary") is False
        assert page.evaluate("window.drawn") == count > 10
        assert page.evaluate("window.numPrinted") > count
        assert wait_until_drawn(page) == 4
        assert page.locator(".folded .plot.drawn").count() == 0
        heading = page.locator("[data-block$='/section/scaling']")
        page.locator("#bar-contents a", has_text="Scaling").click()
        assert heading.locator("button").get_attribute("aria-expanded") == "true"
        page.locator("#bar-contents a[aria-current]", has_text="Scaling").wait_for()
        assert page.locator(".bar").bounding_box() == {"x": 0, "y": 0, "width": 1280, "height": ANY}
        page.locator("[data-block$='/figure/speed-up'] .plot.drawn").wait_for()
        assert page.evaluate("document.querySelector('[data-block$=\"/figure/speed-up\"] .main-svg').clientWidth") > 400
        heading.locator("button").click()
        assert page.locator("[data-block$='/figure/speed-up']").is_hidden()


def test_tooltips_name_what_they_show(drawn: Page) -> None:
    for name in ("accuracy", "loss", "time-to-target", "cost"):
        text = drawn.evaluate(
            """(name) => {
                const plot = document.querySelector(`[data-block$="/figure/${name}"] .plot`);
                const curve = plot.data.findIndex((trace) => trace.hovertemplate && trace.visible !== "legendonly");
                Plotly.Fx.hover(plot, [{curveNumber: curve, pointNumber: 0}]);
                return plot.querySelector(".hoverlayer").textContent;
            }""",
            name,
        )
        assert "GPU" in text or "T4" in text, (name, text)
        assert not text.startswith("-")
        assert not text.endswith("-")


def test_without_scripts_everything_is_there_in_words(browser: Any, study: Path) -> None:
    with opened(browser, study, java_script_enabled=False) as page:
        assert page.locator(".sentence").is_visible()
        assert page.locator(".finding").first.is_visible()
        assert page.locator("[data-block$='/table'] td").first.is_visible()
        assert page.locator("[data-block$='/class-metrics'] td").first.is_visible()  # nothing is folded away
        assert page.locator("nav[aria-label=Contents]").is_visible()
        words = page.locator("[data-block$='/figure/accuracy'] .alt")
        assert words.is_visible()
        assert "T4" in words.inner_text()


def test_blocks_are_replaced_in_place(drawn: Page) -> None:
    """What the live page does: sorting, open details and zoom stay, new blocks find their place."""
    table = drawn.locator("[data-block$='/table']")
    table.locator("th", has_text="s/epoch").locator("button").click()
    table.locator("summary").click()
    figure = drawn.locator("[data-block$='/figure/accuracy']")
    zoom = "(element) => Plotly.relayout(element.querySelector('.plot'), {'xaxis.range': [2, 5]})"
    figure.evaluate(zoom)
    block_id = table.get_attribute("data-block")
    html = table.evaluate("(element) => element.innerHTML")
    put = "(block) => window.turnaround.setBlock(block)"
    drawn.evaluate(put, {"id": block_id, "html": html.replace('aria-sort="ascending"', "").replace('open=""', "")})
    assert table.locator("th[aria-sort=ascending]").inner_text().startswith("s/epoch")
    assert table.locator("details").get_attribute("open") is not None
    json = {"title": "New", "caption": "c", "alt": "a", "data": [{"y": [1, 2, 3]}], "layout": {}}
    drawn.evaluate(put, {"id": figure.get_attribute("data-block"), "figure": json})
    figure.locator("h4", has_text="New").wait_for()
    has_new_points = "(id) => document.querySelector(`[data-block='${id}'] .plot`)?.data?.[0]?.y?.length === 3"
    drawn.wait_for_function(has_new_points, arg=figure.get_attribute("data-block"))
    assert figure.evaluate("(e) => e.querySelector('.plot').layout.xaxis.range.map(Math.round)") == [2, 5]
    drawn.evaluate(put, {"id": "note", "html": "<p>new</p>", "after": "answer"})
    assert drawn.evaluate("document.getElementById('answer').nextElementSibling.id") == "note"
    drawn.evaluate(put, {"id": "job-1/figure/x", "figure": json, "after": "note"})
    drawn.locator("[data-block='job-1/figure/x'] .plot.drawn").wait_for()  # though it is out of view
    drawn.evaluate("window.turnaround.removeBlock('job-1/figure/x')")
    assert drawn.locator("[data-block='job-1/figure/x']").count() == 0
