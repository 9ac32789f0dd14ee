package mqtrail.interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;

/**
 * Drives the official client by JSON lines: {"id": 1, "do": "send", ...} on standard input, {"id": 1, "ok": true, ...}
 * or an {"event": ...} on standard output. Each command has a thread, so that a long one holds up none. The end of the
 * input ends the process. Compiled unchanged against 4.9.8 and 5.3.3: it uses what both have.
 */
final class Driver {
    private static final Object OUTPUT = new Object();
    private static PrintStream output;

    private final Senders senders = new Senders();
    private final Receivers receivers = new Receivers(senders);
    private final LitePulls litePulls = new LitePulls();
    private final Figures figures = new Figures(senders);

    private Driver() {
    }

    public static void main(String[] arguments) throws IOException {
        output = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err); // the client's own chatter
        Driver driver = new Driver();
        ExecutorService threads = Executors.newCachedThreadPool();
        emit(new JSONObject().fluentPut("event", "ready"));
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            JSONObject command = JSON.parseObject(line);
            threads.execute(() -> driver.answer(command));
        }
        System.exit(0);
    }

    /** Writes one line. Safe from any thread. */
    static void emit(Map<String, Object> line) {
        String text = JSON.toJSONString(line);
        synchronized (OUTPUT) {
            output.println(text);
        }
    }

    private void answer(JSONObject command) {
        JSONObject reply = new JSONObject();
        try {
            reply.putAll(perform(command));
            reply.put("ok", true);
        } catch (Exception | Error problem) {
            reply.putAll(describe(problem));
            reply.put("ok", false);
        }
        reply.put("id", command.get("id"));
        emit(reply);
    }

    private Map<String, Object> perform(JSONObject command) throws Exception {
        switch (command.getString("do")) {
            case "producer":
                return senders.open(command);
            case "send":
                return senders.send(command);
            case "request":
                return senders.request(command);
            case "recall":
                return senders.recall(command);
            case "queues":
                return senders.queues(command);
            case "route":
                return senders.route(command);
            case "queryKey":
                return senders.queryKey(command);
            case "view":
                return senders.view(command);
            case "closeProducer":
                return senders.close(command);
            case "consumer":
                return receivers.open(command);
            case "closeConsumer":
                return receivers.close(command);
            case "lite":
                return litePulls.open(command);
            case "liteAssign":
                return litePulls.assign(command);
            case "liteAssignment":
                return litePulls.assignment(command);
            case "litePoll":
                return litePulls.poll(command);
            case "liteSeek":
                return litePulls.seek(command);
            case "litePause":
                return litePulls.pause(command);
            case "liteCommit":
                return litePulls.commit(command);
            case "liteOffsets":
                return litePulls.offsets(command);
            case "closeLite":
                return litePulls.close(command);
            case "throughput":
                return figures.throughput(command);
            case "latency":
                return figures.latency(command);
            case "consumeInOrder":
                return figures.consumeInOrder(command);
            case "pullAll":
                return figures.pullAll(command);
            default:
                throw new IllegalArgumentException("unknown command " + command.getString("do"));
        }
    }

    /** What went wrong, with the response code where the client gives one. */
    static JSONObject describe(Throwable problem) {
        JSONObject text = new JSONObject();
        text.put("error", problem.getClass().getSimpleName());
        text.put("message", String.valueOf(problem.getMessage()));
        if (problem instanceof MQBrokerException) {
            text.put("code", ((MQBrokerException) problem).getResponseCode());
        } else if (problem instanceof MQClientException) {
            text.put("code", ((MQClientException) problem).getResponseCode());
        }
        return text;
    }
}
