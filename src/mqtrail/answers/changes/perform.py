"""Plans changes and performs them, each recorded in the audit log before its first request and after its last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from uuid import uuid4

from mqtrail.client import InstanceConfig, SyncAdmin
from mqtrail.clock import now_ms
from mqtrail.net import Actor, AuditAnswer, AuditFailed, AuditLog, read_audit
from mqtrail.wire import MQError

from ..model import Scope
from .edited_kinds import ResendEdited
from .kinds import Change
from .model import ChangedMeanwhile, ChangeOutcome, ChangePlan, ChangeResult, NothingToChange, basis_of


class ClusterChanges:
    """Changes to one cluster. Thread safe."""

    def __init__(self, namesrv: str, audit: AuditLog, instance: InstanceConfig | None = None) -> None:
        self.namesrv = namesrv
        self.audit_log = audit
        self._admin = SyncAdmin(namesrv, config=instance)

    def close(self) -> None:
        """Close the connections."""
        self._admin.close()

    def audited(self, count_max: int = 100) -> AuditAnswer:
        """Return the last changes of the audit log. AuditFailed."""
        return read_audit(self.audit_log.path, count_max)

    def plan(self, change: Change) -> ChangePlan:
        """Return what a change would do now. MQError, NothingToChange, InvalidChange."""
        return plan_of(change, self._admin, self.namesrv)

    def perform(
        self,
        change: Change,
        actor: Actor,
        *,
        basis: str = "",
        seen: Callable[[ChangeOutcome], None] = lambda _: None,
        check: Callable[[ChangePlan], None] = lambda _: None,
    ) -> ChangeResult:
        """Perform a change; call `seen` with the outcome of each part. AuditFailed: the rest was not done.

        The errors of `plan`, and of `check` about what it returned: nothing was done.
        basis: of the plan that the actor saw; ChangedMeanwhile: it would do something else now.
        """
        plan = self.plan(change)
        check(plan)
        if basis and basis != plan.basis:
            raise ChangedMeanwhile(
                "the values changed after they were shown, so nothing was done: look at the plan again"
            )
        if not plan.steps:
            raise NothingToChange("the change has no part: nothing to do")
        change_id = uuid4().hex
        asked = {"who": actor.name, "address": actor.address, "door": actor.door, "namesrv": self.namesrv}
        what = {
            "action": plan.action,
            "parameters": dict(plan.parameters),
            "requests": plan.requests,
            "steps": [asdict(step) for step in plan.steps],
        }
        self.audit_log.append(change_id, "asked", {**asked, **what})
        outcomes = self._do(change, change_id, seen)
        return ChangeResult(_scope(self.namesrv, ()), change_id, plan.action, tuple(outcomes))

    def _do(self, change: Change, change_id: str, seen: Callable[[ChangeOutcome], None]) -> list[ChangeOutcome]:
        outcomes: list[ChangeOutcome] = []

        def add(outcome: ChangeOutcome) -> None:
            outcomes.append(outcome)
            seen(outcome)
            self.audit_log.append(change_id, "outcome", asdict(outcome), is_synced=False)

        error = ""
        try:
            for outcome in change.perform(self._admin):
                add(outcome)
        except AuditFailed:
            raise
        except (MQError, OSError) as failure:  # of the change as a whole, or of its rest
            add(ChangeOutcome.of_error("", failure))
        except BaseException as failure:
            error = type(failure).__name__
            raise
        finally:
            counts = Counter(one.fate.value for one in outcomes)
            self.audit_log.append(change_id, "ended", {"counts": counts, "error": error})
        return outcomes


def plan_of(change: Change, admin: SyncAdmin, namesrv: str) -> ChangePlan:
    """Return what a change would do now. MQError, NothingToChange, InvalidChange."""
    planned = change.plan(admin)
    if isinstance(change, ResendEdited):
        parameters = change.recorded
    else:
        parameters = {name: value for name, value in asdict(change).items() if name != "action"}
    return ChangePlan(
        _scope(namesrv, planned.omissions),
        change.action,
        parameters,
        tuple(f"{code.name} ({code.value})" for code in change.requests),
        tuple(planned.steps),
        tuple(planned.warnings),
        (*change.command, "--namesrv", namesrv) if change.command else (),
        basis_of(change.action, parameters, planned.steps, is_moving=change.is_moving),
    )


def _scope(namesrv: str, omissions: Sequence[str]) -> Scope:
    return Scope(now_ms(), (f"cluster at {namesrv}",), omissions=tuple(omissions))
