"""`migrate copies`: copies of tee producers that failed, shown or sent again."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from .config import load
from .exits import Exit
from .migrate import FOLDER_DEFAULT, Folder, KafkaSettings, RetryFor, kafka_of
from .operate import table
from .options import ConfigFile, Json, Namesrv, duration_ms
from .output import say, show_json

if TYPE_CHECKING:
    from mqtrail.migrate import FailedFile


def migrate_copies(
    folder: Folder = FOLDER_DEFAULT,
    send: Annotated[bool, typer.Option("--send", help="Send them again. [default: only show them]")] = False,
    kafka: Annotated[
        str, typer.Option("--kafka", metavar="HOST:PORT[,…]", help="Addresses of Kafka, for copies to Kafka.")
    ] = "",
    retry: RetryFor = "30s",
    kafka_settings: KafkaSettings = None,
    namesrv: Namesrv = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Show the copies that tee producers could not send, or had on their way when killed; or send them, in order.

    A file that a running tee has is left alone. Exit code 0: none is left. 1: some are left.
    """
    retry_ms = duration_ms(retry, "--retry-for")
    source = kafka_of(kafka, kafka_settings) if kafka else None
    from mqtrail.migrate import resend_files, waiting_files

    sent: list[FailedFile] = []
    if send:
        settings = load(config)
        sent = asyncio.run(
            resend_files(folder, source, settings.namesrv(namesrv), settings.client("producer"), retry_ms)
        )
    left = waiting_files(folder)
    if json:
        show_json({"sent": sum(one.sent for one in sent), "files": [asdict(one) for one in left]})
    else:
        _draw(sent, left)
    return Exit.FAILED if left else Exit.OK


def _draw(sent: list[FailedFile], left: list[FailedFile]) -> None:
    for one in sent:
        say(f"{one.path}: {one.sent} sent to {one.to}, {one.count} left{f': {one.error}' if one.error else ''}")
    if not left:
        say("no failed copies")
        return
    table(
        ("file", "to", "copies", ""),
        [(one.path, one.to, one.count, "of a running tee" if one.is_open else "") for one in left],
    )
    for one in left:
        for text in one.errors:
            say(text)
