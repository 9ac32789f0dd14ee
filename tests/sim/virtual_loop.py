"""An asyncio loop on the engine's clock: tasks of mqtrail.node run in a life, in an order that its seed decides."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

from .engine import Engine, Timer

Result = TypeVar("Result")
Ts = TypeVarTuple("Ts")


class VirtualSelector:
    """Waits for nothing: it moves the clock to the next timer."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def select(self, timeout: float | None) -> list[Any]:
        assert timeout is not None, "every life has timers to its end"
        self._engine.now_ms += timeout * 1000
        return []

    def close(self) -> None:
        """Nothing is open."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Its time is the engine's; nothing waits in real time."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine = engine
        self._selector = VirtualSelector(engine)
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._engine.now_ms / 1000

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], Result], *args: *Ts
    ) -> "asyncio.Future[Result]":
        """Call func at once: there is no other thread."""
        done: asyncio.Future[Result] = self.create_future()
        try:
            done.set_result(func(*args))
        except BaseException as error:
            done.set_exception(error)
        return done

    def _process_events(self, event_list: list[Any]) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        """There is no other thread to wake this one."""


class LoopEngine(Engine):
    """An engine whose events run in a VirtualLoop, among its tasks. Call close at the end."""

    def __init__(self, seed: int, *, keeps_log: bool = False) -> None:
        super().__init__(seed, keeps_log=keeps_log)
        self.loop = VirtualLoop(self)

    def after(self, delay_ms: float, act: Callable[[], None]) -> Timer:
        timer = Timer(act)
        self.loop.call_later(max(0.0, delay_ms) / 1000, lambda: timer.act() if timer.act is not None else None)
        return timer

    def run_until(self, end_ms: float) -> None:
        self.loop.run_until_complete(asyncio.sleep((end_ms - self.now_ms) / 1000))

    def close(self) -> None:
        """Cancel the tasks that are left."""
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.close()
