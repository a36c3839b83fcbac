"""LLVM's text to an object file, for the processor that this runs on. Imports nothing of ours, so
that a worker process (`llvm_workers.py`), which loads this file, starts in a moment."""

from __future__ import annotations

import llvmlite.binding as llvm


def initialize() -> None:
    """May be called again and again."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    if llvm.get_process_triple().startswith("x86_64"):
        # It spares copies a wait behind smaller stores, but where LLVM finds that a masked load is
        # one of all lanes, it asks for the size of that, which is not known, and aborts.
        llvm.set_option("hemstitch", "-x86-disable-avoid-SFB=true")


def target_machine() -> llvm.TargetMachine:
    """A fresh one for each module: the JIT takes it over. At level 1 explicit vectors become as
    fast code as at level 3, sooner (docs/design/code-generation-for-cpus.md)."""
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=1
    )


def compiled(text: str) -> bytes:
    """The module, the context that its constants live in and the machine are gone after that: an
    engine that keeps them holds 1.5 MB for each kernel.

    Raises RuntimeError if LLVM refuses the text; what it cannot compile ends the process.
    """
    initialize()
    machine = target_machine()
    with llvm.parse_assembly(text, llvm.create_context()) as module:
        module.verify()
        module.data_layout = str(machine.target_data)
        return bytes(machine.emit_object(module))


def answer(question: bytes) -> bytes:
    """What a worker process does."""
    return compiled(question.decode())
