"""A page in a real Chromium, which must say nothing on its console and ask no host for anything."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from playwright.sync_api import Page

WITHIN_FILE = ("data:", "blob:")
PHONE_PX = 390
PATIENCE_MS = 120_000
"""Playwright's own 30 s are short for a busy machine."""
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


@contextmanager
def opened(browser: Any, file: Path, *, width: int = 1280, script: str = "", **options: Any) -> Iterator[Page]:
    """Open the file; `script` runs before anything of the page does."""
    context = browser.new_context(viewport={"width": width, "height": 800}, **options)
    context.set_default_timeout(PATIENCE_MS)
    page: Page = context.new_page()
    page.add_init_script(script)
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(f"dialog: {dialog.message}"))
    page.on("request", lambda request: asked.append(request.url))
    address = file.absolute().as_uri()
    page.goto(address)
    yield page
    assert said == [], said
    assert [url for url in asked if url != address and not url.startswith(WITHIN_FILE)] == []
    context.close()


def wait_until_drawn(page: Page) -> int:
    """All figures that are not folded away, also those out of view; returns how many."""
    count = page.locator("figure.plotted:not(.folded)").count()
    drawn = page.locator(".plotted:not(.folded) .plot.drawn")
    drawn.nth(count - 1).wait_for(state="attached", timeout=60_000)
    return count


def unfold(page: Page) -> None:
    page.evaluate("document.querySelectorAll('.fold [aria-expanded=false]').forEach((button) => button.click())")


def shot(page: Page, name: str) -> None:
    """Kept where TURNAROUND_SCREENSHOTS says, for people to look at."""
    if folder := os.environ.get("TURNAROUND_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def violations(page: Page) -> list[str]:
    """What axe finds that keeps people out, of any weight: the rule, and the first element that breaks it."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [f"{one['id']} ({one['impact']}): {one['nodes'][0]['html'][:200]}" for one in found]


def check_access(page: Page, *, widths: tuple[int, ...] = (1280, PHONE_PX), name: str = "") -> None:
    """Check that everybody can read the page, on a desktop and a phone, light and dark, and that it fits."""
    for width in widths:
        page.set_viewport_size({"width": width, "height": 900})
        for scheme in SCHEMES:  # the reader's system may change while the page is open
            page.emulate_media(color_scheme=scheme)
            if name:
                shot(page, f"{name}-{width}-{scheme}")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert violations(page) == [], (width, scheme)
