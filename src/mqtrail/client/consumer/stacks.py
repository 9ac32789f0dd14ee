"""A stack dump of all tasks and threads of this process, as text, for operators.

Source: ClientRemotingProcessor.getConsumerRunningInfo with jstackEnable, RocketMQ client.
"""

import asyncio
import io
import sys
import threading
import traceback

SIZE_MAX = 512 * 1024  # characters
TASKS_MAX = 500
FRAMES_MAX = 20


def dump() -> str:
    """Return the stacks of the running loop's tasks, then those of all threads."""
    out = io.StringIO()
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    for task in tasks[:TASKS_MAX]:
        out.write(f"task {task.get_name()}: {getattr(task.get_coro(), '__qualname__', '?')}\n")
        for frame in task.get_stack(limit=FRAMES_MAX):
            code = frame.f_code
            out.write(f'  File "{code.co_filename}", line {frame.f_lineno}, in {code.co_qualname}\n')
        out.write("\n")
    if len(tasks) > TASKS_MAX:
        out.write(f"… and {len(tasks) - TASKS_MAX} tasks more\n\n")
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        out.write(f"thread {names.get(ident, '?')} ({ident}):\n")
        out.write("".join(traceback.format_stack(frame, FRAMES_MAX)))
        out.write("\n")
    return out.getvalue()[:SIZE_MAX]
