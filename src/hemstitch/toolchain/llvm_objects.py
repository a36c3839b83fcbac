"""LLVM text to an object file for this processor. Imports nothing of this package, so that a worker
process (`llvm_workers.py`), which loads this file, starts fast."""

from __future__ import annotations

import llvmlite.binding as llvm


def initialize() -> None:
    """Idempotent."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    if llvm.get_process_triple().startswith("x86_64"):
        # The pass avoids store-forwarding blocks, but aborts on masked loads of all lanes, whose
        # size it does not know.
        llvm.set_option("hemstitch", "-x86-disable-avoid-SFB=true")


def target_machine() -> llvm.TargetMachine:
    """A new one for each module, since the JIT takes ownership. At level 1 code of explicit vectors
    is as fast as at level 3, and compiles faster (docs/design/code-generation-for-cpus.md)."""
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=1
    )


def compiled(text: str) -> bytes:
    """The object file. Module, context and machine are freed, since they take 1.5 MB for each
    kernel.

    Raises RuntimeError if LLVM rejects the text; LLVM's fatal errors end the process.
    """
    initialize()
    machine = target_machine()
    with llvm.parse_assembly(text, llvm.create_context()) as module:
        module.verify()
        module.data_layout = str(machine.target_data)
        return bytes(machine.emit_object(module))


def answer(question: bytes) -> bytes:
    """The worker process's function."""
    return compiled(question.decode())
