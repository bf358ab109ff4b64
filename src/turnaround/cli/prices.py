"""`turnaround prices`: the user's table of what an hour of a GPU costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnaround.cli.verbs import Verb, VerbGroup

if TYPE_CHECKING:
    from turnaround.analysis.prices import PriceTable

SKYPILOT = "skypilot"

prices_app = typer.Typer(
    cls=VerbGroup, help="Keep your prices of GPUs, for the costs of forecasts and reports.", invoke_without_command=True
)


@prices_app.callback(invoke_without_command=True)
def default(
    context: typer.Context,
    json_: Annotated[bool, typer.Option("--json", help="Print the table as JSON on stdout.")] = False,
) -> None:
    """The table, and where it is kept."""
    if context.invoked_subcommand is None:
        _show(is_json=json_)


@prices_app.command("set", cls=Verb)
def set_price(
    kind: Annotated[str, typer.Argument(help="The kind of GPU: T4, V100, A100, ...")],
    price: Annotated[float, typer.Argument(help="Of one GPU for one hour.")],
    spot: Annotated[
        float | None, typer.Option("--spot", help="The same on a machine that may be taken away (spot, pre-emptible).")
    ] = None,
    billing: Annotated[
        str, typer.Option("--billing", metavar="UNIT", help="Time is paid in whole units of a second, minute or hour.")
    ] = "second",
    currency: Annotated[
        str | None, typer.Option("--currency", metavar="CODE", help="EUR, USD, ... Default: that of the table.")
    ] = None,
) -> None:
    """Set the price of a kind of GPU.

    [bold]turnaround prices set V100 2.48 --spot 0.74 --currency EUR[/bold]
    """
    from turnaround.analysis.prices import (
        BILLING_UNITS_S,
        Price,
        currency_named,
        price_table,
        priced_kind,
        save_prices,
        wrong_price,
    )
    from turnaround.errors import InputError, one_of

    for flag, value in (("The price", price), ("--spot", spot)):
        if value is not None and (problem := wrong_price(value)):
            raise InputError(f"{flag} {problem}. Give the price of one GPU for one hour: 2.48.")
    if billing not in BILLING_UNITS_S:
        raise InputError(one_of("--billing", billing, tuple(BILLING_UNITS_S)))
    entry = Price(
        per_hour=price,
        spot_per_hour=spot,
        billing_s=BILLING_UNITS_S[billing],
        currency=currency_named(currency) if currency is not None else None,
    )
    save_prices(price_table().with_price(priced_kind(kind), entry))
    _show(is_json=False)


@prices_app.command(cls=Verb)
def remove(kind: Annotated[str, typer.Argument(help="The kind of GPU.")]) -> None:
    """Remove the price of a kind of GPU."""
    from turnaround.analysis.gpu_kinds import kind_of
    from turnaround.analysis.prices import price_table, save_prices
    from turnaround.errors import InputError, one_of

    table = price_table()
    if table.of(kind) is None:
        raise InputError(one_of("kind", kind, tuple(table.prices)) if table.prices else "The price table is empty.")
    save_prices(table.without(kind_of(kind)))
    _show(is_json=False)


@prices_app.command(cls=Verb)
def clear() -> None:
    """Remove the whole table."""
    from turnaround.analysis.prices import PriceTable, save_prices

    typer.echo(f"{save_prices(PriceTable())} removed: no prices are known.")


@prices_app.command("import", cls=Verb)
def import_prices(
    source: Annotated[str, typer.Argument(help="A CSV or TOML file, or skypilot for its catalog.")],
    cloud: Annotated[
        str | None, typer.Option("--cloud", metavar="NAME", help="One cloud of the catalog. Default: the cheapest.")
    ] = None,
) -> None:
    """Take over a table: its prices are added to yours, or replace them.

    [bold]turnaround prices import prices.csv[/bold]
    [bold]turnaround prices import skypilot --cloud aws[/bold]
    """
    from turnaround.analysis.prices import price_table, read_prices, save_prices, skypilot_prices
    from turnaround.errors import InputError

    if source != SKYPILOT and cloud is not None:
        raise InputError(f"--cloud is for SkyPilot's catalog: turnaround prices import {SKYPILOT} --cloud {cloud}.")
    found = skypilot_prices(cloud) if source == SKYPILOT else read_prices(Path(source))
    table = price_table()
    for kind, price in found.prices.items():
        table = table.with_price(kind, price)
    save_prices(table)
    _show(is_json=False)


def _show(*, is_json: bool) -> None:
    from turnaround.analysis.prices import price_table, prices_file
    from turnaround.reporting.prices_text import price_lines, prices_json
    from turnaround.reporting.terminal import out, print_json, print_lines

    table: PriceTable = price_table()
    if is_json:
        print_json(prices_json(table))
    else:
        print_lines(out(), price_lines(table, prices_file()))
