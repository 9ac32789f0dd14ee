"""Every command of mqadmin 5.3.3 for a master and a name server, typed at both: what it prints and how it fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from interop.commands import COMMANDS, GROUP, PRODUCER, TOPIC, How, missing, told
from interop.driver import Json
from interop.stage import Part, Stage, wait_for

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]


def typed(part: Part) -> Json:
    """Type every command; return what of each output is to be alike."""
    places = prepare(part)
    return {
        str(number): part.mq(*command.arguments(places)).replace(places["folder"], "<folder>")
        for number, command in enumerate(COMMANDS)
    }


def prepare(part: Part) -> dict[str, str]:
    """Have a producer and a consumer at work, an offset committed, and files that commands read."""
    part.make_topic(TOPIC)
    part.producer("p", group=PRODUCER)
    # all alike, for which queue the client begins with is its own choice
    first = part.send("p", [{"topic": TOPIC, "body": "one", "keys": "key-a", "tags": "A"}] * 8)[0]
    client = part.consumer("c", group=GROUP, topics={TOPIC: "*"})["clientId"]
    part.wait_handled(8, "c")
    folder = Path(part.mqadmin.folder)
    topics = [{"topicName": f"CommandListed{i}", "readQueueNums": 2, "writeQueueNums": 2} for i in range(2)]
    (folder / "topics.json").write_text(json.dumps(topics))
    (folder / "groups.json").write_text(json.dumps([{"groupName": f"CommandListedGroup{i}"} for i in range(2)]))
    wait_for(lambda: part.has_offsets(TOPIC, GROUP), f"offsets on {part.kind}", 40, 0.5)
    return {
        "broker": part.server.broker_address,
        "folder": str(folder),
        "offset_id": first["offsetMsgId"],
        "unique": first["msgId"],
        "client": client,
    }


@pytest.fixture(scope="module")
def outputs(stage: Stage) -> tuple[Json, Json]:
    """What every command printed, on ours and on Apache's."""
    return stage.play(typed, "5.3.3-json")


def test_every_command_is_here(stage: Stage) -> None:
    """What mqadmin's own help lists is run, or left out for a reason."""
    assert missing(stage.help()) == []


@pytest.mark.parametrize("number", range(len(COMMANDS)), ids=[command.line for command in COMMANDS])
def test_command(outputs: tuple[Json, Json], number: int) -> None:
    """Both servers make mqadmin print the same, or fail in the same way."""
    ours, apache = (output[str(number)] for output in outputs)
    how = COMMANDS[number].how
    if how is How.REFUSED:
        assert "CODE: 3 " in ours
        return
    assert told(ours, how) == told(apache, how), f"{ours}\n--- Apache:\n{apache}"
    assert how is not How.SOME or "Exception" not in ours
