"""Every text of the pages of pmq mode that other pages do not have, in each language. A test finds missing ones."""

from __future__ import annotations

from typing import Final

from ..texts import TEXTS, Language, text

PMQ_TEXTS: Final[dict[str, tuple[str, str]]] = {
    # Pages.
    "backlog": ("Backlog", "堆积"),
    "nodes": ("Nodes", "节点"),
    "messages": ("Messages", "消息"),
    "failures": ("Failures", "失败消息"),
    "reports": ("Reports", "报表"),
    "audit": ("Audit log", "审计日志"),
    "lock": ("Lock", "锁"),
    "rules": ("Roles and rules", "角色与规则"),
    "groups_of": ("Groups", "消费组"),
    "pages_of_pmq": ("Pages of pmq mode", "pmq 模式的页面"),
    "backlog_text": (
        "What each group has consumed and what is pending, by topic; unknown numbers first, then the most pending.",
        "各消费组在各主题上已消费和未消费的消息数；未知的在前，其次按未消费数量从多到少排列。",
    ),
    "nodes_text": (
        "The broker and the databases with the tables of its queues.",
        "Broker 以及存放队列表的数据库。",
    ),
    "failures_text": (
        "Messages that could not be processed: dead letters of groups, and failure topics of pmq's own clients. Choose "
        "some to send them again.",
        "无法处理的消息：消费组的死信，以及 pmq 客户端的失败主题。选择后可重新发送。",
    ),
    "reports_text": (
        "Sizes and rates. Messages a day are the kept messages by the age of the oldest one; they are unknown if it is "
        "younger than an hour.",
        "大小与速率。每日消息数按保留的消息数除以最早一条的存储时长计算；不足一小时则为未知。",
    ),
    "audit_of_door": (
        "Each change is recorded by the door: before its first request, after each part, and at its end.",
        "每次变更都由服务端记录：首个请求之前、每一部分之后以及结束时。",
    ),
    "lock_text": (
        "One process writes to the database and does all jobs. A lock cannot be deleted: the next start takes it.",
        "只有一个进程写数据库并执行所有任务。锁不能删除：下次启动的进程会取得它。",
    ),
    "rules_text": (
        "The rules are in the file of `mqtrail pmq up --rules`, which is read again when it changes. Tokens are not "
        "shown.",
        "规则在 `mqtrail pmq up --rules` 指定的文件中，文件变化后会重新读取。不显示令牌。",
    ),
    # Who asks.
    "asks_as": ("You are {who}: {role}.", "您是 {who}：{role}。"),
    "role_admin": ("super admin, may change everything", "超级管理员，可修改一切"),
    "role_owner": ("owner of {owned}, may change these", "{owned} 的负责人，可修改它们"),
    "role_name_admin": ("super admin", "超级管理员"),
    "role_name_user": ("user, or owner of what it owns", "普通用户，对其负责的对象为负责人"),
    "role_user": ("user, may look", "普通用户，只能查看"),
    "role_read_only": ("may look, and change nothing", "只能查看，不能修改"),
    "operator": ("Operator", "操作员"),
    "operators": ("Operators", "操作员"),
    "owners": ("Owners", "负责人"),
    "owns": ("Owns", "负责的对象"),
    "acts_for": ("asks for others", "代他人请求"),
    "limits": ("Rules", "规则"),
    "token_count": ("Tokens", "令牌数"),
    "allowed_groups": ("Groups that may receive", "可消费的消费组"),
    "rate_limit": ("Messages a second", "每秒消息数上限"),
    "allow_list": ("White list of addresses", "地址白名单"),
    "deny_list": ("Black list of addresses", "地址黑名单"),
    "all": ("all", "全部"),
    "none": ("none", "无"),
    "no_rules": ("No rule: open to all who reach the door.", "没有规则：对所有能连接到服务端的人开放。"),
    # Columns.
    "stored_count": ("Stored", "已存储"),
    "consumed_count": ("Consumed", "已消费"),
    "pending": ("Pending", "未消费"),
    "online": ("Online", "在线"),
    "runs": ("runs", "运行中"),
    "paused": ("paused", "已暂停"),
    "last_stored": ("Last message", "最后一条消息"),
    "first_stored": ("First message", "第一条消息"),
    "last_consumed": ("Last consumed", "最后消费"),
    "table": ("Table", "表"),
    "size": ("Bytes", "字节数"),
    "first": ("First", "最小"),
    "next": ("Next", "下一条"),
    "node": ("Node", "节点"),
    "retrying": ("Retrying", "重试中"),
    "dead": ("Dead letters", "死信"),
    "heartbeat": ("Last heartbeat", "最近心跳"),
    "interface": ("Interface", "接口"),
    "offset": ("Offset", "位点"),
    "attempt": ("Attempt", "第几次投递"),
    "key": ("Key", "Key"),
    "stored_at": ("Stored", "存储时间"),
    "per_day": ("Messages a day", "每日消息数"),
    "topic_count": ("Topics", "主题数"),
    "group_count": ("Groups", "消费组数"),
    "queue_count": ("Queues", "队列数"),
    "parked": ("Parked messages", "暂存的消息"),
    "answer": ("Answer", "应答"),
    "database": ("Database", "数据库"),
    "from_topic": ("Failed messages of", "失败消息的来源主题"),
    "held_in": ("Kept in", "所在主题"),
    "started": ("Started", "启动时间"),
    "host": ("Host", "主机"),
    "process": ("Process", "进程"),
    "writer": ("Writer", "写入者编号"),
    "action": ("Action", "操作"),
    "who": ("Who", "操作人"),
    "writable": ("Takes messages", "可写"),
    "readable": ("Can be read", "可读"),
    # States and advice of reports.
    "used": ("used", "使用中"),
    "empty": ("empty", "空"),
    "silent": ("no message for 7 days", "7 天没有消息"),
    "unread": ("no group consumes it", "没有消费组消费"),
    "expand": ("expand", "扩容"),
    "shrink": ("shrink", "缩容"),
    # Totals and empty parts.
    "totals": (
        "{groups} groups, {online} with members online, {offline} without; {pending} messages pending",
        "{groups} 个消费组，{online} 个有在线成员，{offline} 个没有；未消费消息 {pending} 条",
    ),
    "show_all": ("All", "全部"),
    "show_online": ("With members online", "有在线成员"),
    "show_offline": ("Without members", "没有在线成员"),
    "nothing_here": ("There is none.", "没有。"),
    "no_failures": ("No group has failed messages.", "没有失败的消息。"),
    "one_database": ("The store has one database.", "存储只有一个数据库。"),
    "free_tables": ("Tables", "表"),
    "state_free": ("free", "空闲"),
    "state_used": ("used", "使用中"),
    "state_released": ("being emptied", "清理中"),
    # Forms and changes.
    "create-topic": ("Create a topic, or give it more queues", "创建主题或增加队列"),
    "shrink-topic": ("Remove queues of a topic", "减少主题的队列"),
    "free-tables": ("Free the tables of removed queues", "释放已移除队列的表"),
    "move-queue": ("Move a queue to another database", "把队列移到其他数据库"),
    "set-node": ("Set the state or kind of a database", "设置数据库的状态或类型"),
    "as_it_is": ("as it is", "不变"),
    "force_node": ("also if topics are left without a writable queue", "即使有主题失去所有可写队列"),
    "to_node": ("Node; empty: let publishers use the queue again", "节点；留空：让发布者重新使用该队列"),
    "drop": ("also if messages are left there", "即使其中还有消息"),
    "set-topic-permission": ("Set what clients may do with a topic", "设置主题的读写权限"),
    "create-group": ("Create or change a group", "创建或修改消费组"),
    "pause-group": ("Pause or resume a group", "暂停或恢复消费组"),
    "set-offsets": ("Move the offsets of a group", "移动消费组的位点"),
    "resend-messages": ("Send failed messages again", "重新发送失败的消息"),
    "send-message": ("Send a message", "发送消息"),
    "pause": ("Pause …", "暂停 …"),
    "resume": ("Resume …", "恢复 …"),
    "make_read_only": ("Make the topic read only …", "将主题设为只读 …"),
    "make_read_write": ("Let the topic take messages …", "让主题接收消息 …"),
    "skip_all": ("Skip the backlog of {topic} …", "跳过 {topic} 的堆积 …"),
    "number_of_queues": ("Number of queues", "队列数"),
    "retries_max": ("Retries", "重试次数"),
    "mode_same": ("mode: as it is", "模式：不变"),
    "to_place": ("first, end, time (UTC) or age, such as 2h", "first、end、时间（UTC）或时长，如 2h"),
    "new_offset": ("New offset", "新位点"),
    "force": ("also if members are online", "即使有成员在线"),
    "plan": ("Show what it would do", "查看变更内容"),
    "pmq_change_text": (
        "Below is what the change would do now: each part before and afterwards. The door checks your role, and "
        "records the change in the audit log.",
        "下面是此变更现在会做的事：每个部分变更前后的值。服务端会检查您的角色，并把变更记入审计日志。",
    ),
    "do_change": ("Make this change now", "立即执行此变更"),
    "skipped_count": ("Skipped", "跳过的消息"),
    "repeated_count": ("Consumed again", "再次消费的消息"),
    "unreadable_count": ("Cannot be read any more", "不可再读的消息"),
    "deleted_count": ("Deleted", "删除的消息"),
    "offsets_count": ("Offsets", "位点数"),
    "changed_since": (
        "The state had changed since the plan was shown: these parts were changed instead.",
        "显示变更内容之后状态已改变：实际变更的是这些部分。",
    ),
    "DONE": ("done", "成功"),
    "FAILED": ("refused", "被拒绝"),
    "UNKNOWN": ("unknown", "未知"),
    "WAITS": ("waits: repeat it later", "等待：请稍后重复"),
    "resend_all": ("Send all again …", "全部重新发送 …"),
    "resend_chosen": ("Send the chosen ones again …", "重新发送所选消息 …"),
    "to_all_groups": ("to all groups of the topic", "发送给主题的所有消费组"),
    "body_base64": ("Body, base64", "消息体（base64）"),
    "from_time": ("From time (UTC) or age, such as 2h", "起始时间（UTC）或时长，如 2h"),
    "from_offset": ("From offset", "起始位点"),
    "count_between": ("Count between times", "统计时间段内的消息"),
    "until_time": ("To time (UTC) or age; empty: now", "截止时间（UTC）或时长；留空：现在"),
    "counted": ("{count} messages were stored from {first} to {end}", "{first} 至 {end} 存储了 {count} 条消息"),
}


def pmq_text(name: str, language: Language, **values: object) -> str:
    """Return a text of these pages, or of the other ones, with its values."""
    found = PMQ_TEXTS.get(name)
    if found is None:
        return text(name, language, **values)
    words = found[0 if language is Language.EN else 1]
    return words.format(**values) if values else words


def is_known(name: str) -> bool:
    """Return whether there is such a text."""
    return name in PMQ_TEXTS or name in TEXTS
