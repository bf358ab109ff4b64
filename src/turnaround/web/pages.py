"""What all pages share: their style, and a page for people where a program would get JSON.

Enters: the headers of a request, and why it is refused. Leaves: a response in the form that was asked for.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

# starlette is imported inside functions: a page that is only written needs the style, and no server.
if TYPE_CHECKING:
    from starlette.datastructures import Headers
    from starlette.responses import JSONResponse, Response

POLICY = "content-security-policy"
TITLES = {401: "This page needs its token", 404: "There is nothing here"}


@cache
def base_css() -> str:
    """Return the style that every page begins with."""
    return (files("turnaround.web") / "assets" / "base.css").read_text(encoding="utf-8")


@cache
def content_hash(text: str) -> str:
    """Return the source by which a content policy allows this script or style, and no other."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"


def error(status: int, reason: str, **headers: str) -> JSONResponse:
    """Return a refusal: one sentence as JSON."""
    from starlette.responses import JSONResponse

    return JSONResponse({"error": reason}, status_code=status, headers=headers)


def _with_code(text: str) -> str:
    """Return a sentence as html; what stands between backticks, a command, as code."""
    parts = text.split("`")
    return "".join(f"<code>{escape(part)}</code>" if place % 2 else escape(part) for place, part in enumerate(parts))


def refusal(asked: Headers, status: int, reason: str, **headers: str) -> Response:
    """Return a refusal as a page for a browser that opens one, as JSON for everybody else."""
    if "text/html" not in asked.get("accept", ""):
        return error(status, reason, **headers)
    from starlette.responses import HTMLResponse

    css, title = base_css(), TITLES.get(status, "This was not answered")
    text = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{title} · turnaround</title><link rel="icon" href="data:,"><style>{css}</style></head>'
        '<body><header class="bar"><div><span class="mark">turnaround</span></div></header>'
        f"<main class='refused'><h1>{title}</h1><p>{_with_code(reason)}</p></main></body></html>"
    )
    policy = f"default-src 'none'; img-src data:; style-src {content_hash(css)}; frame-ancestors 'none'"
    return HTMLResponse(text, status_code=status, headers={**headers, POLICY: policy})
