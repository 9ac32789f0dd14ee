"""Changes of consumer groups: created or changed on each broker, deleted everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

import msgspec

from mqtrail.client import SyncAdmin
from mqtrail.wire import MQError, RequestCode, SubscriptionGroupConfig, is_business_group, validate_group

from ..masters import masters_of
from .model import DELETED, ChangeOutcome, ChangeStep, Fate, InvalidChange, NothingToChange, Planned, raise_failure

RETRIES_MAX: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SetGroup:
    """Create a consumer group, or change its retries and whether it may consume; its other settings are kept.

    retry_count_max: deliveries after the first, before a message becomes a dead letter. broker: only on this one; '':
    on all masters.
    """

    group: str
    retry_count_max: int = 16
    is_consume_enabled: bool = True
    broker: str = ""
    action: Literal["set-group"] = "set-group"
    requests: ClassVar[tuple[RequestCode, ...]] = (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,)
    is_moving: ClassVar[bool] = False

    @property
    def command(self) -> tuple[str, ...]:
        """Return no command: `mqtrail group create` does not keep the other settings of a group."""
        return ()

    def plan(self, admin: SyncAdmin) -> Planned:
        """Return the configuration on each broker before and after; a warning if live members would stop."""
        check_group(self.group)
        if not 0 <= self.retry_count_max <= RETRIES_MAX:
            raise InvalidChange(f"retry_count_max: found {self.retry_count_max}, expected 0 to {RETRIES_MAX}")
        steps = []
        for name, address in masters_of(admin, self.broker or None).items():
            known = _config(admin, address, self.group)
            before = None if known is None else group_text(known)
            steps.append(ChangeStep(name, before, group_text(self._wanted(known))))
        if self.is_consume_enabled:
            return Planned(steps)
        warnings, omissions = live_members(admin, self.group, "stop to receive messages")
        return Planned(steps, omissions, warnings)

    def perform(self, admin: SyncAdmin) -> Iterator[ChangeOutcome]:
        """Change it on one broker after the other; the detail is what the broker answers then."""
        for name, address in masters_of(admin, self.broker or None).items():
            try:
                wanted = self._wanted(_config(admin, address, self.group))
                raise_failure(admin.create_group(wanted, broker=address))
                found = _config(admin, address, self.group)
            except (MQError, OSError) as error:
                yield ChangeOutcome.of_error(name, error)
                continue
            detail = "" if found is None else group_text(found)
            yield ChangeOutcome(name, Fate.DONE if detail == group_text(wanted) else Fate.FAILED, detail)

    def _wanted(self, known: SubscriptionGroupConfig | None) -> SubscriptionGroupConfig:
        return msgspec.structs.replace(
            known or SubscriptionGroupConfig(self.group),
            retry_max_times=self.retry_count_max,
            consume_enable=self.is_consume_enabled,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroup:
    """Delete the configuration and the offsets of a consumer group on all masters.

    Its retry and dead-letter topics stay: they hold messages.
    """

    group: str
    action: Literal["delete-group"] = "delete-group"
    requests: ClassVar[tuple[RequestCode, ...]] = (RequestCode.DELETE_SUBSCRIPTIONGROUP,)
    is_moving: ClassVar[bool] = False

    @property
    def command(self) -> tuple[str, ...]:
        """`mqtrail group delete`."""
        return "mqtrail", "group", "delete", self.group, "--offsets"

    def plan(self, admin: SyncAdmin) -> Planned:
        """Return its configuration on each broker; a warning if it has live members."""
        check_group(self.group)
        steps = []
        for name, address in admin.targets().items():
            known = _config(admin, address, self.group)
            if known is not None:
                steps.append(ChangeStep(name, group_text(known), DELETED))
        if not steps:
            raise NothingToChange(f"no master has the group {self.group!r}")
        warnings, omissions = live_members(admin, self.group, "go on without their offsets, or create the group again")
        return Planned(steps, omissions, warnings)

    def perform(self, admin: SyncAdmin) -> Iterator[ChangeOutcome]:
        """Delete it; an outcome for each broker."""
        done = admin.delete_group(self.group, clean_offsets=True)
        for name in done.found:
            yield ChangeOutcome(name, Fate.DONE)
        for name, error in done.failures.items():
            yield ChangeOutcome.of_error(name, error)


def group_text(config: SubscriptionGroupConfig) -> str:
    """Return retries and state of a group as `16 retries, may consume`."""
    return f"{config.retry_max_times} retries, {'may' if config.consume_enable else 'may not'} consume"


def check_group(group: str) -> None:
    """Raise InvalidChange, or InvalidParameter, unless this is the name of an application's group."""
    validate_group(group)
    if not is_business_group(group):
        raise InvalidChange(f"found the group {group!r}, expected an application's: this one is RocketMQ's own")


def _config(admin: SyncAdmin, address: str, group: str) -> SubscriptionGroupConfig | None:
    return admin.groups(address).subscription_group_table.get(group)


def live_members(admin: SyncAdmin, group: str, what: str) -> tuple[list[str], list[str]]:
    """Return a warning that live members do something, and what could not be asked."""
    gathered = admin.group_connections(group)
    clients = sorted({one.client_id for found in gathered.values() for one in found.connection_set})
    omissions = [f"members at {name}: {error}" for name, error in gathered.failures.items()]
    return ([f"{len(clients)} live members {what}: {', '.join(clients[:5])}"] if clients else []), omissions
