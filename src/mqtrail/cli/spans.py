"""`spans`: export the messages of a lake to an OpenTelemetry collector."""

from __future__ import annotations

import os
import time
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from mqtrail.clock import now_ms

from .config import load
from .exits import Exit, SourceUnavailable, UsageError, lake_in_use
from .ingest import stop_on_signals
from .options import ConfigFile, Json, LakeCluster, LakeFolder, duration_ms, moment_ms
from .output import say, show_json, warn

if TYPE_CHECKING:
    from mqtrail.answers.otel import Collector, ExportedSpans, SpanNames

OPT_IN = "OTEL_SEMCONV_STABILITY_OPT_IN"
TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES_HEADERS = "OTEL_EXPORTER_OTLP_TRACES_HEADERS"
HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"


def spans(
    endpoint: Annotated[
        str | None,
        typer.Option(help=f"URL of the collector, http://HOST:4318. [env: {TRACES_ENDPOINT}, {ENDPOINT}]"),
    ] = None,
    since: Annotated[
        str, typer.Option("--from", help="Leave out messages sent before this time (UTC) or age, to the hour.")
    ] = "",
    names: Annotated[
        str | None, typer.Option(help=f"Attribute names: old, new or both. [env: {OPT_IN}] [default: old]")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Continue until SIGINT or SIGTERM.")] = False,
    interval: Annotated[str, typer.Option(help="Time between two exports with --follow.")] = "5s",
    lake: LakeFolder = None,
    cluster: LakeCluster = "",
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Export settled messages as spans to an OpenTelemetry collector (OTLP), starting where the last export ended."""
    collector = _collector(endpoint)
    chosen = _names(names)
    every_s = duration_ms(interval, "--interval") / 1_000
    from_ms = moment_ms(since, now_ms(), "--from") if since else None
    from mqtrail.answers.otel import CollectorError, SpanExport

    stop = Event()
    stop_on_signals(stop)
    with lake_in_use():
        path = load(config).lake_to_read(lake)
        export = SpanExport(path, collector, chosen, from_ms=from_ms, cluster=cluster)
        while True:
            began = time.monotonic()
            try:
                _report(export.once(stop), collector.url, follow=follow, json=json)
            except CollectorError as error:
                if not follow:
                    raise SourceUnavailable(str(error)) from error
                warn(str(error))
            if not follow or stop.wait(max(every_s - (time.monotonic() - began), 0)):
                return Exit.OK


def _collector(endpoint: str | None) -> Collector:
    """Return the collector of the option or of OpenTelemetry's variables. UsageError."""
    from mqtrail.answers.otel import Collector

    named = endpoint or os.environ.get(TRACES_ENDPOINT)
    if not named and (base := os.environ.get(ENDPOINT)):
        named = base.rstrip("/") + "/v1/traces"  # this variable is the base of all signals
    if not named:
        raise UsageError(f"found no --endpoint and no {ENDPOINT}, expected the collector's URL, http://HOST:4318")
    try:
        return Collector(named, _headers(os.environ.get(TRACES_HEADERS) or os.environ.get(HEADERS) or ""))
    except ValueError as error:
        raise UsageError(f"--endpoint: {error}") from None


def _headers(text: str) -> dict[str, str]:
    """Return the headers of `name=value,name=value`, values percent-encoded. Errors do not show them."""
    from urllib.parse import unquote

    found: dict[str, str] = {}
    for number, part in enumerate(text.split(",") if text.strip() else (), 1):
        name, equals, value = part.partition("=")
        if not equals or not name.strip() or not value.isprintable():
            raise UsageError(f"{HEADERS}: found no name=value in part {number}, expected name=value,name=value")
        found[name.strip()] = unquote(value.strip())
    return found


def _names(text: str | None) -> SpanNames:
    """Return the choice of --names, or of OpenTelemetry's variable: `messaging` new, `messaging/dup` both."""
    from mqtrail.answers.otel import SpanNames

    if text is not None:
        try:
            return SpanNames(text)
        except ValueError:
            raise UsageError(f"--names: found {text!r}, expected old, new or both") from None
    opted = {one.strip() for one in os.environ.get(OPT_IN, "").split(",")}
    if "messaging/dup" in opted:
        return SpanNames.BOTH
    return SpanNames.NEW if "messaging" in opted else SpanNames.OLD


def _report(done: ExportedSpans, url: str, *, follow: bool, json: bool) -> None:
    if follow and not done.message_count:
        return
    if json:
        show_json(
            {
                "messages": done.message_count,
                "spans": done.span_count,
                "as_of": done.as_of_ms,
                "is_whole": done.is_whole,
                "url": url,
            }
        )
    else:
        say(f"exported {done.message_count} messages as {done.span_count} spans to {url}")
