"""Recognizes other protocols on a remoting port by their first bytes, for the text of the refusal.

The first four bytes of a frame are its length, at most 16 MiB. As a length, every greeting below is far above that, so
the table is searched only after a frame was rejected.
"""

_GREETINGS: tuple[tuple[bytes, str], ...] = (
    (
        b"PRI * HTTP/2",
        "an HTTP/2 preface (a gRPC client of RocketMQ 5?); this port speaks remoting: use a remoting client "
        "(Java 4.x/5.x rocketmq-client, mqtrail), or connect through Apache's proxy",
    ),
    (b"\x16\x03", "a TLS hello; this port has no TLS: disable TLS in the client (tls.enable=false)"),
    (b"PROXY ", "a PROXY protocol v1 header; remove send-proxy from the load balancer"),
    (b"\r\n\r\n\x00\r\nQUIT\n", "a PROXY protocol v2 header; remove send-proxy-v2 from the load balancer"),
    (b"GET ", "an HTTP request; this port speaks RocketMQ remoting"),
    (b"POST ", "an HTTP request; this port speaks RocketMQ remoting"),
    (b"HEAD ", "an HTTP request; this port speaks RocketMQ remoting"),
    (b"PUT ", "an HTTP request; this port speaks RocketMQ remoting"),
    (b"SSH-", "an SSH greeting; this port speaks RocketMQ remoting"),
)


def foreign_greeting(head: bytes) -> str | None:
    """Return a description of the protocol whose first bytes these are, None for an unknown one."""
    for greeting, text in _GREETINGS:
        if head.startswith(greeting) or (len(head) >= 4 and greeting.startswith(head)):
            return text
    return None
