package mqtrail.interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Producers by name, and what a client asks without being one: routes, offsets, messages. */
final class Senders {
    private final Map<String, DefaultMQProducer> producers = new ConcurrentHashMap<>();

    /**
     * {name, group, namesrv, trace, traceTopic, timeoutMs, retries, compressOver, sizeMax, instance, namespace,
     * namespaceV2, transactions}.
     */
    Map<String, Object> open(JSONObject command) throws Exception {
        String topic = command.getString("traceTopic");
        boolean trace = command.getBooleanValue("trace");
        DefaultMQProducer producer;
        if (command.getBooleanValue("transactions")) {
            TransactionMQProducer transactions =
                new TransactionMQProducer(null, command.getString("group"), Hooks.signing(), trace, topic);
            transactions.setTransactionListener(new Decisions(command.getString("name")));
            producer = transactions;
        } else {
            producer = new DefaultMQProducer(command.getString("group"), Hooks.signing(), trace, topic);
        }
        producer.setNamesrvAddr(command.getString("namesrv"));
        Values.place(producer, command);
        if (command.containsKey("timeoutMs")) {
            producer.setSendMsgTimeout(command.getIntValue("timeoutMs"));
        }
        if (command.containsKey("retries")) {
            producer.setRetryTimesWhenSendFailed(command.getIntValue("retries"));
            producer.setRetryTimesWhenSendAsyncFailed(command.getIntValue("retries"));
        }
        if (command.containsKey("compressOver")) {
            producer.setCompressMsgBodyOverHowmuch(command.getIntValue("compressOver"));
        }
        if (command.containsKey("sizeMax")) {
            producer.setMaxMessageSize(command.getIntValue("sizeMax"));
        }
        producer.start();
        producers.put(command.getString("name"), producer);
        return new JSONObject().fluentPut("clientId", producer.buildMQClientId());
    }

    DefaultMQProducer named(JSONObject command) {
        return named(command, "name");
    }

    /** The producer that the command names in this field. */
    DefaultMQProducer named(JSONObject command, String field) {
        DefaultMQProducer producer = producers.get(command.getString(field));
        if (producer == null) {
            throw new IllegalArgumentException("no producer named " + command.getString(field));
        }
        return producer;
    }

    /**
     * {name, mode: sync | async | oneway | batch | ordered | transaction, messages, orderKey, timeoutMs}: one result a
     * message.
     */
    Map<String, Object> send(JSONObject command) throws Exception {
        DefaultMQProducer producer = named(command);
        List<Message> messages = Values.messages(command.getJSONArray("messages"));
        long timeoutMs = command.containsKey("timeoutMs")
            ? command.getLongValue("timeoutMs") : producer.getSendMsgTimeout();
        JSONArray results;
        switch (command.getString("mode")) {
            case "async":
                results = sendAsync(producer, messages, timeoutMs);
                break;
            case "batch":
                long beginMs = System.currentTimeMillis();
                SendResult batch = producer.send(messages, timeoutMs);
                results = new JSONArray();
                results.add(Values.result(messages.get(0), batch, beginMs));
                break;
            default:
                results = new JSONArray();
                for (Message message : messages) {
                    results.add(sendOne(producer, message, command, timeoutMs));
                }
        }
        return new JSONObject().fluentPut("results", results);
    }

    private static JSONObject sendOne(DefaultMQProducer producer, Message message, JSONObject command, long timeoutMs) {
        long beginMs = System.currentTimeMillis();
        try {
            SendResult result = null;
            switch (command.getString("mode")) {
                case "sync":
                    result = producer.send(message, timeoutMs);
                    break;
                case "oneway":
                    producer.sendOneway(message);
                    break;
                case "ordered":
                    String key = command.getString("orderKey");
                    result = producer.send(message, new SelectMessageQueueByHash(), key, timeoutMs);
                    break;
                case "transaction":
                    result = ((TransactionMQProducer) producer).sendMessageInTransaction(message, null);
                    break;
                default:
                    throw new IllegalArgumentException("unknown mode " + command.getString("mode"));
            }
            return Values.result(message, result, beginMs);
        } catch (Exception problem) {
            return Values.failure(message, problem, beginMs);
        }
    }

    private static JSONArray sendAsync(DefaultMQProducer producer, List<Message> messages, long timeoutMs)
        throws Exception {
        JSONObject[] results = new JSONObject[messages.size()];
        CountDownLatch pending = new CountDownLatch(messages.size());
        for (int i = 0; i < messages.size(); i++) {
            int place = i;
            Message message = messages.get(i);
            long beginMs = System.currentTimeMillis();
            producer.send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    results[place] = Values.result(message, result, beginMs);
                    pending.countDown();
                }

                @Override
                public void onException(Throwable problem) {
                    results[place] = Values.failure(message, problem, beginMs);
                    pending.countDown();
                }
            }, timeoutMs);
        }
        if (!pending.await(timeoutMs * 4, TimeUnit.MILLISECONDS)) {
            throw new IllegalStateException(pending.getCount() + " callbacks never came");
        }
        return new JSONArray(Arrays.asList((Object[]) results));
    }

    /**
     * {name, message, timeoutMs, callback}: sends a request and waits for its reply. With callback it is not the client
     * that waits: 5.3.3's does so only until the request is sent, and calls back then too, with null.
     */
    Map<String, Object> request(JSONObject command) throws Exception {
        Message message = Values.message(command.getJSONObject("message"));
        long timeoutMs = command.getLongValue("timeoutMs");
        Message reply = command.getBooleanValue("callback")
            ? callBack(named(command), message, timeoutMs) : named(command).request(message, timeoutMs);
        return new JSONObject()
            .fluentPut("topic", reply.getTopic())
            .fluentPut("body", Values.text(reply.getBody()))
            .fluentPut("properties", reply.getProperties());
    }

    private static Message callBack(DefaultMQProducer producer, Message message, long timeoutMs) throws Exception {
        CompletableFuture<Message> reply = new CompletableFuture<>();
        producer.request(message, new RequestCallback() {
            @Override
            public void onSuccess(Message message) {
                if (message != null) {
                    reply.complete(message);
                }
            }

            @Override
            public void onException(Throwable problem) {
                reply.completeExceptionally(problem);
            }
        }, timeoutMs);
        return reply.get(timeoutMs, TimeUnit.MILLISECONDS);
    }

    /** {name, topic, handle}: takes a timer message back. */
    Map<String, Object> recall(JSONObject command) throws Exception {
        Object msgId =
            Late.call(named(command), "recallMessage", command.getString("topic"), command.getString("handle"));
        return new JSONObject().fluentPut("msgId", msgId);
    }

    /** {name, topic, timestampMs}: every publish queue with its offsets. */
    Map<String, Object> queues(JSONObject command) throws Exception {
        DefaultMQProducer producer = named(command);
        List<JSONObject> queues = new ArrayList<>();
        for (MessageQueue queue : producer.fetchPublishMessageQueues(command.getString("topic"))) {
            JSONObject json = Values.queue(queue);
            json.put("minOffset", producer.minOffset(queue));
            json.put("maxOffset", producer.maxOffset(queue));
            json.put("earliestMs", producer.getDefaultMQProducerImpl().earliestMsgStoreTime(queue));
            if (command.containsKey("timestampMs")) {
                json.put("searchOffset", producer.searchOffset(queue, command.getLongValue("timestampMs")));
            }
            queues.add(json);
        }
        return new JSONObject().fluentPut("queues", queues);
    }

    /** {name, topic}: the route as the client parsed it. */
    Map<String, Object> route(JSONObject command) throws Exception {
        MQClientAPIImpl api = named(command).getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl();
        // The class of the result moved between 4.9 and 5: it is read as a bean, by name.
        Object route = MQClientAPIImpl.class
            .getMethod("getTopicRouteInfoFromNameServer", String.class, long.class)
            .invoke(api, command.getString("topic"), 3000L);
        return new JSONObject().fluentPut("route", JSON.toJSON(route));
    }

    /** {name, topic, key, max, beginMs, endMs}: messages indexed under the key. */
    Map<String, Object> queryKey(JSONObject command) throws Exception {
        QueryResult found = named(command).queryMessage(
            command.getString("topic"),
            command.getString("key"),
            command.getIntValue("max"),
            command.getLongValue("beginMs"),
            command.getLongValue("endMs"));
        JSONArray messages = new JSONArray();
        for (MessageExt message : found.getMessageList()) {
            messages.add(Values.stored(message));
        }
        return new JSONObject().fluentPut("messages", messages);
    }

    /** {name, topic, msgId}: one message by offset id or unique key. */
    Map<String, Object> view(JSONObject command) throws Exception {
        MessageExt message = named(command).viewMessage(command.getString("topic"), command.getString("msgId"));
        return new JSONObject().fluentPut("message", message == null ? null : Values.stored(message));
    }

    /** {name}: waits for the trace to be on its way, then shuts down. */
    Map<String, Object> close(JSONObject command) throws Exception {
        DefaultMQProducer producer = named(command);
        boolean drained = Traces.drain(producer.getTraceDispatcher());
        producers.remove(command.getString("name"));
        producer.shutdown();
        return new JSONObject().fluentPut("drained", drained);
    }
}
