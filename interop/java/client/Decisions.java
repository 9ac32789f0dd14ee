package mqtrail.interop;

import com.alibaba.fastjson.JSONObject;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * How transactions end. The message says it: user property "local" says commit, rollback, unknown or throw, "check"
 * what each question in turn is answered (commas between; the last one goes on). Both give an event.
 */
final class Decisions implements TransactionListener {
    private final String producer;
    private final Map<String, Integer> asked = new ConcurrentHashMap<>();

    Decisions(String producer) {
        this.producer = producer;
    }

    @Override
    public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
        String order = message.getUserProperty("local");
        Driver.emit(new JSONObject()
            .fluentPut("event", "local")
            .fluentPut("producer", producer)
            .fluentPut("transactionId", message.getTransactionId())
            .fluentPut("properties", message.getProperties()));
        return state(order);
    }

    @Override
    public LocalTransactionState checkLocalTransaction(MessageExt message) {
        String[] orders = message.getUserProperty("check").split(",");
        int before = asked.merge(message.getUserProperty("label"), 1, Integer::sum) - 1;
        Driver.emit(Values.stored(message)
            .fluentPut("event", "check")
            .fluentPut("producer", producer)
            .fluentPut("transactionId", message.getTransactionId()));
        return state(orders[Math.min(before, orders.length - 1)]);
    }

    private static LocalTransactionState state(String order) {
        switch (order) {
            case "commit":
                return LocalTransactionState.COMMIT_MESSAGE;
            case "rollback":
                return LocalTransactionState.ROLLBACK_MESSAGE;
            case "unknown":
                return LocalTransactionState.UNKNOW;
            case "throw":
                throw new IllegalStateException("asked to throw");
            default:
                throw new IllegalArgumentException("unknown decision " + order);
        }
    }
}
