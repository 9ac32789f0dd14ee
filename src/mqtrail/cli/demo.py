"""`mqtrail demo`: the shop, its faults, and what was found."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mqtrail.cli.options import Json


def demo(
    orders: Annotated[int, typer.Option(min=500, help="Orders of the shop; each is several messages.")] = 8_000,
    data: Annotated[
        Path, typer.Option(help="Folder for its brokers and its lake; what an earlier demo left there goes.")
    ] = Path("mqtrail-data/demo"),
    json: Json = False,
) -> int:
    """Run a small shop with faults injected on purpose, and show what Spark found of them."""
    from mqtrail.demo.run import DemoOptions, run

    return run(DemoOptions(orders=orders, folder=data, json=json))
