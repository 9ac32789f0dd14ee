"""Try an installed mqtrail like a user: version, client, `mqtrail up`, send and receive a message, a clean stop.

`make release` runs this from an empty folder with the Python of a new environment that contains only the wheel.
Usage: python try_release.py VERSION
"""

from __future__ import annotations

import asyncio
import json
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
MESSAGE_TIMEOUT_S = 60.0

COMMAND = Path(sys.executable).with_name("mqtrail")


async def send_and_receive(namesrv: str) -> None:
    """Send one message and consume it."""
    from mqtrail.client import ConsumeFromWhere, Consumer, ConsumerConfig, Message, Producer

    async with Producer("try", namesrv=namesrv) as producer:
        sent = await producer.send(Message("try", b"42 socks"))
    config = ConsumerConfig(consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    async with Consumer("try", namesrv=namesrv, subscriptions={"try": "*"}, config=config) as consumer:
        async for message in consumer:
            async with message.process():
                if (message.msg_id, message.body) != (sent.msg_id, b"42 socks"):
                    raise SystemExit(f"found message {message.msg_id} {message.body!r}, expected {sent.msg_id}")
            return


def try_node() -> None:
    """Start a node, send and receive a message, and stop the node with SIGINT."""
    node = subprocess.Popen(
        [COMMAND, "up", "--data", "data", "--namesrv-port", "0", "--broker-port", "0", "--json"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert node.stdout is not None
    lines: queue.Queue[str] = queue.Queue(maxsize=1)
    threading.Thread(target=lambda out=node.stdout: lines.put(out.readline()), daemon=True).start()
    try:
        ready = json.loads(lines.get(timeout=START_TIMEOUT_S))
        asyncio.run(asyncio.wait_for(send_and_receive(ready["namesrv"]), MESSAGE_TIMEOUT_S))
        node.send_signal(signal.SIGINT)
        status = node.wait(STOP_TIMEOUT_S)
    finally:
        node.kill()
    if status != 0:
        raise SystemExit(f"found exit status {status} of `mqtrail up` after SIGINT, expected 0")


def main() -> None:
    """Run each check; the first failure ends the run."""
    (expected,) = sys.argv[1:]
    printed = subprocess.run([COMMAND, "--version"], check=True, capture_output=True, text=True).stdout.strip()
    if printed != f"mqtrail {expected}":
        raise SystemExit(f"found {printed!r} from `mqtrail --version`, expected 'mqtrail {expected}'")
    import mqtrail

    installed = Path(mqtrail.__file__).parent
    if not installed.is_relative_to(sys.prefix):
        raise SystemExit(f"found mqtrail in {installed}, expected it inside {sys.prefix}")
    if not (installed / "py.typed").exists():
        raise SystemExit("found no py.typed in the installed package, expected one: the wheel carries types")
    try_node()
    print(f"mqtrail {expected}: installed, started, sent, received and stopped")


if __name__ == "__main__":
    main()
