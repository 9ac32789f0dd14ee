package mqtrail.interop;

import java.lang.reflect.Constructor;
import org.apache.rocketmq.remoting.RPCHook;

/** Who the client says it is: the system properties mqtrail.accessKey and mqtrail.secretKey; none without them. */
final class Hooks {
    private static final String ACL = "org.apache.rocketmq.acl.common.";

    private Hooks() {
    }

    /** Returns the client's own AclClientRPCHook, null where nothing is to be signed. By name: 4.9 has it in a jar apart. */
    static RPCHook signing() throws Exception {
        String accessKey = System.getProperty("mqtrail.accessKey");
        if (accessKey == null) {
            return null;
        }
        Class<?> credentials = Class.forName(ACL + "SessionCredentials");
        Object made = credentials.getConstructor(String.class, String.class)
            .newInstance(accessKey, System.getProperty("mqtrail.secretKey"));
        Constructor<?> hook = Class.forName(ACL + "AclClientRPCHook").getConstructor(credentials);
        return (RPCHook) hook.newInstance(made);
    }
}
