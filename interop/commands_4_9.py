"""Every command of mqadmin 4.9.8, run on our servers and on Apache's 4.9.7, in this order; none is left out.

Our servers answer like 5.3.3; a command has a note where that differs from 4.9.7. `as_4_9` removes from the outputs the
parts that only one server prints. The brokers check accounts, and accept all requests from this machine (`ACCOUNTS`).
"""

from __future__ import annotations

import re

from interop.commands import Command, How

ACCOUNTS = """
globalWhiteRemoteAddresses:
- 127.0.0.*
accounts:
- {accessKey: operator, secretKey: operator1, admin: true}
"""
WHERE = (" -b {broker}", " -c DefaultCluster", "")
AS_5 = "4.9.7 knows no configBlackList"
GROUP_CODE = "4.9.7 asks its live consumers, and answers 1 or takes it; 5.x knows the group or does not"
FIGURES = "each server's own"
BAD_NAME = "neither 4.9.7 nor 5.3.3 looks at the name"
RETRY_ROW = "4.9.7 shows a row of the retry topic, too, of a group that retried nothing"

COMMANDS: tuple[Command, ...] = (
    # name server
    Command("clusterList", shows=r"broker-a +0 +[\d.:]+ +V\d_\d_\d +\d+\.\d\d\(\d+,\d+ms\) +\d+\.\d\d\(\d+,\d+ms\) "),
    Command("clusterList -m"),
    Command("getNamesrvConfig", How.SOME, "names of settings are each server's own", shows=r"listenPort += +\d+"),
    Command("updateNamesrvConfig -k orderMessageEnable -v false", shows="update name server config success"),
    Command("updateNamesrvConfig -k configStorePath -v elsewhere", shows="CODE: "),
    Command("updateKvConfig -s SPACE -k key -v value", shows="create or update kv config to namespace success"),
    Command("deleteKvConfig -s SPACE -k key", shows="delete kv config from namespace success"),
    # not for a topic: a broker that registers meanwhile would keep its order
    Command("updateOrderConf -t CommandOrdered -m put -v broker-a:4", shows="update orderConf success"),
    Command("updateOrderConf -t CommandOrdered -m get", shows=r"orderConf=\[broker-a:4\]"),
    Command("updateOrderConf -t CommandOrdered -m delete", shows="delete orderConf success"),
    Command("updateOrderConf -t CommandOrdered -m get", shows="CODE: 22 "),
    Command("wipeWritePerm -b broker-a", shows="wipe write perm of broker.* OK"),
    Command("addWritePerm -b broker-a", shows="add write perm of broker.* OK"),
    Command("wipeWritePerm -b no-broker"),
    Command("addWritePerm -b no-broker"),
    # topics
    Command("updateTopic -c DefaultCluster -t CommandMade -r 4 -w 4", shows="create topic to .* success"),
    Command("updateTopic -c NoCluster -t CommandMade -r 4 -w 4", shows="Make sure the specified clusterName exists"),
    Command("updateTopic -b {broker} -t CommandMade -r 6 -w 6 -p 6 -o true", shows=r"CODE: 22 [\s\S]*create topic"),
    Command("updateTopic -c DefaultCluster -t CommandMade -r 6 -w 6 -o true", shows=r"orderConf=\[broker-a:6\]"),
    Command("updateTopic -b {broker} -t CommandUnit -u true -s true", shows="create topic to .* success"),
    Command("updateTopic -b {broker} -t SCHEDULE_TOPIC_XXXX", shows="CODE: 1 "),
    Command("updateTopic -b {broker} -t bad~name!", shows="CODE: 1 "),
    Command("updateTopicPerm -b {broker} -t CommandMade -p 4", shows="update topic perm from 6 to 4"),
    Command("updateTopicPerm -c DefaultCluster -t CommandMade -p 6", shows="update topic perm from 4 to 6"),
    Command("updateTopicPerm -b {broker} -t NoSuchTopic -p 4", shows="CODE: 17 "),
    Command("topicList", How.SET, shows="^TBW102$"),
    Command("topicList -c", How.SET, shows="DefaultCluster +CommandTopic +CommandGroup"),
    Command("topicRoute -t CommandTopic", shows=r'"brokerAddrs":{0:"[\d.:]+"'),
    Command("topicRoute -t CommandTopic -l", shows=r"broker-a +{0=[\d.:]+} +4 +4 +6"),
    Command("topicRoute -t NoSuchTopic", shows="CODE: 17 "),
    Command("topicStatus -t CommandTopic", shows=r"broker-a +3 +0 +2 +20\d\d-"),
    Command("topicStatus -t NoSuchTopic", shows="CODE: 17 "),
    Command("topicClusterList -t CommandTopic", shows="^DefaultCluster$"),
    Command("topicClusterList -t NoSuchTopic", shows="CODE: 17 "),
    Command("allocateMQ -t CommandTopic -i 10.0.0.1,10.0.0.2", shows='"10.0.0.1":'),
    # groups
    Command(
        "updateSubGroup -b {broker} -g CommandMadeGroup -r 3 -s true -m false -d false -q 2 -i 0 -w 1 -a false",
        shows="create subscription group to .* success",
    ),
    Command("updateSubGroup -c DefaultCluster -g CommandMadeGroup -s false", shows="success"),
    Command("updateSubGroup -b {broker} -g CommandClone", shows="success"),
    Command("getConsumerConfig -g CommandMadeGroup", shows="consumeEnable += +false"),
    Command("getConsumerConfig -g NoSuchGroup"),
    Command("deleteSubGroup -b {broker} -g CommandMadeGroup", shows="delete subscription group .* success"),
    Command("deleteSubGroup -c DefaultCluster -g NoSuchGroup -r true", shows="delete subscription group .* success"),
    # clients
    Command("producer -b {broker}", How.SOME, shows=r"group \(CommandProducer\) .*language=JAVA, version=409"),
    Command("producerConnection -g CommandProducer -t CommandTopic", shows=r"JAVA +V4_9_8"),
    Command("producerConnection -g NoSuchGroup -t CommandTopic", shows="CODE: 1 "),
    Command("consumerConnection -g CommandGroup", shows=r"JAVA +V4_9_8"),
    Command("consumerConnection -g CommandGroup -b {broker}", shows=r"JAVA +V4_9_8"),
    Command("consumerConnection -g NoSuchGroup", shows="CODE: 17 "),
    Command("consumerProgress", How.SET, shows=r"CommandGroup +1 +V4_9_8 +PUSH +CLUSTERING +\d+ +0"),
    Command("consumerProgress -g CommandGroup", How.OWN, RETRY_ROW, shows=r"broker-a +3 +2 +2 +0 +20\d\d-"),
    Command("consumerProgress -g CommandGroup -s true", How.OWN, RETRY_ROW, shows=r"broker-a +3 +2 +2 +[\d.]+ +0 "),
    Command("consumerProgress -g NoSuchGroup", shows="CODE: 17 "),
    Command("consumerStatus -g CommandGroup", shows="Rebalance OK"),
    Command("consumerStatus -g CommandGroup -i {client}", How.WORDS, shows="CommandTopic +broker-a +3 +2"),
    Command("consumerStatus -g CommandGroup -i {client} -s -b {broker}", How.SOME, shows="ConsumeMessageThread"),
    Command("consumerStatus -g NoSuchGroup", shows="CODE: "),
    Command("brokerConsumeStats -b {broker}", How.OWN, shows="CommandTopic +CommandGroup +broker-a +3 +2 +2 +0 "),
    Command("brokerConsumeStats -b {broker} -o true -l 100 -t 5000", shows="Diff Total: 0"),
    # messages
    Command("queryMsgById -i {offset_id}", shows="consumerGroup=CommandGroup, trackType=CONSUMED"),
    Command("queryMsgById -i {offset_id} -g CommandGroup -d {client}", shows="consumeResult=CR_SUCCESS"),
    Command("queryMsgById -i {offset_id} -g CommandGroup -d no@body", shows="CODE: 1 "),
    Command("queryMsgById -i {nowhere}", shows="CODE: "),
    Command("queryMsgByUniqueKey -t CommandTopic -i {unique}", shows="consumerGroup=CommandGroup, trackType=CONSUMED"),
    Command("queryMsgByUniqueKey -t CommandTopic -i {unique} -a", shows=r"Queue ID: +\d"),
    Command("queryMsgByUniqueKey -t CommandTopic -i {unique} -g CommandGroup -d {client}", shows="CR_SUCCESS"),
    Command("queryMsgByUniqueKey -t CommandTopic -i NOSUCHUNIQUEKEY", shows="CODE: 208 "),
    Command("queryMsgByKey -t CommandTopic -k key-a", How.SET, shows=r"[0-9A-F]{32,} +3 +1$"),
    Command("queryMsgByKey -t CommandTopic -k no-key", shows="CODE: 208 "),
    Command("queryMsgByKey -t NoSuchTopic -k key-a", shows="CODE: 17 "),
    Command("queryMsgByOffset -t CommandTopic -b broker-a -i 0 -o 0", shows=r"Tags: +\[A\]"),
    Command("queryMsgByOffset -t CommandTopic -b broker-a -i 0 -o 1000"),
    Command("queryMsgTraceById -i {traced}", shows=r"Pub +CommandProducerTraced .*success"),
    Command("queryMsgTraceById -i {unique} -t NoSuchTopic", shows="CODE: 17 "),
    Command("printMsg -t CommandTopic", How.SET, shows="BODY: one"),
    Command("printMsg -t CommandTopic -s TagA~||~A -d true", How.SET, shows="BODY: one"),
    Command("printMsg -t CommandTopic -b 2020-01-01#00:00:00:000 -e 2020-01-02#00:00:00:000", How.SET),
    Command("printMsgByQueue -t CommandTopic -a broker-a -i 0 -p true -d true -f true", shows="Tag: A +Count: 2"),
    Command("consumeMessage -t CommandTopic -c 9", How.SET, shows="BODY: one"),
    Command("consumeMessage -t CommandTopic -b broker-a -i 0 -o 0 -c 1", shows="BODY: one"),
    Command(
        "consumeMessage -t CommandTopic -g CommandPuller -b broker-a -i 0"
        " -s 2020-01-01#00:00:00:000 -e 2020-01-02#00:00:00:000"
    ),
    # from here on queues differ: each tool chooses the queues it sends to
    Command("queryMsgById -i {offset_id} -s true", shows="sendStatus=SEND_OK"),
    Command("sendMessage -t CommandTopic -p text -k key-b -c TagB -b broker-a -i 0", shows="broker-a +0 +SEND_OK"),
    Command("sendMessage -t CommandTopic -p text -m true", shows=r"broker-a +\d +SEND_OK"),
    Command("sendMsgStatus -b broker-a -c 2 -s 16", shows="sendStatus=SEND_OK"),
    Command("checkMsgSendRT -t CommandTopic -a 2 -s 16", shows=r"broker-a +\d +true"),
    Command("queryCq -t CommandTopic -q 0 -i 0 -c 1 -b {broker}", shows="tagsCode=65"),
    Command("queryCq -t CommandTopic -q 0 -i 0 -c 2 -b {broker} -g CommandGroup", shows='"subString":"[*]"'),
    Command("queryCq -t CommandTopic -q 0 -i 0 -c 2", shows="tagsCode=65"),
    Command("queryCq -t CommandTopic -q 99 -i 0 -c 1 -b {broker}", shows="CODE: 1 "),
    Command("queryCq -t NoSuchTopic -q 0 -i 0 -c 1 -b {broker}", shows="CODE: 1 "),
    # offsets
    Command("resetOffsetByTime -g CommandGroup -t CommandTopic -s now", shows=r"broker-a +3 +\d+"),
    Command("resetOffsetByTime -g CommandGroup -t CommandTopic -s 2020-01-01#00:00:00:000", shows="broker-a +3 +0 "),
    Command("resetOffsetByTime -g CommandGroup -t CommandTopic -s now -c -f false", shows=r"broker-a +3 +\d+"),
    Command("resetOffsetByTime -g CommandGroup -t CommandTopic -s now -f true", shows=r"broker-a +3 +\d+"),
    Command("resetOffsetByTime -g NoSuchGroup -t CommandTopic -s now", How.OURS, GROUP_CODE, shows="CODE: 26 "),
    Command("resetOffsetByTime -g CommandGroup -t NoSuchTopic -s now", shows="CODE: 17 "),
    Command("skipAccumulatedMessage -g CommandGroup -t CommandTopic", shows=r"broker-a +3 +\d+"),
    Command("skipAccumulatedMessage -g CommandGroup -t CommandTopic -f false", shows=r"broker-a +3 +\d+"),
    Command("skipAccumulatedMessage -g NoSuchGroup -t CommandTopic", How.OURS, GROUP_CODE, shows="CODE: 26 "),
    Command("cloneGroupOffset -s CommandGroup -d CommandClone -t CommandTopic", shows="clone group offset success"),
    # broker
    Command("brokerStatus -b {broker}", How.SOME, FIGURES, shows=r"getTransferedTps +: \d+\.\d+"),
    Command("brokerStatus -c DefaultCluster", How.SOME, FIGURES, shows=r"brokerVersionDesc +: V\d_\d_\d"),
    Command("statsAll -t CommandTopic", shows=r"CommandTopic +CommandGroup +\d+ "),
    Command("statsAll -a -t CommandTopic", How.SOME, "what counts as active depends on the minute"),
    Command("getBrokerConfig -b {broker}", How.SOME, FIGURES, shows=r"brokerName += +broker-a"),
    Command("getBrokerConfig -c DefaultCluster", How.SOME, FIGURES, shows=r"brokerName += +broker-a"),
    Command("updateBrokerConfig -b {broker} -k enablePropertyFilter -v true", shows="update broker config success"),
    Command("updateBrokerConfig -c DefaultCluster -k enablePropertyFilter -v true", shows="success"),
    Command("updateBrokerConfig -b {broker} -k brokerConfigPath -v elsewhere", How.OURS, AS_5, shows="CODE: 16 "),
    *(Command(f"cleanExpiredCQ{where}", shows="^success$") for where in WHERE),
    *(Command(f"cleanUnusedTopic{where}", shows="^success$") for where in WHERE),
    *(Command(f"deleteExpiredCommitLog{where}", shows="^success$") for where in WHERE),
    Command("exportMetadata -b {broker} -t -f {folder}", How.SET, shows="topicName = CommandTopic"),
    Command("exportMetadata -b {broker} -g -s -f {folder}", How.SET, shows="groupName = CommandGroup"),
    Command("exportMetadata -c DefaultCluster -f {folder}", How.SET, shows="topicName = CommandTopic"),
    Command("exportConfigs -c DefaultCluster -f {folder}", shows="/maxMessageSize = 4194304"),
    Command("exportMetrics -c DefaultCluster -f {folder}", shows=r"/normalInTps = \d+\.\d"),
    Command("clusterRT -a 2 -i 1 -s 16", shows="#RT", until="broker-a"),
    # accounts
    Command(
        "updateAclConfig -b {broker} -a someone -s secret12 -i DENY -u SUB -t CommandTopic=PUB -g CommandGroup=SUB"
        " -w 10.0.0.* -m false",
        shows="create or update plain access config to .* success",
    ),
    Command("updateAclConfig -c DefaultCluster -a someone -s secret12", shows="success"),
    Command("updateAclConfig -b {broker} -a me -s short", shows="CODE: 209 "),
    Command("clusterAclConfigVersion -b {broker}", shows=r"DefaultCluster +broker-a +[\d.:]+ +\S*plain_acl.yml"),
    Command("clusterAclConfigVersion -c DefaultCluster", shows=r"DefaultCluster +broker-a +[\d.:]+ +\S*plain_acl.yml"),
    Command("updateGlobalWhiteAddr -b {broker} -g 127.0.0.*", shows="success"),
    Command("updateGlobalWhiteAddr -c DefaultCluster -g 127.0.0.*", shows="success"),
    Command("deleteAclConfig -b {broker} -a someone", shows="delete plain access config account from .* success"),
    Command("deleteAclConfig -c DefaultCluster -a someone", shows="CODE: 210 "),
    # last, because 4.9.7 accepts invalid values here, or because it ends servers or data
    Command("updateSubGroup -b {broker} -g bad~name!", How.OURS, BAD_NAME, shows="CODE: 1 "),
    Command("cloneGroupOffset -s CommandGroup -d NoSuchGroup -t CommandTopic", How.OURS, GROUP_CODE, shows="CODE: 26 "),
    Command("deleteTopic -c DefaultCluster -t CommandMade", shows="delete topic .* success"),
    Command("deleteTopic -c DefaultCluster -t NoSuchTopic", shows="delete topic .* success"),
    # it has no end: watch it from here on
    Command("startMonitoring"),
    Command("consumerConnection -g __MONITOR_CONSUMER", shows="OFFSET_MOVED_EVENT", again=True),
)

# Topics of 5.x brokers, and of 4.9.7 once it has created them.
_TOPICS_OF_5 = re.compile(r"^.*(rmq_sys_|RMQ_SYS_TRANS_OP_HALF_TOPIC).*\n?", re.MULTILINE)
# Properties that 4.9.7 drops or does not add when it stores a message.
_STORED_BY_5 = re.compile(r"(?:TRACE_ON=true|MSG_REGION=DefaultRegion|WAIT=true)(?:, )?")
_ACL_FILE = re.compile(r"\S*/(?=plain_acl\.yml)")


def as_4_9(output: str) -> str:
    """Return the output without the differences in docs/reference/deviations.md and without the server's folder."""
    for what in (_TOPICS_OF_5, _STORED_BY_5, _ACL_FILE):
        output = what.sub("", output)
    # Apache's broker applies a group's filter only to entries with an extension
    return output.replace("eval=true", "eval=false")
