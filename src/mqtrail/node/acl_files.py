"""ACL files on disk: read at start, looked at every 5 s, written when a request changes an account.

    <home>/conf/plain_acl.yml
    <home>/conf/acl/**/*.yml, *.yaml

home is the broker's folder unless told otherwise (RocketMQ: ROCKETMQ_HOME). What counts is the set of files as a whole:
a set with a broken file changes nothing, and is told once.

Source: AclFileWatchService, PlainPermissionManager, apache/rocketmq acl/.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from mqtrail.net import Log, mode_open_to_others
from mqtrail.wire import InvalidParameter

WATCH_S = 5.0
FILE_SIZE_MAX = 16 * 1024 * 1024
FILE_MODE = 0o600  # there are secret keys in it

Stamp = tuple[int, int, int]

log = Log()


def warn_if_open_to_others(names: Iterable[Path | str]) -> None:
    """Log each file with secrets that every user of this machine can read or change."""
    for name in names:
        if mode := mode_open_to_others(Path(name)):
            log.warning("secrets.open_to_others", path=str(name), mode=mode, remedy=f"chmod 600 {name}")


class AclFolder:
    """The files below one home: a broker's AclFiles."""

    def __init__(self, home: Path) -> None:
        self._conf = home.absolute() / "conf"
        self.default = str(self._conf / "plain_acl.yml")

    def stamps(self) -> dict[str, Stamp]:
        """Return what tells two states of the files apart."""
        found = {}
        for path in self._paths():
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            found[str(path)] = (status.st_mtime_ns, status.st_size, status.st_ino)
        return found

    def read(self) -> dict[str, str]:
        """Return name -> text. InvalidParameter names a file that cannot be read."""
        texts = {}
        for path in self._paths():
            try:
                if path.stat().st_size > FILE_SIZE_MAX:
                    raise InvalidParameter(f"{path}: found more than {FILE_SIZE_MAX} bytes, expected an ACL file")
                text = path.read_text("utf-8")
            except FileNotFoundError:
                continue
            except (OSError, UnicodeDecodeError) as error:
                raise InvalidParameter(f"{path}: cannot be read: {error}") from error
            if not text.strip():
                raise InvalidParameter(
                    f"{path}: found {len(text)} characters without content, expected accounts: restore it from a copy, "
                    "or remove it"
                )
            texts[str(path)] = text
        return texts

    def write(self, name: str, text: str) -> None:
        """Replace a file durably. OSError."""
        path = Path(name)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
        with open(descriptor, "w", encoding="utf-8") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)

    def _paths(self) -> list[Path]:
        more = self._conf / "acl"
        found = sorted(path for path in more.rglob("*") if path.suffix in (".yml", ".yaml")) if more.is_dir() else []
        return [*found, Path(self.default)]


class AclWatch:
    """Hands the files to a broker: once by `load`, then whenever they change. take: Access.load_acl."""

    def __init__(self, broker: str, folder: AclFolder, take: Callable[[Mapping[str, str]], tuple[str, ...]]) -> None:
        self._broker = broker
        self._folder = folder
        self._take = take
        self._stamps: dict[str, Stamp] = {}
        self._seen: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None

    def load(self) -> None:
        """Read the files now. InvalidParameter: one is wrong."""
        self._stamps = self._folder.stamps()
        warn_if_open_to_others(name for name in self._stamps if name not in self._seen)
        self._seen.update(self._stamps)
        for text in self._take(self._folder.read()):
            log.warning("acl.ignored", broker=self._broker, found=text)

    def start(self) -> None:
        """Look every WATCH_S."""
        self._timer = asyncio.get_running_loop().call_later(WATCH_S, self._look)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def look(self) -> None:
        """Take the files if they changed; the rules from before stay where they are wrong."""
        if self._folder.stamps() == self._stamps:
            return
        try:
            self.load()
        except InvalidParameter as error:
            log.error(
                "acl.not_loaded",
                broker=self._broker,
                error=error.remark,
                remedy="repair the file; previous rules stay in force",
            )
        else:
            log.info("acl.loaded", broker=self._broker, files=len(self._stamps))

    def _look(self) -> None:
        self.start()
        try:
            self.look()
        except OSError as error:
            log.error(
                "acl.not_loaded",
                broker=self._broker,
                error=str(error),
                remedy="repair the file; previous rules stay in force",
            )
