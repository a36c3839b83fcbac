"""Writes tests/latency/occupancy.csv: random launches, and what NVIDIA's own calculator says of
them.

python tools/occupancy_table.py FOLDER      that of cuda_occupancy.h, which ships for instance in
the wheel nvidia-cuda-runtime-cu12; needs a C++ compiler

The header is NVIDIA's and is not part of this repository.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hemstitch.latency.architecture import ARCHITECTURES, Architecture
from hemstitch.machine.gpu_numbers import GPU

TABLE = Path(__file__).resolve().parents[1] / "tests" / "latency" / "occupancy.csv"
ROWS = 2048  # for each architecture
SEED = 20
COLUMNS = "target,registers,static_bytes,dynamic_bytes,warps,blocks,limiters"
PROGRAM = r"""
#include <cstdio>
#include <cuda_occupancy.h>

int main() {
    int major, minor, sms, warps, registers, block_shared, shared, reserved, threads;
    int thread_registers, static_bytes, dynamic_bytes, block_warps;
    while (std::scanf("%d%d%d%d%d%d%d%d%d%d%d%d%d", &major, &minor, &sms, &warps, &registers,
                      &block_shared, &shared, &reserved, &threads, &thread_registers,
                      &static_bytes, &dynamic_bytes, &block_warps) == 13) {
        cudaOccDeviceProp device;
        device.computeMajor = major;
        device.computeMinor = minor;
        device.maxThreadsPerBlock = threads;
        device.maxThreadsPerMultiprocessor = warps * 32;
        device.regsPerBlock = device.regsPerMultiprocessor = registers;
        device.warpSize = 32;
        device.sharedMemPerBlock = 48 << 10;
        device.sharedMemPerMultiprocessor = shared;
        device.numSms = sms;
        device.sharedMemPerBlockOptin = block_shared;
        device.reservedSharedMemPerBlock = reserved;
        cudaOccFuncAttributes function;
        function.maxThreadsPerBlock = threads;
        function.numRegs = thread_registers;
        function.sharedSizeBytes = static_bytes;
        function.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        function.maxDynamicSharedSizeBytes = dynamic_bytes;
        cudaOccDeviceState state;
        state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
        cudaOccResult result;
        cudaOccError error = cudaOccMaxActiveBlocksPerMultiprocessor(
            &result, &device, &function, &state, block_warps * 32, dynamic_bytes);
        if (error != CUDA_OCC_SUCCESS) return 1;
        std::printf("%d,%u\n", result.activeBlocksPerMultiprocessor, result.limitingFactors & 15u);
    }
}
"""


def launches(chance: random.Random, known: Architecture) -> Iterator[tuple[int, int, int, int]]:
    """Registers, static and dynamic shared memory, warps; some of them cannot run at all."""
    for _ in range(ROWS):
        most = chance.choice((1 << 10, 16 << 10, 64 << 10, known.shared_bytes))
        yield (
            chance.randint(1, known.registers_per_thread),
            chance.choice((0, 0, chance.randint(0, 48 << 10))),
            chance.choice((0, chance.randint(0, most))),
            chance.choice(
                (1, 2, 4, 8, 16, 32, chance.randint(1, known.threads_per_block // GPU.warp_threads))
            ),
        )


def answers(
    program: Path, known: Architecture, asked: list[tuple[int, int, int, int]]
) -> list[str]:
    number = int(known.target.removeprefix("sm_"))
    device = (
        *(number // 10, number % 10, known.sms, known.warps, known.registers),
        *(known.shared_bytes_per_block, known.shared_bytes, known.reserved_shared_bytes),
        known.threads_per_block,
    )
    text = "\n".join(" ".join(map(str, (*device, *launch))) for launch in asked)
    done = subprocess.run([program], input=text, capture_output=True, text=True, check=True)
    return done.stdout.split()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="that of cuda_occupancy.h")
    folder = parser.parse_args().folder
    lines = [COLUMNS]
    chance = random.Random(SEED)
    with tempfile.TemporaryDirectory() as temporary:
        program = Path(temporary) / "calculator"
        command = ["g++", "-x", "c++", "-", "-I", str(folder), "-o", str(program)]
        subprocess.run(command, input=PROGRAM, text=True, check=True)
        for known in ARCHITECTURES.values():
            asked = list(launches(chance, known))
            for launch, answer in zip(asked, answers(program, known, asked), strict=True):
                lines.append(",".join((known.target, *map(str, launch), answer)))
    TABLE.write_text("\n".join(lines) + "\n")
    print(f"{len(lines) - 1} rows in {TABLE}")


if __name__ == "__main__":
    main()
