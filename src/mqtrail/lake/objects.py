"""Objects of an S3 store, with the methods of pathlib.Path that a lake needs.

    s3://bucket/prefix/<table>/…            ObjectPath("bucket", "prefix/<table>/…")

Folders exist only as prefixes of names, so `mkdir` does nothing. Writing an object replaces it as a whole; `create`
writes it only if there is none. Requests are retried, with the bounds below; delta-rs gets the same ones.

Credentials, region and endpoint come from the usual environment variables (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL, AWS_ALLOW_HTTP), a web identity, or the role of the machine. They are
in no other process's arguments, in no file of the lake, and in no message.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import timedelta
from functools import lru_cache, total_ordering
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, ClassVar, Final, cast

from .objectfiles import TAIL_SIZE, ObjectReader, ObjectStat, ObjectTail, ObjectWriter
from .storeerrors import store_errors

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import S3Store

SCHEME: Final = "s3://"
CONNECT_S_MAX: Final = 5
ANSWER_S_MAX: Final = 20  # of one request
RETRIES_MAX: Final = 8
RETRY_S_MAX: Final = 30  # no retry begins later than this after a request's first try
_BACKOFF_MS: Final = (100, 5_000)  # first pause between tries, longest


@total_ordering
class ObjectPath:
    """An object, or all objects whose names begin with a folder's. Methods raise as those of Path do."""

    __slots__ = ("_meta", "bucket", "key")
    is_used: ClassVar[bool] = False
    """Whether this process has made one."""

    def __init__(self, bucket: str, key: str, meta: ObjectMeta | None = None) -> None:
        """meta: of an object that was listed just now."""
        ObjectPath.is_used = True
        self.bucket = bucket
        self.key = key
        self._meta = meta

    @classmethod
    def parse(cls, text: str) -> ObjectPath:
        """Return the path that a URL names. ValueError: it is not s3://bucket/key."""
        bucket, _, key = text.removeprefix(SCHEME).partition("/")
        if not text.startswith(SCHEME) or not re.fullmatch(r"[\w.-]+", bucket):
            raise ValueError(f"{text!r} is not s3://bucket/prefix")
        return cls(bucket, "/".join(part for part in key.split("/") if part))

    # -- names -----------------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        return f"{self.root}/{self.key}"

    def __repr__(self) -> str:
        return f"ObjectPath({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectPath) and (self.bucket, self.key) == (other.bucket, other.key)

    def __lt__(self, other: ObjectPath) -> bool:
        return (self.bucket, self.key) < (other.bucket, other.key)

    def __hash__(self) -> int:
        return hash((self.bucket, self.key))

    def __reduce__(self) -> tuple[type[ObjectPath], tuple[str, str]]:
        """Without what was listed, which may have changed by then."""
        return ObjectPath, (self.bucket, self.key)

    def __truediv__(self, other: object) -> ObjectPath:
        """As with Path, a whole path on the right is the result."""
        if isinstance(other, ObjectPath):
            return other
        text = str(other)
        if text.startswith(SCHEME):
            return ObjectPath.parse(text)
        return ObjectPath(self.bucket, f"{self.key}/{text}" if self.key else text)

    @property
    def root(self) -> str:
        """The URL of its bucket."""
        return f"{SCHEME}{self.bucket}"

    @property
    def name(self) -> str:
        """The last part."""
        return self.key.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The end of the name from its last dot on."""
        return PurePosixPath(self.name).suffix

    @property
    def parent(self) -> ObjectPath:
        """The folder that it is in."""
        return ObjectPath(self.bucket, self.key.rpartition("/")[0])

    def resolve(self) -> ObjectPath:
        """Itself: an object store has no links."""
        return self

    def is_below(self, folder: ObjectPath) -> bool:
        """Whether it is in a folder, at any depth."""
        return self.bucket == folder.bucket and self.key.startswith(f"{folder.key}/")

    def relative_to(self, folder: ObjectPath) -> PurePosixPath:
        """The names below a folder. ValueError: it is elsewhere."""
        return PurePosixPath("/", self.bucket, self.key).relative_to(PurePosixPath("/", folder.bucket, folder.key))

    # -- what there is ---------------------------------------------------------------------------------------------

    @property
    def is_folder(self) -> bool:
        """Of what `iterdir` yields: whether it is a folder."""
        return self._meta is None

    def exists(self) -> bool:
        """Whether it is an object or a folder."""
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        """Whether there is an object."""
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    def is_dir(self) -> bool:
        """Whether there are objects below it."""
        return next(self._listed(chunk_size=1), None) is not None

    def stat(self) -> ObjectStat:
        """Size and time. FileNotFoundError."""
        meta = self._meta
        if meta is None:
            import obstore

            with store_errors(self):
                try:
                    meta = obstore.head(self.store, self.key)
                except obstore.exceptions.NotFoundError:
                    raise
                except obstore.exceptions.BaseError:
                    meta = obstore.get(self.store, self.key).meta  # whose error has a text, unlike that of HEAD
        return ObjectStat(meta["size"], meta["last_modified"].timestamp())

    def iterdir(self) -> Iterator[ObjectPath]:
        """Yield the objects and folders directly below. A folder without objects does not exist and yields nothing."""
        import obstore

        with store_errors(self, is_listing=True):
            found = obstore.list_with_delimiter(self.store, self.key or None)
        for prefix in found["common_prefixes"]:
            yield ObjectPath(self.bucket, str(prefix))
        for meta in found["objects"]:
            yield ObjectPath(self.bucket, meta["path"], meta)

    def rglob(self, pattern: str) -> Iterator[ObjectPath]:
        """Yield all objects below whose last part matches."""
        for found in self._listed():
            if PurePosixPath(found.name).match(pattern):
                yield found

    def glob(self, pattern: str) -> Iterator[ObjectPath]:
        """Yield the objects directly below whose last part matches."""
        for found in self.iterdir():
            if found._meta is not None and PurePosixPath(found.name).match(pattern):
                yield found

    def _listed(self, chunk_size: int = 1_000) -> Iterator[ObjectPath]:
        import obstore

        with store_errors(self, is_listing=True):
            for chunk in obstore.list(self.store, self.key or None, chunk_size=chunk_size):
                for meta in chunk:
                    yield ObjectPath(self.bucket, meta["path"], meta)

    # -- reading and writing ---------------------------------------------------------------------------------------

    def open(self, mode: str) -> BinaryIO:
        """Open for reading (rb) or writing (wb). The object exists once the file is closed."""
        assert mode in ("rb", "wb"), mode
        return cast(BinaryIO, ObjectReader(self, self.tail()) if mode == "rb" else ObjectWriter(self))

    def open_at(self, tail: ObjectTail) -> BinaryIO:
        """Open for reading, where the tail was read before."""
        return cast(BinaryIO, ObjectReader(self, tail))

    def tail(self) -> ObjectTail:
        """Read its end, with one request. FileNotFoundError."""
        import obstore

        with store_errors(self):
            try:
                found = obstore.get(self.store, self.key, options={"range": {"suffix": TAIL_SIZE}})
                meta = found.meta
                stat = ObjectStat(meta["size"], meta["last_modified"].timestamp())
                return ObjectTail(stat, bytes(found.bytes()))
            except obstore.exceptions.BaseError as error:
                # An empty object has no ranges.
                if re.search("416|InvalidRange", str(error)) and (stat := self.stat()).st_size == 0:
                    return ObjectTail(stat, b"")
                raise

    def read_bytes(self) -> bytes:
        """All of it. FileNotFoundError."""
        import obstore

        with store_errors(self):
            return bytes(obstore.get(self.store, self.key).bytes())

    def read_text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """All of it as text."""
        return self.read_bytes().decode(encoding, errors)

    def write_bytes(self, data: bytes) -> int:
        """Replace it as a whole."""
        import obstore

        with store_errors(self):
            obstore.put(self.store, self.key, data)
        return len(data)

    def create(self, data: bytes) -> None:
        """Write it if there is none. FileExistsError."""
        import obstore

        with store_errors(self):
            obstore.put(self.store, self.key, data, mode="create")

    def unlink(self, missing_ok: bool = False) -> None:
        """Delete it. An object that is not there is not an error in an object store, whatever missing_ok is."""
        import obstore

        with store_errors(self):
            obstore.delete(self.store, self.key)

    def remove_tree(self) -> None:
        """Delete all objects below."""
        import obstore

        names = [found.key for found in self._listed()]
        if names:
            with store_errors(self):
                obstore.delete(self.store, names)

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing: folders are parts of names."""

    @property
    def store(self) -> S3Store:
        """The client of its bucket, with this process's connections."""
        return _store_of(self.bucket, os.getpid())


@lru_cache(maxsize=8)
def _store_of(bucket: str, pid: int) -> S3Store:
    """The client of a bucket. pid: connections do not survive a fork."""
    from obstore.store import S3Store

    del pid
    seconds = timedelta(seconds=1)
    first, longest = (timedelta(milliseconds=pause) for pause in _BACKOFF_MS)
    return S3Store(
        bucket,
        conditional_put="etag",  # whatever AWS_CONDITIONAL_PUT says
        client_options={
            "allow_http": _allows_http(),
            "connect_timeout": CONNECT_S_MAX * seconds,
            "timeout": ANSWER_S_MAX * seconds,
        },
        retry_config={
            "max_retries": RETRIES_MAX,
            "retry_timeout": RETRY_S_MAX * seconds,
            "backoff": {"init_backoff": first, "max_backoff": longest, "base": 2},
        },
    )


def delta_options() -> dict[str, str]:
    """The same bounds for delta-rs, and commits by conditional puts. Credentials it takes from the environment too."""
    return {
        "conditional_put": "etag",
        "allow_http": str(_allows_http()).lower(),
        "connect_timeout": f"{CONNECT_S_MAX}s",
        "timeout": f"{ANSWER_S_MAX}s",
        "max_retries": str(RETRIES_MAX),
        "retry_timeout": f"{RETRY_S_MAX}s",
        "backoff_config.init_backoff": f"{_BACKOFF_MS[0]}ms",
        "backoff_config.max_backoff": f"{_BACKOFF_MS[1]}ms",
    }


def _allows_http() -> bool:
    return os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true", "yes", "on")
