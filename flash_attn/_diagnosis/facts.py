"""What was found, and nothing of what it means."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Distribution:
    """An installation that pip knows of."""

    version: str
    folder: str  # site-packages
    wheel_tags: tuple[str, ...]


@dataclass(frozen=True)
class Extension:
    """A compiled flash_attn_2_cuda, as FlashAttention-2 itself installs one."""

    path: str
    is_imported: bool  # by ``import flash_attn_2_cuda``, in place of the module of this package


@dataclass(frozen=True)
class Package:
    """The flash_attn that runs, and others in its way."""

    version: str
    folder: str
    python: str
    executable: str
    platform: str
    origin: str  # what pip is to be given to install it again
    distributions: tuple[Distribution, ...] = ()  # the one that runs first, if pip knows of it
    folders: tuple[str, ...] = ()  # every flash_attn on sys.path
    extensions: tuple[Extension, ...] = ()


@dataclass(frozen=True)
class Torch:
    version: str | None = None  # None: not installed
    cuda: str | None = None  # None: built without CUDA
    folder: str | None = None
    import_error: str | None = None
    sees_gpus: bool = False
    cuda_error: str | None = None  # why it sees none, in its own words


@dataclass(frozen=True)
class Kernels:
    folder: str | None = None
    toolkit: str | None = None  # version of the CUDA toolkit that compiled them
    sass: tuple[str, ...] = ()
    ptx: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    files: int = 0
    manifest_error: str | None = None
    damaged: tuple[str, ...] = ()  # a sentence for each file that isn't what the manifest lists


@dataclass(frozen=True)
class Launcher:
    path: str | None = None
    error: str | None = None  # of loading it
    driver_error: str | None = None  # what it says of the driver and the GPUs, once loaded


@dataclass(frozen=True)
class Driver:
    is_found: bool = False
    cuda: int | None = None  # as cuDriverGetVersion counts: 13010 is CUDA 13.1
    release: str | None = None  # the driver's own version, as NVML tells it
    error: str | None = None


@dataclass(frozen=True)
class Gpu:
    ordinal: int
    name: str
    compute_capability: int  # 90 is 9.0
    multiprocessors: int
    smem_per_block: int  # bytes


@dataclass(frozen=True)
class Comparison:
    """The largest error of a result against fp32, and how large it may be."""

    name: str
    error: float
    allowed: float

    @property
    def is_right(self) -> bool:
        return self.error <= self.allowed  # False for NaN too


@dataclass(frozen=True)
class Speed:
    """Milliseconds of GPU time a call, medians, of flash_attn and of PyTorch's own attention."""

    shape: str
    forward_ms: float
    backward_ms: float | None
    forward_tflops: float
    backend: str | None = None  # of scaled_dot_product_attention; None: none ran
    torch_forward_ms: float | None = None
    torch_backward_ms: float | None = None
    note: str | None = None


@dataclass(frozen=True)
class Run:
    """What happened when kernels ran on a GPU."""

    gpu: int
    comparisons: tuple[Comparison, ...] = ()
    error: str | None = None
    speed: Speed | None = None
    speed_error: str | None = None


@dataclass(frozen=True)
class Facts:
    package: Package
    torch: Torch
    kernels: Kernels
    launcher: Launcher
    driver: Driver
    gpus: tuple[Gpu, ...] = ()
    runs: tuple[Run, ...] = ()
