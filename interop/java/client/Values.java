package mqtrail.interop;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** JSON to the client's values and back. */
final class Values {
    private static final int API_TIMEOUT_MS = 15_000;

    private Values() {
    }

    /** Reads {topic, body | bodySize, tags, keys, delay, delaySec, delayMs, deliverMs, flag, properties}. */
    static Message message(JSONObject json) throws Exception {
        byte[] body;
        if (json.containsKey("bodySize")) {
            body = filler(json.getIntValue("bodySize"));
        } else {
            body = json.getString("body").getBytes(StandardCharsets.UTF_8);
        }
        Message message = new Message(json.getString("topic"), body);
        message.setFlag(json.getIntValue("flag"));
        if (json.containsKey("tags")) {
            message.setTags(json.getString("tags"));
        }
        if (json.containsKey("keys")) {
            message.setKeys(json.getString("keys"));
        }
        if (json.containsKey("delay")) {
            message.setDelayTimeLevel(json.getIntValue("delay"));
        }
        if (json.containsKey("delaySec")) {
            Late.call(message, "setDelayTimeSec", json.getLong("delaySec"));
        }
        if (json.containsKey("delayMs")) {
            Late.call(message, "setDelayTimeMs", json.getLong("delayMs"));
        }
        if (json.containsKey("deliverMs")) {
            Late.call(message, "setDeliverTimeMs", json.getLong("deliverMs"));
        }
        if (json.containsKey("properties")) {
            for (Map.Entry<String, Object> entry : json.getJSONObject("properties").entrySet()) {
                message.putUserProperty(entry.getKey(), String.valueOf(entry.getValue()));
            }
        }
        return message;
    }

    /**
     * What every kind of client has: {instance, namespace, namespaceV2, pollMs: between two looks at routes}. Its own
     * time for a route and the like is too short for servers on a busy machine.
     */
    static void place(ClientConfig client, JSONObject command) throws Exception {
        client.setMqClientApiTimeout(API_TIMEOUT_MS);
        if (command.containsKey("instance")) {
            client.setInstanceName(command.getString("instance"));
        }
        if (command.containsKey("namespace")) {
            client.setNamespace(command.getString("namespace"));
        }
        if (command.containsKey("pollMs")) {
            client.setPollNameServerInterval(command.getIntValue("pollMs"));
        }
        if (command.containsKey("namespaceV2")) {
            Late.call(client, "setNamespaceV2", command.getString("namespaceV2"));
        }
    }

    static List<Message> messages(JSONArray json) throws Exception {
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < json.size(); i++) {
            messages.add(message(json.getJSONObject(i)));
        }
        return messages;
    }

    static String text(byte[] body) {
        return new String(body, StandardCharsets.UTF_8);
    }

    /** A body of the letters a to z over and over. */
    static byte[] filler(int size) {
        byte[] body = new byte[size];
        for (int i = 0; i < size; i++) {
            body[i] = (byte) ('a' + i % 26);
        }
        return body;
    }

    static JSONObject result(Message message, SendResult result, long beginMs) {
        JSONObject json = new JSONObject();
        json.put("uniqKey", MessageClientIDSetter.getUniqID(message));
        json.put("beginMs", beginMs);
        json.put("endMs", System.currentTimeMillis());
        if (result != null) {
            json.put("status", result.getSendStatus().name());
            json.put("msgId", result.getMsgId());
            json.put("offsetMsgId", result.getOffsetMsgId());
            json.put("queue", queue(result.getMessageQueue()));
            json.put("queueOffset", result.getQueueOffset());
            json.put("regionId", result.getRegionId());
            json.put("transactionId", result.getTransactionId());
            json.put("recallHandle", Late.get(result, "getRecallHandle"));
            if (result instanceof TransactionSendResult) {
                json.put("local", ((TransactionSendResult) result).getLocalTransactionState().name());
            }
        }
        return json;
    }

    static JSONObject failure(Message message, Throwable problem, long beginMs) {
        return Driver.describe(problem)
            .fluentPut("uniqKey", MessageClientIDSetter.getUniqID(message))
            .fluentPut("beginMs", beginMs)
            .fluentPut("endMs", System.currentTimeMillis());
    }

    static JSONObject queue(MessageQueue queue) {
        return new JSONObject()
            .fluentPut("topic", queue.getTopic())
            .fluentPut("brokerName", queue.getBrokerName())
            .fluentPut("queueId", queue.getQueueId());
    }

    static JSONObject stored(MessageExt message) {
        return new JSONObject()
            .fluentPut("msgId", message.getMsgId())
            .fluentPut("topic", message.getTopic())
            .fluentPut("body", text(message.getBody()))
            .fluentPut("bodyCRC", message.getBodyCRC())
            .fluentPut("flag", message.getFlag())
            .fluentPut("sysFlag", message.getSysFlag())
            .fluentPut("tags", message.getTags())
            .fluentPut("keys", message.getKeys())
            .fluentPut("properties", message.getProperties())
            .fluentPut("queueId", message.getQueueId())
            .fluentPut("queueOffset", message.getQueueOffset())
            .fluentPut("physicalOffset", message.getCommitLogOffset())
            .fluentPut("storeSize", message.getStoreSize())
            .fluentPut("bornTimestampMs", message.getBornTimestamp())
            .fluentPut("storeTimestampMs", message.getStoreTimestamp())
            .fluentPut("bornHost", message.getBornHostString())
            .fluentPut("storeHost", String.valueOf(message.getStoreHost()))
            .fluentPut("reconsumeTimes", message.getReconsumeTimes());
    }
}
