"""What Hemstitch needs: what is told where it is not there, or newer than known."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from hemstitch.errors import VersionWarning
from hemstitch.runtime import versions

ROOT = Path(__file__).parents[1]
BOUND = re.compile(r'"(\w+)>=([\d.]+)"')
PIN = re.compile(r"^(\w+)==([\d.]+)", re.MULTILINE)


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_elsewhere_the_import_says_what_is_supported(platform: str) -> None:
    program = (
        f"import sys; sys.platform = {platform!r}; sys.path.insert(0, 'src'); import hemstitch"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: Hemstitch runs on Linux, not on {platform}"
    )


@pytest.mark.parametrize(
    ("version", "is_told"),
    [
        (torch.__version__, False),
        ("2.11.0+cu130", False),
        ("2.999.0a0+git1234", True),
        ("3.0", True),
    ],
)
def test_a_newer_torch_warns_once_and_runs(
    version: str, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch._dynamo.reset()
    versions.warn_newer_torch.cache_clear()
    monkeypatch.setattr(versions.torch, "__version__", version)
    x = torch.randn(5)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", VersionWarning)
        for factor in (2, 3):
            function = torch.compile(lambda x, factor=factor: x * factor + 1, backend="hemstitch")
            torch.testing.assert_close(function(x), x * factor + 1)
    versions.warn_newer_torch.cache_clear()
    assert [each.category is VersionWarning for each in told].count(True) == is_told


def test_the_lowest_that_are_run_are_those_that_are_told() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    bounds = dict(BOUND.findall(text))
    lowest: dict[str, str] = {}
    for name, version in PIN.findall((ROOT / "requirements/lowest.txt").read_text()):
        lowest.setdefault(name, version)
    assert lowest.keys() == bounds.keys() == {"torch", "numpy", "llvmlite", "highspy"}
    assert all(f"{lowest[name]}.".startswith(f"{bound}.") for name, bound in bounds.items())
    assert "<" not in text[text.index("\ndependencies") : text.index("[project.optional")]
