"""Every text of the pages, in each language. A test finds texts that are missing."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from mqtrail import trail


class Language(StrEnum):
    """A language of the pages."""

    EN = "en"
    ZH = "zh"


TEXTS: Final[dict[str, tuple[str, str]]] = {
    "home": ("Home", "首页"),
    "search": ("Search", "搜索"),
    "message": ("Message", "消息"),
    "incidents": ("Incidents", "故障归因"),
    "incidents_text": (
        "Bad messages of the last day of the lake, grouped by what they share and good ones do not.",
        "数据湖最近一天的异常消息，按其共有而正常消息没有的特征归类。",
    ),
    "no_incidents": ("No bad messages that belong together were found.", "没有发现可归为一类的异常消息。"),
    "began": ("Began, lasted", "开始与持续"),
    "what": ("What happened", "现象"),
    "cause": ("Cause", "原因"),
    "common": ("What they share", "共同特征"),
    "bad_share": ("Bad of all", "异常占比"),
    "inside_outside": ("{inside} with these, {outside} of the others", "有此特征 {inside}，其他 {outside}"),
    "groups": ("Groups and lag", "消费组与堆积"),
    "help": ("Help", "帮助"),
    "close": ("Close", "关闭"),
    "language": ("中文", "English"),
    "theme": ("Light or dark", "浅色或深色"),
    "live": ("Live", "实时"),
    "loading": ("Loading …", "加载中 …"),
    "unknown": ("unknown", "未知"),
    "skip_to_content": ("Skip to content", "跳到内容"),
    "cannot_show": ("This part could not be loaded", "这一部分无法加载"),
    "older_below": ("Below is the last answer, as of {at}.", "下面是上一次的结果，时间 {at}。"),
    "as_of": ("as of {at}", "截至 {at}"),
    "range": ("messages sent from {first} to {end}", "发送时间 {first} 至 {end}"),
    "left_out": ("What was not searched, or is missing", "未搜索或缺失的部分"),
    "sources": ("Sources", "数据来源"),
    "no_lake": (
        "There is no lake. Read the trace of your cluster into one, then start the console with it:",
        "没有数据湖。请先读取集群的轨迹，再用它启动控制台：",
    ),
    "no_cluster": (
        "There is no cluster. Start the console with its name servers:",
        "没有集群。请指定 NameServer 启动控制台：",
    ),
    "trace_one": ("Where is my message?", "我的消息在哪里？"),
    "id_or_key": ("Message id or key, such as an order number", "消息 ID 或 Key，例如订单号"),
    "look_up": ("Look up", "查询"),
    "what_is_wrong": ("What is wrong", "有哪些问题"),
    "nothing_wrong": (
        "No message of this lake has a verdict of severity error or warning.",
        "没有错误或警告级别的判定。",
    ),
    "verdicts_over_time": ("Verdicts over time", "判定随时间的变化"),
    "chart_text": (
        "Messages with a problem, by time. The table has the same numbers.",
        "各时间段有问题的消息数，表格中有同样的数字。",
    ),
    "code": ("Verdict", "判定"),
    "about": ("About", "对象"),
    "meaning": ("Meaning", "含义"),
    "advice": ("What to do", "建议"),
    "message_count": ("Messages", "消息数"),
    "example": ("Example", "示例"),
    "undated": ("{count} messages without a known time are not in the chart", "{count} 条消息时间未知，不在图中"),
    "brokers": ("Brokers", "Broker"),
    "broker": ("Broker", "Broker"),
    "address": ("Address", "地址"),
    "version": ("Version", "版本"),
    "state": ("State", "状态"),
    "answers": ("answers", "正常应答"),
    "does_not_answer": ("does not answer: {why}", "无应答：{why}"),
    "judged": ("Judged messages", "已判定消息"),
    "rejects": ("Trace records that did not decode", "无法解码的轨迹记录"),
    "gaps": ("Gaps", "缺口"),
    "age": ("{age} behind now", "比现在晚 {age}"),
    "query": ("Conditions", "条件"),
    "query_hint": (
        "topic:orders group:billing verdict:HUNG handler>2s from:2h",
        "topic:orders group:billing verdict:HUNG handler>2s from:2h",
    ),
    "find": ("Search", "搜索"),
    "found_count": ("{count} messages match", "{count} 条消息匹配"),
    "shown": ("{first} to {last} are shown, the latest first", "显示第 {first} 至 {last} 条，最新的在前"),
    "none_found": (
        "No message of the lake matches. Check the conditions and the range above.",
        "没有匹配的消息。请检查条件和上面的范围。",
    ),
    "newer": ("Newer", "较新"),
    "older": ("Older", "较旧"),
    "as_command": ("The same as a command", "对应的命令"),
    "download_csv": ("CSV", "CSV"),
    "download_jsonl": ("JSON lines", "JSON 行"),
    "download_text": ("Download what is shown", "下载当前结果"),
    "conditions": ("Conditions", "可用条件"),
    "sent": ("Sent", "发送时间"),
    "id": ("Message id", "消息 ID"),
    "topic": ("Topic", "主题"),
    "keys": ("Keys", "Key"),
    "tag": ("Tag", "标签"),
    "verdicts": ("Verdicts", "判定"),
    "knowledge": ("Knowledge", "完整性"),
    "group": ("Group", "消费组"),
    "producer": ("Producer", "生产者"),
    "not_found": ("Not found", "未找到"),
    "cannot_look": ("Cannot tell", "无法判断"),
    "not_traced": ("Stored, but not traced", "已存储，但没有轨迹"),
    "several": ("{count} messages have this key", "{count} 条消息有此 Key"),
    "timeline": ("Time line", "时间线"),
    "timeline_text": ("Every event, in order of time", "所有事件，按时间排列"),
    "time": ("Time", "时间"),
    "after": ("After", "距开始"),
    "event": ("Event", "事件"),
    "outcome": ("Result", "结果"),
    "duration": ("Duration", "耗时"),
    "where": ("Where", "位置"),
    "detail": ("Detail", "详情"),
    "evidence": ("Evidence", "证据"),
    "why": ("Why", "原因"),
    "why_verdicts": ("Verdicts and why", "判定与原因"),
    "send": ("Send", "发送"),
    "properties": ("Properties", "属性"),
    "property": ("Property", "属性"),
    "value": ("Value", "值"),
    "body": ("Body", "消息体"),
    "body_text": ("Text", "文本"),
    "body_json": ("JSON", "JSON"),
    "body_hex": ("Hex", "十六进制"),
    "body_size": ("{size} bytes", "{size} 字节"),
    "body_cut": ("the first {shown} of {size} bytes", "共 {size} 字节，显示前 {shown} 字节"),
    "body_not_text": ("The body is not UTF-8 text.", "消息体不是 UTF-8 文本。"),
    "body_not_json": ("The body is not JSON.", "消息体不是 JSON。"),
    "body_unknown": ("No stored copy is known, so the body cannot be read.", "没有已知的存储副本，无法读取消息体。"),
    "body_needs_cluster": (
        "The body is read from the cluster: start the console with --namesrv.",
        "消息体从集群读取：请用 --namesrv 启动控制台。",
    ),
    "waiting": ("Waiting", "等待"),
    "waits_for": ("For", "已等待"),
    "members": ("Members", "成员"),
    "trend": ("Trend", "趋势"),
    "trend_button": ("Measure the trend (5 s)", "测量趋势（5 秒）"),
    "no_lag": ("No group waits.", "没有消费组在等待。"),
    "queues": ("Queues", "队列"),
    "queue": ("Queue", "队列"),
    "consumer_offset": ("Consumer offset", "消费位点"),
    "max_offset": ("End of queue", "队列末尾"),
    "oldest": ("Messages that have waited longest", "等待最久的消息"),
    "no_waiting": ("No message waits.", "没有等待的消息。"),
    "no_members": ("No member is online.", "没有在线成员。"),
    "client": ("Client", "客户端"),
    "client_language": ("Language", "语言"),
    "subscriptions": ("Subscriptions", "订阅"),
    "differing": (
        "Members subscribe differently to: {topics}. Each broker uses one of the subscriptions for all of them.",
        "成员的订阅不一致：{topics}。每个 Broker 只会对所有成员使用其中一个。",
    ),
    "DRAINS": ("drains, empty in {drain}", "减少，{drain}后清空"),
    "GROWS": ("grows", "增长"),
    "STEADY": ("steady", "持平"),
    "EMPTY": ("empty", "为空"),
    "UNKNOWN": ("unknown", "未知"),
    "error": ("error", "错误"),
    "warning": ("warning", "警告"),
    "open": ("open", "未完成"),
    "info": ("info", "信息"),
    "good": ("good", "正常"),
    "keys_help": (
        "/ goes to the search field, h home, s search, i incidents, g groups, ? this help. Tab and Enter work, too.",
        "/ 跳到搜索框，h 首页，s 搜索，i 故障归因，g 消费组，? 本帮助。Tab 和 Enter 随处可用。",
    ),
    "times_help": (
        "Times are UTC. Unknown is shown as “?”, a lower bound as “≥”; neither is ever shown as 0.",
        "时间为 UTC。未知显示为“?”，下限显示为“≥”，绝不显示为 0。",
    ),
    "HANDLED": ("handled", "处理"),
    "SEND": ("sent", "发送"),
    "STORED": ("stored", "存储"),
    "waits": ("waits", "等待"),
    "delayed": ("delayed", "延迟"),
}
"""Name -> English, Chinese. Braces are values."""

CODE_TEXTS: Final[dict[str, str]] = {
    "SEND_OK": "发送成功，Broker 返回 SEND_OK。",
    "SEND_SLOW": "发送耗时一秒或更久，包括失败的尝试。",
    "SEND_DEGRADED": "已确认，但刷盘或副本未及时确认。",
    "SEND_RETRIED": "一次发送尝试了多次。",
    "SEND_FAILED": "所有尝试都被拒绝或未离开客户端，没有存储副本。",
    "SEND_UNCERTAIN": "没有尝试被确认，但可能已经存储。",
    "TX_COMMITTED": "事务已在 Broker 提交。",
    "TX_ROLLED_BACK": "事务已在 Broker 回滚。",
    "TX_PENDING": "半消息尚未提交或回滚。",
    "TX_CHECKS_EXHAUSTED": "达到最大回查次数后，Broker 停止回查。",
    "SCHEDULED": "尚未到投递时间。",
    "DELIVERED_LATE": "到期三秒或更久之后才可见。",
    "RECALLED": "到期前已撤回。",
    "WAITING": "已存储，尚未交给处理器；消费组有在线客户端。",
    "NO_CONSUMER": "已存储，尚未交给处理器；消费组没有在线客户端。",
    "IN_FLIGHT": "已交给处理器，仍在运行；其客户端在线。",
    "HUNG": "已交给处理器，运行过久；其客户端在线。",
    "RETRYING": "处理失败，将再次尝试。",
    "CONSUMED": "处理成功。",
    "DEAD_LETTERED": "在消费组的死信队列中。",
    "FILTERED": "被消费组的订阅过滤。",
    "SKIPPED": "运维人员将消费组的位点移过了它。",
    "EXPIRED": "消费组消费之前已被过期删除。",
    "LOST": "已确认，但不再存储，原因不明。",
    "UNKNOWN": "证据不足，见原因。",
    "CONSUMED_SLOW": "处理耗时一秒或更久。",
    "CONSUMED_AFTER_RETRY": "先前失败，重试后成功。",
    "RESENT": "运维人员以原 ID 重新放回。",
    "DUPLICATE_DELIVERY": "没有失败却再次投递。",
    "DUPLICATE_PROCESSING": "同一消费组不止一次处理成功。",
    "DUPLICATE_SEND": "生产者不止一次存储。",
    "OUT_OF_ORDER": "同一 Key 的后一条消息先完成。",
    "COMPLETE": "应有的记录都在。",
    "INCOMPLETE": "必然发生的事件没有记录。",
}
"""Chinese explanations of verdict codes. The English ones are in trail.CODES."""


def text(name: str, language: Language, **values: object) -> str:
    """Return a text of the table with its values."""
    found = TEXTS[name][0 if language is Language.EN else 1]
    return found.format(**values) if values else found


def code_text(code: str, language: Language) -> str:
    """Return what a verdict code means."""
    return trail.CODES[code].explanation if language is Language.EN else CODE_TEXTS[code]


def language_of(chosen: str | None, accepted: str) -> Language:
    """Return the language that the reader chose, else the first one known of Accept-Language, else English."""
    for name in (chosen or "", *accepted.split(",")):
        known = name.strip().lower()[:2]
        if known in [one.value for one in Language]:
            return Language(known)
    return Language.EN
