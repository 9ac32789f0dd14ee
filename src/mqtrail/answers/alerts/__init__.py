"""Alerts: rules over the answers, with hysteresis, a history of 90 days, and channels that get them.

A check (`watch`) measures each rule, records what changed, and sends it. A source that fails raises *cannot tell*,
never *good*.
"""

from .history import ALERTS_FILE, Alert, AlertHistory, AlertsFailed
from .measure import AlertPhase, measure
from .notify import send
from .reading import AlertsAnswer, read_alerts
from .rules import Channel, InvalidRules, Rule, Rules, read_rules
from .watch import watch

__all__ = [
    "ALERTS_FILE",
    "Alert",
    "AlertHistory",
    "AlertPhase",
    "AlertsAnswer",
    "AlertsFailed",
    "Channel",
    "InvalidRules",
    "Rule",
    "Rules",
    "measure",
    "read_alerts",
    "read_rules",
    "send",
    "watch",
]
