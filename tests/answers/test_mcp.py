"""The MCP server: its tools answer as `answers` do, say what they lack, and change nothing."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client, StdioServerParameters

from mqtrail.answers import Answers, Sources, as_json
from mqtrail.answers.mcp import ROWS_MAX, TEXT_MAX, TEXTS_MAX, bounded, make_mcp, make_mcp_app
from mqtrail.gateway.guard import BODY_SIZE_MAX
from tests.answers.conftest import Shop
from tests.answers.lakes import id_of, key_of
from tests.answers.serving import serving

TOOLS = {"trace", "search", "report", "lag", "incidents", "prove", "doctor"}
ANSWER_S = 60.0


async def called(client: Client, name: str, **arguments: Any) -> Any:
    """Return the value of a tool, which is in its text too."""
    found = await client.call_tool(name, arguments)
    assert not found.is_error, found.content
    [words] = found.content
    assert words.type == "text"
    assert json.loads(words.text) == found.structured_content
    return found.structured_content


async def refused(client: Client, name: str, **arguments: Any) -> str:
    """Return why a tool has no answer."""
    found = await client.call_tool(name, arguments)
    assert found.is_error
    [words] = found.content
    assert words.type == "text"
    return words.text


async def test_tools_answer_with_their_bounds(lake_path: Path, shop: Shop) -> None:
    """Each is read-only, and each answer has its sources, its time and what was left out."""
    arguments = {"trace": {"id": id_of("hung")}}
    async with Client(make_mcp(Sources.open(lake_path, shop.namesrv))) as client:
        tools = (await client.list_tools()).tools
        assert {tool.name for tool in tools} == TOOLS
        for tool in tools:
            assert tool.annotations is not None
            assert tool.annotations.read_only_hint, tool.name
            scope = (await called(client, tool.name, **arguments.get(tool.name, {})))["scope"]
            assert scope["as_of_ms"] > 0, tool.name
            assert {"sources", "omissions", "first_ms", "end_ms"} <= set(scope), tool.name


async def test_a_tool_answers_as_the_command(lake_path: Path) -> None:
    """The value of `trace` is that of `mqtrail trace --json`; `search` takes the conditions of the console."""
    async with Client(make_mcp(Sources.open(lake_path, ""))) as client:
        expected = as_json(Answers(lake_path).trace(key_of("hung"), 0))
        assert await called(client, "trace", id=key_of("hung")) == json.loads(json.dumps(expected))
        found = await called(client, "search", query="verdict:HUNG")
        assert [one["msg_id"] for one in found["trajectories"]] == [id_of("hung")]
        assert any("gap" in one for one in found["scope"]["omissions"])


async def test_a_tool_says_why_it_has_no_answer(lake_path: Path) -> None:
    """An agent sees what was found and what is expected, and no traceback."""
    async with Client(make_mcp(Sources.open(lake_path, ""))) as client:
        assert "found no cluster: start this program with --namesrv" in await refused(client, "lag")
        assert "found 'GONE', expected one of" in await refused(client, "search", query="verdict:GONE")
        assert "found 'soon', expected" in await refused(client, "report", since="soon")
        assert "less than or equal to 100" in await refused(client, "search", limit=ROWS_MAX + 1)
        assert "found no cluster 'gone'" in await refused(client, "prove", cluster="gone")
        assert "\\x1b\\ufe0f" in await refused(client, "search", query="verdict:\x1b\ufe0f")
        assert len(await refused(client, "search", query="verdict:" + "\u3164" * 990)) < 7 * TEXT_MAX


def test_answers_are_bounded_and_say_so() -> None:
    """Long lists, tables and texts are cut; invisible characters of messages are escapes."""
    whole = {
        "scope": {"omissions": ("a gap",)},
        "rows": tuple(range(ROWS_MAX + 1)),
        "by_name": {str(number): number for number in range(ROWS_MAX + 2)},
        "text": "x" * (TEXT_MAX + 3),
        "key": "\u202egnp.exe",
    }
    found = bounded(whole)
    assert found["scope"]["omissions"] == [
        "a gap",
        f"rows: the first {ROWS_MAX} of {ROWS_MAX + 1} are in this answer",
        f"by_name: {ROWS_MAX} of {ROWS_MAX + 2} entries are in this answer",
        f"text: the first {TEXT_MAX} of {TEXT_MAX + 3} characters are in this answer",
    ]
    assert len(found["rows"]) == len(found["by_name"]) == ROWS_MAX
    assert len(found["text"]) == TEXT_MAX
    assert found["key"] == "\\u202egnp.exe"


def test_all_texts_of_an_answer_are_bounded_together() -> None:
    """Messages of one key, each with large properties and long names of them: escapes count as they are shown."""
    properties = {f"{number}\u202e" * 400: "\x1b" * TEXT_MAX for number in range(8)}
    found = bounded({"scope": {"omissions": ()}, "messages": [{"properties": properties}] * ROWS_MAX})
    shown = json.dumps(found["messages"], ensure_ascii=False)
    assert TEXTS_MAX / 2 < len(shown) < TEXTS_MAX * 1.5
    assert all(list(one) == ["properties"] for one in found["messages"])
    last = found["scope"]["omissions"][-1]
    assert last == f"messages: the first {len(found['messages'])} of {ROWS_MAX} are in this answer"
    assert max(map(len, found["scope"]["omissions"])) < TEXT_MAX
    assert not {"\x1b", "\u202e"} & set(json.dumps(found, ensure_ascii=False))


async def test_over_http_for_this_machine_alone(lake_path: Path) -> None:
    """The same tools; a page of another site, a name that resolves to this machine, or a large body is refused."""
    with serving(make_mcp_app(Sources.open(lake_path, ""), "127.0.0.1")) as url:
        async with Client(f"{url}/mcp", read_timeout_seconds=ANSWER_S) as client:
            assert (await called(client, "report"))["message_count"] == 12
        for headers in ({"host": "evil.example:80"}, {"origin": "http://evil.example"}):
            answer = httpx.post(f"{url}/mcp", json={}, headers=headers, timeout=ANSWER_S)
            assert answer.status_code in (403, 421), headers
        large = httpx.post(f"{url}/mcp", content=bytes(BODY_SIZE_MAX + 1), timeout=ANSWER_S)
        assert (large.status_code, "expected at most" in large.text) == (413, True)


@pytest.mark.slow
async def test_over_stdio_as_a_process(lake_path: Path) -> None:
    """`mqtrail mcp` speaks on its standard input and output, and nothing else is printed there."""
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "mqtrail", "mcp", "--lake", str(lake_path)], env=dict(os.environ)
    )
    async with Client(command, read_timeout_seconds=ANSWER_S) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == TOOLS
        found = await called(client, "trace", id=key_of("hung"))
        assert found["status"] == "FOUND"
        assert "found no cluster" in await refused(client, "doctor")
