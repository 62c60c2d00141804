"""Options that several commands share. Every default is None here: `Settings` and `VideoRequest` own the defaults."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from vflash.domain.fields import refuse_unknown
from vflash_ports.errors import ContractError

BACKENDS = "Backends"
REQUEST = "Request"

Model = Annotated[
    Path | None, typer.Option("--model", help="Checkpoint folder of MiniMax-H3 (holds model_index.json).")
]
Output = Annotated[Path, typer.Option("--output", "-o", help="The MP4 to write; it must not exist.")]
Config = Annotated[
    Path | None, typer.Option("--config", help="TOML with [settings] and [request]; options given here win.")
]
Json = Annotated[bool, typer.Option("--json", help="Progress as JSON lines on stderr, the receipt on stdout.")]
JsonReport = Annotated[bool, typer.Option("--json", help="One JSON object on stdout instead of text.")]
ProfileDenoise = Annotated[
    bool, typer.Option("--profile-denoise", help="Time every piece of the denoising, and write a trace for Perfetto.")
]
Log = Annotated[
    str | None, typer.Option(envvar="VFLASH_LOG", help="The operator's log on stderr: none, json or console")
]
Device = Annotated[str | None, typer.Option(envvar="VFLASH_DEVICE", help="cpu, cuda or cuda:N  [default: cuda]")]
Dtype = Annotated[str | None, typer.Option(envvar="VFLASH_DTYPE", help="bfloat16 or float32  [default: bfloat16]")]
Prompt = Annotated[str | None, typer.Option(help="The prompt, used verbatim.", rich_help_panel=REQUEST)]
PromptFile = Annotated[Path | None, typer.Option(help="UTF-8 file that holds the prompt.", rich_help_panel=REQUEST)]
FirstFrame = Annotated[
    Path | None, typer.Option(help="Picture the clip starts from (stretched).", rich_help_panel=REQUEST)
]
LastFrame = Annotated[Path | None, typer.Option(help="Picture the clip ends on.", rich_help_panel=REQUEST)]
References = Annotated[
    list[str] | None,
    typer.Option(
        "--reference",
        help="Picture, video or sound, in order; repeat it. picture:, video:, audio: decide the kind.",
        rich_help_panel=REQUEST,
    ),
]
Width = Annotated[int | None, typer.Option(help="Pixels, a multiple of 32.", rich_help_panel=REQUEST)]
Height = Annotated[int | None, typer.Option(help="Pixels, a multiple of 32.", rich_help_panel=REQUEST)]
Duration = Annotated[
    int | None, typer.Option("--duration", help="Whole seconds, 5 to 15  [default: 5]", rich_help_panel=REQUEST)
]
Steps = Annotated[int | None, typer.Option(help="Model evaluations  [default: 50]", rich_help_panel=REQUEST)]
Seed = Annotated[int | None, typer.Option(help="[default: 0]", rich_help_panel=REQUEST)]
SaveLatents = Annotated[
    Path | None, typer.Option(help="Keep the finished latents (safetensors).", rich_help_panel=REQUEST)
]
AttentionBackend = Annotated[
    str | None,
    typer.Option(
        help="auto, naive, sdpa, sdpa-flash, sdpa-cudnn, hopper; approximate: veda, veda-meanpool",
        rich_help_panel=BACKENDS,
    ),
]
VEDA = "Veda attention"
VedaPredictor = Annotated[Path | None, typer.Option(help="The trained predictor, for veda", rich_help_panel=VEDA)]
VedaDenseEdgeLayers = Annotated[
    int | None, typer.Option(help="Exact blocks at either end of the stack  [default: 3]", rich_help_panel=VEDA)
]
VedaDenseBackend = Annotated[
    str | None, typer.Option(help="The exact attention of those blocks  [default: auto]", rich_help_panel=VEDA)
]
VedaDenseSteps = Annotated[
    list[int] | None,
    typer.Option(help="An evaluation that is exact throughout, from 0; repeat it.", rich_help_panel=VEDA),
]
VedaKernels = Annotated[
    str | None, typer.Option(help="auto, hopper, triton or reference  [default: auto]", rich_help_panel=VEDA)
]
VedaTargetBudget = Annotated[
    str | None, typer.Option(help="ratio=0.1 or tiles=32 instead of the predictor's own", rich_help_panel=VEDA)
]
VedaReferenceBudget = Annotated[
    str | None, typer.Option(help="The same for references, if the predictor tiles them", rich_help_panel=VEDA)
]
Linear = Annotated[
    str | None, typer.Option(help="How linear layers run: bf16, fp8-weight-only or w8a8", rich_help_panel=BACKENDS)
]
Fp8Kernels = Annotated[str | None, typer.Option(help="auto, torch or triton", rich_help_panel=BACKENDS)]
Fp8FastAccum = Annotated[
    bool | None,
    typer.Option(help="w8a8, fused-fp8: partial sums in reduced precision  [default: no]", rich_help_panel=BACKENDS),
]
FfnChunkRows = Annotated[
    int | None, typer.Option(help="Rows a block projects at once  [default: 28672]", rich_help_panel=BACKENDS)
]
BlockKernels = Annotated[str | None, typer.Option(help="auto, torch or triton", rich_help_panel=BACKENDS)]
WeightResidency = Annotated[
    str | None, typer.Option(help="block-ring or resident  [default: block-ring]", rich_help_panel=BACKENDS)
]
VideoDecoder = Annotated[
    str | None,
    typer.Option(help="diffusers, fused (faster on CUDA) or fused-fp8 (approximate)", rich_help_panel=BACKENDS),
]
ModelPlacement = Annotated[
    str | None,
    typer.Option(
        help="together or swap: where text encoder and VAEs wait  [default: together]", rich_help_panel=BACKENDS
    ),
]
ModelLifetime = Annotated[str | None, typer.Option(help="keep or per-request", rich_help_panel=BACKENDS)]
DeviceMemory = Annotated[
    float | None,
    typer.Option("--device-memory-gib", help="Plan for this much instead of what is free.", rich_help_panel=BACKENDS),
]
HostMemory = Annotated[
    float | None,
    typer.Option("--host-memory-gib", help="Plan for this much instead of what is free.", rich_help_panel=BACKENDS),
]
WeightReading = Annotated[
    str | None,
    typer.Option(
        help="Of the denoiser and the VAEs: mmap, buffered or sidecar  [default: mmap]", rich_help_panel=BACKENDS
    ),
]
WeightReadWorkers = Annotated[
    int | None, typer.Option(help="Readers of buffered and sidecar: 1, 2, 4 or 8", rich_help_panel=BACKENDS)
]
WeightSidecar = Annotated[
    Path | None, typer.Option(help="Folder of `vflash sidecar prepare`, for sidecar", rich_help_panel=BACKENDS)
]
SidecarMerge = Annotated[str | None, typer.Option(help="numba or numpy  [default: numba]", rich_help_panel=BACKENDS)]
QkvOrder = Annotated[
    str | None,
    typer.Option(
        help="Rows of fused QKV weights: interleaved (original) or grouped (ComfyUI)", rich_help_panel=BACKENDS
    ),
]
ADAPTER = "Adapter"
Profile = Annotated[
    str | None, typer.Option(help="Evaluations, shifts and adapter that belong together.", rich_help_panel=ADAPTER)
]
Adapter = Annotated[Path | None, typer.Option(help="A LoRA file of any plain family.", rich_help_panel=ADAPTER)]
Assets = Annotated[
    Path | None, typer.Option(help="Folder of `vflash compile`: run from it instead.", rich_help_panel=ADAPTER)
]
AdapterAlpha = Annotated[
    str | None, typer.Option(help="For files that do not say: a number, or rank", rich_help_panel=ADAPTER)
]
AdapterStrength = Annotated[
    float | None, typer.Option(help="Multiplies alpha / rank  [default: 1]", rich_help_panel=ADAPTER)
]
AdapterQkvOrder = Annotated[
    str | None, typer.Option(help="For files that do not say: interleaved or grouped", rich_help_panel=ADAPTER)
]
VideoShift = Annotated[
    float | None, typer.Option(help="Flow shift of the video grid; profiles have theirs", rich_help_panel=REQUEST)
]
AudioShift = Annotated[
    float | None, typer.Option(help="Flow shift of the audio grid; profiles have theirs", rich_help_panel=REQUEST)
]
AudioDelivery = Annotated[
    str | None,
    typer.Option(
        "--audio-delivery-profile", help="unchanged, web-v1 or silent-v1  [default: unchanged]", rich_help_panel=REQUEST
    ),
]
KeyframeDelivery = Annotated[
    str | None,
    typer.Option(
        "--keyframe-delivery-profile", help="decoded or exact-v1  [default: decoded]", rich_help_panel=REQUEST
    ),
]
VaeTilesAtOnce = Annotated[
    int | None,
    typer.Option(help="Tiles the video VAE decodes in one batch  [default: 8, on a CPU 1]", rich_help_panel=BACKENDS),
]
MediaVideoInput = Annotated[
    str | None,
    typer.Option(
        help="file, pipe, or frames-dir for a folder of PNG and WAV  [default: file]", rich_help_panel=BACKENDS
    ),
]
MediaVideoEncoder = Annotated[
    str | None, typer.Option(help="libx264 or h264_nvenc  [default: libx264]", rich_help_panel=BACKENDS)
]
MediaPreset = Annotated[
    str | None, typer.Option(help="x264's, ultrafast to veryslow  [default: medium]", rich_help_panel=BACKENDS)
]
MediaCrf = Annotated[
    int | None, typer.Option(help="Quality, 0 (lossless) to 51  [default: 18]", rich_help_panel=BACKENDS)
]
MediaVideoThreads = Annotated[
    int | None, typer.Option(help="H.264 threads, 1 to 256; FFmpeg chooses without it", rich_help_panel=BACKENDS)
]


def given(**values: Any) -> dict[str, Any]:
    """Only what the user said."""
    return {name: value for name, value in values.items() if value is not None and value != []}


def require(table: Mapping[str, Any], name: str, option: str) -> None:
    if name not in table:
        raise ContractError(f"give {option}, or {name} in the --config file")


def read_prompt(prompt: str | None, prompt_file: Path | None) -> str | None:
    """The prompt itself, or what its file holds without the line ends around it."""
    if prompt_file is None:
        return prompt
    if prompt is not None:
        raise ContractError("give --prompt or --prompt-file, not both")
    try:
        return prompt_file.read_text(encoding="utf-8-sig").strip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ContractError(f"--prompt-file {prompt_file} cannot be read: {error}") from error


def read_config(path: Path | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The [settings] and [request] tables; names are checked when the values are used."""
    if path is None:
        return {}, {}
    try:
        tables: Mapping[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ContractError(f"--config {path} cannot be read: {error}") from error
    refuse_unknown(str(path), tables, ("settings", "request"))
    return _table(path, tables, "settings"), _table(path, tables, "request")


def _table(path: Path, tables: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = tables.get(name, {})
    if not isinstance(table, dict):
        raise ContractError(f"--config {path}: {name} must be a table, [{name}], got {table!r}")
    return dict(table)
