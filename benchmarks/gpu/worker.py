"""Jobs in processes that may die. The parent sends a process jobs as lines of JSON; it answers each
with lines of results, and a process that crashed or hung is replaced by a fresh one.

python -m benchmarks.gpu.worker MODULE      where MODULE.run(job) gives the results of a job

A CUDA error leaves a process useless, so after a failure on the device it ends itself.
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import itertools
import json
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TextIO

Job = dict[str, Any]  # what JSON can say
Line = dict[str, Any]
Keep = Callable[[Line], None]

DONE = "done"  # a message that ends a job
READY = "ready"  # a line after which the job waits for its turn at the device
NO_TIME = "no time"  # a line in place of results, where all time is over before the job's own
SECONDS_TO_HEAR = 5.0
LAST_WORDS = 12  # lines of a process that are kept for the report of its death


# --- in the process


def answer(run: Callable[[Job], Iterable[Line]], job: Job) -> Iterator[Line]:
    """What the job gives; an exception is a result too."""
    try:
        yield from run(job)
    except Exception as error:
        yield {"job": job, "failure": told(error)}


def told(error: BaseException) -> str:
    text = " | ".join(line.strip() for line in str(error).splitlines()[:3])
    return f"{type(error).__name__}: {text}"


def device_is_lost() -> bool:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except Exception:
        return True
    return False


def serve(module: str) -> None:
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no reply
    run = importlib.import_module(module).run
    while text := sys.stdin.readline():
        failed = False
        for line in answer(run, json.loads(text)):
            failed |= "failure" in line
            print(json.dumps(line), file=replies)
            if READY in line:
                sys.stdin.readline()
        if failed and device_is_lost():
            print(json.dumps({DONE: "the device is lost"}), file=replies)
            os._exit(1)
        print(json.dumps({DONE: True}), file=replies)


# --- in the parent


@dataclass(slots=True)
class Worker:
    """One process at a time. `prefix`: a command that runs the process, as a sanitizer does;
    `python` and `environment`: where libraries are that this process does not have."""

    module: str
    prefix: tuple[str, ...] = ()
    threads: int = 4  # in which Inductor compiles
    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[str] | None = None
    replies: queue.Queue[Line | None] = field(default_factory=queue.Queue)
    hearing: threading.Thread | None = None
    words: collections.deque[str] = field(
        default_factory=lambda: collections.deque(maxlen=LAST_WORDS)
    )

    def do(self, job: Job, limit: float, deadline: float = math.inf) -> Iterator[Line]:
        """The results of a job that may last `limit` seconds, and as long again from its turn on,
        but not beyond the deadline."""
        self.start()
        end = time.monotonic() + limit
        self._send(job)
        while True:
            rest = min(end, deadline) - time.monotonic()
            try:
                line = self.replies.get(timeout=max(0.01, rest))
            except queue.Empty:
                self.stop(kill=True)
                yield {NO_TIME: True} if deadline < end else _stopped(job, limit)
                return
            if line is None:
                code = self.stop()
                yield {"job": job, "failure": f"the process died ({code}): {self.last_words()}"}
                return
            if DONE in line:
                if line[DONE] is not True:  # it ends itself
                    self.stop()
                return
            yield line
            if READY in line:
                end = time.monotonic() + limit
                self._send({READY: True})

    def stop(self, kill: bool = False) -> int:
        """Ends the process, gives how it ended."""
        process, self.process = self.process, None
        if process is None:
            return 0
        if kill:
            self._kill(process)
        with contextlib.suppress(BrokenPipeError):
            assert process.stdin is not None
            process.stdin.close()
        try:
            return process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._kill(process)
            return process.wait()

    def _kill(self, process: subprocess.Popen[str]) -> None:
        """With all that it has started, so that nothing disturbs what is timed later; those of
        another worker's process are that one's."""
        if self.prefix:
            process.kill()
        else:
            self._signal(process, signal.SIGKILL)

    def signal(self, number: int) -> None:
        """To its process, if there is one, and all that that has started."""
        process = self.process
        if process is not None:
            self._signal(process, number)

    def _signal(self, process: subprocess.Popen[str], number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)

    def last_words(self) -> str:
        """Of a process that has ended; what it has started may go on, and say nothing."""
        if self.hearing is not None:
            self.hearing.join(timeout=SECONDS_TO_HEAR)
        return " | ".join(self.words)

    def _send(self, message: Line) -> None:
        assert self.process is not None and self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its death is told by the end of its replies
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()

    def start(self) -> None:
        if self.process is not None and self.process.poll() is None:
            return
        self.replies = queue.Queue()
        self.words.clear()
        self.process = subprocess.Popen(
            [*self.prefix, self.python, "-m", "benchmarks.gpu.worker", self.module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                "TORCHINDUCTOR_COMPILE_THREADS": str(self.threads),
                **os.environ,
                **self.environment,
            },
            start_new_session=not self.prefix,
        )
        assert self.process.stdout is not None and self.process.stderr is not None
        listening = (self.process.stdout, self.replies)
        threading.Thread(target=self._listen, args=listening, daemon=True).start()
        hearing = (self.process.stderr,)
        self.hearing = threading.Thread(target=self._hear, args=hearing, daemon=True)
        self.hearing.start()

    def _listen(self, stream: TextIO, replies: queue.Queue[Line | None]) -> None:
        for text in stream:
            if text.startswith("{"):
                replies.put(json.loads(text))
            else:
                self.words.append(text.strip())
        replies.put(None)

    def _hear(self, stream: TextIO) -> None:
        for text in stream:
            if text.strip():
                self.words.append(text.strip())


def _stopped(job: Job, limit: float) -> Line:
    return {"job": job, "failure": f"stopped after {limit:.0f} s"}


def work(
    module: str,
    jobs: Sequence[Job],
    deadline: float,
    keep: Keep,
    *,
    workers: int,
    limit: float,
    in_turns: bool = False,
) -> list[Job]:
    """Does the jobs in order until the deadline, in so many processes at once, in this one if
    `workers` is 0; gives those that were left out. `limit`: seconds for one job. `in_turns`: what
    a job does after it is ready it does while the others wait."""
    asked = _Work(module, collections.deque(jobs), deadline, keep, workers, limit)
    if not workers:
        _here(asked)
    elif in_turns:
        _in_turns(asked)
    else:
        _at_once(asked)
    return list(asked.waiting)


@dataclass(frozen=True, slots=True)
class _Work:
    """What is asked of `work`, and the jobs that are not done yet."""

    module: str
    waiting: collections.deque[Job]
    deadline: float
    keep: Keep
    workers: int
    limit: float

    def goes_on(self) -> bool:
        return bool(self.waiting) and time.monotonic() < self.deadline

    def take(self, line: Line, job: Job) -> None:
        if NO_TIME in line:
            self.waiting.append(job)
        elif READY not in line:
            self.keep(line)


def _here(work: _Work) -> None:
    run = importlib.import_module(work.module).run
    while work.goes_on():
        job = work.waiting.popleft()
        for line in answer(run, job):
            work.take(line, job)


def _at_once(work: _Work) -> None:
    lock = threading.Lock()

    def loop() -> None:
        worker = Worker(work.module)
        while True:
            with lock:
                if not work.goes_on():
                    break
                job = work.waiting.popleft()
            for line in worker.do(job, work.limit, work.deadline):
                with lock:
                    work.take(line, job)
        worker.stop(kill=True)

    count = min(work.workers, len(work.waiting))
    threads = [threading.Thread(target=loop) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _in_turns(work: _Work) -> None:
    """A job that is ready ends alone: meanwhile all other processes stand still."""
    count = max(1, min(work.workers, len(work.waiting)))
    pool = [Worker(work.module, threads=1) for _ in range(count)]
    turn, taking = threading.Lock(), threading.Lock()

    def loop(worker: Worker) -> None:
        others = [other for other in pool if other is not worker]
        while True:
            with taking:
                if not work.goes_on():
                    break
                job = work.waiting.popleft()
            with turn:
                worker.start()
            stream = worker.do(job, work.limit, work.deadline)
            first = next(stream, None)
            with turn, standing_still(others):
                for line in itertools.chain([first], stream) if first is not None else ():
                    work.take(line, job)
        worker.stop(kill=True)

    with ThreadPoolExecutor(count) as threads:
        list(threads.map(loop, pool))


@contextlib.contextmanager
def standing_still(workers: Sequence[Worker]) -> Iterator[None]:
    try:
        for worker in workers:
            worker.signal(signal.SIGSTOP)
        yield
    finally:
        for worker in workers:
            worker.signal(signal.SIGCONT)


if __name__ == "__main__":
    serve(sys.argv[1])
