"""Sending an edited copy of a stored message, such as a dead letter whose body no handler can read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, ClassVar, Final, Literal

from mqtrail.client import SyncAdmin
from mqtrail.wire import (
    PROPERTY_CRC32,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    RESERVED_PROPERTIES,
    MessageExt,
    RequestCode,
    resend_target,
)

from .model import DELETED, ChangeOutcome, ChangeStep, InvalidChange, Planned
from .stored import message_at, outcome_of

PROPERTIES_MAX: Final = 100  # that one edit changes
PROPERTY_SIZE_MAX: Final = 32_767  # bytes of all properties of a message: the protocol's limit
_EDITABLE: Final = frozenset({PROPERTY_KEYS, PROPERTY_TAGS})


@dataclass(frozen=True, slots=True, kw_only=True)
class ResendEdited:
    """Send a copy of a stored message again with its id, but with another body or other properties.

    place: broker/topic/queue@offset of the stored message, which does not change. body: the new one as text (UTF-8);
    None: as stored. properties: those that differ, '' removes one: KEYS, TAGS, and those of applications.
    is_to_topic: as of ResendMessage.
    """

    place: str
    group: str
    is_to_topic: bool = False
    body: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    action: Literal["resend-edited"] = "resend-edited"
    requests: ClassVar[tuple[RequestCode, ...]] = (RequestCode.SEND_MESSAGE_V2,)
    is_moving: ClassVar[bool] = False

    @property
    def command(self) -> tuple[str, ...]:
        """(): no command edits a message."""
        return ()

    @property
    def recorded(self) -> dict[str, Any]:
        """Return the parameters for plan and audit log: a body only by its size and digest."""
        words = None if self.body is None else _about(self._bytes())
        return {"place": self.place, "group": self.group, "is_to_topic": self.is_to_topic} | {
            "body": words,
            "properties": dict(self.properties),
        }

    def plan(self, admin: SyncAdmin) -> Planned:
        """Return where the copy is sent, and what is different in it. InvalidChange: nothing is."""
        found = message_at(admin, self.place)
        edited = self._edited(found)
        target = resend_target(edited, self.group, to_topic=self.is_to_topic)
        admin.route(target)
        steps = [ChangeStep(found.msg_id, self.place, target)]
        if edited.body != found.body:
            steps.append(ChangeStep("body", _about(found.body), _about(edited.body)))
        for name in sorted(self.properties):
            before, after = found.properties.get(name), edited.properties.get(name)
            if before != after:
                steps.append(ChangeStep(name, before, DELETED if after is None else after))
        if len(steps) == 1:
            raise InvalidChange("found the body and the properties of the stored message, expected others")
        return Planned(steps)

    def perform(self, admin: SyncAdmin) -> Iterator[ChangeOutcome]:
        """Send it."""
        edited = self._edited(message_at(admin, self.place))
        yield outcome_of(admin.resend_message(edited, self.group, to_topic=self.is_to_topic))

    def _edited(self, found: MessageExt) -> MessageExt:
        if found.undecodable is not None:
            raise InvalidChange(f"{self.place}: the message cannot be read: {found.undecodable}")
        self._check()
        properties = {**found.properties, **self.properties}
        kept = {name: value for name, value in properties.items() if value or name not in self.properties}
        kept.pop(PROPERTY_CRC32, None)  # of the stored bytes
        return replace(found, body=found.body if self.body is None else self._bytes(), properties=kept)

    def _bytes(self) -> bytes:
        try:
            return (self.body or "").encode()
        except UnicodeEncodeError:
            raise InvalidChange("body: found text that is no Unicode, expected Unicode") from None

    def _check(self) -> None:
        if len(self.properties) > PROPERTIES_MAX:
            raise InvalidChange(f"properties: found {len(self.properties)}, expected at most {PROPERTIES_MAX}")
        for name, value in self.properties.items():
            if not is_editable(name):
                raise InvalidChange(
                    f"properties: found {name[:80]!r}, expected KEYS, TAGS, or a name that RocketMQ does not use itself"
                )
            if not value.isprintable() or len(value.encode("utf-8", "surrogatepass")) > PROPERTY_SIZE_MAX:
                raise InvalidChange(
                    f"properties: found {value[:80]!r} for {name!r}, expected visible characters, at most "
                    f"{PROPERTY_SIZE_MAX} bytes"
                )


def is_editable(name: str) -> bool:
    """Return whether an edited copy may have another value of a property."""
    return name in _EDITABLE or (bool(name) and name.isprintable() and name not in RESERVED_PROPERTIES)


def _about(body: bytes) -> str:
    return f"{len(body)} bytes, SHA-256 {sha256(body).hexdigest()[:16]}"
