"""Commit marks: the checksum of each commit of a table's Delta log, kept beside the tables.

    <lake>/_marks/<table>.json      {"commits": {"7": 2774563010, "8": 331940185}}     version -> CRC-32 of its file

A Delta log does not show that its last commits are missing: without them it is the log of an earlier version. Readers
of Delta also accept a commit with other content, because they ignore unknown entries. The mark reveals both.

It is written after the commit. So a crash can leave a mark behind its log, which the next commit corrects, but never
one ahead of it. For the same reason a reader reads the mark before the log. A lake without marks (written by an earlier
version) is read unchecked.

A log that goes on behind its mark may also have commits of another lake, if a lake was copied over a longer one. So
each commit has the checksum of the one before it in its commitInfo. It is compared for commits that no mark covers.

An object store keeps checksums itself, and reading every commit again would take a request each: there a mark has the
last version alone, with null for its checksum, and the id of its commit. Each commit there names the one before it by
its id instead.
"""

from __future__ import annotations

import json
import zlib
from contextlib import suppress

from .errors import LakeDamaged
from .places import LakePath, is_remote, write_whole

MARKS = "_marks"
COMMITS_MAX = 200
"""Commits that a mark keeps: those since the last checkpoint of the log, of which delta-rs makes one every 100."""


PREVIOUS_KEY = "mqtrail.previous"
"""CRC-32 of the commit before, in a commit's commitInfo."""
COMMIT_KEY = "mqtrail.commit"
"""In an object store: the random id of a commit, in its commitInfo."""
PREVIOUS_ID_KEY = "mqtrail.previous_commit"
"""In an object store: the id of the commit before."""


class CommitMark:
    """The mark of one table, as last read or written. commits: version -> CRC-32 of the commit's file, or None.

    commit_id: in an object store that of the last version; '': unknown.
    """

    def __init__(self, table: LakePath) -> None:
        self._log = table / "_delta_log"
        self._file = table.parent / MARKS / f"{table.name}.json"
        self.commits: dict[int, int | None] = {}
        self.commit_id = ""

    @property
    def exists(self) -> bool:
        """Whether the table has a mark."""
        return self._file.exists()

    @property
    def version(self) -> int:
        """The last version that was marked; -1: none."""
        return max(self.commits, default=-1)

    def read(self) -> None:
        """Read the file again. LakeDamaged: it is not a mark. OSError."""
        try:
            text = self._file.read_bytes()
        except FileNotFoundError:
            self.commits, self.commit_id = {}, ""
            return
        try:
            found = json.loads(text)
            self.commits = {
                int(version): None if crc is None else int(crc) for version, crc in found["commits"].items()
            }
            self.commit_id = str(found.get("id", ""))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            raise LakeDamaged(
                f"{self._file}: found no commit mark, expected JSON with 'commits': restore the lake from a copy, or "
                "remove this file if the table beside it is known to be complete"
            ) from None

    def write(self, version: int, commit_id: str) -> None:
        """Mark the log up to `version`, which was just committed. commit_id: what `commit_info` had. OSError."""
        if is_remote(self._file):
            self.commits, self.commit_id = {version: None}, commit_id
        else:
            self._add(version)
        made = {"commits": self.commits} | ({"id": self.commit_id} if self.commit_id else {})
        self._file.parent.mkdir(exist_ok=True)
        write_whole(self._file, json.dumps(made).encode(), is_durable=True)

    def _add(self, version: int) -> None:
        checkpoint = self._checkpoint()
        first = max(self.version, checkpoint, version - COMMITS_MAX) + 1
        marked = self.commits | {one: self._crc(one) for one in range(min(first, version), version + 1)}
        kept = {one: crc for one, crc in marked.items() if one == version or one > checkpoint}
        self.commits = dict(sorted(kept.items())[-COMMITS_MAX:])

    def commit_info(self, version: int, commit_id: str) -> dict[str, str]:
        """What the commit after `version` has in its commitInfo. commit_id: its random id. OSError."""
        if is_remote(self._file):
            before = self._id(version) if self.commits else ""
            return {COMMIT_KEY: commit_id} | ({PREVIOUS_ID_KEY: before} if before else {})
        with suppress(FileNotFoundError):
            crc = self.commits.get(version)
            return {PREVIOUS_KEY: str(self._crc(version) if crc is None else crc)}
        return {}

    def problems(self, version: int, after: int = -1) -> dict[str, str]:
        """Compare a log that was read up to `version` with the mark: commit file -> found and expected. OSError.

        after: commits up to this version were compared before. A commit missing inside the log is not a problem: the
        log could be read without it, so a checkpoint contains it.
        """
        found: dict[str, str] = {}
        for one, crc in self.commits.items():
            if one > version:
                found[self._name(one)] = f"found no such commit (the log ends at version {version}), expected it"
            elif one > after and crc is not None:
                with suppress(FileNotFoundError):
                    if self._crc(one) != crc:
                        found[self._name(one)] = (
                            f"found a file that was changed after its commit, expected CRC-32 {crc}"
                        )
        for one in range(max(self.version, after) + 1, version + 1):
            if self.commits and not self._follows(one):
                found[self._name(one)] = (
                    "found a commit that does not follow the one before it, so it belongs to another lake, "
                    "expected the commits of one lake"
                )
        return found

    def _follows(self, version: int) -> bool:
        """Whether a commit was made after the one before it; True: unknown."""
        if is_remote(self._file):
            noted, before = self._noted(version, PREVIOUS_ID_KEY), self._id(version - 1)
            return not noted or not before or noted == before
        with suppress(FileNotFoundError):
            noted = self._noted(version, PREVIOUS_KEY)
            return not noted or noted == str(self._crc(version - 1))
        return True

    def _id(self, version: int) -> str:
        """The id of a commit in an object store; '': unknown."""
        return self.commit_id if version == self.version else self._noted(version, COMMIT_KEY)

    def _noted(self, version: int, key: str) -> str:
        """What a commit has under a key of its commitInfo; '': nothing, or a checkpoint replaced the commit."""
        with suppress(FileNotFoundError):
            for line in (self._log / self._name(version)).read_bytes().splitlines():
                if noted := json.loads(line).get("commitInfo", {}).get(key):
                    return str(noted)
        return ""

    def _checkpoint(self) -> int:
        """The version up to which a checkpoint replaces the commits; -1: none."""
        try:
            return int(json.loads((self._log / "_last_checkpoint").read_bytes())["version"])
        except (FileNotFoundError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return -1

    def _crc(self, version: int) -> int:
        return zlib.crc32((self._log / self._name(version)).read_bytes())

    @staticmethod
    def _name(version: int) -> str:
        return f"{version:020}.json"
