"""What later processes find: plans as decisions, machine code under a seal. Each test has a home of
its own; forgetting what this process has loaded stands for another process."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest
import torch

from hemstitch.cache import machine_code as sealed
from hemstitch.cache.machine_code import KEY
from hemstitch.cache.records import folder, forget_oldest, recall, remember
from hemstitch.driver import cpu_kernels as native
from hemstitch.planning import planner
from hemstitch.toolchain.llvm_workers import Helpers

OPTIONS = {"strict": True, "cache": True}


@pytest.fixture(autouse=True)
def _own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    native.LOADED.clear()
    yield
    native.LOADED.clear()


def softmax(x):
    return torch.softmax(x.sin() * 3, -1)


def run(program=softmax, **options):
    """As another process would."""
    torch._dynamo.reset()
    native.LOADED.clear()
    x = torch.randn(6, 37)
    found = torch.compile(program, backend="hemstitch", options={**OPTIONS, **options})(x)
    torch.testing.assert_close(found, program(x))


def files(name):
    place = folder(name)
    return sorted(place.iterdir()) if place.exists() else []


@pytest.fixture
def compiled(monkeypatch):
    """The texts that LLVM was given."""
    texts, compile_ = [], Helpers.compiled

    def counted(helpers, text):
        texts.append(text)
        return compile_(helpers, text)

    monkeypatch.setattr(Helpers, "compiled", counted)
    return texts


def test_a_second_process_neither_plans_nor_compiles(compiled, monkeypatch):
    run()
    assert len(compiled) == len(files("code")) == 1
    assert len(files("plans")) == 1
    monkeypatch.setattr(planner, "_with_matmuls", None)
    run()
    assert len(compiled) == 1


def test_another_program_and_another_planner_have_plans_of_their_own():
    run()
    run(planner="conservative")
    run(lambda x: torch.softmax(x.cos() * 3, -1))
    assert len(files("plans")) == 3


def test_without_the_option_nothing_is_written():
    run(cache=False)
    assert files("code") == files("plans") == []


def test_nothing_is_there_for_others(compiled):
    run()
    assert (folder("key").stat().st_mode & 0o777, folder("key").stat().st_size) == (0o600, KEY)


@pytest.mark.parametrize("place", ["seal", "code", "end", "empty", "another name"])
def test_what_is_not_as_it_was_written_is_compiled_again(place, compiled):
    run()
    (path,) = files("code")
    content = bytearray(path.read_bytes())
    where = {"seal": 3, "code": len(content) // 2, "end": len(content) - 1}
    if place in where:
        content[where[place]] ^= 1
    path.write_bytes(b"" if place == "empty" else content)
    if place == "another name":
        run(lambda x: torch.softmax(x.cos() * 3, -1))
        (other,) = set(files("code")) - {path}
        path.replace(other)
        compiled.clear()
        run(lambda x: torch.softmax(x.cos() * 3, -1))
        assert len(compiled) == 1
        return
    run()
    assert len(compiled) == 2
    run()
    assert len(compiled) == 2


@pytest.mark.parametrize("change", ["another key", "readable", "too short", "a folder"])
def test_a_key_that_others_may_know_opens_nothing(change, compiled):
    run()
    path = folder("key")
    if change == "another key":
        path.write_bytes(bytes(KEY))
    elif change == "readable":
        path.chmod(0o644)
    elif change == "too short":
        path.write_bytes(b"short")
    else:
        path.unlink()
        path.mkdir()
    run()
    assert len(compiled) == 2


@pytest.mark.parametrize("content", ["", "null", "[1, 2]", '{"inlined": [0]}', "[" * 100_000, "\0"])
def test_a_record_that_is_none_is_planned_again(content):
    run()
    (path,) = files("plans")
    whole = path.read_text()
    path.write_text(content)
    run()
    assert path.read_text() == whole


def test_a_home_that_cannot_be_written_to(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    run()


def test_a_user_without_a_home(monkeypatch):
    def refuse() -> None:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", refuse)
    run()
    run()


def test_a_file_system_without_links(monkeypatch, compiled):
    def refuse(*_: object) -> None:
        raise PermissionError("no links today")

    monkeypatch.setattr(os, "link", refuse)
    run()
    run()
    assert len(compiled) == 2
    assert list(folder("").iterdir()) == [folder("plans")]


def test_a_failed_write_leaves_nothing(monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError("no space today")

    monkeypatch.setattr(Path, "replace", refuse)
    path = folder("plans") / "one"
    remember(path, [1])
    assert recall(path) is None
    assert files("plans") == []


def test_the_oldest_go_first(tmp_path):
    for number in range(5):
        path = tmp_path / "some" / str(number)
        remember(path, "x" * 98)
        os.utime(path, (number, number))
    recall(tmp_path / "some" / "0")  # who was read is young again
    forget_oldest(tmp_path / "some", 250)
    assert sorted(path.name for path in (tmp_path / "some").iterdir()) == ["0", "4"]
    forget_oldest(tmp_path / "nowhere", 250)


def test_two_that_come_first_have_one_key():
    context = multiprocessing.get_context("fork")
    start, found = context.Barrier(3), context.SimpleQueue()

    def come() -> None:
        start.wait()
        found.put(sealed._key())

    processes = [context.Process(target=come) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    (key,) = {found.get() for _ in processes}
    assert key is not None
    assert [path.name for path in folder("").iterdir()] == ["key"]


def test_another_processor_has_code_of_its_own(compiled, monkeypatch):
    run()
    monkeypatch.setattr(native.jit, "processor", lambda: "another")
    for _ in range(2):
        run()
    assert len(compiled) == len(files("code")) == 2
