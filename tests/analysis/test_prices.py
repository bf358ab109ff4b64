"""The user's price table: what is read, what is refused, what is written and paid."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turnaround.analysis.prices import (
    CURRENCIES,
    Price,
    PriceTable,
    currency_named,
    price_of,
    price_table,
    prices_file,
    prices_text,
    read_prices,
    save_prices,
    skypilot_prices,
)
from turnaround.errors import InputError, MissingPartError, StorageError


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TURNAROUND_CONFIG", str(tmp_path / "config"))
    return tmp_path


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str, str], Path]:
    def write(name: str, text: str) -> Path:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return write


TOML = """
currency = "eur"
[v100]
price = 2.48
spot_price = 0.74
billing_unit = "minute"
source = "our contract"
["NVIDIA A100-SXM4-40GB"]
price = 4
"""
CSV = "GPU;Price per hour;Spot;Billing;Currency\n# as of May\nV100;2.48;0.74;minute;€\n\nA100;4;;;EUR\n"


@pytest.mark.parametrize(("name", "text"), [("prices.toml", TOML), ("prices.csv", CSV)])
def test_a_table_is_read(written: Callable[[str, str], Path], name: str, text: str) -> None:
    table = read_prices(written(name, text))
    assert (table.currency, sorted(table.prices)) == ("EUR", ["A100", "V100"])
    price = table.of("Tesla V100-SXM2-16GB")
    assert price is not None
    assert (price.per_hour, price.spot_per_hour, price.billing_s, price.currency) == (2.48, 0.74, 60.0, "EUR")
    assert table.of("T4") is None


def test_what_is_written_is_read_back(written: Callable[[str, str], Path]) -> None:
    table = read_prices(written("prices.toml", TOML))
    odd = Price(per_hour=0.1, source='a "quoted" \\ word\nof two lines')
    table = table.with_price("RTX 4090", odd)
    file = save_prices(table)
    assert file == prices_file()
    again = price_table()
    assert again.prices["V100"] == table.prices["V100"]
    assert again.prices["RTX 4090"].source == 'a "quoted" \\ word of two lines'
    assert prices_text(again) == prices_text(table)
    save_prices(PriceTable())
    assert not file.exists()
    assert price_table() == PriceTable()


def test_a_begun_billing_unit_is_paid() -> None:
    by_hour = Price(per_hour=3.0, spot_per_hour=1.0, billing_s=3600.0)
    assert by_hour.cost(10.0, devices=4) == pytest.approx(12.0)
    assert by_hour.cost(3600.0, devices=4) == pytest.approx(12.0)
    assert by_hour.cost(3601.0, devices=4, is_spot=True) == pytest.approx(8.0)
    assert Price(per_hour=3.0).cost(10.5, devices=2) == pytest.approx(2 * 10.5 * 3 / 3600)
    assert Price(per_hour=6.0, billing_s=60.0).cost(61.0, devices=1) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("p.toml", "[V100\n", ["is not TOML", "turnaround prices set"]),
        ("p.toml", "V100 = 2.48\n", ["V100 = 2.48 is not a section", "price = NUMBER"]),
        ("p.toml", "[V100]\nspot_price = 1\n", ["[V100] has no price", "leave the kind out"]),
        ("p.toml", "[V100]\nprice = -2\n", ["[V100]: price is -2; a price is above 0"]),
        ("p.toml", "[V100]\nprice = 0\n", ["price is 0; a price is above 0"]),
        ("p.toml", "[V100]\nprice = nan\n", ["price is nan, which is not a number"]),
        ("p.toml", "[V100]\nprice = true\n", ["price is True, which is not a number"]),
        ("p.toml", "[V100]\nprice = 1e9\n", ["beyond 1,000,000 for an hour"]),
        ("p.toml", "[V100]\nprice = 2\nspot_price = -1\n", ["spot_price is -1; a price is above 0"]),
        ("p.toml", '[V100]\nprice = 2\nbilling_unit = "day"\n', ["Unknown billing_unit 'day'", "second, minute, hour"]),
        ("p.toml", "[V100]\nprise = 2\n", ["Unknown key 'prise'", "Did you mean 'price'?"]),
        ("p.toml", "[V10]\nprice = 2\n", ["Unknown kind of GPU 'V10'", "Did you mean 'V100'?", "gpus.toml"]),
        ("p.toml", '[V100]\nprice = 2\n["Tesla V100"]\nprice = 3\n', ["V100 has two prices", "'Tesla V100'"]),
        ("p.toml", 'currency = "taler"\n[V100]\nprice = 2\n', ["Unknown currency 'taler'", "EUR"]),
        ("p.toml", "", ["has no price in it"]),
        ("p.csv", "", ["no column 'kind'", "nothing"]),
        ("p.csv", "kind,cost\nV100,2\n", ["no column 'price'", "kind, cost"]),
        ("p.csv", "kind,price,colour\nV100,2,red\n", ["Unknown column 'colour'", "Rename it"]),
        ("p.csv", "kind,price\nV100\n", ["row 2 has 1 cells, the headings 2"]),
        ("p.csv", "kind,price\nV100,2\n,3\n", ["row 3 has no kind of GPU"]),
        ("p.csv", "kind,price\nV100,\n", ["row 2 (V100) has no price"]),
        ("p.csv", "kind,price\nV100,2.48 EUR\n", ["row 2, price: '2.48 EUR' is not a number"]),
        ("p.csv", "kind,price,currency\nV100,2,EUR\nA100,3,USD\n", ["several currencies: EUR, USD"]),
        ("p.csv", "kind,price,currency\nV100,2,EUR\nA100,3,\n", ["several currencies: (empty), EUR"]),
        ("p.csv", 'kind,price\n"V100,2\n', ["is not CSV"]),
        ("p.csv", "#" * 2**20 + "\nkind,price\n", ["more than 1 MiB"]),
    ],
)
def test_a_bad_table_is_refused(written: Callable[[str, str], Path], name: str, text: str, expected: list[str]) -> None:
    with pytest.raises(InputError) as refused:
        read_prices(written(name, text))
    assert [part for part in [name, *expected] if part not in str(refused.value)] == []


def test_a_file_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        price_table(tmp_path / "none.toml")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\0")
    with pytest.raises(InputError, match="not UTF-8"):
        read_prices(tmp_path / "binary.csv")
    (tmp_path / "config").write_text("a file in place of the folder")
    with pytest.raises(StorageError, match=r"Cannot write .*prices\.toml"):
        save_prices(PriceTable(prices={"V100": Price(per_hour=1.0)}))


def test_one_currency() -> None:
    table = PriceTable().with_price("V100", Price(per_hour=1.0, currency="EUR"))
    assert table.with_price("A100", Price(per_hour=2.0)).prices["A100"].currency == "EUR"
    with pytest.raises(InputError, match="The table is in EUR and this price in USD"):
        table.with_price("A100", Price(per_hour=2.0, currency="USD"))
    # The only price may be given again in another one.
    assert table.with_price("V100", Price(per_hour=2.0, currency="USD")).currency == "USD"
    assert [currency_named(word) for word in ("eur", "€", " usd ", "Credits")] == ["EUR", "EUR", "USD", "credits"]
    assert len(set(CURRENCIES)) == len(CURRENCIES)


# --- SkyPilot


def catalog(offers: dict[str, list[dict[str, Any]]] | Exception) -> types.ModuleType:
    """A module with the interface of sky.catalog: SkyPilot itself is not installed here."""
    module = types.ModuleType("sky.catalog")

    def list_accelerators(
        *, gpus_only: bool, clouds: str | None, all_regions: bool
    ) -> dict[str, list[types.SimpleNamespace]]:
        assert gpus_only
        assert all_regions  # a cheaper spot price may be another region's
        if isinstance(offers, Exception):
            raise offers
        return {
            name: [types.SimpleNamespace(**one) for one in each if clouds in (None, one["cloud"].lower())]
            for name, each in offers.items()
        }

    module.list_accelerators = list_accelerators  # type: ignore[attr-defined]
    return module


def offer(cloud: str, count: float, price: float, spot: float = float("nan")) -> dict[str, Any]:
    return {
        "cloud": cloud,
        "instance_type": f"{cloud.lower()}-{count:g}",
        "accelerator_name": "any",
        "accelerator_count": count,
        "price": price,
        "spot_price": spot,
    }


def test_the_cheapest_of_skypilots_offers(monkeypatch: pytest.MonkeyPatch) -> None:
    offers = {
        "V100": [offer("AWS", 1, 3.06, 0.92), offer("AWS", 8, 24.0), offer("GCP", 1, 2.48, 0.74)],
        "A100": [offer("GCP", 0.5, 1.0), offer("AWS", 8, float("nan"))],
        "tpu-v5p-8": [offer("GCP", 1, 1.0)],
    }
    monkeypatch.setitem(sys.modules, "sky.catalog", catalog(offers))
    table = skypilot_prices()
    assert (table.currency, list(table.prices)) == ("USD", ["V100"])
    assert table.prices["V100"] == Price(
        per_hour=2.48, spot_per_hour=0.74, currency="USD", source="SkyPilot's catalog: GCP gcp-1"
    )
    of_aws = skypilot_prices("aws").prices["V100"]
    assert (of_aws.per_hour, of_aws.spot_per_hour) == (3.0, 0.92)
    with pytest.raises(InputError, match="catalog of azure has no price"):
        skypilot_prices("azure")


def test_the_cheapest_spot_price_may_be_another_offers(monkeypatch: pytest.MonkeyPatch) -> None:
    offers = {
        "V100": [
            offer("AWS", 1, 3.06, 0.60) | {"region": "us-east-1"},
            offer("GCP", 1, 2.48, 0.74) | {"region": "europe-west4"},
            offer("Azure", 4, float("nan"), 2.0),  # 0.5 for one, and never to keep
        ]
    }
    monkeypatch.setitem(sys.modules, "sky.catalog", catalog(offers))
    price = skypilot_prices().prices["V100"]
    assert (price.per_hour, price.spot_per_hour) == (2.48, 0.5)
    assert price.source == "SkyPilot's catalog: GCP gcp-1 in europe-west4, spot Azure azure-4"
    two_names = {"V100-32GB": [offer("AWS", 1, 3.0, 0.4)], "V100": [offer("GCP", 1, 2.48, 0.74)]}
    monkeypatch.setitem(sys.modules, "sky.catalog", catalog(two_names))
    [(kind, price)] = skypilot_prices().prices.items()  # one kind of ours
    assert (kind, price.per_hour, price.spot_per_hour) == ("V100", 2.48, 0.4)


def test_skypilot_that_does_not_answer_or_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sky.catalog", catalog(RuntimeError("no network")))
    with pytest.raises(InputError, match="does not answer: no network"):
        skypilot_prices()
    for name in ("sky", "sky.catalog", "sky.clouds", "sky.clouds.service_catalog"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPartError, match="SkyPilot is not installed"):
        skypilot_prices()


def test_one_price_is_that_of_every_kind_and_a_table_has_its_own() -> None:
    table = PriceTable(prices={"V100": Price(per_hour=2.5, billing_s=60.0)}, currency="EUR")
    told, own = price_of(4.0, "T4"), price_of(table, "V100")
    assert told is not None
    assert own is not None
    assert told.cost(1800.0, devices=2) == 4.0
    assert own.cost(61.0, devices=1) == pytest.approx(2 * 2.5 / 60)
    assert (price_of(None, "T4"), price_of(table, "T4")) == (None, None)
