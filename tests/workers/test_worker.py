"""A worker process: what it answers, and what becomes of one that crashes, hangs or takes too
much."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hemstitch.workers import worker as module
from hemstitch.workers.pool import WorkerClient, WorkerPool
from hemstitch.workers.worker import (
    CannotStart,
    Closed,
    Limits,
    RefusedQuestion,
    TookTooLong,
    Worker,
    WorkerDied,
)
from tests.workers.answers import PATH

LIMITS = Limits(processor_seconds=1.0, seconds=60.0, memory=1 << 30)
SPIN = b"[None for _ in iter(int, 1)]"


@pytest.fixture
def worker() -> Iterator[Worker]:
    with closing(Worker(PATH, LIMITS)) as started:
        yield started


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    workers = WorkerPool(PATH, LIMITS)
    yield workers
    for worker in workers._idle:
        worker.close()


def test_it_answers_and_refuses(worker: Worker) -> None:
    assert worker.ask(b"6 * 7") == b"42"
    with pytest.raises(RefusedQuestion, match="division by zero"):
        worker.ask(b"1 / 0")
    long = worker.ask(b"'x' * (5 << 20)")
    assert len(long) == (5 << 20) + 2
    assert worker.ask(repr("y" * (5 << 20)).encode()) == repr("y" * (5 << 20)).encode()


def test_what_is_printed_there_disturbs_nobody(
    worker: Worker, capfd: pytest.CaptureFixture[str]
) -> None:
    assert worker.ask(b"print('banner') or os.write(1, b'banner') or 7") == b"6"
    assert worker.ask(b"sys.stdin.read()") == b"''"
    assert (
        worker.ask(b"os.write(2, b'x' * (1 << 16)) and os.getpid()") == b"%d" % worker.process.pid
    )
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("question", "why"),
    [
        (b"os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        (b"os.write(2, b'LLVM ERROR: no\\n') and os.abort()", "SIGABRT: LLVM ERROR: no"),
        (b"os._exit(3)", "ended with 3"),
    ],
)
def test_it_dies_alone(worker: Worker, question: bytes, why: str) -> None:
    with pytest.raises(WorkerDied, match=why):
        worker.ask(question)
    assert not worker.is_alive


def test_work_has_a_limit(worker: Worker) -> None:
    with pytest.raises(TookTooLong, match="more than 1 s"):
        worker.ask(SPIN.replace(b"None", b"0"))


def test_waiting_has_a_limit(worker: Worker) -> None:
    with pytest.raises(TookTooLong, match="no answer"):
        worker.ask(b"time.sleep(1000)", 0.2)
    assert not worker.is_alive


def test_memory_has_a_limit(worker: Worker) -> None:
    with pytest.raises(RefusedQuestion):  # Python's own MemoryError
        worker.ask(b"len(bytes(2 << 30))")
    assert worker.ask(b"1") == b"1"


def test_what_interrupts_ends_it(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    worker.ask(b"1")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module.serve, "receive", interrupted)
        worker.ask(b"time.sleep(1000)")
    assert not worker.is_alive


def test_an_interrupt_of_the_terminal_is_not_its(worker: Worker) -> None:
    assert os.getpgid(worker.process.pid) != os.getpgid(0)
    worker.ask(b"1")
    worker.process.send_signal(signal.SIGINT)
    assert worker.ask(b"2") == b"2"


@pytest.mark.parametrize(
    "name", ["", "/nowhere/python", "/usr/bin/uwsgi", "frozen", "/bin/false-python"]
)
def test_where_none_can_start(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if name == "frozen":
        monkeypatch.setattr(sys, "frozen", True, raising=False)
    elif name == "/bin/false-python":
        (tmp_path / "python").symlink_to("/bin/false")
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    else:
        monkeypatch.setattr(sys, "executable", name)
    with pytest.raises(CannotStart), closing(Worker(PATH, LIMITS)) as worker:
        worker.ask(b"1")


def test_a_file_that_cannot_be_loaded_is_no_worker(tmp_path: Path) -> None:
    with pytest.raises(CannotStart), closing(Worker(tmp_path / "none.py", LIMITS)) as worker:
        worker.ask(b"1")


def test_a_pool_keeps_its_workers(pool: WorkerPool) -> None:
    pool.start()
    with closing(WorkerClient(pool)) as asker:
        first = asker.ask(b"os.getpid()")
        assert asker.ask(b"os.getpid()") == first == b"%d" % pool._idle[0].process.pid
        os.kill(int(first), signal.SIGKILL)  # as after IDLE_SECONDS
        pool._idle[0].process.wait()
        assert asker.ask(b"os.getpid()") != first
    assert len(pool._idle) == 1


def test_what_ends_one_worker_is_asked_once_more(pool: WorkerPool, tmp_path: Path) -> None:
    mark = str(tmp_path / "mark")
    question = f"os.path.exists({mark!r}) or (os.mkdir({mark!r}), os.abort())"
    with closing(WorkerClient(pool)) as asker:
        assert asker.ask(question.encode()) == b"True"
        with pytest.raises(WorkerDied, match="SIGABRT"):
            asker.ask(b"os.abort()")
        assert asker.ask(b"3") == b"3"


def test_who_is_closed_waits_for_nothing(pool: WorkerPool) -> None:
    asker, ends = WorkerClient(pool), list[Exception]()

    def ask() -> None:
        try:
            asker.ask(b"time.sleep(1000)")
        except Exception as error:
            ends.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    while not asker._busy:
        time.sleep(0.01)
    asker.close()
    thread.join(30)
    assert isinstance(ends[0], Closed) and not pool._idle
    with pytest.raises(Closed):
        asker.ask(b"1")


@pytest.mark.parametrize("_", range(5))
def test_many_threads_close_it_at_once(pool: WorkerPool, _: int) -> None:
    """While it starts, and its own asker ends it as well: nobody closes a file of somebody else."""
    ends: list[Exception] = []
    with pool.worker() as worker:

        def run(act: Callable[[], object]) -> None:
            try:
                act()
            except Exception as error:
                ends.append(error)

        acts = (lambda: worker.ask(b"time.sleep(1000)"), *3 * [worker.close])
        threads = [threading.Thread(target=run, args=(act,)) for act in acts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert [type(end) for end in ends] == [Closed]


def test_a_fork_has_its_own(pool: WorkerPool) -> None:
    """And leaves its parent's alone."""
    with closing(WorkerClient(pool)) as asker:
        own = asker.ask(b"os.getpid()")
        child = os.fork()
        if not child:
            other = asker.ask(b"os.getpid()")
            os._exit(0 if other != own and len(pool._idle) == 1 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert asker.ask(b"os.getpid()") == own


# Without PyTorch, which the package itself imports.
PROGRAM = """
import multiprocessing, os, signal, sys, types
sys.path.insert(0, {root!r})
sys.modules["hemstitch"] = types.ModuleType("hemstitch")
sys.modules["hemstitch"].__path__ = [{package!r}]
from contextlib import closing
from hemstitch.workers.worker import Limits, Worker
from tests.workers.answers import PATH
print("main")

def pid(queue):
    with closing(Worker(PATH, Limits(1.0, 60.0))) as worker:
        queue.put(int(worker.ask(b"os.getpid()")))

if len(sys.argv) > 1:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=pid, args=(queue,), daemon=True)
    process.start()
    assert queue.get(timeout=60) > 0
    process.join()
left = Worker(PATH, Limits(1.0, 60.0))
print(int(left.ask(b"os.getpid()")))
"""


def run(end: str, *arguments: str) -> tuple[subprocess.CompletedProcess[str], int]:
    """What became of the program, and which process it had."""
    package = str(Path(module.__file__).parents[1])
    program = PROGRAM.format(root=os.getcwd(), package=package) + end
    command = [sys.executable, "-W", "error", "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    main, pid = done.stdout.split()
    assert main == "main" and done.stderr == ""
    return done, int(pid)


def test_it_ends_with_its_process_and_runs_no_main_module() -> None:
    """A daemonic process, as data loaders have, may have one as well."""
    done, pid = run("", "daemonic")
    assert done.returncode == 0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_process_that_is_killed_takes_it_along() -> None:
    done, pid = run("sys.stdout.flush()\nos.kill(os.getpid(), signal.SIGKILL)")
    assert done.returncode == -signal.SIGKILL
    status, end = Path(f"/proc/{pid}/stat"), time.monotonic() + 30
    while status.exists() and " Z " not in status.read_text():
        assert time.monotonic() < end
        time.sleep(0.05)
