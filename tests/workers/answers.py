"""What workers answer in tests: a line of Python, run there."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from pathlib import Path

PATH = Path(__file__)


def answer(question: bytes) -> bytes:
    names = {"os": os, "resource": resource, "signal": signal, "sys": sys, "time": time}
    return repr(eval(question, names)).encode()
