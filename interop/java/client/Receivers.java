package mqtrail.interop;

import com.alibaba.fastjson.JSONObject;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;

/** Push consumers by name; what they do with messages is Handler's. */
final class Receivers {
    private static final long SHUTDOWN_MS = 10_000; // for running handlers, so that their offsets are committed too
    private final Map<String, DefaultMQPushConsumer> consumers = new ConcurrentHashMap<>();
    private final Senders senders;

    Receivers(Senders senders) {
        this.senders = senders;
    }

    /**
     * {name, group, namesrv, topics: {topic: expression}, trace, traceTopic, maxReconsume, threads, batch, orderly,
     * broadcast, sql (expressions are SQL92), instance, namespace, namespaceV2, replier (a producer's name),
     * fromLast (a new group begins at the end of its queues), popInvisibleMs (a 5.x client then asks the broker how
     * to consume; popped messages are hidden so long)}.
     */
    Map<String, Object> open(JSONObject command) throws Exception {
        String name = command.getString("name");
        String group = command.getString("group");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            group,
            Hooks.signing(),
            new AllocateMessageQueueAveragely(),
            command.getBooleanValue("trace"),
            command.getString("traceTopic"));
        consumer.setNamesrvAddr(command.getString("namesrv"));
        consumer.setConsumeFromWhere(
            command.getBooleanValue("fromLast")
                ? ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
                : ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAwaitTerminationMillisWhenShutdown(SHUTDOWN_MS);
        Values.place(consumer, command);
        if (command.containsKey("maxReconsume")) {
            consumer.setMaxReconsumeTimes(command.getIntValue("maxReconsume"));
        }
        if (command.containsKey("threads")) {
            consumer.setConsumeThreadMin(command.getIntValue("threads"));
            consumer.setConsumeThreadMax(command.getIntValue("threads"));
        }
        if (command.containsKey("batch")) {
            consumer.setConsumeMessageBatchMaxSize(command.getIntValue("batch"));
        }
        if (command.getBooleanValue("broadcast")) {
            Late.set(consumer, "setMessageModel", "BROADCASTING");
        }
        if (command.containsKey("popInvisibleMs")) {
            Late.call(consumer, "setClientRebalance", false);
            Late.call(consumer, "setPopInvisibleTime", command.getLongValue("popInvisibleMs"));
        }
        for (Map.Entry<String, Object> topic : command.getJSONObject("topics").entrySet()) {
            String expression = (String) topic.getValue();
            consumer.subscribe(
                topic.getKey(),
                command.getBooleanValue("sql") ? MessageSelector.bySql(expression) : MessageSelector.byTag(expression));
        }
        Handler handler =
            new Handler(name, group, command.containsKey("replier") ? senders.named(command, "replier") : null);
        if (command.getBooleanValue("orderly")) {
            consumer.registerMessageListener(handler.orderly());
        } else {
            consumer.registerMessageListener(handler.concurrent());
        }
        consumer.start();
        consumers.put(name, consumer);
        return new JSONObject().fluentPut("clientId", consumer.buildMQClientId());
    }

    /** {name}: waits for the trace to be on its way and for running handlers, then commits and shuts down. */
    Map<String, Object> close(JSONObject command) throws Exception {
        DefaultMQPushConsumer consumer = consumers.remove(command.getString("name"));
        if (consumer == null) {
            throw new IllegalArgumentException("no consumer named " + command.getString("name"));
        }
        boolean drained = Traces.drain(consumer.getTraceDispatcher());
        consumer.shutdown();
        return new JSONObject().fluentPut("drained", drained);
    }
}
