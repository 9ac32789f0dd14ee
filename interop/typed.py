"""Runs every command of mqadmin on a server after some traffic; returns the outputs.

stage.play(typed(COMMANDS), "5.3.3-json")
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from interop.commands import GROUP, PRODUCER, TOPIC, TRACED, Command
from interop.driver import Json
from interop.probe import request
from interop.stage import QUERY_CONSUMER_OFFSET, Part, wait_for
from interop.story import TRACE_TOPIC

SENT = 8


def typed(commands: Sequence[Command]) -> Callable[[Part], Json]:
    """Return a scene that runs every command and returns its output by number."""

    def scene(part: Part) -> Json:
        places = prepare(part)
        printed = (_type(part, command, places) for command in commands)
        return {str(number): text.replace(places["folder"], "<folder>") for number, text in enumerate(printed)}

    return scene


def prepare(part: Part) -> dict[str, str]:
    """Start a producer and a consumer; create a committed offset, a trace, and files for the commands."""
    part.make_topic(TOPIC)
    part.producer("p", group=PRODUCER)
    # all messages are equal, because the client chooses its first queue freely
    first = part.send("p", [{"topic": TOPIC, "body": "one", "keys": "key-a", "tags": "A"}] * SENT)[0]
    client = part.consumer("c", group=GROUP, topics={TOPIC: "*"})["clientId"]
    part.producer("t", group=f"{PRODUCER}Traced", trace=True)
    traced = part.send("t", [{"topic": TRACED, "body": "one", "keys": "key-t", "tags": "T"}])[0]
    part.wait_handled(SENT, "c")
    folder = Path(part.mqadmin.folder)
    topics = [{"topicName": f"CommandListed{i}", "readQueueNums": 2, "writeQueueNums": 2} for i in range(2)]
    (folder / "topics.json").write_text(json.dumps(topics))
    (folder / "groups.json").write_text(json.dumps([{"groupName": f"CommandListedGroup{i}"} for i in range(2)]))
    wait_for(lambda: _committed(part) == SENT, f"offsets on {part.kind}", 120, 0.5)
    wait_for(lambda: bool(part.query("p", TRACE_TOPIC, traced["msgId"])), f"the trace on {part.kind}", 120, 0.5)
    return {
        "broker": part.server.broker_address,
        "folder": str(folder),
        "offset_id": first["offsetMsgId"],
        "nowhere": f"{first['offsetMsgId'][:16]}{1 << 40:016X}",
        "unique": first["msgId"],
        "traced": traced["msgId"],
        "client": client,
    }


def _type(part: Part, command: Command, places: dict[str, str]) -> str:
    arguments = command.arguments(places)
    if command.until:
        return part.mqadmin.watch(*arguments, until=command.until).partition(command.until)[0]
    if not command.again:
        return with_file(part.mq(*arguments))
    printed: list[str] = []

    def shown() -> bool:
        printed.append(part.mq(*arguments))
        return re.search(command.shows, printed[-1]) is not None

    wait_for(shown, f"{command.line} shows {command.shows} on {part.kind}", 120)
    return printed[-1]


def with_file(output: str) -> str:
    """Return the output and, if it names an exported file, the file's values, one per line."""
    exported = re.search(r"^export (\S+\.json) success", output)
    return (
        output if exported is None else "\n".join([output, *sorted(_values(json.loads(Path(exported[1]).read_text())))])
    )


def _values(value: Any, path: str = "") -> Iterator[str]:
    match value:
        case dict():
            for name, member in value.items():
                yield from _values(member, f"{path}/{name}")
        case list():
            for member in value:
                yield from _values(member, path)
        case _:
            yield f"{path} = {value}"


def _committed(part: Part) -> int:
    """Sum the group's offsets of the topic, 0 before all exist. A client commits first after ten seconds."""
    places = [(TOPIC, number) for number in range(4)] + [(f"%RETRY%{GROUP}", 0)]
    replies = []
    for topic, number in places:
        place = {"topic": topic, "consumerGroup": GROUP, "queueId": str(number), "setZeroIfNotFound": "false"}
        replies.append(request(part.server.broker_address, QUERY_CONSUMER_OFFSET, place)[0])
    if any(header["code"] != 0 for header in replies):
        return 0
    return sum(int(header["extFields"]["offset"]) for header in replies)
