"""What to do about a verdict, an incident or a finding of the doctor, in each language. A test finds missing texts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mqtrail import trail
from mqtrail.answers import DoctorFinding, ShownIncident

from .texts import Language

CODE_ADVICE: Final[dict[str, str]] = {
    "SEND_SLOW": "按耗时构成对比各 Broker 和主机；检查磁盘刷盘以及客户端的停顿。",
    "SEND_DEGRADED": "检查该 Broker 的磁盘和副本；断电可能导致消息丢失。",
    "SEND_RETRIED": "检查 Broker 以及每次失败尝试的结果。",
    "SEND_FAILED": "请重新发送：应用已收到错误。",
    "SEND_UNCERTAIN": "检查是否找到已存储的副本。重发之前请确保消费者幂等。",
    "TX_PENDING": "检查该生产者组是否有生产者在线来应答回查。",
    "TX_CHECKS_EXHAUSTED": "检查生产者的事务回查逻辑。",
    "DELIVERED_LATE": "检查 Broker 的负载以及该延迟级别的堆积。",
    "WAITING": "检查消费组的堆积以及正在运行的处理。",
    "NO_CONSUMER": "启动该消费组的消费者。",
    "HUNG": "导出所示客户端的线程栈；该消息阻塞了它的队列。",
    "RETRYING": "查看处理的错误以及下次重试的时间。",
    "DEAD_LETTERED": "排除原因后，用 `mqtrail message resend` 重新发送。",
    "SKIPPED": "查明是谁重置了位点。要消费该消息，请把位点重置回去。",
    "EXPIRED": "延长消息保留时间，或增加消费者。",
    "LOST": "请重新发送。检查 Broker 的崩溃和主从切换、刷盘方式及副本。",
    "UNKNOWN": "查看原因：轨迹未开启、记录丢失，或主题未被读取。",
    "CONSUMED_SLOW": "与该消费组的其他消息对比；检查处理逻辑调用的服务。",
    "CONSUMED_AFTER_RETRY": "查看之前各次尝试的错误。",
    "DUPLICATE_DELIVERY": "重平衡和被终止的消费者会造成重复投递；处理逻辑必须幂等。",
    "DUPLICATE_PROCESSING": "检查哪些处理执行了两次；请按消息 ID 或 Key 实现幂等。",
    "DUPLICATE_SEND": "超时后的重试或重复发送：请让消费者按消息 ID 或 Key 实现幂等。",
    "OUT_OF_ORDER": "检查是否有两个客户端同时持有该队列（队列锁），以及处理返回后是否仍在继续工作。",
    "INCOMPLETE": "查看原因。",
}
"""Verdict codes that need something to be done."""

CAUSES: Final[dict[str, tuple[str, str]]] = {
    "WRONG_CLOCK": ("该主机的时钟不准", "同步该主机的时钟（chrony、NTP）。在此之前，它的耗时不可信。"),
    "DEPLOYMENT": ("只有该版本或该次启动的客户端受影响", "将部署内容与上一版本对比，并回滚。"),
    "MASTER_CHANGED": (
        "该组的另一个 Broker 成为主节点",
        "查明此前的主节点当时发生了什么：它的日志和机器。对示例消息运行 `mqtrail trace`，可看到何时由谁接管。",
    ),
    "BROKER_RESTARTED": (
        "Broker 一段时间没有应答，或丢失了消息",
        "查看 Broker 的日志：重启、崩溃、磁盘或内存已满。",
    ),
    "BROKER_FAILS": ("Broker 拒绝或延迟消息", "检查 Broker 的磁盘空间、刷盘耗时和负载；失败尝试的结果会说明原因。"),
    "BROKER_DELAYS": ("该 Broker 所有队列的消息都受影响", "检查 Broker 的负载和磁盘，以及它与消费者之间的网络。"),
    "POISON_KEY": ("某个 Key 的消息无法处理", "查看该 Key 的消息和处理错误；修正这些消息，或转入死信队列。"),
    "REBALANCES": (
        "消费组的客户端频繁上下线",
        "查明消费者重启或断开连接的原因：内存、健康检查、进程的长时间停顿。",
    ),
    "CONSUMER_GONE": ("消费组没有客户端在线", "启动该消费组的消费者。"),
    "HOT_QUEUE": ("该队列的消息远多于相邻队列", "分散分片 Key，或让同一队列的多个处理并行运行。"),
    "QUEUE_BLOCKED": ("某个队列的消息没有投递", "查找挂起的处理或队列锁：`mqtrail search --status HUNG`。"),
    "BAD_HOST": (
        "只有这台消费者主机或这个客户端受影响",
        "将该主机与其他主机对比：负载、磁盘、网络、配置。将它下线。",
    ),
    "THREADS_EXHAUSTED": (
        "消息在等待，但处理并不比以前慢：所有线程都被占用",
        "增加消费线程数，或增加消费者。",
    ),
    "DEPENDENCY": (
        "消费组在所有主机上的处理都受影响：问题出在其调用的服务",
        "查看错误，并检查该消费组的处理逻辑调用的数据库和服务。",
    ),
    "CONTENT": ("此类消息无法处理", "查看其中一些消息和处理错误；检查生产者做了哪些改动。"),
    "BAD_PRODUCER": ("只有该生产者受影响", "检查该生产者的网络、负载和停顿。"),
    "TOPIC_REFUSED": ("在所有 Broker 上向该主题发送都失败", "检查该主题是否存在、是否可写，以及生产者是否有写权限。"),
    "UNREAD": ("消息在消费组读取之前被跳过或删除", "将保留时间与消费组的堆积对比；查明是谁移动了位点。"),
    "NO_SINGLE_CAUSE": ("没有单一原因", "查看错误和其中一些消息；与部署以及队列之外的变化对比。"),
}
"""Of each cause: what it is, and what to do."""

SYMPTOMS: Final[dict[str, str]] = {
    "SEND_CLOCK": "存储早于发送开始，或晚于发送确认",
    "DELIVERY_CLOCK": "消费者的时钟与 Broker 的不一致",
    "SENDS_FAIL": "发送失败",
    "SENDS_SLOW": "发送缓慢",
    "TRANSACTIONS_OPEN": "事务没有结束",
    "DELAYS_LATE": "延迟消息晚到",
    "SENT_TWICE": "消息被重复发送",
    "NO_CONSUMER": "没有消费者在线",
    "GONE_UNREAD": "消息未被读取就已消失",
    "HANDLERS_FAIL": "处理失败",
    "HANDLERS_SLOW": "处理缓慢",
    "DELIVERED_TWICE": "消息被重复投递",
    "DISORDER": "消息乱序",
    "WAITS": "消息长时间等待处理",
}
"""What happens in an incident."""

FINDINGS: Final[dict[str, str]] = {
    "index_off": "{broker}：messageIndexEnable 为 false，因此查询只能找到数据湖中的消息",
    "silent_groups": "在线但样本中没有记录的消费组：{groups}；检查其消费者是否开启了轨迹",
    "many_silent_groups": "在线但样本中没有记录的消费组：{groups}，以及另外 {more} 个；检查其消费者是否开启了轨迹",
    "unnumbered": "没有客户端为其轨迹消息编号，因此无法发现客户端丢弃的记录",
    "rejects": "{rejects} 条记录无法解码：{reasons}",
    "read_only": "流水线读取轨迹主题以及 --topic 指定的主题；它不向该集群写入任何内容",
    "trace_topic_unknown": "无法查询主题 {topic}",
    "trace_topic_missing": "主题 {topic} 不存在：在 Broker 上设置 traceTopicEnable=true，或创建该主题",
    "no_trace_records": "{topic} 最新的 {sampled} 条消息中没有轨迹记录：请在客户端开启轨迹",
    "no_client_records": "只有 mqtrail 客户端会写这些记录；样本中没有",
    "brokers_silent": "Broker {brokers} 没有应答",
    "no_topics": "还没有业务主题",
}
"""What the doctor found."""


def finding_words(one: DoctorFinding, language: Language) -> str:
    """Return a sentence of the doctor."""
    return str(one) if language is Language.EN else FINDINGS[one.name].format_map(one.values)


def findings_words(findings: Iterable[DoctorFinding], language: Language) -> str:
    """Return sentences of the doctor, one after the other."""
    return ("; " if language is Language.EN else "；").join(finding_words(one, language) for one in findings)


def code_advice(code: str, language: Language) -> str:
    """Return what to do about a verdict code; '' if nothing has to be done."""
    return trail.CODES[code].advice if language is Language.EN else CODE_ADVICE.get(code, "")


def cause_words(one: ShownIncident, language: Language) -> tuple[str, str]:
    """Return what the cause of an incident is, and what to do about it."""
    return (
        (one.explanation, one.advice) if language is Language.EN else CAUSES.get(one.cause, CAUSES["NO_SINGLE_CAUSE"])
    )


def symptom_words(one: ShownIncident, language: Language) -> str:
    """Return what happens in an incident."""
    separator, words = "; ", one.what
    if language is Language.ZH:
        separator, words = "；", tuple(SYMPTOMS.get(name, name) for name in one.symptoms)
    return separator.join(words)
