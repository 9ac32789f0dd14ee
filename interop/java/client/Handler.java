package mqtrail.interop;

import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.function.IntConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * What a push consumer does with its messages. The message says it: user property "behave", or "behave-GROUP" for
 * one group, a comma-separated list of ok, slow:MS, and, each for the first N attempts, fail:N, exception:N, null:N;
 * later:LEVEL fails and asks for that delay level (in order: so many ms of suspension), dlq for the dead letters at once,
 * reply answers a request with "re: " and its body. Each attempt gives two events: began and ended.
 */
final class Handler {
    private enum Verdict { DONE, AGAIN, NOTHING }

    private final String consumer;
    private final String group;
    private final DefaultMQProducer replier;

    /** replier may be null where nothing replies. */
    Handler(String consumer, String group, DefaultMQProducer replier) {
        this.consumer = consumer;
        this.group = group;
        this.replier = replier;
    }

    MessageListenerConcurrently concurrent() {
        return (messages, context) -> handle(
            messages,
            context::setDelayLevelWhenNextConsume,
            ConsumeConcurrentlyStatus.CONSUME_SUCCESS,
            ConsumeConcurrentlyStatus.RECONSUME_LATER);
    }

    MessageListenerOrderly orderly() {
        return (messages, context) -> handle(
            messages,
            context::setSuspendCurrentQueueTimeMillis,
            ConsumeOrderlyStatus.SUCCESS,
            ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
    }

    private <S> S handle(List<MessageExt> messages, IntConsumer later, S done, S again) {
        long beginMs = System.currentTimeMillis();
        for (MessageExt message : messages) {
            Driver.emit(event("began", message).fluentPut("beginMs", beginMs));
        }
        String outcome = "EXCEPTION";
        try {
            Verdict worst = Verdict.DONE;
            for (MessageExt message : messages) {
                Verdict verdict = behave(message, later);
                worst = verdict == Verdict.DONE ? worst : verdict;
            }
            S status = worst == Verdict.DONE ? done : worst == Verdict.AGAIN ? again : null;
            outcome = String.valueOf(status);
            return status;
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

    private Verdict behave(MessageExt message, IntConsumer later) {
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
                        return Verdict.AGAIN;
                    }
                    break;
                case "exception":
                    if (due) {
                        throw new IllegalStateException("asked to throw");
                    }
                    break;
                case "null":
                    if (due) {
                        return Verdict.NOTHING;
                    }
                    break;
                case "later":
                    later.accept(number);
                    return Verdict.AGAIN;
                case "dlq":
                    later.accept(-1);
                    return Verdict.AGAIN;
                case "reply":
                    reply(message);
                    break;
                default:
                    throw new IllegalArgumentException("unknown behaviour " + order);
            }
        }
        return Verdict.DONE;
    }

    private void reply(MessageExt message) {
        try {
            byte[] body = ("re: " + Values.text(message.getBody())).getBytes(StandardCharsets.UTF_8);
            replier.send(MessageUtil.createReplyMessage(message, body));
        } catch (Exception problem) {
            Driver.emit(Driver.describe(problem).fluentPut("event", "replyFailed").fluentPut("consumer", consumer));
        }
    }

    private static void pause(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }
}
