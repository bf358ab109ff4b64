"""Processes that this one starts, and how they end: never later than it does, however it ends.

Those that train call `die_with_parent` before anything else. Those that help with images are spawned, not forked: a
fork copies locks that another thread (torch, a progress bar) may hold, and CUDA does not survive it. They import
nothing of the main program and leave Ctrl-C to it.

concurrent.futures is not used for them: when one of its processes dies it gives all of them up and cannot say over
which task, and its semaphores need room in /dev/shm. Here each child has a pipe of its own; one that dies is replaced,
and whoever waits for its task learns how it died and what it was at.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import secrets
import signal
import socket
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker
from typing import Any, Generic, TypeVar

from turnaround import safe_path
from turnaround.cores import usable_cores
from turnaround.errors import ProcessFailedError

LAUNCHER_VARIABLE = "TURNAROUND_LAUNCHER_PID"
"""Says who started it all, to a process whose parent may be gone before it can look."""
SPAWN = multiprocessing.get_context("spawn")
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

Task = TypeVar("Task")
Result = TypeVar("Result")


def die_with_parent() -> None:
    """Ask Linux to end this process when its parent ends, however that ended."""
    if sys.platform != "linux":
        return
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
    parent = os.getppid()
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    # The kernel speaks only of ends that come after the call: the parent may have ended between the lines above, and
    # the launcher before them, when this process already had another parent.
    if os.getppid() != parent or not launcher_is_alive():
        os._exit(1)


def launcher_is_alive() -> bool:
    """Return whether the launcher named in the environment still runs; true where nobody can tell."""
    pid = os.environ.get(LAUNCHER_VARIABLE, "")
    if not pid.isdigit() or not os.path.exists("/proc/self"):
        return True
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            # The state comes after the name, which stands in parentheses and may hold any character.
            state = stat.read().rpartition(b")")[2].split()[0]
    except OSError:
        return False
    # One that has ended stays as a zombie until its own parent has asked for its exit code: a process that begins in
    # that moment would wait for orders of a dead launcher.
    return state not in (b"Z", b"X")


def num_helpers() -> int:
    """Return how many may help this process at once: one for each core that it may use."""
    return usable_cores()


def can_have_children() -> bool:
    """Return whether this process may start others: a daemonic one may not."""
    return not multiprocessing.current_process().daemon


def process_tag() -> str:
    """Return HOST-PID-RANDOM, for the name of what this process has not finished: others see whether it still lives."""
    return f"{socket.gethostname().replace(os.sep, '_')}-{os.getpid()}-{secrets.token_hex(8)}"


@dataclass(frozen=True, kw_only=True)
class Death:
    """The end of a child in the middle of a task."""

    exit_code: int
    """The exit code of multiprocessing: minus the number of the signal, where one ended it."""
    mark: int
    """The number that the child passed to `mark` last within this task; -1 before the first."""

    @property
    def signal(self) -> int | None:
        return -self.exit_code if self.exit_code < 0 else None


@dataclass(frozen=True, kw_only=True)
class Outcome(Generic[Task, Result]):
    """A task that has ended: with a result, or with the death of the child that had it."""

    task: Task
    result: Result | None
    death: Death | None


class PoolClosedError(Exception):
    """Another thread has closed the pool, and with it ended the task that this one waited for."""


class ChildPool(Generic[Task, Result]):
    """Processes that run one function on the tasks that come. Not for several threads at once, but for `close`."""

    def __init__(
        self,
        function: Callable[[Task], Result],
        num_processes: int,
        *,
        begin: Callable[..., None] | None = None,
        begin_with: tuple[Any, ...] = (),
        looks_ahead: bool = False,
    ) -> None:
        """Start the processes; each calls `begin(*begin_with)` once. The functions are those of a module.

        With `looks_ahead` a child gets its next task while it is still busy. Only for tasks of less than 64 kB: a
        larger one would block us, and the child, should its result be large too, would never take it.
        """
        self._function, self._begin, self._begin_with = function, begin, begin_with
        self._looks_ahead = looks_ahead
        self._marks = SPAWN.RawArray(ctypes.c_int64, num_processes)
        self._waiting: deque[Task] = deque()
        self._replacing = threading.RLock()
        """Held where `_is_closed` is set, and where a child is replaced: none is started after the end."""
        self._using_pipes = threading.RLock()
        """Held by who sends or receives: a pipe that is closed under them may be another file's descriptor next."""
        self._is_closed = False
        self._children: list[_Child[Task]] = []
        for place in range(num_processes):
            self._children.append(self._start(place))

    @property
    def num_processes(self) -> int:
        return len(self._children)

    @property
    def num_unfinished(self) -> int:
        """Tasks whose outcome was not taken yet."""
        return len(self._waiting) + sum(len(child.tasks) for child in self._children)

    @property
    def pids(self) -> list[int | None]:
        return [child.process.pid for child in self._children]

    def submit(self, *tasks: Task) -> None:
        with self._using_pipes:
            self._waiting.extend(tasks)
            self._hand_out()

    def take(self) -> Outcome[Task, Result]:
        """Wait for the next task that ends; an exception of the function is raised here."""
        with self._using_pipes:
            return self._take()

    def _take(self) -> Outcome[Task, Result]:
        busy = {child.pipe: child for child in self._children if child.tasks}
        assert busy, "there is no task to wait for"
        # Should the wait itself fail, on a pipe that `close` has closed before, the handler below needs a child.
        child = next(iter(busy.values()))
        try:
            child = busy[connection.wait(busy)[0]]  # type: ignore[index]
            is_result, value = child.pipe.recv()
        except (EOFError, OSError):  # it died, perhaps halfway through its answer
            if self._is_closed:
                raise PoolClosedError from None
            return self._bury(child)
        task = child.tasks.popleft()
        self._hand_out()
        if not is_result:
            raise value
        return Outcome(task=task, result=value, death=None)

    def drop(self) -> None:
        """Forget the tasks that wait, and wait for those that are under way."""
        self._waiting.clear()
        while self.num_unfinished and not self._is_closed:
            with contextlib.suppress(Exception):
                self.take()

    def close(self) -> None:
        """Kill the processes and wait until they have gone. They keep nothing that would need another end."""
        # Before the kill: a thread in `take` would take this end for a death, and replace the child.
        with self._replacing:
            self._is_closed = True
        # All are killed before the first is waited for: they end at the same time.
        for child in self._children:
            child.process.kill()
        # A thread in the middle of a task comes out of its pipe now, whose other end has gone.
        with self._using_pipes:
            self._waiting.clear()
            for child in self._children:
                child.process.join()
                child.pipe.close()

    def __enter__(self) -> ChildPool[Task, Result]:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _start(self, place: int) -> _Child[Task]:
        ours, theirs = SPAWN.Pipe()
        arguments = (theirs, self._marks, place, self._function, self._begin, self._begin_with)
        process = SPAWN.Process(target=_serve, args=arguments, daemon=True)
        with _starting():
            process.start()
        theirs.close()  # so that the end of the child is the end of the pipe
        return _Child(process=process, pipe=ours, tasks=deque(), place=place)

    def _hand_out(self) -> None:
        """Give every child a task, and where we look ahead a second one, so that it need not wait for us."""
        # The last tasks are not given out ahead: they stay for whoever is free first.
        for most, num_kept in ((1, 0), (2, len(self._children)))[: 1 + self._looks_ahead]:
            for child in self._children:
                if len(child.tasks) < most and len(self._waiting) > num_kept:
                    self._send(child, self._waiting.popleft())

    def _send(self, child: _Child[Task], task: Task) -> None:
        # A child that died while it was idle is found at `take`, with this task as the one that it had.
        child.tasks.append(task)
        with contextlib.suppress(OSError):
            child.pipe.send(task)

    def _bury(self, child: _Child[Task]) -> Outcome[Task, Result]:
        child.process.join()
        death = Death(exit_code=child.process.exitcode or 0, mark=self._marks[child.place])
        task = child.tasks.popleft()
        # Tasks that were sent ahead go back to the front, in their order: only the first was under way.
        self._waiting.extendleft(reversed(child.tasks))
        self._marks[child.place] = -1
        with self._replacing:
            if self._is_closed:
                raise PoolClosedError
            child.pipe.close()
            self._children[self._children.index(child)] = self._start(child.place)
        self._hand_out()
        return Outcome(task=task, result=None, death=death)


@dataclass(eq=False)
class _Child(Generic[Task]):
    process: multiprocessing.process.BaseProcess
    pipe: connection.Connection[Any, Any]
    tasks: deque[Task]
    """Sent and not answered yet; the child is at the first."""
    place: int
    """The index of its mark among those of all children."""


def in_children(
    function: Callable[[Task], Result], tasks: Sequence[Task], *, purpose: str, min_tasks: int = 4
) -> Generator[Result, None, None]:
    """Yield the results in the order in which they are done, by a process for each core; a child's death is an error.

    Below `min_tasks` this process does it alone: starting others costs more than it saves. `purpose` completes "a
    process that ..." in the message.
    """
    num_processes = min(num_helpers(), len(tasks))
    if len(tasks) < min_tasks or num_processes < 2 or not can_have_children():
        yield from map(function, tasks)
        return
    with ChildPool(function, num_processes) as pool:
        pool.submit(*tasks)
        while pool.num_unfinished:
            outcome = pool.take()
            if outcome.death is not None:
                raise died(outcome.death, num_processes, purpose)
            yield outcome.result  # type: ignore[misc]


def died(death: Death, num_processes: int, purpose: str) -> ProcessFailedError:
    """Return the error for a child whose death is no task's fault."""
    how = f"was killed (signal {death.signal})" if death.signal else f"died (exit code {death.exit_code})"
    return ProcessFailedError(
        f"A process that {purpose} {how}. The likely cause is memory: the machine, or the job's limit, has too "
        f"little for {num_processes} such processes. Ask for more memory, use fewer cores (taskset -c 0-3 "
        "turnaround ...), or make very large images smaller."
    )


_STARTING = threading.RLock()
"""Two threads that start at once would each restore what the other has set: one core, and no main program, for good."""


@contextlib.contextmanager
def _starting() -> Iterator[None]:
    """Let whatever starts here inherit a blocked Ctrl-C and one thread, and not import the main program again.

    A terminal sends Ctrl-C to all of them, and a child that is still importing would show where it was. The main
    program may import torch (seconds and 300 MB in each), and a script without the usual `if __name__ == "__main__"`
    would run a second time and wait for a lock that its parent holds. Each child has a core: threads of its matrix
    products would only wait for each other.
    """
    with _STARTING:
        main = sys.modules["__main__"]
        settings = {**_ONE_THREAD, **safe_path.settings()}  # a program that only imports us has no such path yet
        variables = {name: os.environ.get(name) for name in settings}
        os.environ.update(settings)
        resource_tracker.ensure_running()  # its start unblocks Ctrl-C: not in the midst of ours
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            yield
        finally:
            for name, value in variables.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
            sys.modules["__main__"] = main
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- in a child

_own_mark: list[tuple[Any, int]] = []
"""The shared marks and the place of this process among them; empty in a process that is no child."""


def mark(number: int) -> None:
    """Leave a number in memory that the parent can still read when this process has died over it."""
    if _own_mark:
        marks, place = _own_mark[0]
        marks[place] = number


def _serve(
    pipe: connection.Connection[Any, Any],
    marks: Any,
    place: int,
    function: Callable[[Any], Any],
    begin: Callable[..., None] | None,
    begin_with: tuple[Any, ...],
) -> None:
    _end_with_parent()
    _own_mark.append((marks, place))
    mark(-1)
    if begin is not None:
        begin(*begin_with)
    with contextlib.suppress(EOFError, OSError):  # the parent has closed the pipe, or gone
        while True:
            task = pipe.recv()
            mark(-1)
            try:
                answer = (True, function(task))
            except Exception as error:
                answer = (False, error)
            try:
                pipe.send(answer)
            except (TypeError, AttributeError, ValueError) as error:  # it cannot be pickled
                pipe.send((False, RuntimeError(f"{answer[1]!r} cannot be sent: {error}")))


def _end_with_parent() -> None:
    """End this child with its parent: otherwise it outlives a killed one until its task is done."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
