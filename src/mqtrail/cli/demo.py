"""`mqtrail demo`: the shop, its faults, and what was found."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mqtrail.cli.exits import lake_in_use
from mqtrail.cli.options import Json


def demo(
    orders: Annotated[
        int | None, typer.Option(min=500, help="Orders of the shop, three messages each. [default: 6700]")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where its brokers, lake and truth go. [default: a new temporary folder]")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep/--no-keep", help="Leave the folder there, for look-ups.")] = True,
    json: Json = False,
) -> int:
    """Run a small shop with faults injected on purpose, and show what Spark found of them."""
    from mqtrail.cli import draw
    from mqtrail.demo.run import ORDERS_DEFAULT, DemoOptions, Draw, run

    options = DemoOptions(folder=folder, orders=orders or ORDERS_DEFAULT, keep=keep, as_json=json)
    with lake_in_use():
        return run(options, Draw(report=draw.report, trace=draw.trace_answer))
