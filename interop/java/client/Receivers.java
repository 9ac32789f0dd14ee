package mqtrail.interop;

import com.alibaba.fastjson.JSONObject;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Push consumers by name. What a handler does stands in the message: user property "behave", or "behave-GROUP" for one
 * group, a comma-separated list of ok, slow:MS, and, each for the first N attempts, fail:N, exception:N, null:N;
 * later:LEVEL fails and asks for that delay level, dlq for the dead letters at once. Each attempt gives two events:
 * began and ended.
 */
final class Receivers {
    private final Map<String, DefaultMQPushConsumer> consumers = new ConcurrentHashMap<>();

    /** {name, group, namesrv, topics: {topic: expression}, trace, traceTopic, maxReconsume, threads, batch, from}. */
    Map<String, Object> open(JSONObject command) throws Exception {
        String name = command.getString("name");
        String group = command.getString("group");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            group,
            null,
            new AllocateMessageQueueAveragely(),
            command.getBooleanValue("trace"),
            command.getString("traceTopic"));
        consumer.setNamesrvAddr(command.getString("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
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
        for (Map.Entry<String, Object> topic : command.getJSONObject("topics").entrySet()) {
            consumer.subscribe(topic.getKey(), (String) topic.getValue());
        }
        consumer.registerMessageListener(new Handler(name, group));
        consumer.start();
        consumers.put(name, consumer);
        return new JSONObject().fluentPut("clientId", consumer.buildMQClientId());
    }

    /** {name}: waits for the trace to be on its way, then shuts down. */
    Map<String, Object> close(JSONObject command) throws Exception {
        DefaultMQPushConsumer consumer = consumers.remove(command.getString("name"));
        if (consumer == null) {
            throw new IllegalArgumentException("no consumer named " + command.getString("name"));
        }
        boolean drained = Traces.drain(consumer.getTraceDispatcher());
        consumer.shutdown();
        return new JSONObject().fluentPut("drained", drained);
    }

    private static final class Handler implements MessageListenerConcurrently {
        private final String consumer;
        private final String group;

        Handler(String consumer, String group) {
            this.consumer = consumer;
            this.group = group;
        }

        @Override
        public ConsumeConcurrentlyStatus consumeMessage(List<MessageExt> messages, ConsumeConcurrentlyContext context) {
            long beginMs = System.currentTimeMillis();
            for (MessageExt message : messages) {
                Driver.emit(event("began", message).fluentPut("beginMs", beginMs));
            }
            String outcome = "EXCEPTION";
            try {
                ConsumeConcurrentlyStatus worst = ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                for (MessageExt message : messages) {
                    ConsumeConcurrentlyStatus status = behave(message, context);
                    worst = status == ConsumeConcurrentlyStatus.CONSUME_SUCCESS ? worst : status;
                }
                outcome = String.valueOf(worst);
                return worst;
            } finally {
                for (MessageExt message : messages) {
                    Driver.emit(event("ended", message)
                        .fluentPut("outcome", outcome)
                        .fluentPut("beginMs", beginMs)
                        .fluentPut("endMs", System.currentTimeMillis()));
                }
            }
        }

        private JSONObject event(String kind, MessageExt message) {
            return Values.stored(message)
                .fluentPut("event", kind)
                .fluentPut("consumer", consumer)
                .fluentPut("group", group);
        }

        private ConsumeConcurrentlyStatus behave(MessageExt message, ConsumeConcurrentlyContext context) {
            String orders = message.getUserProperty("behave-" + group);
            orders = orders == null ? message.getUserProperty("behave") : orders;
            for (String order : (orders == null ? "ok" : orders).split(",")) {
                String[] parts = order.split(":");
                int number = parts.length > 1 ? Integer.parseInt(parts[1]) : 0;
                boolean due = message.getReconsumeTimes() < number;
                switch (parts[0]) {
                    case "ok":
                        break;
                    case "slow":
                        pause(number);
                        break;
                    case "fail":
                        if (due) {
                            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                        }
                        break;
                    case "exception":
                        if (due) {
                            throw new IllegalStateException("asked to throw");
                        }
                        break;
                    case "null":
                        if (due) {
                            return null;
                        }
                        break;
                    case "later":
                        context.setDelayLevelWhenNextConsume(number);
                        return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                    case "dlq":
                        context.setDelayLevelWhenNextConsume(-1);
                        return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                    default:
                        throw new IllegalArgumentException("unknown behaviour " + order);
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        }

        private static void pause(long ms) {
            try {
                Thread.sleep(ms);
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }
}
