"""The MCP server: its tools answer as `answers` do, say what they lack, and change nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client, StdioServerParameters

from mqtrail.answers import Answers, Sources, as_json
from mqtrail.answers.mcp import (
    ROWS_MAX,
    TEXT_MAX,
    TEXTS_MAX,
    McpClusters,
    NamedSources,
    bounded,
    make_mcp,
    make_mcp_app,
)
from mqtrail.gateway.guard import BODY_SIZE_MAX
from tests.answers.conftest import Shop
from tests.answers.lakes import id_of, key_of, make_lake, rows_of
from tests.answers.serving import serving

TOOLS = {"trace", "search", "report", "lag", "incidents", "prove", "doctor", "clusters"}
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
        assert "found no cluster 'gone'" in await refused(client, "prove", lake_cluster="gone")
        assert "expected none: this server has one cluster" in await refused(client, "prove", cluster="gone")
        assert "\\x1b\\ufe0f" in await refused(client, "search", query="verdict:\x1b\ufe0f")
        assert len(await refused(client, "search", query="verdict:" + "\u3164" * 990)) < 7 * TEXT_MAX


def named(name: str, lake: Path | None, namesrv: str = "") -> NamedSources:
    return NamedSources(name, f"Shop, {name}", Sources.open(lake, namesrv, name=name))


async def test_several_clusters(lake_path: Path, tmp_path: Path) -> None:
    """A tool asks the cluster that it is given, and never chooses one; `clusters` lists them, also one that is down."""
    rows = rows_of(["hung", "send ok"])
    make_lake(tmp_path / "west", rows)
    west, south = named("west", tmp_path / "west"), named("south", None, "127.0.0.1:1")
    async with Client(make_mcp(McpClusters([named("east", lake_path), west, south]))) as client:
        listed = await called(client, "clusters")
        assert [list(one.values()) for one in listed["clusters"]] == [
            ["east", "Shop, east", True, False],
            ["west", "Shop, west", True, False],
            ["south", "Shop, south", False, True],
        ]
        assert (await called(client, "report", cluster="east"))["message_count"] == 12
        assert (await called(client, "report", cluster="west"))["message_count"] == 2
        for name in TOOLS - {"clusters"}:
            arguments = {"id": key_of("hung")} if name == "trace" else {}
            words = await refused(client, name, **arguments)
            assert "found no cluster, expected `cluster` to be one of 'east', 'west', 'south'" in words, name
        assert "found the cluster 'gone', expected one of 'east'," in await refused(client, "lag", cluster="gone")
        assert "set `lake` of 'south' in the file of `--clusters`" in await refused(client, "report", cluster="south")


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


def of_process(*options: str) -> StdioServerParameters:
    return StdioServerParameters(
        command=sys.executable, args=["-m", "mqtrail", "mcp", *options], env=dict(os.environ), cwd=os.getcwd()
    )


@pytest.mark.slow
async def test_several_clusters_over_stdio_and_http(lake_path: Path, tmp_path: Path) -> None:
    """`mqtrail mcp --clusters FILE` reads the file of the console."""
    file = tmp_path / "clusters.toml"
    text = f'[[clusters]]\nname = "east"\nlake = "{lake_path}"\n[[clusters]]\nname = "south"\nnamesrv = "127.0.0.1:1"\n'
    file.write_text(text, "utf-8")
    async with Client(of_process("--clusters", str(file)), read_timeout_seconds=ANSWER_S) as client:
        assert [one["name"] for one in (await called(client, "clusters"))["clusters"]] == ["east", "south"]
        assert (await called(client, "report", cluster="east"))["message_count"] == 12
    command = [sys.executable, "-m", "mqtrail", "mcp", "--http", "--port", "0", "--clusters", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://[0-9.:]+/mcp", process.stdout.readline())
            assert found is not None
            async with Client(found[0], read_timeout_seconds=ANSWER_S) as client:
                assert (await called(client, "report", cluster="east"))["message_count"] == 12
        finally:
            process.kill()


@pytest.mark.slow
async def test_over_stdio_as_a_process(lake_path: Path) -> None:
    """`mqtrail mcp` speaks on its standard input and output, and nothing else is printed there."""
    command = of_process("--lake", str(lake_path))
    async with Client(command, read_timeout_seconds=ANSWER_S) as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == TOOLS
        found = await called(client, "trace", id=key_of("hung"))
        assert found["status"] == "FOUND"
        assert "found no cluster" in await refused(client, "doctor")
