"""Rules of alerts and where alerts go: a TOML file.

[[rules]]
name = "stuck"
measure = "count"            # of the messages that the search finds
search = "verdict:HUNG"
above = 0
channels = ["ops"]

[[channels]]
name = "ops"
format = "slack"
url = "env:SLACK_URL"        # a secret is read from the environment (env:NAME) or a file (file:PATH)
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from mqtrail.wire import MQError, parse_duration

from ..model import LatencySegment
from ..query_text import QueryTextError, parse_query

RULES_MAX: Final = 200


class InvalidRules(MQError):
    """The file of the rules is wrong."""


class Measure(StrEnum):
    """What a rule compares."""

    COUNT = "count"  # messages of the window that the search finds
    SHARE = "share"  # of these among all messages of the window, 0 to 1
    P99 = "p99"  # ms that 99 % of a part of the way took up to in the window, by topic and group
    FRESHNESS = "freshness"  # ms since the lake's last sample
    LAG = "lag"  # ms that the first waiting message of a group has waited
    INCIDENTS = "incidents"  # bad messages of an incident that begins or lasts in the window
    LAG_GROWTH = "lag-growth"  # messages per second by which the lag of a group grows


class ChannelFormat(StrEnum):
    """How an alert is sent."""

    WEBHOOK = "webhook"
    MAIL = "mail"
    SLACK = "slack"
    DINGTALK = "dingtalk"
    WECOM = "wecom"
    ALERTMANAGER = "alertmanager"


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"hold": "for"}):
    """When to raise an alert. Durations are texts such as 5m.

    above: it is raised over this value, after `for`. below: and over once the value is at most this, after `for`; None:
    `above`. max_age: a lake with an older sample cannot tell. topic, group: only these.
    """

    name: str
    measure: Measure
    above: float
    channels: tuple[str, ...]
    below: float | None = None
    search: str = ""
    window: str = "1h"
    hold: str = "0s"
    max_age: str = "15m"
    part: LatencySegment = LatencySegment.TOTAL
    topic: str = ""
    group: str = ""
    severity: str = "warning"

    @property
    def clear(self) -> float:
        """The value at which an alert is over."""
        return self.above if self.below is None else self.below

    @property
    def hold_ms(self) -> int:
        """How long a value must hold."""
        return parse_duration(self.hold)

    @property
    def window_ms(self) -> int:
        """How far back messages count."""
        return parse_duration(self.window)

    @property
    def max_age_ms(self) -> int:
        """How old the lake's last sample may be."""
        return parse_duration(self.max_age)

    def check(self) -> None:
        """Raise InvalidRules for what cannot be."""
        for text in (self.hold, self.window, self.max_age):
            try:
                parse_duration(text)
            except ValueError as error:
                raise InvalidRules(f"rule {self.name!r}: {error}") from None
        if self.clear > self.above:
            raise InvalidRules(
                f"rule {self.name!r}: found below {self.clear:g}, expected at most above, {self.above:g}"
            )
        if (self.measure in (Measure.COUNT, Measure.SHARE)) is not bool(self.search):
            raise InvalidRules(
                f"rule {self.name!r}: expected `search` with the measures count and share, and only there"
            )
        try:
            wanted = parse_query(self.search, 0)
        except QueryTextError as error:
            raise InvalidRules(f"rule {self.name!r}: {error}") from None
        if wanted.first_ms is not None or wanted.end_ms is not None:
            raise InvalidRules(f"rule {self.name!r}: found from: or to: in the search, expected `window`")


class Channel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"sender": "from"}):
    """Where alerts go. url, secret, password: env:NAME or file:PATH for a secret. host, port, tls: of a mail server."""

    name: str
    format: ChannelFormat
    url: str = ""
    secret: str = ""  # DingTalk signs with it
    host: str = ""
    port: int = 587
    tls: str = "starttls"  # starttls, tls or none
    user: str = ""
    password: str = ""
    sender: str = ""
    to: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise InvalidRules for what cannot be."""
        is_mail = self.format is ChannelFormat.MAIL
        if is_mail and not (self.host and self.sender and self.to and self.tls in ("starttls", "tls", "none")):
            raise InvalidRules(f"channel {self.name!r}: expected host, from, to, and tls = starttls, tls or none")
        if not is_mail and not self.url:
            raise InvalidRules(f"channel {self.name!r}: found no url, expected one")
        if self.password and self.tls == "none":
            raise InvalidRules(f"channel {self.name!r}: found a password with tls = none, expected starttls or tls")


class Rules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file. console: address of the console, for links. interval: between two looks."""

    rules: tuple[Rule, ...]
    channels: tuple[Channel, ...]
    console: str = ""
    interval: str = "30s"

    @property
    def interval_ms(self) -> int:
        """The time between two looks."""
        return parse_duration(self.interval)


def read_rules(path: Path) -> Rules:
    """Read the file. InvalidRules."""
    try:
        found = msgspec.convert(tomllib.loads(path.read_text("utf-8")), Rules)
    except OSError as error:
        raise InvalidRules(f"cannot read the rules {str(path)!r}: {error.strerror}") from None
    except (ValueError, msgspec.ValidationError) as error:
        raise InvalidRules(f"{path}: {error}") from None
    for rule in found.rules:
        rule.check()
    for channel in found.channels:
        channel.check()
    names = [one.name for one in found.rules]
    known = {one.name for one in found.channels}
    if len(set(names)) < len(names) or len(known) < len(found.channels) or len(names) > RULES_MAX:
        raise InvalidRules(
            f"{path}: expected at most {RULES_MAX} rules, and a name of its own for each rule and channel"
        )
    for rule in found.rules:
        if missing := sorted(set(rule.channels) - known):
            raise InvalidRules(f"rule {rule.name!r}: found no channel {missing[0]!r}, expected one of {sorted(known)}")
    try:
        if found.interval_ms < 1_000:
            raise InvalidRules(f"interval: found {found.interval!r}, expected 1s or more")
    except ValueError as error:
        raise InvalidRules(f"interval: {error}") from None
    return found


def secret_of(text: str, environment: Mapping[str, str] | None = None) -> str:
    """Return what env:NAME or file:PATH names, or the text itself. InvalidRules."""
    kind, colon, name = text.partition(":")
    try:
        if colon and kind == "env":
            return (os.environ if environment is None else environment)[name]
        if colon and kind == "file":
            return Path(name).expanduser().read_text("utf-8").strip()
    except KeyError:
        raise InvalidRules(f"found no environment variable {name!r}") from None
    except OSError as error:
        raise InvalidRules(f"cannot read {name!r}: {error.strerror}") from None
    return text
