package mqtrail.interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Runs admin commands in one JVM, one after the other: a JSON array of arguments a line on standard input, {"output":
 * "…"} a line on standard output. A fresh JVM a command would cost seconds each.
 */
final class AdminDriver {
    private AdminDriver() {
    }

    public static void main(String[] arguments) throws IOException {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            PrintStream capture = new PrintStream(printed, true, StandardCharsets.UTF_8);
            System.setOut(capture);
            System.setErr(capture);
            try {
                MQAdminStartup.main0(JSON.parseArray(line, String.class).toArray(new String[0]), null);
            } catch (RuntimeException | Error problem) {
                problem.printStackTrace(capture);
            }
            answers.println(new JSONObject().fluentPut("output", printed.toString(StandardCharsets.UTF_8)));
        }
        System.exit(0);
    }
}
