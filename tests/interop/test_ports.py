"""Ports of servers that run at once never collide. Needs no Java."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import pytest
from interop.jars import InteropError

from interop import apache


@pytest.fixture
def busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[set[int]]:
    """Ports 1000 to 1011, three blocks, with separate locks; yields the set of used ports."""
    busy: set[int] = set()
    held: list[IO[str]] = []
    monkeypatch.setattr(apache, "PORT_FIRST", 1_000)
    monkeypatch.setattr(apache, "PORT_END", 1_012)
    monkeypatch.setattr(apache, "_PORT_LOCKS", tmp_path / "locks")
    monkeypatch.setattr(apache, "_held_locks", held)
    monkeypatch.setattr(apache, "_is_free", lambda port: port not in busy)
    with ExitStack() as locks:
        yield busy
        for lock in held:
            locks.enter_context(lock)


def test_a_port_is_handed_out_once(busy: set[int]) -> None:
    """No server listens yet, so only the locks keep others away; the error names the lack of free ports."""
    assert sorted(apache.free_port() for _ in range(3)) == [1_002, 1_006, 1_010]
    with pytest.raises(InteropError, match=r"no free ports between .* end other servers"):
        apache.free_port()


def test_a_port_in_use_is_left_alone(busy: set[int]) -> None:
    """A block is skipped if a server without a lock listens on one of its ports."""
    busy.add(1_000)
    assert sorted(apache.free_port() for _ in range(2)) == [1_006, 1_010]


def test_a_listener_is_seen() -> None:
    """A port is not free while a server listens there."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        assert not apache._is_free(listener.getsockname()[1])
