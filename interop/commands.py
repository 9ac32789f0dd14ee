"""Every command of mqadmin 5.3.3: its command line, and which part of its output must be equal on two servers.

`COMMANDS` run in this order on a broker after the traffic of `typed.prepare`; `LEFT_OUT` says why the others do not
run. `commands_4_9` has the commands of mqadmin 4.9.8.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from dataclasses import dataclass
from enum import Enum

# Topics and groups of the commands; see `typed.prepare`.
TOPIC, GROUP, PRODUCER = "CommandTopic", "CommandGroup", "CommandProducer"
TRACED = "CommandTraced"

LEFT_OUT = {
    "addBroker": "of a broker container",
    "removeBroker": "of a broker container",
    "getSyncStateSet": "asks a controller",
    "getControllerMetaData": "asks a controller",
    "getControllerConfig": "asks a controller",
    "updateControllerConfig": "asks a controller",
    "electMaster": "asks a controller",
    "cleanBrokerMetadata": "asks a controller",
    "updateStaticTopic": "static topics",
    "remappingStaticTopic": "static topics",
    "dumpCompactionLog": "reads files of the machine it runs on, of a kind of topic that is not here",
    "exportMetadataInRocksDB": "reads files of the machine it runs on",
}


class How(Enum):
    """The part of the output that is compared."""

    SAME = "every line, numbers blanked"
    WORDS = "the set of first words of lines: names of settings, figures, topics"
    SET = "the set of lines, numbers blanked: the order is a Java hash map's"
    OWN = "the lines about the topic of these commands: other tests have used the broker too"
    SOME = "only that it succeeds: the output depends on the server"
    OURS = "that the output of ours matches `shows`; the note says why Apache's differs"
    REFUSED = "that ours rejects it with code 3 (docs/reference/compatibility.md); Apache's may serve it"


@dataclass(frozen=True)
class Command:
    """One command line of mqadmin. Placeholders get the values that `typed.prepare` returns."""

    line: str
    how: How = How.SAME
    note: str = ""
    shows: str = ""  # a pattern in the output of both servers
    until: str = ""  # for a command without an end: text printed after its first round
    again: bool = False  # repeat the command until its output matches

    @property
    def name(self) -> str:
        """The command's name."""
        return self.line.split()[0]

    def arguments(self, places: dict[str, str]) -> list[str]:
        """Return the arguments; `~` becomes a blank inside an argument."""
        return [word.replace("~", " ") for word in self.line.format(**places).split()]


COMMANDS: tuple[Command, ...] = (
    # name server
    Command("clusterList"),
    Command("clusterList -m"),
    Command("clusterList -c NoCluster"),
    Command("getNamesrvConfig", How.SOME, "names of settings are each server's own"),
    Command("updateNamesrvConfig -k orderMessageEnable -v false"),
    Command("updateNamesrvConfig -k configStorePath -v elsewhere"),
    Command("updateKvConfig -s SPACE -k key -v value"),
    Command("deleteKvConfig -s SPACE -k key"),
    # not for a topic: a broker that registers meanwhile would keep its order
    Command("updateOrderConf -t CommandOrdered -m put -v broker-a:4"),
    Command("updateOrderConf -t CommandOrdered -m get"),
    Command("updateOrderConf -t CommandOrdered -m delete"),
    Command("updateOrderConf -t CommandOrdered -m get"),
    Command("wipeWritePerm -b broker-a"),
    Command("addWritePerm -b broker-a"),
    Command("wipeWritePerm -b no-broker"),
    # topics
    Command("updateTopic -c DefaultCluster -t CommandMade -r 4 -w 4"),
    Command("updateTopic -b {broker} -t CommandMade -r 6 -w 6 -p 6 -o true"),
    Command("updateTopic -b {broker} -t CommandTyped -r 1 -w 1 -a +message.type=FIFO"),
    Command("updateTopic -b {broker} -t CommandTyped -a +message.type=NONSENSE"),
    Command("updateTopic -b {broker} -t SCHEDULE_TOPIC_XXXX"),
    Command("updateTopicPerm -b {broker} -t CommandMade -p 4"),
    Command("updateTopicPerm -c DefaultCluster -t CommandMade -p 6"),
    Command("updateTopicPerm -b {broker} -t NoSuchTopic -p 4"),
    Command("updateTopicList -b {broker} -f {folder}/topics.json"),
    Command("topicList -c", How.WORDS),
    Command("topicRoute -t CommandTopic"),
    Command("topicRoute -t CommandTopic -l"),
    Command("topicRoute -t NoSuchTopic"),
    Command("topicStatus -t CommandTopic"),
    Command("topicStatus -t NoSuchTopic"),
    Command("topicClusterList -t CommandTopic"),
    Command("allocateMQ -t CommandTopic -i 10.0.0.1,10.0.0.2"),
    # groups
    Command("updateSubGroup -b {broker} -g CommandMadeGroup -r 3 -o false"),
    Command("updateSubGroup -c DefaultCluster -g CommandMadeGroup -s false"),
    Command("updateSubGroup -b {broker} -g CommandMadeGroup --attributes +a=b"),
    Command("updateSubGroupList -b {broker} -f {folder}/groups.json"),
    Command("getConsumerConfig -g CommandMadeGroup"),
    Command("getConsumerConfig -g NoSuchGroup"),
    Command("setConsumeMode -b {broker} -t CommandMade -g CommandMadeGroup -m POP -q 2"),
    Command("setConsumeMode -b {broker} -t CommandMade -g CommandMadeGroup -m PULL"),
    Command("deleteSubGroup -b {broker} -g CommandMadeGroup"),
    Command("deleteSubGroup -c DefaultCluster -g NoSuchGroup -r true"),
    # clients
    Command("producer -b {broker}", How.SOME, "JSON, one connection a line"),
    Command("producerConnection -g CommandProducer -t CommandTopic"),
    Command("producerConnection -g NoSuchGroup -t CommandTopic"),
    Command("consumerConnection -g CommandGroup"),
    Command("consumerConnection -g NoSuchGroup"),
    Command("consumerProgress -g CommandGroup"),
    Command("consumerProgress -g CommandGroup -s true"),
    Command("consumerProgress -g NoSuchGroup"),
    Command("consumerStatus -g CommandGroup -i {client}", How.WORDS),
    Command("consumerStatus -g NoSuchGroup"),
    Command("brokerConsumeStats -b {broker}", How.OWN),
    # messages
    Command("queryMsgById -t CommandTopic -i {offset_id}"),
    Command("queryMsgById -t CommandTopic -i {offset_id} -g CommandGroup -d {client}"),
    Command("queryMsgByUniqueKey -t CommandTopic -i {unique}"),
    Command("queryMsgByUniqueKey -t CommandTopic -i {unique} -g CommandGroup -d {client}"),
    Command("queryMsgByKey -t CommandTopic -k key-a"),
    Command("queryMsgByKey -t CommandTopic -k no-key"),
    Command("queryMsgByOffset -t CommandTopic -b broker-a -i 0 -o 0"),
    Command("queryMsgTraceById -i {unique} -t NoSuchTopic"),
    Command("printMsg -t CommandTopic"),
    Command("printMsgByQueue -t CommandTopic -a broker-a -i 0 -p true -d true -f true"),
    Command("consumeMessage -t CommandTopic -b broker-a -i 0 -o 0 -c 1"),
    Command("sendMessage -t CommandTopic -p text -k key-b -c TagB -b broker-a -i 0"),
    Command("sendMessage -t CommandTopic -p text"),
    Command("sendMsgStatus -b broker-a -c 2"),
    Command("checkMsgSendRT -t CommandTopic -a 2"),
    Command("queryCq -t CommandTopic -q 0 -i 0 -c 1 -b {broker}"),
    Command("queryCq -t CommandTopic -q 99 -i 0 -c 1 -b {broker}"),
    Command("queryCq -t NoSuchTopic -q 0 -i 0 -c 1 -b {broker}"),
    # offsets
    Command("resetOffsetByTime -g CommandGroup -t CommandTopic -s now"),
    Command("resetOffsetByTime -g CommandGroup -t CommandTopic -s -1 -q 0 -o 1 -b {broker}"),
    Command("resetOffsetByTime -g NoSuchGroup -t CommandTopic -s now"),
    Command("resetOffsetByTime -g CommandGroup -t NoSuchTopic -s now"),
    Command("skipAccumulatedMessage -g CommandGroup -t CommandTopic"),
    Command("skipAccumulatedMessage -g NoSuchGroup -t CommandTopic"),
    Command("cloneGroupOffset -s CommandGroup -d CommandClone -t CommandTopic"),
    # broker
    Command("brokerStatus -b {broker}", How.SOME, "names of figures: test_golden"),
    Command("statsAll -t CommandTopic"),
    Command("getBrokerConfig -b {broker}", How.SOME, "each server's own"),
    Command("updateBrokerConfig -b {broker} -k enablePropertyFilter -v true"),
    Command("updateBrokerConfig -b {broker} -k brokerConfigPath -v elsewhere"),
    Command("cleanExpiredCQ -b {broker}"),
    Command("cleanUnusedTopic -b {broker}"),
    Command("deleteExpiredCommitLog -b {broker}"),
    Command("haStatus -b {broker}"),
    Command("getBrokerEpoch -b broker-a"),
    Command("resetMasterFlushOffset -b {broker} -o 0"),
    Command("getColdDataFlowCtrInfo -b {broker}"),
    Command("updateColdDataFlowCtrGroupConfig -b {broker} -g CommandGroup -v 1024"),
    Command("removeColdDataFlowCtrGroupConfig -b {broker} -g CommandGroup"),
    Command("setCommitLogReadAheadMode -b {broker} -m 0"),
    Command("rocksDBConfigToJson -b {broker} -t topics"),
    Command("checkRocksdbCqWriteProgress -c DefaultCluster", How.REFUSED, "no RocksDB"),
    Command("exportPopRecord -b {broker} -d true", How.REFUSED, "no RocksDB"),
    Command("exportMetadata -b {broker} -t -f {folder}"),
    Command("exportMetadata -c DefaultCluster -f {folder}"),
    Command("exportConfigs -c DefaultCluster -f {folder}"),
    Command("exportMetrics -c DefaultCluster -f {folder}"),
    # users and policies
    Command("createUser -b {broker} -u someone -p secret -t Normal"),
    Command("createUser -b {broker} -u someone -p secret"),
    Command("updateUser -b {broker} -u someone -s disable"),
    Command("getUser -b {broker} -u someone"),
    Command("getUser -b {broker} -u nobody"),
    Command("listUser -b {broker}"),
    Command("copyUser -f {broker} -t {broker} -u someone"),
    Command("createAcl -b {broker} -s User:someone -r Topic:CommandTopic -a Pub,Sub -d Allow -i 10.0.0.0/8"),
    Command("createAcl -b {broker} -s User:nobody -r Topic:CommandTopic -a Pub -d Allow"),
    Command("updateAcl -b {broker} -s User:someone -r Topic:CommandTopic -a Sub -d Deny"),
    Command("getAcl -b {broker} -s User:someone"),
    Command("getAcl -b {broker} -s User:nobody"),
    Command("listAcl -b {broker}"),
    Command("copyAcl -f {broker} -t {broker} -s User:someone"),
    Command("deleteAcl -b {broker} -s User:someone"),
    Command("deleteUser -b {broker} -u someone"),
    Command("deleteUser -b {broker} -u nobody"),
    Command("clusterRT -a 2 -i 1 -s 16", How.OWN, until="broker-a"),
    # last, because it ends servers or data that other commands need
    Command("deleteTopic -c DefaultCluster -t CommandMade"),
    Command("deleteTopic -c DefaultCluster -t NoSuchTopic"),
    # it has no end: watch it from here on
    Command("startMonitoring"),
    Command("consumerConnection -g __MONITOR_CONSUMER", shows="OFFSET_MOVED_EVENT", again=True),
)

_ADDRESS = re.compile(r"\d+\.\d+\.\d+\.\d+(:\d+)?")
_HEX = re.compile(r"\b[0-9A-F]{32,}")
_OBJECT = re.compile(r"@[0-9a-f]{4,8}\b")
_NUMBER = re.compile(r"-?\d+(\.\d+)?(E-?\d+)?%?")
# Apache's tool treats a topic as one of its groups (docs: deviations).
_TOPIC_AS_GROUP = re.compile(
    rf"MessageTrack \[consumerGroup={TOPIC}, .*?:\d+\)\]|^{TOPIC} +{TOPIC} .*$", re.DOTALL | re.MULTILINE
)
# Members of exported files that only one server has (docs: deviations).
_EXPORTED = re.compile(
    r"^/(?:evaluateReport/broker-a/runtimeEnv/cpuNum|brokerConfigs/broker-a/filterServerNums) = .*$", re.M
)
# Passwords, which our broker never returns (docs: compatibility).
_PASSWORD = re.compile(r"^(someone +)secret\b", re.MULTILINE)
_FAILED = re.compile(r"\b(?:\w+\.)*(\w+(?:Exception|Error)): .*?CODE: (\d+)")
_EXCEPTION = re.compile(r"Exception(?!\w*\()")  # not a method of a thread's stack, such as `withException(`


def has_exception(output: str) -> bool:
    """Whether an output shows an exception."""
    return _EXCEPTION.search(output) is not None


def comparable(output: str, how: How) -> list[str]:
    """Return the comparable part of an output. Of a failure, only the exception's name and code are compared."""
    output = _PASSWORD.sub(r"\1", _EXPORTED.sub("", _TOPIC_AS_GROUP.sub("", output)))
    failures = _FAILED.findall(output)
    if failures:
        return [f"{kind} {code}" for kind, code in failures[:1]]
    lines = [_blank(line) for line in output.splitlines() if not line.startswith(("\tat ", "\t..."))]
    lines = [line for line in lines if line]
    if how is How.SOME:
        return ["some" if lines else "nothing"]
    if how is How.OWN:
        return sorted(line for line in lines if TOPIC in line)
    if how is How.SET:
        return sorted(set(lines))
    if how is How.WORDS:
        return sorted({line.split()[0] for line in lines})
    return lines


def _blank(line: str) -> str:
    """Return the line with variable values replaced by a sign, and single blanks."""
    line = _OBJECT.sub("@", _HEX.sub("<id>", _ADDRESS.sub("<address>", line)))
    return " ".join(_NUMBER.sub("#", line).split())


def names(help_text: str) -> list[str]:
    """Return the commands in mqadmin's own help."""
    return re.findall(r"^   (\w+) +\S", help_text, re.MULTILINE)


def missing(
    help_text: str, commands: Iterable[Command] = COMMANDS, left_out: Container[str] = frozenset(LEFT_OUT)
) -> list[str]:
    """Return the commands that are neither run nor left out with a reason."""
    run = {command.name for command in commands}
    return sorted(name for name in names(help_text) if name not in run and name not in left_out)
