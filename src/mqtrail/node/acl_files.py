"""ACL files on disk: read at start, checked for changes every 5 s, written when a request changes an account.

    <home>/conf/plain_acl.yml
    <home>/conf/acl/**/*.yml, *.yaml

home is the broker's folder unless acl_home is set (RocketMQ: ROCKETMQ_HOME). The files apply as one set: if one of them
is malformed, the previous rules stay in force, and the error is logged once.

Source: AclFileWatchService, PlainPermissionManager, apache/rocketmq acl/.
"""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from mqtrail.net import Log, replace_file
from mqtrail.wire import InvalidParameter

from .files import Stamp, file_stamps, warn_if_open_to_others

WATCH_S = 5.0
FILE_SIZE_MAX = 16 * 1024 * 1024
FILE_MODE = 0o600  # the file contains secret keys

log = Log()


class AclFolder:
    """The ACL files below one home. Implements the broker's AclFiles."""

    def __init__(self, home: Path) -> None:
        self._conf = home.absolute() / "conf"
        self.default = str(self._conf / "plain_acl.yml")

    def stamps(self) -> dict[str, Stamp]:
        """Return path -> stamp; equal results mean that no file has changed."""
        return file_stamps(self._paths())

    def read(self) -> dict[str, str]:
        """Return name -> text. InvalidParameter names a file that cannot be read."""
        texts = {}
        for path in self._paths():
            try:
                if path.stat().st_size > FILE_SIZE_MAX:
                    raise InvalidParameter(f"{path}: found more than {FILE_SIZE_MAX} bytes, expected an ACL file")
                text = path.read_text("utf-8-sig")
            except FileNotFoundError:
                continue
            except (OSError, UnicodeDecodeError) as error:
                raise InvalidParameter(
                    f"{path}: cannot be read: {error}; expected an ACL file of UTF-8 text that this user can read: "
                    "check its permissions"
                ) from error
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
        replace_file(path, text.encode(), FILE_MODE)

    def _paths(self) -> list[Path]:
        more = self._conf / "acl"
        found = sorted(path for path in more.rglob("*") if path.suffix in (".yml", ".yaml")) if more.is_dir() else []
        return [*found, Path(self.default)]


class AclWatch:
    """Passes the files to a broker: once by `load`, then after each change. take: Access.load_acl."""

    def __init__(self, broker: str, folder: AclFolder, take: Callable[[Mapping[str, str]], tuple[str, ...]]) -> None:
        self._broker = broker
        self._folder = folder
        self._take = take
        self._stamps: dict[str, Stamp] = {}
        self._seen: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None

    def load(self) -> None:
        """Read the files now. InvalidParameter: one is malformed."""
        self._stamps = self._folder.stamps()
        warn_if_open_to_others(name for name in self._stamps if name not in self._seen)
        self._seen.update(self._stamps)
        for text in self._take(self._folder.read()):
            log.warning("acl.ignored", broker=self._broker, found=text)

    def start(self) -> None:
        """Check for changes every WATCH_S."""
        self._timer = asyncio.get_running_loop().call_later(WATCH_S, self._check)

    def stop(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def reload_if_changed(self) -> None:
        """Load the files if they changed. If one is malformed, the previous rules stay in force."""
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

    def _check(self) -> None:
        self.start()
        try:
            self.reload_if_changed()
        except OSError as error:
            log.error(
                "acl.not_loaded",
                broker=self._broker,
                error=str(error),
                remedy="repair the file; previous rules stay in force",
            )
