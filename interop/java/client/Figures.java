package mqtrail.interop;

import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** What the official client reaches: the numbers of bench/. */
final class Figures {
    private final Senders senders;

    Figures(Senders senders) {
        this.senders = senders;
    }

    /**
     * {name, topic, threads, bodySize, warmS, seconds, namesrv?}: synchronous sends of all threads through one producer.
     * The event "counting" says that the warm-up is over. With namesrv each send is a transaction that commits at once,
     * of a producer of its own.
     */
    Map<String, Object> throughput(JSONObject command) throws Exception {
        DefaultMQProducer producer =
            command.containsKey("namesrv") ? committing(command) : senders.named(command);
        int threads = command.getIntValue("threads");
        byte[] body = Values.filler(command.getIntValue("bodySize"));
        long countFromNs = System.nanoTime() + seconds(command, "warmS");
        long endNs = countFromNs + seconds(command, "seconds");
        List<long[]> latencies = Collections.synchronizedList(new ArrayList<>());
        Map<String, Integer> failures = new ConcurrentHashMap<>();
        CountDownLatch running = new CountDownLatch(threads);
        for (int i = 0; i < threads; i++) {
            Thread thread = new Thread(() -> {
                LongList mine = new LongList();
                while (true) {
                    long beginNs = System.nanoTime();
                    if (beginNs >= endNs) {
                        break;
                    }
                    String failure = sendOne(producer, new Message(command.getString("topic"), body));
                    if (beginNs < countFromNs) {
                        continue;
                    }
                    if (failure == null) {
                        mine.add(System.nanoTime() - beginNs);
                    } else {
                        failures.merge(failure, 1, Integer::sum);
                    }
                }
                latencies.add(mine.toArray());
                running.countDown();
            });
            thread.setDaemon(true);
            thread.start();
        }
        LockSupport.parkNanos(countFromNs - System.nanoTime());
        Driver.emit(new JSONObject().fluentPut("event", "counting"));
        running.await();
        double elapsedS = (System.nanoTime() - countFromNs) / 1e9;
        long[] all = latencies.stream().flatMapToLong(Arrays::stream).sorted().toArray();
        return percentiles(all, "send")
            .fluentPut("sends", all.length)
            .fluentPut("seconds", elapsedS)
            .fluentPut("sendsPerS", all.length / elapsedS)
            .fluentPut("failures", failures);
    }

    private static DefaultMQProducer committing(JSONObject command) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(command.getString("name"));
        producer.setNamesrvAddr(command.getString("namesrv"));
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        return producer;
    }

    private static String sendOne(DefaultMQProducer producer, Message message) {
        try {
            SendResult result = producer instanceof TransactionMQProducer
                ? producer.sendMessageInTransaction(message, null)
                : producer.send(message);
            SendStatus status = result.getSendStatus();
            return status == SendStatus.SEND_OK ? null : status.name();
        } catch (Exception problem) {
            JSONObject text = Driver.describe(problem);
            return text.getString("error") + " " + text.getString("code");
        }
    }

    /**
     * {name, namesrv, group, topic, bodySize, perS, warmS, seconds}: send → handler at a steady rate. The topic is made by
     * a first message, and the clock starts once the consumer has it: else its wait for the route would be measured.
     */
    Map<String, Object> latency(JSONObject command) throws Exception {
        DefaultMQProducer producer = senders.named(command);
        String topic = command.getString("topic");
        byte[] body = Values.filler(command.getIntValue("bodySize"));
        Map<String, Long> sentNs = new ConcurrentHashMap<>();
        Map<String, Long> handledNs = new ConcurrentHashMap<>();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(command.getString("group"));
        consumer.setNamesrvAddr(command.getString("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long nowNs = System.nanoTime();
            for (MessageExt message : messages) {
                handledNs.putIfAbsent(message.getKeys(), nowNs);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        producer.send(new Message(topic, null, "first", body));
        consumer.start();
        awaitKeys(handledNs, Collections.singleton("first"), 60);
        LongList sends = new LongList();
        int failures = 0;
        long stepNs = 1_000_000_000L / command.getIntValue("perS");
        long dueNs = System.nanoTime();
        long countFromNs = dueNs + seconds(command, "warmS");
        long endNs = countFromNs + seconds(command, "seconds");
        for (int i = 0; dueNs < endNs; i++, dueNs += stepNs) {
            for (long restNs = dueNs - System.nanoTime(); restNs > 0; restNs = dueNs - System.nanoTime()) {
                LockSupport.parkNanos(restNs);
            }
            String key = Integer.toString(i);
            Message message = new Message(topic, null, key, body);
            long beginNs = System.nanoTime();
            boolean counts = dueNs >= countFromNs;
            if (counts) {
                sentNs.put(key, beginNs);
            }
            if (sendOne(producer, message) != null) {
                failures++;
                sentNs.remove(key);
            } else if (counts) {
                sends.add(System.nanoTime() - beginNs);
            }
        }
        awaitKeys(handledNs, sentNs.keySet(), 30);
        consumer.shutdown();
        LongList handled = new LongList();
        sentNs.forEach((key, beginNs) -> {
            Long atNs = handledNs.get(key);
            if (atNs != null) {
                handled.add(atNs - beginNs);
            }
        });
        JSONObject result = percentiles(sorted(sends), "send");
        result.putAll(percentiles(sorted(handled), "handled"));
        return result
            .fluentPut("sent", sentNs.size())
            .fluentPut("handled", handled.size())
            .fluentPut("failures", failures);
    }

    /**
     * {namesrv, group, topic, count}: an ordered push consumer takes count messages that wait in the topic, from the
     * first on; the clock runs from the first to the last that is handled.
     */
    Map<String, Object> consumeInOrder(JSONObject command) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(command.getString("group"));
        consumer.setNamesrvAddr(command.getString("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(command.getString("topic"), "*");
        long count = command.getLongValue("count");
        AtomicLong handled = new AtomicLong();
        AtomicLong beginNs = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            beginNs.compareAndSet(0, System.nanoTime());
            if (handled.addAndGet(messages.size()) >= count) {
                done.countDown();
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        boolean all = done.await(command.getLongValue("timeoutS"), TimeUnit.SECONDS);
        double elapsedS = (System.nanoTime() - beginNs.get()) / 1e9;
        consumer.shutdown();
        return new JSONObject()
            .fluentPut("messages", handled.get())
            .fluentPut("all", all)
            .fluentPut("seconds", elapsedS);
    }

    /** Waits until all keys were handled, or for so long; what is missing shows in the result. */
    private static void awaitKeys(Map<String, Long> handledNs, Set<String> keys, long timeoutS) {
        long deadlineNs = System.nanoTime() + TimeUnit.SECONDS.toNanos(timeoutS);
        while (!handledNs.keySet().containsAll(keys) && System.nanoTime() < deadlineNs) {
            LockSupport.parkNanos(20_000_000);
        }
    }

    /** {group, namesrv, topic, count}: a plain pull loop over the topic's queues, from the first record to the last. */
    @SuppressWarnings("deprecation")
    Map<String, Object> pullAll(JSONObject command) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(command.getString("group"));
        consumer.setNamesrvAddr(command.getString("namesrv"));
        consumer.start();
        int count = command.getIntValue("count");
        long messages = 0;
        long bytes = 0;
        Map<MessageQueue, Long> ends = new HashMap<>();
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(command.getString("topic"))) {
            ends.put(queue, consumer.maxOffset(queue));
        }
        long beginNs = System.nanoTime();
        for (Map.Entry<MessageQueue, Long> entry : ends.entrySet()) {
            long offset = 0;
            while (offset < entry.getValue()) {
                PullResult pulled = consumer.pull(entry.getKey(), "*", offset, count);
                if (pulled.getPullStatus() == PullStatus.FOUND) {
                    for (MessageExt message : pulled.getMsgFoundList()) {
                        messages++;
                        bytes += message.getBody().length;
                    }
                }
                offset = pulled.getNextBeginOffset();
            }
        }
        double elapsedS = (System.nanoTime() - beginNs) / 1e9;
        consumer.shutdown();
        return new JSONObject()
            .fluentPut("messages", messages)
            .fluentPut("bodyBytes", bytes)
            .fluentPut("seconds", elapsedS);
    }

    private static long seconds(JSONObject command, String name) {
        return (long) (command.getDoubleValue(name) * 1e9);
    }

    private static long[] sorted(LongList values) {
        long[] array = values.toArray();
        Arrays.sort(array);
        return array;
    }

    /** p50 and p99 of sorted nanoseconds, in milliseconds; none of nothing. */
    private static JSONObject percentiles(long[] sortedNs, String name) {
        JSONObject json = new JSONObject();
        if (sortedNs.length > 0) {
            json.put(name + "P50Ms", sortedNs[(int) (sortedNs.length * 0.50)] / 1e6);
            json.put(name + "P99Ms", sortedNs[(int) (sortedNs.length * 0.99)] / 1e6);
        }
        return json;
    }

    /** A list of longs without boxes: the benchmark makes millions. */
    private static final class LongList {
        private long[] values = new long[1024];
        private int size;

        void add(long value) {
            if (size == values.length) {
                values = Arrays.copyOf(values, size * 2);
            }
            values[size++] = value;
        }

        int size() {
            return size;
        }

        long[] toArray() {
            return Arrays.copyOf(values, size);
        }
    }
}
