"""What is wrong with a folder of images, as one page with the pictures side by side; it works offline.

Names of files and classes come from others: each is escaped, and the page runs no script at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from turnaround.report.lines import clean

FILES_SHOWN = 12
"""Of a group or of an oddity."""

Payload = Mapping[str, Any]

_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title><style>
body {{ font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #222; }}
h1 {{ font-size: 1.5rem; }} h2 {{ font-size: 1.15rem; margin-top: 2rem; }}
.problem {{ border-left: 4px solid #c0392b; padding-left: .7rem; }}
.caution {{ border-left: 4px solid #d9a400; padding-left: .7rem; }}
section {{ margin: 1rem 0; }} .row {{ display: flex; flex-wrap: wrap; gap: .8rem; }}
figure {{ margin: 0; width: 8.2rem; }} figure img {{ width: 112px; height: 112px; border: 3px solid #7f8c8d; }}
figure.train img {{ border-color: #2471a3; }} figure.validation img {{ border-color: #ca6f1e; }}
figcaption {{ font-size: .72rem; overflow-wrap: anywhere; }} .change {{ color: #555; font-size: .85rem; }}
table {{ border-collapse: collapse; }} td, th {{ padding: .15rem .8rem .15rem 0; text-align: right; }}
td:first-child, th:first-child {{ text-align: left; }}
@media (prefers-color-scheme: dark) {{ body {{ background: #181818; color: #ddd; }} .change {{ color: #aaa; }} }}
</style></head><body>
"""


def check_page(payload: Payload, pictures: Mapping[str, str], *, most_groups: int) -> str:
    """`pictures` are data URIs by file; groups beyond `most_groups` are counted, not shown."""
    title = f"Check of {_text(payload['folder'])}"
    parts = [_HEAD.format(title=title), f"<h1>{title}</h1>", *_summary(payload)]
    groups = payload["groups"]
    headings = {
        "Photos on both sides of the split": [one for one in groups if one["crosses_split"]],
        "One photo under several classes": [one for one in groups if len(one["classes"]) > 1],
        "Copies within one part": [one for one in groups if not one["crosses_split"] and len(one["classes"]) < 2],
    }
    for heading, found in headings.items():
        if found:
            parts.append(f"<h2>{heading} ({len(found):,})</h2>")
            parts += [_group(one, pictures) for one in found[:most_groups]]
            if len(found) > most_groups:
                parts.append(f"<p>and {len(found) - most_groups:,} more: <code>--json</code> has all of them.</p>")
    return "\n".join([*parts, *_bad(payload), *_odd(payload, pictures), *_classes(payload), "</body></html>\n"])


def _summary(payload: Payload) -> Iterator[str]:
    leaks = payload["leaks"]
    yield (
        f"<p>{payload['num_train']:,} training and {payload['num_validation']:,} validation images "
        f"({_text(payload['split'])}). Blue frames: training. Orange frames: validation.</p>"
    )
    if leaks["num"]:
        yield (
            f"<p class='problem'><b>{leaks['num']:,} of {leaks['of']:,} validation images</b> show a photo that is "
            "also trained on: the validation accuracy will be too high.</p>"
        )
    if payload["bad"]:
        yield f"<p class='problem'><b>{len(payload['bad']):,} images</b> cannot be read.</p>"
    for sentence in payload["warnings"]:
        yield f"<p class='caution'>{_text(sentence)}</p>"


def _group(one: Payload, pictures: Mapping[str, str]) -> str:
    changes = list(dict.fromkeys(link["change"] for link in one["links"] if link["change"]))
    words = "; ".join([str(one["kind"]), *changes[:3]])
    shown = zip(one["files"][:FILES_SHOWN], one["parts"], strict=False)
    figures = "".join(_figure(name, pictures, part) for name, part in shown)
    more = len(one["files"]) - FILES_SHOWN
    rest = f"<p>and {more:,} more</p>" if more > 0 else ""
    return f"<section><div class='change'>{_text(words)}</div><div class='row'>{figures}</div>{rest}</section>"


def _figure(name: str, pictures: Mapping[str, str], part: str = "") -> str:
    picture = f"<img src='{escape(pictures[name])}' alt=''>" if name in pictures else ""
    return f"<figure class='{escape(part)}'>{picture}<figcaption>{_text(name)}</figcaption></figure>"


def _bad(payload: Payload) -> Iterator[str]:
    if payload["bad"]:
        yield f"<h2>Cannot be read ({len(payload['bad']):,})</h2><ul>"
        yield from (f"<li><code>{_text(one['file'])}</code>: {_text(one['reason'])}</li>" for one in payload["bad"])
        yield "</ul>"


def _odd(payload: Payload, pictures: Mapping[str, str]) -> Iterator[str]:
    for one in payload["odd"]:
        yield f"<h2>{_text(one['what'])} ({len(one['files']):,})</h2><p>{_text(one['becomes'])}</p><div class='row'>"
        yield from (_figure(name, pictures) for name in one["files"][:FILES_SHOWN])
        yield "</div>"


def _classes(payload: Payload) -> Iterator[str]:
    yield "<h2>Classes</h2><table><tr><th>class</th><th>train</th><th>validation</th><th>unreadable</th></tr>"
    for name, count in payload["classes"].items():
        yield (
            f"<tr><td>{_text(name)}</td><td>{count['train']:,}</td><td>{count['validation']:,}</td>"
            f"<td>{count['bad']:,}</td></tr>"
        )
    yield "</table>"


def _text(value: object) -> str:
    """Escaped, and without characters that would turn or hide the text."""
    return escape(clean(str(value)))
