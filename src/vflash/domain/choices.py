"""What a user chooses by name. Each name is one word in Python, in TOML and on the command line."""

from __future__ import annotations

from vflash.domain.fields import Choice


class Dtype(Choice):
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


class AttentionBackend(Choice):
    """`auto` is the measured default of the device (docs/attention.md), always exact, and named in the receipt. Both
    Vedas are approximate: `veda` scores tiles with a trained predictor, `veda-meanpool` without one."""

    AUTO = "auto"
    NAIVE = "naive"
    SDPA = "sdpa"
    SDPA_FLASH = "sdpa-flash"
    SDPA_CUDNN = "sdpa-cudnn"
    HOPPER = "hopper"
    VEDA = "veda"
    VEDA_MEANPOOL = "veda-meanpool"


class VedaDenseBackend(Choice):
    """The exact attention of the blocks and evaluations that Veda leaves dense."""

    AUTO = "auto"
    NAIVE = "naive"
    SDPA = "sdpa"
    SDPA_FLASH = "sdpa-flash"
    SDPA_CUDNN = "sdpa-cudnn"
    HOPPER = "hopper"


class VedaKernels(Choice):
    """`auto` is hopper on compute capability 9.0, triton on other CUDA devices, reference on a CPU."""

    AUTO = "auto"
    HOPPER = "hopper"
    TRITON = "triton"
    REFERENCE = "reference"


class Linear(Choice):
    BF16 = "bf16"
    FP8_WEIGHT_ONLY = "fp8-weight-only"
    W8A8 = "w8a8"


class Fp8Kernels(Choice):
    """Who quantises activations for `w8a8` and restores weights for `fp8-weight-only`; same bits. `auto` as below."""

    AUTO = "auto"
    TORCH = "torch"
    TRITON = "triton"


class BlockKernelSet(Choice):
    """`auto` is triton on CUDA and torch elsewhere; the receipt names the one that ran."""

    AUTO = "auto"
    TORCH = "torch"
    TRITON = "triton"


class WeightResidency(Choice):
    """`block-ring`: two blocks on the device, the stack in pinned host memory. `resident`: the stack on the device."""

    BLOCK_RING = "block-ring"
    RESIDENT = "resident"


class WeightReading(Choice):
    """`sidecar` wins from slow disks only (docs/weights.md has the rule), so nothing chooses it by itself."""

    MMAP = "mmap"
    BUFFERED = "buffered"
    SIDECAR = "sidecar"


class SidecarMerge(Choice):
    NUMBA = "numba"
    NUMPY = "numpy"


class QkvOrder(Choice):
    """Rows of fused QKV projections; files of the original release and of ComfyUI differ in nothing else."""

    INTERLEAVED = "interleaved"
    GROUPED = "grouped"


class ModelPlacement(Choice):
    """`together`: text encoder and VAEs stay on the device while they are loaded, beside the denoiser. `swap`: their
    weights wait in host memory and are on the device only while they work."""

    TOGETHER = "together"
    SWAP = "swap"


class VideoDecoderChoice(Choice):
    """How the video VAE decodes a tile: `diffusers` gives the released pixels; `fused` is faster on CUDA and rounds
    differently; `fused-fp8` multiplies in FP8 as well, which is approximate (docs/benchmarks/2026-11-residency.md)."""

    DIFFUSERS = "diffusers"
    FUSED = "fused"
    FUSED_FP8 = "fused-fp8"


class VideoFeed(Choice):
    """How frames leave: into an MP4 through a file or a pipe, or as a folder of PNG and WAV."""

    FILE = "file"
    PIPE = "pipe"
    FRAMES_DIR = "frames-dir"


class MediaPreset(Choice):
    """x264's nine; more time, smaller file."""

    ULTRAFAST = "ultrafast"
    SUPERFAST = "superfast"
    VERYFAST = "veryfast"
    FASTER = "faster"
    FAST = "fast"
    MEDIUM = "medium"
    SLOW = "slow"
    SLOWER = "slower"
    VERYSLOW = "veryslow"


class MediaVideoEncoder(Choice):
    """Hardware is used only when it is named."""

    LIBX264 = "libx264"
    NVENC = "h264_nvenc"


class Lifetime(Choice):
    """`keep`: models stay loaded for the next request. `per-request`: each is released as soon as its stage ends."""

    KEEP = "keep"
    PER_REQUEST = "per-request"


class LogFormat(Choice):
    """The operator's log on stderr: request and stage events; prompts and paths never enter it."""

    NONE = "none"
    JSON = "json"
    CONSOLE = "console"
