"""The html around the blocks: one file, nothing fetched, and only our own scripts may run."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import subprocess
import sys
import zlib
from html import unescape

from turnaround.reporting.page.blocks import Block
from turnaround.reporting.page.fig_common import Figure
from turnaround.reporting.page.render import GENERATOR, content_policy, plotly_js, render_page
from turnaround.reporting.page.templates import asset, piece, tied

HOSTILE = "</script><img src=x onerror=alert(1)>\u2028&"
FIGURE = Figure(
    id="accuracy",
    section="curves",
    title=HOSTILE,
    caption="what is shown",
    alt="it rises",
    data=[{"type": "scatter", "x": [1, 2], "y": [0.5, math.nan], "name": HOSTILE}],
    layout={"xaxis": {"title": {"text": "epoch"}}},
)
BLOCKS = (Block(id="answer", html="<h1>fast</h1>"), Block(id="job-1/figure/accuracy", figure=FIGURE))


def hashes(kind: str, page: str) -> list[str]:
    """Of the elements of this kind that would run or apply, as a browser takes them."""
    contents = re.findall(rf"<{kind}(?: id=\"[^\"]*\")?>(.*?)</{kind}>", page, re.DOTALL)
    digests = [hashlib.sha256(content.encode()).digest() for content in contents]
    return [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]


def test_a_page_has_everything_inside() -> None:
    page = render_page(BLOCKS, title="runs & more", live=False)
    assert page.startswith("<!doctype html>")
    assert f'<meta name="generator" content="{GENERATOR}">' in page[:20_000]
    assert "<title>runs &amp; more</title>" in page
    assert '<section class="block" data-block="answer" id="answer"><h1>fast</h1></section>' in page
    around = page.replace(re.search(r'id="plotly">(.*?)</script>', page, re.DOTALL)[1], "")
    assert re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', around) == []
    assert "@import" not in asset("page.css")
    assert "url(" not in asset("page.css")


def test_the_policy_names_every_script_and_style_by_its_hash() -> None:
    page = render_page(BLOCKS, title="t", live=False)
    policy = content_policy(live=False)
    assert f'content="{policy}"' in unescape(page)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline" not in policy
    assert "unsafe-eval" not in policy
    assert "connect-src" not in policy
    assert hashes("script", page)
    assert hashes("style", page)
    assert [one for one in (*hashes("script", page), *hashes("style", page)) if one not in policy] == []


def test_the_library_is_packed_and_comes_out_as_it_was() -> None:
    page = render_page((), title="t", live=False)
    packed = re.search(r'<script type="text/plain" id="plotly">([^<]*)</script>', page)[1]
    text = zlib.decompress(base64.b64decode(packed)).decode()
    assert text == plotly_js()
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in content_policy(live=False)
    assert len(page) < 2_400_000


def test_the_numbers_of_a_figure_cannot_end_their_element() -> None:
    page = render_page(BLOCKS, title="t", live=False)
    content = re.search(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)[1]
    assert not set("<>&\u2028") & set(content)
    assert json.loads(content) == {"data": [{**FIGURE.data[0], "y": [0.5, None]}], "layout": FIGURE.layout}
    assert "<img" not in page
    assert 'aria-label="it rises"' in page  # and in its place, for those without a script
    assert '<p class="alt">it rises</p>' in page


def test_numbers_stay_with_their_units_in_prose() -> None:
    assert tied("in 23 min with 67.2 % of 12 shops") == "in 23\u00a0min with 67.2\u00a0% of 12 shops"
    assert tied("about 14 min (11-17), run 2026-03-01") == "about 14\u00a0min (11\u201117), run 2026-03-01"
    assert "23\u00a0min" in piece("section_heading", text=tied("23 min"))


def test_the_package_that_brings_the_library_is_not_imported() -> None:
    """It takes seconds, and every training ends with a page."""
    code = (
        "import sys; from turnaround.reporting.page.render import render_page; render_page((), title='', live=False);"
        "print(sorted({'plotly', 'torch', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
