"""Finished latents in a safetensors file: float32 `video_latents` and `audio_latents`, with string metadata."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

from vflash_adapters.media.scratch import check_target, publish, scratch_beside
from vflash_ports.errors import DeliveryError, MediaError
from vflash_ports.media import Latents

if TYPE_CHECKING:
    import torch

VIDEO = "video_latents"
AUDIO = "audio_latents"
# 15 s at 2048x2048 is under 170 MiB; a larger file was never ours.
MAX_FILE_BYTES = 4 << 30
TAKEN = ", perhaps of a run that failed: go on from it with vflash decode, choose another name, or move it away"


@frozen(kw_only=True)
class SafetensorsLatentStore:
    """`video_latents` [1, C, T, h, w] and `audio_latents` [2, audio_C, A], both float32 in normalised space."""

    def check(self, path: Path) -> None:
        check_target(path, "", what="latents", taken=TAKEN)

    def save(self, latents: Latents, path: Path) -> None:
        """Atomic, durable, never over an existing file. `MediaError` or `DeliveryError` says why it could not be."""
        import torch
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        self.check(path)
        tensors = {VIDEO: latents.video, AUDIO: latents.audio}
        packed = {name: value.detach().to("cpu", torch.float32).contiguous() for name, value in tensors.items()}
        _require_shapes(packed, "latents")
        with scratch_beside(path) as scratch:
            try:
                save_file(packed, scratch / "latents", metadata=dict(latents.metadata))
            except (SafetensorError, OSError) as error:
                raise DeliveryError(f"latents cannot be saved to {path}: {error}") from error
            publish(scratch / "latents", path)

    def load(self, path: Path) -> Latents:
        """Strict: exactly the two tensors, float32, of the right ranks, finite. `MediaError` names what is wrong."""
        from safetensors import SafetensorError, safe_open

        if not path.is_file():
            raise MediaError(f"latents {path} is not a file")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise MediaError(f"latents {path} is larger than {MAX_FILE_BYTES} bytes: not a file of finished latents")
        try:
            with safe_open(path, framework="pt", device="cpu") as reader:
                names = sorted(reader.keys())
                if names != [AUDIO, VIDEO]:
                    found = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
                    raise MediaError(f"latents {path} holds {found or 'nothing'}, not exactly {AUDIO} and {VIDEO}")
                tensors = {name: reader.get_tensor(name).clone() for name in names}
                metadata = dict(reader.metadata() or {})
        except (SafetensorError, OSError) as error:
            raise MediaError(f"latents {path} cannot be read: {error}") from error
        _require_shapes(tensors, str(path))
        return Latents(video=tensors[VIDEO], audio=tensors[AUDIO], metadata=metadata)


def _require_shapes(tensors: dict[str, torch.Tensor], where: str) -> None:
    import torch

    for name, rank, leading in ((VIDEO, 5, 1), (AUDIO, 3, 2)):
        value = tensors[name]
        if value.dtype is not torch.float32:
            raise MediaError(f"{where}: {name} is {value.dtype}, not float32")
        if value.ndim != rank or value.shape[0] != leading or 0 in value.shape:
            raise MediaError(f"{where}: {name} has shape {list(value.shape)}: rank {rank}, leading {leading} expected")
        if not torch.isfinite(value).all():
            raise MediaError(f"{where}: {name} holds NaN or infinity")
