package mqtrail.interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Runs admin commands in one JVM, one after the other: {"arguments": […], "until": "…"} a line on standard input,
 * {"output": "…"} a line on standard output. A fresh JVM a command would cost seconds each. Compiled unchanged against
 * 4.9.8 and 5.3.3.
 */
final class AdminDriver {
    private AdminDriver() {
    }

    public static void main(String[] arguments) throws IOException {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            JSONObject command = JSON.parseObject(line);
            ByteArrayOutputStream printed = new Watched(command.getString("until"));
            PrintStream capture = new PrintStream(printed, true, StandardCharsets.UTF_8);
            System.setOut(capture);
            System.setErr(capture);
            try {
                forget();
                MQAdminStartup.main0(command.getJSONArray("arguments").toArray(new String[0]), null);
            } catch (ReflectiveOperationException | RuntimeException | Error problem) {
                problem.printStackTrace(capture);
            }
            Thread.interrupted();
            answers.println(new JSONObject().fluentPut("output", printed.toString(StandardCharsets.UTF_8)));
        }
        System.exit(0);
    }

    /** Drops the tool's command objects, which keep their closed clients: it makes new ones, as in a JVM of its own. */
    private static void forget() throws ReflectiveOperationException {
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (field.getType() == List.class) {
                field.setAccessible(true);
                ((List<?>) field.get(null)).clear();
            }
        }
    }

    /** What was printed; interrupts who prints the awaited text, so that a command without an end ends in its pause. */
    private static final class Watched extends ByteArrayOutputStream {
        private String until;

        Watched(String until) {
            this.until = until;
        }

        @Override
        public synchronized void write(byte[] bytes, int start, int count) {
            super.write(bytes, start, count);
            if (!until.isEmpty() && toString(StandardCharsets.UTF_8).contains(until)) {
                until = "";
                Thread.currentThread().interrupt();
            }
        }
    }
}
