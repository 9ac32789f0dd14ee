package mqtrail.interop;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Lite pull consumers by name. A queue is named by {topic, brokerName, queueId} or taken for every queue of the topic. */
final class LitePulls {
    private final Map<String, DefaultLitePullConsumer> consumers = new ConcurrentHashMap<>();

    /** {name, group, namesrv, topics: {topic: expression}, autoCommit, namespace}: without topics it will assign. */
    Map<String, Object> open(JSONObject command) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(command.getString("group"));
        consumer.setNamesrvAddr(command.getString("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(command.getBooleanValue("autoCommit"));
        Values.place(consumer, command);
        if (command.containsKey("topics")) {
            for (Map.Entry<String, Object> topic : command.getJSONObject("topics").entrySet()) {
                consumer.subscribe(topic.getKey(), (String) topic.getValue());
            }
        }
        consumer.start();
        consumers.put(command.getString("name"), consumer);
        return new JSONObject().fluentPut("clientId", consumer.buildMQClientId());
    }

    /** {name, topic, queueId}: takes the topic's queues, or the one. */
    Map<String, Object> assign(JSONObject command) throws Exception {
        List<MessageQueue> queues = queues(command);
        named(command).assign(queues);
        return new JSONObject().fluentPut("queues", list(queues));
    }

    /** {name}: the queues it has now. */
    Map<String, Object> assignment(JSONObject command) throws Exception {
        return new JSONObject().fluentPut("queues", list(new ArrayList<>(named(command).assignment())));
    }

    /** {name, timeoutMs}: what has come. */
    Map<String, Object> poll(JSONObject command) {
        JSONArray messages = new JSONArray();
        for (MessageExt message : named(command).poll(command.getLongValue("timeoutMs"))) {
            messages.add(Values.stored(message));
        }
        return new JSONObject().fluentPut("messages", messages);
    }

    /** {name, topic, queueId, to: begin | end | an offset}. */
    Map<String, Object> seek(JSONObject command) throws Exception {
        for (MessageQueue queue : queues(command)) {
            switch (command.getString("to")) {
                case "begin":
                    named(command).seekToBegin(queue);
                    break;
                case "end":
                    named(command).seekToEnd(queue);
                    break;
                default:
                    named(command).seek(queue, command.getLongValue("to"));
            }
        }
        return new JSONObject();
    }

    /** {name, topic, queueId, paused}. */
    Map<String, Object> pause(JSONObject command) throws Exception {
        if (command.getBooleanValue("paused")) {
            named(command).pause(queues(command));
        } else {
            named(command).resume(queues(command));
        }
        return new JSONObject();
    }

    /** {name}: commits what was polled. */
    Map<String, Object> commit(JSONObject command) {
        named(command).commitSync();
        return new JSONObject();
    }

    /** {name, topic, timestampMs}: each queue with the group's offset, and the offset of the time. */
    Map<String, Object> offsets(JSONObject command) throws Exception {
        JSONArray queues = new JSONArray();
        for (MessageQueue queue : queues(command)) {
            queues.add(Values.queue(queue)
                .fluentPut("committed", named(command).committed(queue))
                .fluentPut("atTime", named(command).offsetForTimestamp(queue, command.getLong("timestampMs"))));
        }
        return new JSONObject().fluentPut("queues", queues);
    }

    /** {name}. */
    Map<String, Object> close(JSONObject command) {
        named(command).shutdown();
        consumers.remove(command.getString("name"));
        return new JSONObject();
    }

    private DefaultLitePullConsumer named(JSONObject command) {
        DefaultLitePullConsumer consumer = consumers.get(command.getString("name"));
        if (consumer == null) {
            throw new IllegalArgumentException("no lite pull consumer named " + command.getString("name"));
        }
        return consumer;
    }

    private List<MessageQueue> queues(JSONObject command) throws Exception {
        List<MessageQueue> queues = new ArrayList<>();
        for (MessageQueue queue : named(command).fetchMessageQueues(command.getString("topic"))) {
            if (!command.containsKey("queueId") || queue.getQueueId() == command.getIntValue("queueId")) {
                queues.add(queue);
            }
        }
        return queues;
    }

    private static JSONArray list(List<MessageQueue> queues) {
        JSONArray list = new JSONArray();
        for (MessageQueue queue : queues) {
            list.add(Values.queue(queue));
        }
        return list;
    }
}
