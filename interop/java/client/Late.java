package mqtrail.interop;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;

/** Calls by name, for what only one of the clients has or what moved between packages from 4.9 to 5. */
final class Late {
    private Late() {
    }

    /** Calls the public method of that name and number of arguments, with its own exception. */
    static Object call(Object target, String name, Object... arguments) throws Exception {
        Method method = find(target, name, arguments.length);
        if (method == null) {
            throw new UnsupportedOperationException(target.getClass().getSimpleName() + " has no " + name);
        }
        try {
            return method.invoke(target, arguments);
        } catch (InvocationTargetException wrapped) {
            if (wrapped.getCause() instanceof Exception) {
                throw (Exception) wrapped.getCause();
            }
            throw wrapped;
        }
    }

    /** Sets an enum by its constant's name, whatever package the enum is in. */
    static void set(Object target, String setter, String constant) throws Exception {
        for (Object value : find(target, setter, 1).getParameterTypes()[0].getEnumConstants()) {
            if (((Enum<?>) value).name().equals(constant)) {
                call(target, setter, value);
            }
        }
    }

    /** Returns what a getter says, null where there is none. */
    static Object get(Object target, String name) {
        try {
            return find(target, name, 0) == null ? null : call(target, name);
        } catch (Exception problem) {
            throw new IllegalStateException(problem);
        }
    }

    private static Method find(Object target, String name, int count) {
        for (Method method : target.getClass().getMethods()) {
            if (method.getName().equals(name) && method.getParameterCount() == count) {
                return method;
            }
        }
        return null;
    }
}
