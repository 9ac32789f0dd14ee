package mqtrail.interop;

import java.lang.reflect.Field;
import java.util.Collection;
import java.util.Map;
import java.util.concurrent.ThreadPoolExecutor;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.trace.TraceDispatcher;
import org.apache.rocketmq.remoting.netty.NettyRemotingAbstract;

/**
 * Waits until a trace dispatcher holds nothing: both versions lose what is under way when they shut down, and neither
 * says what it holds, so its fields are read.
 */
final class Traces {
    private static final long DEADLINE_MS = 15_000;
    private static final int QUIET_LOOKS = 6;
    private static final long LOOK_EVERY_MS = 50;

    private Traces() {
    }

    /** Returns whether everything was answered for a while; true at once without a dispatcher. */
    static boolean drain(TraceDispatcher dispatcher) throws Exception {
        if (dispatcher == null) {
            return true;
        }
        dispatcher.flush();
        long deadlineMs = System.currentTimeMillis() + DEADLINE_MS;
        int quiet = 0;
        while (quiet < QUIET_LOOKS) {
            if (System.currentTimeMillis() > deadlineMs) {
                return false;
            }
            quiet = idle(dispatcher) ? quiet + 1 : 0;
            Thread.sleep(LOOK_EVERY_MS);
        }
        return true;
    }

    private static boolean idle(TraceDispatcher dispatcher) throws Exception {
        ThreadPoolExecutor executor = (ThreadPoolExecutor) field(dispatcher, "traceExecutor");
        if (!((Collection<?>) field(dispatcher, "traceContextQueue")).isEmpty()
            || executor.getActiveCount() > 0
            || !executor.getQueue().isEmpty()) {
            return false;
        }
        if (has(dispatcher, "taskQueueByTopic")) { // 4.9.8 gathers a segment per topic first
            for (Object segment : ((Map<?, ?>) field(dispatcher, "taskQueueByTopic")).values()) {
                if (!((Collection<?>) field(segment, "traceTransferBeanList")).isEmpty()) {
                    return false;
                }
            }
        }
        DefaultMQProducer producer = (DefaultMQProducer) field(dispatcher, "traceProducer");
        Object remoting = producer.getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl()
            .getRemotingClient();
        Field pending = NettyRemotingAbstract.class.getDeclaredField("responseTable");
        pending.setAccessible(true);
        return ((Map<?, ?>) pending.get(remoting)).isEmpty();
    }

    private static boolean has(Object owner, String name) {
        for (Field field : owner.getClass().getDeclaredFields()) {
            if (field.getName().equals(name)) {
                return true;
            }
        }
        return false;
    }

    private static Object field(Object owner, String name) throws ReflectiveOperationException {
        Field field = owner.getClass().getDeclaredField(name);
        field.setAccessible(true);
        return field.get(owner);
    }
}
