"""The broker's tables on disk: `config/<name>` as JSON, the previous content as `config/<name>.bak`.

A table is saved in one of three ways:

    save(name, value)           at once: it is durable when the call returns
    change(name, …, undo)       collected: the change has a number, and is durable when `settled` has reached it
    note(name, …)               collected too, and retried until it succeeds: no reply waits for it

One save writes all collected changes. The node calls `begin_save`, runs the returned function in any thread, and calls
`end_save`; until then a reply that depends on a change waits (`Send.after_tables`). A store that does not gather saves
each change at once.

Source: ConfigManager, apache/rocketmq common/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from mqtrail.wire import BodyError, Send, SystemBusy, dumps_fastjson, loads_file

from .disk import Disk
from .errors import StoreError

FOLDER = "config"
FOLLOW_UPS_A_SLICE: Final = 500  # of a finished save; each may write a slot of a file
UNDONE_A_SLICE: Final = 500  # changes of a failed save

Table = TypeVar("Table")

Document = Callable[[], Callable[[], bytes]]
"""Captures the current state of a table; returns a function that encodes it for the file, in any thread."""


class ConfigFileStore:
    """Loads and saves JSON documents whole. A crash leaves the old or the new one, and the previous one as .bak.

    settled: changes up to this number are durable, or were undone because a save failed. dependency: the last pending
    change that the current answer depends on; 0: none.
    """

    def __init__(self, disk: Disk, *, gathers: bool = False) -> None:
        self._disk = disk
        self._gathers = gathers
        self._good: dict[str, int] = {}  # files that were read or written whole, and their sizes: the next .bak
        self._readers: dict[str, Callable[[dict[str, Any]], Any]] = {}  # of the files loaded
        self._changed: dict[str, Document] = {}
        self._undos: list[tuple[int, str, Document, Callable[[], None]]] = []
        self._number = 0  # of the last change
        self._follow_ups: list[tuple[int, Callable[[], None]]] = []
        self._saving = 0  # the last change of the running save
        self._is_undoing = False  # changes of a failed save
        self._under_way: dict[str, Document] = {}  # the tables that it writes
        self.settled = 0
        self.dependency = 0
        self.report: list[str] = []  # for the operator: files found damaged and read from their .bak

    def load(self, name: str) -> dict[str, Any] | None:
        """Return the document as `load_as` does, of any content."""
        return self.load_as(name, dict)

    def load_as(self, name: str, read: Callable[[dict[str, Any]], Table]) -> Table | None:
        """Return the document, or its .bak if it is absent or unreadable; None: there is neither.

        read: converts it; BodyError or ValueError: it is another document. An empty file counts as damaged, and so does
        `{}` in the place of a table, since every save writes the whole document.
        StoreError: one of them exists and neither can be read.
        """
        path = f"{FOLDER}/{name}"
        self._readers[path] = read
        failures = []
        for place in (path, f"{path}.bak"):
            data = self._disk.read(place)
            if data is None:
                continue
            try:
                found = read(_document(data))
            except (BodyError, ValueError) as error:
                failures.append(f"{place}: {error}")
                continue
            if place == path:
                self._good[path] = len(data)
            else:
                why = failures[0] if failures else f"{path}: found no file"
                self.report.append(f"{why}: using {place}, the state before the last save")
            return found
        if failures:
            raise StoreError(
                f"cannot read {'; '.join(failures)}; repair one of them by hand, or remove both to start "
                "without their content"
            )
        return None

    def save(self, name: str, value: Mapping[Any, Any]) -> None:
        """Replace the document, and keep the previous one as .bak."""
        self._write(name, dumps_fastjson(dict(value)))

    def _write(self, name: str, data: bytes) -> None:
        path = f"{FOLDER}/{name}"
        if self._is_good(path):
            self._disk.keep(path, f"{path}.bak")
        self._disk.replace(path, data)
        self._good[path] = len(data)

    def _is_good(self, path: str) -> bool:
        """Whether a file may become the .bak: a damaged file must not replace a good .bak."""
        size = self._disk.size(path)
        if size is None or size == self._good.get(path):
            return size is not None
        before = self._disk.read(path)
        return before is not None and self._is_readable(path, before)

    def _is_readable(self, path: str, data: bytes) -> bool:
        try:
            self._readers.get(path, dict)(_document(data))
        except (BodyError, ValueError):
            return False
        return True

    # -- changes that are saved together

    def change(self, name: str, document: Document, undo: Callable[[], None]) -> int:
        """Note that a table has changed; return the change's number. undo: restores the table if saving fails.

        A change takes effect only when a restart cannot lose it: messages could depend on it.
        A store that does not gather makes the change durable before this returns, or undoes it and raises the error.
        SystemBusy: changes of a failed save are being undone; this one is undone too.
        """
        if self._is_undoing:
            undo()
            raise SystemBusy("found tables that could not be saved, expected a working disk: free space on it")
        self._number += 1
        self._changed[name] = document
        self._undos.append((self._number, name, document, undo))
        self.dependency = self._number
        if not self._gathers:
            job = self.begin_save()
            assert job is not None
            try:
                job()
            except Exception:
                self.end_save(failed=True)
                raise
            self.end_save()
        return self._number

    def note(self, name: str, document: Document) -> None:
        """Save a changed table that no answer depends on: files are written in the order of these calls.

        A store that does not gather makes it durable before this returns.
        """
        if not self._gathers:
            self._write(name, document()())
            return
        self._changed.pop(name, None)
        self._changed[name] = document

    def after(self, number: int, act: Callable[[], None]) -> None:
        """Call act once a change is durable, before any answer that depends on it is sent; not if it is undone."""
        if number <= self.settled:
            act()
        else:
            self._follow_ups.append((number, act))

    def depend_on(self, number: int) -> None:
        """Note that the current answer depends on a change."""
        if number > self.settled:
            self.dependency = max(self.dependency, number)

    def after_tables(self, sends: list[Send]) -> list[Send]:
        """Return sends that wait until the changes that they depend on are durable."""
        if self.dependency <= self.settled:
            return sends
        return [replace(send, after_tables=self.dependency) for send in sends]

    def begin_save(self) -> Callable[[], None] | None:
        """Note the changed tables; return a function that saves them, in any thread. None: nothing has changed.

        One save at a time: `end_save` comes first.
        """
        if not self._changed:
            return None
        documents = {name: document() for name, document in self._changed.items()}
        self._under_way = self._changed
        self._changed = {}
        self._saving = self._number

        def write() -> None:
            for name, document in documents.items():
                self._write(name, document())

        return write

    def finish(self) -> None:
        """Save all changes before this returns: no later save follows."""
        job = self.begin_save()
        if job is not None:
            job()
            self.end_save()

    def end_save(self, *, failed: bool = False) -> None:
        """Run all slices of `end_save_in_slices` at once."""
        for _ in self.end_save_in_slices(failed=failed):
            pass

    def end_save_in_slices(self, *, failed: bool = False) -> Iterator[None]:
        """Note the result of the save, and call the functions given to `after`; the first error is raised at the end.

        It yields now and then: the deletion of a topic that thousands of groups popped causes a call for each of their
        retry topics. The changes are settled after the last call.

        failed: every change that is not durable is undone, the last one first. Until then no change is accepted.

        Undone and noted tables are saved again with the next save: the failed one may have reached the disk.
        """
        under_way, self._under_way = self._under_way, {}
        if failed:
            yield from self._undo(under_way)
            return
        self._undos = [entry for entry in self._undos if entry[0] > self._saving]
        try:
            yield from self._follow_up()
        finally:
            self.settled = max(self.settled, self._saving)

    def _undo(self, under_way: dict[str, Document]) -> Iterator[None]:
        self._changed = under_way | self._changed
        self._follow_ups.clear()
        undos, self._undos = self._undos, []
        self._is_undoing = True
        try:
            for count, (_, name, document, undo) in enumerate(reversed(undos), 1):
                undo()
                self._changed[name] = document
                if count % UNDONE_A_SLICE == 0:
                    yield
        finally:
            self._is_undoing = False
            self.settled = self._number

    def _follow_up(self) -> Iterator[None]:
        """Call in slices the functions that waited for changes that are durable now, then raise the first error."""
        errors: list[Exception] = []
        due = [act for number, act in self._follow_ups if number <= self._saving]
        self._follow_ups = [entry for entry in self._follow_ups if entry[0] > self._saving]
        for count, act in enumerate(due, 1):
            try:
                act()
            except Exception as error:
                errors.append(error)
            if count % FOLLOW_UPS_A_SLICE == 0:
                yield
        if errors:
            raise errors[0]


def _document(data: bytes) -> dict[str, Any]:
    """Return the JSON object that a file contains. BodyError, ValueError: there is none."""
    if not data.strip():
        raise ValueError(f"found {len(data)} bytes without content, expected a JSON object")
    document = loads_file(data)
    if not isinstance(document, dict):
        raise ValueError(f"found a {type(document).__name__}, expected a JSON object")
    return document
