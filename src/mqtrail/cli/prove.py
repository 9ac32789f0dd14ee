"""`prove`: examine a lake for loss, duplicates, disorder and wrong delays, and report what could not be covered."""

from __future__ import annotations

from typing import Annotated

import typer

from mqtrail.clock import now_ms

from .answers import exit_of, lake_answers, reading
from .config import load
from .exits import PROOF_EXITS
from .options import REPORT_ROWS, ConfigFile, Json, LakeCluster, LakeFolder, SentFrom, SentTo, time_range
from .output import show_answer, show_json


def prove(
    topic: Annotated[str, typer.Option(help="Topic of the messages. [default: all]")] = "",
    since: SentFrom = "",
    until: SentTo = "",
    rows: Annotated[
        int, typer.Option(min=0, max=10_000, help="Maximum number of examples of each claim.")
    ] = REPORT_ROWS,
    lake: LakeFolder = None,
    cluster: LakeCluster = "",
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Prove that no message was lost, duplicated, reordered or late, or show those that were.

    Exit code 0: found none, with all data covered. 1: found some. 3: found none, but some data is not covered.
    """
    from mqtrail.answers import as_json

    now = now_ms()
    first_ms, end_ms = time_range(since, until, now)
    with reading("examining the lake", json):
        found = lake_answers(load(config), lake, cluster).prove(topic, now, first_ms, end_ms, examples_max=rows)
    if json:
        show_json(as_json(found))
    else:
        from .draw_prove import proof

        show_answer(proof, found)
    return exit_of(found.scope, PROOF_EXITS[found.outcome])
