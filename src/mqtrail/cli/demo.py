"""`mqtrail demo`: runs the shop with injected faults."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from .exits import lake_in_use
from .options import REPORT_ROWS, Json


def demo(
    orders: Annotated[
        int | None, typer.Option(min=500, help="Number of orders, three messages each. [default: 6700]")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            readable=False, help="Folder for brokers, lake and injected faults. [default: a new temporary folder]"
        ),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep/--no-keep", help="Keep the folder, for look-ups afterwards.")] = True,
    json: Json = False,
) -> int:
    """Run a small shop with injected faults, and compare them with what the pipeline found."""
    from mqtrail.demo.run import ORDERS_DEFAULT, DemoOptions, Draw, run

    from . import draw, draw_report

    options = DemoOptions(folder=folder, orders=orders or ORDERS_DEFAULT, keep=keep, as_json=json)
    with lake_in_use():
        return run(options, Draw(report=partial(draw_report.report, rows_max=REPORT_ROWS), trace=draw.trace_answer))
