"""What an hour of one GPU costs: the user's own table, since built-in prices would be wrong within months.

Enters: ~/.config/turnaround/prices.toml (the folder can be set with TURNAROUND_CONFIG), or a file that is named, as
TOML or CSV. Leaves: a checked `PriceTable`. Writing: `save_prices`.

    currency = "EUR"

    ["V100"]
    price = 2.48            # one GPU for one hour
    spot_price = 0.74       # the same on machines that may be taken away
    billing_unit = "minute" # time is paid in whole units of this; default: second
"""

from __future__ import annotations

import csv
import importlib
import io
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from turnaround.analysis.gpu_kinds import data_sheet, kind_of, known_kinds, own_kinds_file
from turnaround.errors import InputError, MissingPartError, one_of
from turnaround.interruptions import HOUR_S
from turnaround.record.files import replace_file, storage_error

BILLING_UNITS_S = {"second": 1.0, "minute": 60.0, "hour": HOUR_S}
"""What clouds bill in: a begun unit is a paid unit."""
SYMBOLS = {"€": "EUR", "$": "USD", "£": "GBP", "¥": "JPY", "CREDITS": "credits", "CREDIT": "credits"}
# ISO 4217 codes of the currencies in which clouds and computing centres bill; `credits` is an allowance of a cluster.
_CODES = """AED ARS AUD BGN BHD BRL CAD CHF CLP CNY COP CZK DKK EGP EUR GBP GHS HKD HUF IDR ILS INR ISK JPY KES KRW KWD
MAD MXN MYR NGN NOK NZD OMR PEN PHP PKR PLN QAR RON RSD RUB SAR SEK SGD THB TRY TWD UAH USD UYU VND ZAR"""
CURRENCIES = (*_CODES.split(), "credits")
MAX_PRICE = 1e6
"""For one GPU for one hour: more is a slip of the keyboard in any currency but those without value."""
MAX_FILE_BYTES = 1 << 20
KEYS = ("price", "spot_price", "billing_unit", "source")
COLUMNS = {
    "kind": ("kind", "gpu", "name", "accelerator"),
    "price": ("price", "price_per_hour", "per_hour", "on_demand", "hourly"),
    "spot_price": ("spot_price", "spot", "preemptible"),
    "billing_unit": ("billing_unit", "billing", "unit"),
    "currency": ("currency",),
    "source": ("source", "note"),
}
"""Headings of a CSV file, ours first."""


@dataclass(frozen=True, kw_only=True)
class Price:
    """Price of one GPU of a kind, for one hour."""

    per_hour: float
    spot_per_hour: float | None = None
    """On machines that may be taken away; None: not known."""
    billing_s: float = 1.0
    """Time is paid in whole units of so many seconds."""
    currency: str | None = None
    source: str | None = None
    """Where the price is from, in the user's words."""

    def cost(self, time_s: float, *, devices: int, is_spot: bool = False) -> float:
        """Return the price of so many devices for that time; a begun billing unit is paid."""
        rate = self.spot_per_hour if is_spot else self.per_hour
        assert rate is not None, "asked for a spot price that is not known"
        # A time that is whole units but for rounding must not pay one more.
        units = math.ceil(time_s / self.billing_s - 1e-9)
        paid_s = units * self.billing_s if self.billing_s > 1 else time_s
        return devices * paid_s * rate / HOUR_S


def price_of(price: float | PriceTable | None, gpu: str) -> Price | None:
    """Return the price of a kind: the one that was told for every kind, or that of its row; None without any."""
    if price is None or isinstance(price, PriceTable):
        return None if price is None else price.of(gpu)
    return Price(per_hour=price)


@dataclass(frozen=True, kw_only=True)
class PriceTable:
    """Prices by kind of GPU, all in one currency."""

    prices: Mapping[str, Price] = field(default_factory=dict)
    currency: str | None = None
    file: Path | None = None
    """Where they were read; None for a table that nobody has written yet."""

    def of(self, gpu: str) -> Price | None:
        """Return the price of a kind by any of its names; None where the table has none."""
        return self.prices.get(kind_of(gpu))

    def with_price(self, kind: str, price: Price) -> PriceTable:
        """Return the table with one price more, or changed; InputError for another currency."""
        currency = price.currency or self.currency
        # A table without a currency may be given one; then all its prices are taken to be in it.
        others = [name for name in self.prices if name != kind]
        if others and self.currency != currency and self.currency is not None:
            raise InputError(
                f"The table is in {self.currency} and this price in {currency}: one table has one currency, since "
                f"nobody here knows the rate of exchange. Convert the price, or begin anew: turnaround prices clear."
            )
        known = {name: replace(each, currency=currency) for name, each in self.prices.items()}
        return replace(self, prices={**known, kind: replace(price, currency=currency)}, currency=currency)

    def without(self, kind: str) -> PriceTable:
        """Return the table without a kind."""
        return replace(self, prices={name: price for name, price in self.prices.items() if name != kind})


def prices_file() -> Path:
    """Return the file of the user's prices; it need not exist."""
    return own_kinds_file().with_name("prices.toml")


def price_table(file: Path | None = None) -> PriceTable:
    """Return the table in a file that was named, else the user's stored one; an empty one where there is none."""
    if file is None:
        stored = prices_file()
        return read_prices(stored) if stored.is_file() else PriceTable()
    return read_prices(file)


def read_prices(file: Path) -> PriceTable:
    """Read and check a table; InputError says what is wrong, and where."""
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_FILE_BYTES + 1)  # one byte more tells that there is more
        text = content.decode("utf-8-sig")  # spreadsheets begin a file with a byte-order mark
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"The price table {str(file)!r} cannot be read: {reason}. {_HOW}") from None
    if len(content) > MAX_FILE_BYTES:
        raise InputError(f"The price table {str(file)!r} has more than 1 MiB, which no table of prices has. {_HOW}")
    table = _from_csv(file, text) if file.suffix.lower() in (".csv", ".tsv") else _from_toml(file, text)
    if not table.prices:
        raise InputError(f"The price table {str(file)!r} has no price in it. {_HOW}")
    return table


_HOW = 'Write one with: turnaround prices set V100 2.48 --currency EUR (or a CSV file with the columns "kind,price").'


def _from_toml(file: Path, text: str) -> PriceTable:
    try:
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:  # RecursionError: brackets in brackets in brackets
        raise InputError(f"The price table {str(file)!r} is not TOML: {error}. {_HOW}") from None
    currency = content.pop("currency", None)
    default_unit = content.pop("billing_unit", None)
    table = PriceTable(currency=_currency(file, "currency", currency), file=file)
    for name, entry in content.items():
        if not isinstance(entry, dict):
            raise _bad(file, f"{name} = {entry!r} is not a section", f'Write ["{name}"] and below it price = NUMBER.')
        if unknown := [key for key in entry if key not in KEYS]:
            raise _bad(file, f"[{name}]", one_of("key", unknown[0], KEYS))
        price = _price(file, f"[{name}]", {"billing_unit": default_unit, **entry})
        table = _added(table, file, name, replace(price, currency=table.currency))
    return table


def _from_csv(file: Path, text: str) -> PriceTable:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    # By the headings: where numbers have a decimal comma, spreadsheets separate by semicolons.
    separator = max(",;\t", key=(lines[0] if lines else "").count)
    try:
        rows = list(csv.reader(io.StringIO("\n".join(lines)), delimiter=separator, strict=True))
    except csv.Error as error:
        raise InputError(f"The price table {str(file)!r} is not CSV: {error}. {_HOW}") from None
    places = _columns(file, rows[0] if rows else [])
    found: list[tuple[str, Price]] = []
    for number, row in enumerate(rows[1:], start=2):
        where = f"row {number}"
        if len(row) != len(rows[0]):
            raise _bad(
                file, f"{where} has {len(row)} cells, the headings {len(rows[0])}", "Fill the row, or delete it."
            )
        cells = {name: row[place].strip() for name, place in places.items()}
        if not cells["kind"]:
            raise _bad(file, f"{where} has no kind of GPU", "Fill the cell, or delete the row.")
        entry: dict[str, Any] = {name: cells.get(name) or None for name in KEYS}
        for name in ("price", "spot_price"):
            entry[name] = _number(file, f"{where}, {name}", entry[name])
        price = _price(file, f"{where} ({cells['kind']})", entry)
        currency = _currency(file, f"{where}, currency", cells.get("currency") or None)
        found.append((cells["kind"], replace(price, currency=currency)))
    currencies = sorted({price.currency or "(empty)" for _, price in found})
    if len(currencies) > 1:
        raise _bad(file, f"it has several currencies: {', '.join(currencies)}", "Give all prices in one.")
    table = PriceTable(currency=found[0][1].currency if found else None, file=file)
    for name, price in found:
        table = _added(table, file, name, price)
    return table


def _columns(file: Path, headings: Sequence[str]) -> dict[str, int]:
    # "Price per hour", "price_per_hour" and "PRICE-PER-HOUR" are one heading.
    spelled = [re.sub(r"[^a-z]+", "_", heading.lower()).strip("_") for heading in headings]
    places = {
        name: place
        for name, words in COLUMNS.items()
        if (place := next((spelled.index(word) for word in words if word in spelled), None)) is not None
    }
    for name in ("kind", "price"):
        if name not in places:
            has = ", ".join(headings) or "nothing"
            raise _bad(file, f"it has no column {name!r}; its first line has {has}", f"Columns: {', '.join(COLUMNS)}.")
    known = {word for words in COLUMNS.values() for word in words}
    if unknown := [heading for heading, word in zip(headings, spelled, strict=True) if word not in known]:
        raise _bad(file, one_of("column", unknown[0], tuple(COLUMNS)), "Rename it, or delete it.")
    return places


def _number(file: Path, where: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise _bad(file, f"{where}: {text!r} is not a number", "Write it with a point and no currency: 2.48.") from None


def _price(file: Path, where: str, entry: Mapping[str, Any]) -> Price:
    if entry.get("price") is None:
        raise _bad(file, f"{where} has no price", "Give the price of one GPU for one hour, or leave the kind out.")
    for name in ("price", "spot_price"):
        if entry.get(name) is not None and (problem := wrong_price(entry[name])):
            raise _bad(file, f"{where}: {name} {problem}", "Give the price of one GPU for one hour.")
    unit, source = entry.get("billing_unit"), entry.get("source")
    if unit is not None and unit not in BILLING_UNITS_S:
        raise _bad(file, f"{where}", one_of("billing_unit", unit, tuple(BILLING_UNITS_S)))
    return Price(
        per_hour=float(entry["price"]),
        spot_per_hour=None if entry.get("spot_price") is None else float(entry["spot_price"]),
        billing_s=BILLING_UNITS_S[unit or "second"],
        source=None if source is None else str(source),
    )


def wrong_price(value: object) -> str | None:
    """Return what is wrong with a price: not a number, not above 0, or beyond all sense; None when it is one."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return f"is {value!r}, which is not a number"
    if value <= 0:
        return f"is {value:g}; a price is above 0"
    return f"is {value:g}, beyond {MAX_PRICE:,.0f} for an hour" if value > MAX_PRICE else None


def currency_named(text: str) -> str:
    """Return the code of a currency: EUR for "eur" and "€"; InputError for a word that is none."""
    code = SYMBOLS.get(text.strip().upper(), text.strip().upper())
    if code not in CURRENCIES:
        raise InputError(one_of("currency", text, CURRENCIES))
    return code


def priced_kind(name: str) -> str:
    """Return the kind that a price is for; InputError for a name that nobody knows, which may be mistyped."""
    kind = kind_of(name)
    if kind != "CPU" and data_sheet(name) is None:
        raise InputError(
            f"{one_of('kind of GPU', kind, (*known_kinds(), 'CPU'))} To add yours, write into {own_kinds_file()}: "
            f'["{kind}"] and below it bandwidth_gb_s = its memory bandwidth in GB/s.'
        )
    return kind


def _currency(file: Path, where: str, value: object) -> str | None:
    if value is None:
        return None
    try:
        return currency_named(str(value))
    except InputError as error:
        raise _bad(file, where, str(error)) from None


def _added(table: PriceTable, file: Path, name: str, price: Price) -> PriceTable:
    try:
        kind = priced_kind(name)
    except InputError as error:
        raise InputError(f"The price table {str(file)!r}: {error}") from None
    if kind in table.prices:
        raise _bad(file, f"{kind} has two prices ({name!r} is the second)", "Keep the one that you pay.")
    return table.with_price(kind, price)


def _bad(file: Path, what: str, todo: str) -> InputError:
    return InputError(f"The price table {str(file)!r}: {what.rstrip('.')}. {todo}")


# --- writing


def prices_text(table: PriceTable) -> str:
    """Return the table as TOML, which `read_prices` reads back."""
    units = {seconds: name for name, seconds in BILLING_UNITS_S.items()}
    lines = ["# Price of one GPU for one hour. Written by `turnaround prices`; edit it as you like."]
    lines += [f'currency = "{table.currency}"'] if table.currency else []
    for kind, price in sorted(table.prices.items()):
        # repr gives the shortest digits that read back as the same number, and TOML takes all its spellings.
        lines += ["", f"[{_quoted(kind)}]", f"price = {price.per_hour!r}"]
        lines += [f"spot_price = {price.spot_per_hour!r}"] if price.spot_per_hour is not None else []
        lines += [f'billing_unit = "{units[price.billing_s]}"'] if price.billing_s != 1.0 else []
        lines += [f"source = {_quoted(price.source)}"] if price.source else []
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Return a basic string of TOML; control characters have no place in a name."""
    plain = re.sub(r"[\x00-\x1f\x7f]", " ", text)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


def save_prices(table: PriceTable) -> Path:
    """Write the user's table and return its file; an empty table leaves none behind."""
    file = prices_file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if not table.prices:
            file.unlink(missing_ok=True)
            return file
    except OSError as error:
        raise storage_error("write", file, error) from error
    replace_file(file, prices_text(table).encode())
    return file


# --- SkyPilot's catalog

SKYPILOT_CATALOGS = ("sky.catalog", "sky.clouds.service_catalog")
"""Where its releases have `list_accelerators`, the newest first."""


def skypilot_prices(cloud: str | None = None) -> PriceTable:
    """Return the cheapest offers of each kind with a data sheet in SkyPilot's catalog, of one cloud or of all: the
    cheapest to keep, and the cheapest that may be taken away, which may be another cloud's or another region's.

    The catalog has prices of whole machines; their processors and memory are in them, so they are what is paid.
    """
    table = PriceTable(currency="USD")
    for name, offers in _skypilot_offers(cloud).items():
        if data_sheet(name) is None:
            continue  # TPUs, and kinds of which no time could be forecast
        kept, taken_away = (_cheapest(offers, field) for field in ("price", "spot_price"))
        if kept is None:
            continue
        found = _skypilot_price(kept, taken_away)
        known = table.of(name)  # two names of the catalog may be one kind of ours
        table = table.with_price(kind_of(name), found if known is None else _cheaper(known, found))
    if not table.prices:
        where = f" of {cloud}" if cloud else ""
        raise InputError(f"SkyPilot's catalog{where} has no price of a GPU that is known here. Try: sky show-gpus.")
    return table


@dataclass(frozen=True, kw_only=True)
class _Offer:
    """What one GPU of an offer costs, and whose offer it is."""

    per_hour: float
    place: str


def _cheapest(offers: Sequence[Any], field: str) -> _Offer | None:
    """Return the cheapest offer for one GPU by one of its prices; None where none has it."""
    found = []
    for offer in offers:
        count, price = float(getattr(offer, "accelerator_count", 0) or 0), getattr(offer, field, None)
        if count >= 1 and price is not None and not wrong_price(float(price)):
            place = " ".join(filter(None, (offer.cloud, offer.instance_type or offer.accelerator_name)))
            region = getattr(offer, "region", None)
            place += f" in {region}" if isinstance(region, str) and region else ""
            found.append(_Offer(per_hour=round(float(price) / count, 6), place=place))
    return min(found, key=lambda offer: offer.per_hour, default=None)


def _skypilot_price(kept: _Offer, taken_away: _Offer | None) -> Price:
    elsewhere = taken_away is not None and taken_away.place != kept.place
    return Price(
        per_hour=kept.per_hour,
        spot_per_hour=taken_away.per_hour if taken_away else None,
        currency="USD",
        source=f"SkyPilot's catalog: {kept.place}" + (f", spot {taken_away.place}" if taken_away and elsewhere else ""),
    )


def _cheaper(one: Price, other: Price) -> Price:
    """Return the cheaper price, with the lower spot price of the two."""
    best = min(one, other, key=lambda price: price.per_hour)
    spots = [price.spot_per_hour for price in (one, other) if price.spot_per_hour is not None]
    return replace(best, spot_per_hour=min(spots, default=None))


def _skypilot_offers(cloud: str | None) -> Mapping[str, Sequence[Any]]:
    for name in SKYPILOT_CATALOGS:
        try:
            catalog = importlib.import_module(name)
        except ImportError:
            continue
        try:
            offers: Mapping[str, Sequence[Any]] = catalog.list_accelerators(
                gpus_only=True, clouds=cloud, all_regions=True
            )
        except Exception as error:  # its own errors, and those of the network it may ask for a newer catalog
            raise InputError(f"SkyPilot's catalog does not answer: {error}. Try: sky show-gpus --all.") from error
        return offers
    raise MissingPartError(
        "SkyPilot is not installed, so its catalog cannot be read. Install it (pip install skypilot), or set prices "
        "yourself: turnaround prices set V100 2.48 --currency EUR."
    )
