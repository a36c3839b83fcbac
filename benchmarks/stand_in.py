"""A GPU that is not there: after `pretend()`, this process generates code for an H200 from fake
tensors on the device "cuda". Nothing can be run on it, and nothing else should run in the process.

For a PyTorch built without CUDA: it aborts where gradients of such tensors are traced, unless the
library that `preload` makes is loaded before it, so start the process with the environment that
`preload` gives. One built with CUDA asks the driver, and cannot be told that there is a GPU.
Knows private parts of PyTorch 2.11 to 2.15 and of Triton 3.6 to 3.9.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch._dynamo.device_interface as interfaces
import torch._functorch.config as functorch_config
import torch._inductor.config as inductor_config
import torch._inductor.fx_passes.joint_graph as joint_graph
import torch._inductor.fx_passes.post_grad as post_grad
import torch.utils._triton

SOURCE = Path(__file__).with_suffix(".cpp")
BUILD = Path(__file__).resolve().parents[1] / "build"
CAPABILITY = (9, 0)
PROPERTIES = SimpleNamespace(
    name="NVIDIA H200",
    major=9,
    minor=0,
    multi_processor_count=132,
    total_memory=141 << 30,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    regs_per_multiprocessor=65536,
    warp_size=32,
    shared_memory_per_block=48 << 10,
    shared_memory_per_block_optin=227 << 10,
    shared_memory_per_multiprocessor=228 << 10,
    L2_cache_size=60 << 20,
    gcnArchName="",
    is_integrated=0,
    is_multi_gpu_board=0,
    clock_rate=1_980_000,
    memory_clock_rate=3_201_000,
    memory_bus_width=6144,
    uuid="0",
    pci_bus_id=0,
)


def preload() -> Mapping[str, str] | None:
    """The environment for a process that will `pretend`; None where that cannot be."""
    if torch.version.cuda is not None:
        return None
    library = BUILD / f"stand-in-{torch.__version__}.so"
    if not library.exists():
        compiler = shutil.which("g++") or shutil.which("clang++")
        if compiler is None:
            return None
        BUILD.mkdir(exist_ok=True)
        _build(compiler, library)
    return {**os.environ, "LD_PRELOAD": str(library)}


def _build(compiler: str, library: Path) -> None:
    folder = Path(torch.__file__).parent
    partial = library.with_suffix(f".{os.getpid()}")
    libraries = [f"-L{folder / 'lib'}", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{folder / 'lib'}"]
    flags = ["-shared", "-fPIC", "-std=c++20", f"-I{folder / 'include'}"]
    subprocess.run([compiler, *flags, SOURCE, "-o", partial, *libraries], check=True)
    partial.replace(library)


def pretend() -> None:
    """Once a process, before anything is compiled."""
    _fill_caches()
    for name, value in _CUDA.items():
        setattr(torch.cuda, name, value)
    torch.version.cuda = torch.version.cuda or "13.0"
    interfaces.init_device_reg()  # else it comes later, and replaces ours
    for device in ("cuda", "cuda:0"):
        interfaces.register_interface_for_device(device, _Interface)
    _pretend_triton()
    fake_tensor: Any = torch._subclasses.fake_tensor
    fake_tensor.init_gpu_context = lambda *_: None
    inductor_config.compile_threads = 1
    inductor_config.fx_graph_cache = False
    inductor_config.shape_padding = False  # it would time products
    functorch_config.enable_autograd_cache = False
    functorch_config.force_non_lazy_backward_lowering = True


def _fill_caches() -> None:
    """What Inductor does once a process on real tensors of the device: here, of the processor."""
    modules: tuple[Any, ...] = (joint_graph, post_grad)
    for module in modules:
        try:
            module.lazy_init()
        except TypeError:  # newer versions want to be told the device
            module.lazy_init(torch.device("cpu"))
        module.lazy_init = lambda *_, **__: None
    folder: Any = modules[0].UniformValueConstantFolder
    folder._deduce_value = _on_the_processor(folder._deduce_value)


def _on_the_processor(deduce: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Constant folding makes tensors of one element on the graph's device."""

    def deduced(self: Any, node: Any) -> Any:
        keywords = node.kwargs
        if "device" not in keywords:
            return deduce(self, node)
        node.kwargs = {**keywords, "device": torch.device("cpu")}
        try:
            return deduce(self, node)
        finally:
            node.kwargs = keywords

    return deduced


def _pretend_triton() -> None:
    support: Any = torch.utils._triton
    support.has_triton = _always(True)
    # Not among the requirements.
    runtime: Any = importlib.import_module("triton.runtime")
    target: Any = importlib.import_module("triton.backends.compiler").GPUTarget
    driver = SimpleNamespace(
        get_current_target=lambda: target("cuda", 10 * CAPABILITY[0], PROPERTIES.warp_size),
        get_current_device=lambda: 0,
        get_current_stream=lambda *_: 0,
        set_current_device=lambda *_: None,
        get_device_capability=lambda *_: CAPABILITY,
        get_device_interface=lambda: torch.cuda,
        get_active_torch_device=lambda: torch.device("cuda", 0),
    )
    runtime.driver.set_active(driver)


def _always(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


_STREAM = SimpleNamespace(
    cuda_stream=0, device_index=0, stream_id=0, device=torch.device("cuda", 0)
)
_CUDA: Mapping[str, Any] = {
    "is_available": _always(True),
    "device_count": _always(1),
    "current_device": _always(0),
    "is_initialized": _always(True),
    "_lazy_init": _always(None),
    "get_device_properties": _always(PROPERTIES),
    "get_device_capability": _always(CAPABILITY),
    "get_device_name": _always(PROPERTIES.name),
    "is_bf16_supported": _always(True),
    "is_tf32_supported": _always(True),
    "synchronize": _always(None),
    "mem_get_info": _always((140 << 30, 141 << 30)),
    "memory_allocated": _always(0),
    "max_memory_allocated": _always(0),
    "get_arch_list": _always(["sm_90"]),
    "get_rng_state": _always(torch.zeros(16, dtype=torch.uint8)),
    "set_rng_state": _always(None),
    "current_stream": _always(_STREAM),
    "default_stream": _always(_STREAM),
    "_exchange_device": _always(0),
    "_maybe_exchange_device": _always(0),
    "set_device": _always(None),
    "is_current_stream_capturing": _always(False),
}


class _Interface(interfaces.CudaInterface):
    """Dynamo's and Inductor's view of the device."""

    class Worker(interfaces.CudaInterface.Worker):
        set_device = staticmethod(_always(None))
        current_device = staticmethod(_always(0))
        get_device_properties = staticmethod(_always(PROPERTIES))

    current_device = staticmethod(_always(0))
    device_count = staticmethod(_always(1))
    set_device = staticmethod(_always(None))
    maybe_exchange_device = staticmethod(_always(0))
    exchange_device = staticmethod(_always(0))
    get_raw_stream = staticmethod(_always(0))
    synchronize = staticmethod(_always(None))
    get_device_properties = staticmethod(_always(PROPERTIES))
    is_available = staticmethod(_always(True))
    get_compute_capability = staticmethod(_always(10 * CAPABILITY[0]))
    is_bf16_supported = staticmethod(_always(True))
    is_triton_capable = staticmethod(_always(True))
    raise_if_triton_unavailable = staticmethod(_always(None))
    memory_allocated = staticmethod(_always(0))
