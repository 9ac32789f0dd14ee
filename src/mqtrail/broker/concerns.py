"""All concerns of a broker, created from its state: the objects that serve requests and do periodic work."""

from collections.abc import Callable

from .access import AuthRequests
from .clients import ClientRequests, ForwardedRequests, OffsetRequests
from .messages import (
    BroadcastOffsets,
    PullMessages,
    QueryMessages,
    ReplyMessages,
    SendBack,
    SendMessages,
    SlowGroups,
)
from .operator import (
    ClientSurveys,
    GroupRequests,
    MasterTables,
    OffsetAdmin,
    ReplicaRequests,
    SettingsRequests,
    StatsRequests,
    StoreAdmin,
    TopicRequests,
)
from .pop import Pop, ServeHeldPop
from .state import BrokerState
from .timing import DelayedMessages, TimerRequests, Timers
from .transactions import Transactions


class Concerns:
    """serve_held_pop: answers a held pop. settings_changed: called with the settings that request 25 changed."""

    def __init__(
        self,
        state: BrokerState,
        serve_held_pop: ServeHeldPop,
        settings_changed: Callable[[frozenset[str], int], None],
    ) -> None:
        self.config = state.config
        self.jobs = state.jobs
        self.job = state.jobs.handler
        # Messages.
        self.delays = DelayedMessages(state)
        self.timers = Timers(state)
        self.send = SendMessages(state, self.delays, self.timers)
        self.broadcasts = BroadcastOffsets(state)
        self.pull = PullMessages(state, self.broadcasts)
        self.send_back = SendBack(state, self.delays)
        self.query = QueryMessages(state)
        self.pop = Pop(state, self.timers, serve_held_pop)
        self.transactions = Transactions(state)
        self.timer_requests = TimerRequests(state, self.timers)
        # Clients.
        self.clients = ClientRequests(state)
        self.offsets = OffsetRequests(state, self.delays)
        self.forwards = ForwardedRequests(state)
        self.replies = ReplyMessages(state, self.send, self.forwards)
        self.slow_groups = SlowGroups(state)
        # Operators.
        self.topics = TopicRequests(state, self.pop.assignments.forget_topic)
        self.groups = GroupRequests(state, self.pop.assignments.forget_group)
        self.group_offsets = OffsetAdmin(state)
        self.surveys = ClientSurveys(state, self.forwards)
        self.stats = StatsRequests(state, self.delays)
        self.settings = SettingsRequests(state, settings_changed)
        self.store = StoreAdmin(state)
        self.replicas = ReplicaRequests(state)
        self.master_tables = MasterTables(state, self.delays, self.pop.assignments.adopt)
        self.acl = state.access.plain
        self.auth = AuthRequests(state.access.auth)
