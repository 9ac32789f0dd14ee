"""The cells of the example notebook that use pandas, over a lake of histories."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.answers.lakes import NAMES


@pytest.mark.slow
def test_cells_of_pandas(lake_path: Path) -> None:
    """Codes, times of handlers and lag are those of the views, and NULL stays unknown."""
    notebook = importlib.import_module("examples.lake_notebook")
    lake = str(lake_path)
    found = notebook.codes(lake).set_index("code")["messages"]
    assert found["COMPLETE"] + found["INCOMPLETE"] == len(NAMES)
    assert notebook.handlers(lake).loc["CG", "median"] == 10
    assert set(notebook.lags(lake)["unknown_queues"]) <= {0, 1}
    unknown = notebook.query(lake, "SELECT acked_at FROM messages WHERE list_contains(send_codes, 'SEND_FAILED')")
    assert unknown["acked_at"].isna().all()
