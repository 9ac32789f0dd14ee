"""The requests that a name server serves: one row per code. To add one, write its handler and its row.

handler        the method of a concern that serves it
level          the account that it needs with access control on (access)
body_size_max  bytes of its body: one topic, one version or settings. None: limited by the frame alone
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from mqtrail.wire import Handler, Jobs, Level, RequestCode

from .config import NameServerConfig
from .key_values import KeyValues
from .queries import Queries
from .registrations import Registrations
from .route_tables import RouteTable
from .settings import NameServerSettings

Code = RequestCode
BODY_SIZE_MAX: Final = 256 * 1024
LINES_SIZE_MAX: Final = 32 * 1024  # lines of settings


class NameServerConcerns:
    """All concerns of a name server, each made once. job: turns a generator into a handler."""

    def __init__(
        self, config: NameServerConfig, routes: RouteTable, key_values: KeyValues, jobs: Jobs, now_ms: int
    ) -> None:
        self.job = jobs.handler
        self.key_values = key_values
        self.registrations = Registrations(config, routes, key_values)
        self.queries = Queries(config, routes, key_values, now_ms)
        self.settings = NameServerSettings(config)


class NameServerRequest(NamedTuple):
    """One row."""

    handler: Callable[[NameServerConcerns], Handler]
    level: Level
    body_size_max: int | None = BODY_SIZE_MAX


REQUESTS: Final[Mapping[int, NameServerRequest]] = {
    # Brokers.
    Code.REGISTER_BROKER: NameServerRequest(
        lambda c: c.job(c.registrations.register), Level.BROKER, body_size_max=None
    ),
    Code.UNREGISTER_BROKER: NameServerRequest(lambda c: c.registrations.unregister, Level.BROKER),
    Code.BROKER_HEARTBEAT: NameServerRequest(lambda c: c.registrations.heartbeat, Level.BROKER),
    # It also counts as a heartbeat.
    Code.QUERY_DATA_VERSION: NameServerRequest(lambda c: c.registrations.data_version, Level.BROKER),
    Code.REGISTER_TOPIC_IN_NAMESRV: NameServerRequest(lambda c: c.registrations.register_topic, Level.BROKER),
    # Routes.
    Code.GET_ROUTEINFO_BY_TOPIC: NameServerRequest(lambda c: c.job(c.queries.route), Level.NONE),
    Code.GET_BROKER_CLUSTER_INFO: NameServerRequest(lambda c: c.job(c.queries.cluster), Level.NONE),
    Code.GET_BROKER_MEMBER_GROUP: NameServerRequest(lambda c: c.queries.member_group, Level.NONE),
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: NameServerRequest(lambda c: c.job(c.queries.topics), Level.NONE),
    Code.GET_TOPICS_BY_CLUSTER: NameServerRequest(lambda c: c.job(c.queries.topics_of_cluster), Level.NONE),
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: NameServerRequest(lambda c: c.queries.system_topics, Level.NONE),
    # Topics of a unit; topics that units subscribe to; the latter without the former.
    Code.GET_UNIT_TOPIC_LIST: NameServerRequest(lambda c: c.job(partial(c.queries.unit_topics, unit=True)), Level.NONE),
    Code.GET_HAS_UNIT_SUB_TOPIC_LIST: NameServerRequest(
        lambda c: c.job(partial(c.queries.unit_topics, subscribed=True)), Level.NONE
    ),
    Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: NameServerRequest(
        lambda c: c.job(partial(c.queries.unit_topics, unit=False, subscribed=True)), Level.NONE
    ),
    # Operators.
    Code.WIPE_WRITE_PERM_OF_BROKER: NameServerRequest(lambda c: c.job(c.registrations.wipe_write_perm), Level.ADMIN),
    Code.ADD_WRITE_PERM_OF_BROKER: NameServerRequest(lambda c: c.job(c.registrations.add_write_perm), Level.ADMIN),
    Code.DELETE_TOPIC_IN_NAMESRV: NameServerRequest(lambda c: c.registrations.delete_topic, Level.ADMIN),
    Code.GET_NAMESRV_CONFIG: NameServerRequest(lambda c: c.settings.show, Level.ADMIN),
    Code.UPDATE_NAMESRV_CONFIG: NameServerRequest(lambda c: c.settings.update, Level.ADMIN, LINES_SIZE_MAX),
    # Key-value configuration.
    Code.PUT_KV_CONFIG: NameServerRequest(lambda c: c.key_values.put, Level.ADMIN),
    Code.DELETE_KV_CONFIG: NameServerRequest(lambda c: c.key_values.delete, Level.ADMIN),
    Code.GET_KV_CONFIG: NameServerRequest(lambda c: c.key_values.get, Level.ACCOUNT),
    Code.GET_KVLIST_BY_NAMESPACE: NameServerRequest(lambda c: c.job(c.key_values.list_values), Level.ACCOUNT),
}
