"""Blocks -> one page that needs nothing else: styles, scripts, figures and pictures are inside.

The library that draws is packed into the page and unpacked by the browser when the first figure comes into view: the
page is half as large, and its text is there before any picture. What may run is named by its hash, so nothing that
came with the runs can.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from markupsafe import Markup

from turnaround.errors import MissingPartError
from turnaround.record.coding import plain
from turnaround.reporting.page.blocks import Block, anchor
from turnaround.reporting.page.fig_common import Figure
from turnaround.reporting.page.templates import asset, environment, piece
from turnaround.web.pages import base_css, content_hash

GENERATOR = "turnaround page"
"""Marks a page as one of ours, which may be replaced by a newer one."""
# Plotly looks for the element of this id before it makes one of its own, which the policy would forbid.
PLOTLY_STYLE_ID = "plotly.js-style-global"
PLOTLY_CSS = ".js-plotly-plot{position:relative}"


def render_page(blocks: Sequence[Block], *, title: str, live: bool) -> str:
    """Return the html text. `live` adds the script that takes a server's updates."""
    template = environment().get_template("page.html.j2")
    return template.render(
        title=title,
        policy=content_policy(live=live),
        generator=GENERATOR,
        styles=_styles(live=live),
        plotly_css=PLOTLY_CSS,
        plotly_style_id=PLOTLY_STYLE_ID,
        plotly_ids=_style_ids(),
        js=_page_js(),
        live=live,
        live_js=asset("live.js") if live else "",
        plotly=_packed_plotly(),
        parts=[block_html(block) for block in blocks],
    )


def block_html(block: Block) -> Markup:
    """Return the block's element, as the page's script would make it."""
    if block.figure is not None:
        return piece("figure", block=block, figure=block.figure, json=_inert(_drawn(block.figure)))
    return piece("section", block=block, anchor=anchor(block.id))


def _drawn(figure: Figure) -> dict[str, Any]:
    return {"data": figure.data, "layout": figure.layout}


def content_policy(*, live: bool) -> str:
    """Return the content security policy: nothing from anywhere, our own scripts and styles alone, by their hashes."""
    # Hashes and no nonce: the page is a file, which has no server to make a new nonce for each visit.
    scripts = [_page_js(), plotly_js(), *([asset("live.js")] if live else [])]
    styles = [*_styles(live=live), PLOTLY_CSS]
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src {' '.join(content_hash(text) for text in scripts)}",
            f"style-src {' '.join(content_hash(text) for text in styles)}",
            f"style-src-attr 'unsafe-hashes' {content_hash('')}",  # plotly empties style attributes, and sets none
            "img-src data: blob:",
            *(["connect-src 'self'"] if live else []),
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


def _page_js() -> str:
    return asset("inflate.js") + asset("page.js")


def _styles(*, live: bool) -> list[str]:
    return [base_css(), asset("page.css"), *([asset("live.css")] if live else [])]


@cache
def plotly_js() -> str:
    """Return the library's own file from its package; the package itself is not imported, which takes seconds."""
    found = find_spec("plotly")
    path = Path(found.origin or "").parent / "package_data" / "plotly.min.js" if found else None
    if path is None or not path.is_file():
        raise MissingPartError("The page needs plotly, which is not installed (completely): pip install plotly.")
    return path.read_text(encoding="utf-8")


def _style_ids() -> list[str]:
    """Return the ids of plotly's styles for maps: where no element has them it adds one, which the policy forbids."""
    return re.findall(r'getElementById\("([0-9a-f]{64})"\)', plotly_js())


@cache
def _packed_plotly() -> str:
    return base64.b64encode(zlib.compress(plotly_js().encode(), 6)).decode("ascii")


# What could end the script element, or a line of script where there is none.
_ESCAPED = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"}


def _inert(payload: object) -> str:
    """Return JSON for a script element: no letter of it can be taken for markup."""
    text = json.dumps(plain(payload), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate(_ESCAPED)
