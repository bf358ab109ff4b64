"""The user's price table for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.text import Text

from turnaround.analysis.prices import BILLING_UNITS_S, Price, PriceTable
from turnaround.reporting.text_layout import TextColumn, clean, tables
from turnaround.words import UNKNOWN

MAX_WIDTH = 120


def price_lines(table: PriceTable, file: Path) -> Iterator[Text]:
    """Yield the table with its currency, then where it is kept; without prices how to set one."""
    if not table.prices:
        yield Text("No prices are known, and none are built in: they would be wrong within months.")
        yield Text("  turnaround prices set V100 2.48 --currency EUR    one GPU for one hour")
        yield Text("  turnaround prices import prices.csv               a table with the columns kind,price")
        yield Text("  turnaround prices import skypilot                 SkyPilot's catalog, where it is installed")
        return
    rows = sorted(table.prices.items())
    yield Text(f"One GPU for one hour{f', in {table.currency}' if table.currency else ''}")
    names = TextColumn(heading="kind", cells=tuple(clean(kind) for kind, _ in rows), is_left=True)
    columns = [
        TextColumn(heading="price", cells=tuple(_amount(price.per_hour) for _, price in rows)),
        TextColumn(heading="spot", cells=tuple(_amount(price.spot_per_hour) for _, price in rows)),
        TextColumn(heading="paid by the", cells=tuple(billing_unit(price) for _, price in rows), is_left=True),
        TextColumn(heading="from", cells=tuple(clean(price.source or "you") for _, price in rows), is_left=True),
    ]
    for part in tables(names, [columns], MAX_WIDTH):
        yield from (Text(f"  {line}".rstrip(), style="bold") for line in part.heading)
        yield from (Text(f"  {line}".rstrip()) for line in part.rows)
    yield Text(f"kept in {file}")


def prices_json(table: PriceTable) -> dict[str, Any]:
    """Return what `prices --json` prints."""
    return {
        "currency": table.currency,
        "file": None if table.file is None else str(table.file),
        "prices": [
            {
                "kind": kind,
                "price": price.per_hour,
                "spot_price": price.spot_per_hour,
                "billing_unit": billing_unit(price),
                "source": price.source,
            }
            for kind, price in sorted(table.prices.items())
        ],
    }


def billing_unit(price: Price) -> str:
    """Return the unit that time is paid in."""
    return next(name for name, seconds in BILLING_UNITS_S.items() if seconds == price.billing_s)


def price_text(price: Price, gpu: str) -> str:
    """Return what is paid: "2.48 EUR per GPU-hour, billed by the hour"."""
    amount = f"{price.per_hour:g} {price.currency or ''}".rstrip()
    unit = "" if price.billing_s == 1 else f", billed by the {billing_unit(price)}"
    return f"{amount} per {'process' if gpu == 'CPU' else 'GPU'}-hour{unit}"


def _amount(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:g}"
