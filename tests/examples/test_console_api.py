"""The typed client is that of the API's description, and the example prints what the API answers."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest
from scripts.api_client import TARGET, generated

from mqtrail.answers import Sources
from mqtrail.answers.http import make_api
from tests.answers.lakes import id_of, make_lake, rows_of
from tests.answers.serving import serving

main, client = (importlib.import_module(f"examples.console_api.{name}") for name in ("__main__", "client"))


def test_the_client_is_made_from_the_description() -> None:
    """After a change of the API: run scripts/api_client.py."""
    assert ast.dump(ast.parse(TARGET.read_text("utf-8"))) == ast.dump(ast.parse(generated()))


def test_the_example_asks_a_console(tmp_path: Path) -> None:
    make_lake(tmp_path / "lake", rows_of(["hung", "send ok"]))
    with serving(make_api(Sources.open(tmp_path / "lake", ""))) as url, client.ConsoleApi(url) as api:
        found = api.search(q="verdict:HUNG")
        assert [one["msg_id"] for one in found["trajectories"]] == [id_of("hung")]
        assert main.report(api)[-1].startswith("lag: found no cluster")
        with pytest.raises(client.ApiError, match=r"HTTP 422: .*expected one of") as raised:
            api.search(q="verdict:GONE")
        assert raised.value.status == 422
