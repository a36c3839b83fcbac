"""The main program of a worker process: answers questions with the function `answer` of a file,
within resource limits, until it is idle for too long. Imports nothing of this package, so that it
starts fast."""

from __future__ import annotations

import importlib.util
import math
import resource
import select
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from typing import Any

HEAD = struct.Struct("<?Q")  # of a message: whether it is an answer or an error, and its bytes
PIECE = 1 << 20  # bytes of one read


def send(connection: socket.socket, content: bytes, *, is_good: bool = True) -> None:
    connection.sendall(HEAD.pack(is_good, len(content)) + content)


def receive(connection: socket.socket) -> tuple[bool, bytes]:
    """Raises EOFError if the other end is closed."""
    is_good, size = HEAD.unpack(_received(connection, HEAD.size))
    return is_good, _received(connection, size)


def _received(connection: socket.socket, size: int) -> bytes:
    """Reads the socket itself: a fork could not close a file object that another thread reads."""
    content = bytearray()
    while len(content) < size:
        piece = connection.recv(min(PIECE, size - len(content)))
        if not piece:
            raise EOFError
        content += piece
    return bytes(content)


def limit(which: int, most: int) -> None:
    """For this process and its children, as far as the system allows."""
    with suppress(OSError, ValueError):
        _, hard = resource.getrlimit(which)
        soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(which, (soft, hard))


def function_of(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("hemstitch_answers", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.answer


def serve(connection: socket.socket, path: str, seconds: float, idle_seconds: float) -> None:
    """Sends an empty message when it is ready. `seconds`: CPU time for one answer."""
    answer = function_of(path)
    send(connection, b"")
    while select.select([connection], [], [], idle_seconds)[0]:
        try:
            _, question = receive(connection)
        except EOFError:
            return
        limit(resource.RLIMIT_CPU, math.ceil(time.process_time() + seconds))
        try:
            send(connection, answer(question))
        except Exception as error:
            send(connection, (str(error) or repr(error)).encode(), is_good=False)


def main() -> None:
    number, path, seconds, memory, idle_seconds, *sys.path[:] = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process decides when to stop
    limit(resource.RLIMIT_CORE, 0)
    if int(memory):
        limit(resource.RLIMIT_AS, int(memory))
    with socket.socket(fileno=int(number)) as connection:
        serve(connection, path, float(seconds), float(idle_seconds))


if __name__ == "__main__":
    main()
