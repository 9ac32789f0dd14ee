"""The process of one server: what other libraries write there."""

import logging
import subprocess
import sys
from dataclasses import dataclass

from mqtrail.net.log import LINES_A_WINDOW
from mqtrail.node.report import ServerReport
from mqtrail.node.worker import OnFailure, pack
from mqtrail.node.worker_process import PROGRAM

EVIL = "\x1b]0;x\x07\u202e\nfake"


class NoisyServer:
    """Its library logs what a peer sent, many times."""

    async def start(self) -> ServerReport:
        for _ in range(3 * LINES_A_WINDOW):
            logging.getLogger("asyncio").error(f"Exception in callback {EVIL}")
        return ServerReport("127.0.0.1:1")

    async def stop(self) -> None:
        raise ValueError(EVIL)


@dataclass
class NoisyTask:
    """A task that ends with its parent, with an error."""

    use_uvloop: bool = False

    def server(self, on_failure: OnFailure) -> NoisyServer:
        return NoisyServer()


def test_what_libraries_write_is_harmless_and_sparse() -> None:
    """As in the process of `up`: escaped, no line of its own, at most 20 in ten seconds."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=pack(NoisyTask()), capture_output=True, check=False, timeout=120
    )
    text = ended.stderr.decode()
    assert ended.stdout.startswith(b'{"event": "ready"')
    assert text.count("Exception in callback") == LINES_A_WINDOW
    assert "ValueError: \\x1b]0;x\\x07\\u202e\n    fake" in text
    assert not {"\x1b", "\x07", "\u202e"} & set(text)
    assert "fake" not in text.splitlines()
