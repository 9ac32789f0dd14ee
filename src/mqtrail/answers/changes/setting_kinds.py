"""Changes of broker settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from mqtrail.client import SyncAdmin
from mqtrail.wire import MQError, RequestCode

from ..masters import masters_of
from .model import ChangeOutcome, ChangeStep, Fate, InvalidChange, Planned, raise_failure

SECRET_SETTINGS: Final = (
    "initAuthenticationUser",
    "innerClientAuthenticationCredentials",
    "metricsGrpcExporterHeader",  # headers for the collector of metrics, such as its token
)
SECRET_PARTS: Final = ("password", "secret")
SETTINGS_MAX: Final = 100


def is_secret_setting(name: str) -> bool:
    """Whether the value of a broker's setting must not be shown: brokers of RocketMQ 5.3 return it in plain text."""
    return name in SECRET_SETTINGS or any(part in name.lower() for part in SECRET_PARTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetBrokerSettings:
    """Change settings of running brokers, which also write them to their files.

    broker: only this one; '': all masters.
    """

    settings: Mapping[str, str]
    broker: str = ""
    action: Literal["set-broker-settings"] = "set-broker-settings"
    requests: ClassVar[tuple[RequestCode, ...]] = (RequestCode.UPDATE_BROKER_CONFIG,)
    is_moving: ClassVar[bool] = False

    @property
    def command(self) -> tuple[str, ...]:
        """`mqtrail cluster config`."""
        values = [f"{name}={value}" for name, value in self.settings.items()]
        where = ("--broker", self.broker) if self.broker else ()
        return "mqtrail", "cluster", "config", *values, *where

    def plan(self, admin: SyncAdmin) -> Planned:
        """Return each setting on each broker before and after; a warning for one that a broker does not report."""
        if not 0 < len(self.settings) <= SETTINGS_MAX:
            raise InvalidChange(f"settings: found {len(self.settings)}, expected 1 to {SETTINGS_MAX}")
        for name in filter(is_secret_setting, self.settings):
            raise InvalidChange(
                f"{name}: found a secret, expected none: set it in the configuration file of the broker"
            )
        steps, warnings = [], []
        for broker, address in masters_of(admin, self.broker or None).items():
            known = admin.broker_config(address)
            for name, value in self.settings.items():
                steps.append(ChangeStep(f"{broker} {name}", known.get(name), value))
                if name not in known:
                    warnings.append(f"broker {broker} reports no setting {name}: it may ignore it")
        return Planned(steps, (), warnings)

    def perform(self, admin: SyncAdmin) -> Iterator[ChangeOutcome]:
        """Change them on one broker after the other; the outcome of each setting is what the broker reports then."""
        for broker, address in masters_of(admin, self.broker or None).items():
            try:
                raise_failure(admin.set_broker_config(self.settings, broker=address))
                known = admin.broker_config(address)
            except (MQError, OSError) as error:
                for name in self.settings:
                    yield ChangeOutcome.of_error(f"{broker} {name}", error)
                continue
            for name, value in self.settings.items():
                found = known.get(name)
                detail = "reports no such setting" if found is None else f"reports {found}"
                yield ChangeOutcome(f"{broker} {name}", Fate.DONE if found == value else Fate.FAILED, detail)
