"""What the driver is asked for when a kernel is launched: Triton's real launcher on a stub."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

pytest.importorskip("triton")

from hemstitch.errors import KernelBuildError
from hemstitch.runtime.gpu.loaded_kernel import Variant, build, load, variant_of
from hemstitch.runtime.gpu.semaphore import Semaphores, semaphores_of
from hemstitch.toolchain.triton_signature import signature
from tests.cuda import steps

ALIGNED = Variant(True, ())


def tensors(*shapes: tuple[int, ...], shift: int = 0) -> list[torch.Tensor]:
    """`shift`: elements between the start of their memory and them."""
    return [torch.zeros(torch.Size(shape).numel() + shift)[shift:].view(shape) for shape in shapes]


def test_a_program_for_each_tile_and_the_arguments_in_order(driver):
    program = steps.pointwise()
    driver.expect(list(signature(program).values()))
    given = tensors(*[(1000, 37)] * 3)
    launch = steps.launcher_of(program, driver)
    launch(*given, 0)
    (seen,) = driver.seen
    assert seen.grid == (program.tiles, 1, 1)
    assert seen.threads == 32 * program.warps
    assert seen.arguments == tuple(tensor.data_ptr() for tensor in given)
    assert (seen.stream, seen.device, seen.cooperative) == (7, 0, False)
    assert not driver.allocated and not driver.exchanges[2:]


def test_equal_calls_compile_once(driver):
    launch = steps.launcher_of(steps.pointwise(), driver)
    launch.prepare(-1, ())
    modules = driver.modules
    for _ in range(3):
        launch(*tensors(*[(1000, 37)] * 3), 0)
    assert driver.modules == modules and len(driver.seen) == 3
    assert len({seen.function for seen in driver.seen}) == 1


def test_unaligned_tensors_have_machine_code_of_their_own(driver):
    launch = steps.launcher_of(steps.pointwise(), driver)
    launch(*tensors(*[(1000, 37)] * 3), 0)
    modules = driver.modules
    for _ in range(2):
        launch(*tensors((1000, 37)), *tensors((1000, 37), shift=1), *tensors((1000, 37)), 0)
    assert driver.modules == modules + 1
    aligned, first, second = (seen.function for seen in driver.seen)
    assert first == second != aligned


def test_machine_code_for_unaligned_tensors_assumes_nothing():
    program = steps.pointwise()
    texts = {
        aligned: build(program, variant_of(aligned, ()), "sm_90").asm["ptx"]
        for aligned in (True, False)
    }
    assert "global.v4." in texts[True] and "global.v" not in texts[False]


def test_sizes_follow_the_tensors(driver):
    program = steps.pointwise_of_any_size()
    launch = steps.launcher_of(program, driver)
    driver.expect(["*fp32", "*fp32", "i64"])
    for rows in (4096, 160, 8):
        launch(*tensors((rows, 256), (rows, 256)), rows, 0)
    assert [seen.arguments[-1] for seen in driver.seen] == [4096, 160, 8]
    assert [seen.grid[0] for seen in driver.seen] == [512, 20, 1]


def test_machine_code_by_what_is_known_of_sizes(driver):
    launch = steps.launcher_of(steps.pointwise_of_any_size(), driver)
    modules = driver.modules
    for rows in (16, 32, 17, 18):
        launch(*tensors((rows, 256), (rows, 256)), rows, 0)
    assert driver.modules == modules + 2  # multiples of 16, and others


def test_nothing_to_do_is_no_launch(driver):
    launch = steps.launcher_of(steps.pointwise_of_any_size(), driver)
    launch(*tensors((0, 256), (0, 256)), 0, 0)
    assert not driver.seen


def test_the_current_stream(driver):
    launch = steps.launcher_of(steps.pointwise(), driver)
    for stream in (7, 11, 0):
        driver.stream = stream
        launch(*tensors(*[(1000, 37)] * 3), 0)
    assert [seen.stream for seen in driver.seen] == [7, 11, 0]


def test_another_device_becomes_current_for_the_launch(driver):
    launch = steps.launcher_of(steps.pointwise(), driver)
    launch.prepare(-1, ())
    launch(*tensors(*[(1000, 37)] * 3), 0)
    driver._exchange(1)
    driver.exchanges.clear()
    launch(*tensors(*[(1000, 37)] * 3), 0)
    assert driver.exchanges == [0, 1] and driver.current == 1
    assert [seen.device for seen in driver.seen] == [0, 0]


def test_machine_code_for_each_device(driver):
    launch = steps.launcher_of(steps.pointwise(), driver)
    modules = driver.modules
    launch.prepare(0, ())
    launch.prepare(1, ())
    assert driver.modules == modules + 2 and driver.current == 0


# --- barriers


def launch_centred(driver, launch, rows: int = 8192, *sizes: int) -> None:
    launch(*tensors((rows, 128), (rows, 128)), *sizes, 0)


def test_all_programs_of_a_cooperative_launch_are_resident(driver):
    program = steps.centred()
    driver.expect(list(signature(program).values()))
    driver.set_registers(80)  # 3 blocks of 8 warps on each of 132 processors
    launch_centred(driver, steps.launcher_of(program, driver))
    (seen,) = driver.seen
    assert seen.cooperative and seen.grid == (3 * 132, 1, 1)
    block, scratch = driver.allocated  # of semaphores; then what this launch needs
    assert scratch.numel() == 3 * 132 * 128 * 4
    assert seen.arguments[2:] == (scratch.data_ptr(), block.data_ptr())


def test_semaphores_are_real_among_fake_tensors(driver):
    """As they are when PyTorch compiles."""
    program = steps.centred()
    launch = steps.launcher_of(program, driver)
    with FakeTensorMode():
        launch.prepare(-1, ())
    launch_centred(driver, launch)
    assert driver.allocated[0].data_ptr() == driver.seen[0].arguments[-1]


def test_no_more_programs_than_tiles(driver):
    program = steps.centred()
    launch_centred(driver, steps.launcher_of(program, driver))
    assert [seen.grid[0] for seen in driver.seen] == [program.tiles] == [512]


def test_how_many_programs_a_device_holds_is_the_drivers_word(driver):
    """Also where no table knows the device."""
    driver.set_registers(120)
    find = lambda index: driver.device(0, "sm_89")  # noqa: E731
    launch_centred(driver, steps.Launcher(steps.centred(), find))
    assert [seen.grid[0] for seen in driver.seen] == [2 * 132]


def test_a_kernel_that_does_not_fit(driver):
    driver.set_registers(300)
    with pytest.raises(KernelBuildError, match=r"no program of .* fits on a Stub"):
        steps.launcher_of(steps.centred(), driver).prepare(-1, ())


def test_a_kernel_that_spills_is_assembled_again_with_more_registers(driver):
    program = steps.centred()
    usual = load(program, variant_of(True, ()), driver.device())
    driver.set_spilled_bytes(8)
    relaxed = load(program, variant_of(True, ()), driver.device())
    assert [each.owner.metadata.maxnreg for each in (usual, relaxed)] == [None, 255]


def test_launches_on_a_stream_share_a_semaphore(driver):
    program = steps.centred()
    driver.expect(list(signature(program).values()))
    launch = steps.launcher_of(program, driver)
    for stream in (7, 7, 11, 7):
        driver.stream = stream
        launch_centred(driver, launch)
    words = [seen.arguments[-1] for seen in driver.seen]
    assert words[0] == words[1] == words[3] != words[2]


def test_all_numbers_of_programs_share_what_a_barrier_flips(driver):
    program = steps.centred_of_any_size()
    driver.expect([*["*fp32"] * 3, "*i32", "i32"])
    launch = steps.launcher_of(program, driver)
    for rows in (8192, 160, 8192):
        launch_centred(driver, launch, rows, rows)
    words = [seen.arguments[3] for seen in driver.seen]
    assert words[0] == words[2] == words[1]
    assert [seen.arguments[4] for seen in driver.seen] == [8192, 160, 8192]


def test_a_captured_launch_has_a_semaphore_and_scratch_of_its_own(driver):
    program = steps.centred()
    driver.expect(list(signature(program).values()))
    launch = steps.launcher_of(program, driver)
    launch_centred(driver, launch)
    driver.capturing = True
    launch_centred(driver, launch)
    eager, captured = driver.seen
    block, _, scratch = driver.allocated
    assert captured.arguments[2:] == (scratch.data_ptr(), block.data_ptr() + 128)
    assert eager.arguments[-1] == block.data_ptr()


def test_more_streams_than_semaphores(driver, monkeypatch):
    monkeypatch.setattr("hemstitch.runtime.gpu.semaphore.SLOTS", 2)
    semaphores = Semaphores(driver.device(), torch.zeros(64, dtype=torch.int32))
    words = [semaphores.take(stream).data_ptr() for stream in (1, 2, 3, 1, 2)]
    assert words[:2] == words[3:] and words[2] not in words[:2]


def test_two_threads_that_come_at_once_have_a_semaphore_each(driver):
    """The second one asks while the first one's is made."""
    words = []

    class Slots(dict):
        def setdefault(self, key, slot):
            if not words:
                words.append(None)
                words[0] = semaphores.take(2).data_ptr()
            return super().setdefault(key, slot)

    semaphores = Semaphores(driver.device(), torch.zeros(2048, dtype=torch.int32), Slots())
    words.append(semaphores.take(1).data_ptr())
    assert words[0] != words[1]


# --- tickets


def test_a_loss_is_one_launch_and_not_cooperative(driver):
    program = steps.loss()
    assert (program.barriers, program.has_last_block) == (0, True)
    driver.expect(list(signature(program).values()))
    launch = steps.launcher_of(program, driver)
    launch(*tensors((4096, 256), (4096, 256), ()), 0)
    (seen,) = driver.seen
    block, scratch = driver.allocated
    assert not seen.cooperative and seen.grid == (program.tiles, 1, 1)
    assert seen.arguments[3:] == (scratch.data_ptr(), block.data_ptr())
    assert not build(program, ALIGNED, "sm_90").metadata.launch_cooperative_grid


def test_all_numbers_of_programs_share_what_a_ticket_leaves_at_zero(driver):
    program = steps.loss_of_any_size()
    driver.expect([*["*fp32"] * 3, "*i32", "i32"])
    launch = steps.launcher_of(program, driver)
    for stream, rows in ((7, 4096), (7, 160), (11, 160), (7, 8)):
        driver.stream = stream
        launch(*tensors((rows, 256), ()), rows, 0)
    words = [seen.arguments[3] for seen in driver.seen]
    assert words[0] == words[1] == words[3] != words[2]
    assert len({seen.grid for seen in driver.seen}) == 3


def test_captured_semaphores_are_cleared_by_nobody(driver, monkeypatch):
    """Each has its own, until there are no more."""
    monkeypatch.setattr("hemstitch.runtime.gpu.semaphore.SLOTS", 3)
    semaphores = semaphores_of(driver.device())
    (block,) = driver.allocated
    eager = semaphores.take(7)
    driver.capturing = True
    captured = [semaphores.take(7) for _ in range(3)]
    driver.capturing = False
    assert semaphores.take(7) is eager
    addresses = [word.data_ptr() for word in (eager, *captured)]
    assert len(set(addresses)) == 4 and len(driver.allocated) == 2
    assert addresses[3] == driver.allocated[1].data_ptr()
    assert addresses[:3] == [block.data_ptr() + 128 * place for place in range(3)]


# --- checks


def test_checked_indices_trap():
    texts = {
        program.entry: build(program, Variant(True, ()), "sm_90").asm["ptx"]
        for program in (steps.gathered(), steps.pointwise())
    }
    assert ["__assertfail" in text for text in texts.values()] == [True, False]


def test_integers_wrap_in_checked_kernels():
    """Triton's own checks for overflow would be asserts too."""
    program = steps.gathered()
    text = build(program, Variant(True, ()), "sm_90").asm["ttir"]
    assert text.count("tt.assert") == program.text.count("tl.device_assert") == 1
