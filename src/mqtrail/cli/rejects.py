"""`rejects`: trace records that did not decode, with their text."""

from __future__ import annotations

from typing import Annotated

import typer

from mqtrail.clock import now_ms

from .answers import exit_of, lake_answers, reading
from .config import load
from .exits import Exit
from .options import ConfigFile, Json, LakeCluster, LakeFolder
from .output import show_answer, show_json


def rejects(
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Maximum number of records, newest first.")] = 50,
    skip: Annotated[int, typer.Option(min=0, help="Number of newest records to leave out.")] = 0,
    lake: LakeFolder = None,
    cluster: LakeCluster = "",
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """List trace records of the lake that did not decode, each with the reason and its text."""
    from mqtrail.answers import as_json

    with reading("reading the lake", json):
        found = lake_answers(load(config), lake, cluster).rejects(now_ms(), limit, skip)
    if json:
        show_json(as_json(found))
    else:
        from .draw_rejects import rejected_records

        show_answer(rejected_records, found)
    return exit_of(found.scope, Exit.OK)
