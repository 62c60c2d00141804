"""The released VAEs, run by diffusers, with the released recipes around them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from attrs import define, field, frozen
from attrs.validators import ge

from vflash_adapters.float32_convolutions import exact_convolutions
from vflash_adapters.latent_codec.decode_windows import DecodeTiles, decode_windows
from vflash_adapters.latent_codec.delivered_frames import PIXEL_MEAN, PIXEL_STD, delivered_frames, per_channel
from vflash_adapters.latent_codec.load_vae import AUDIO_VAE, VIDEO_VAE, VaeKind, load_vae, read_config
from vflash_adapters.latent_codec.video_decoders import VideoDecoder, check_video_decoder, tile_decoder
from vflash_adapters.residency.host_masters import HostMasters
from vflash_ports.errors import ClosedError, ContractError, NonFiniteError
from vflash_ports.weights import WeightOpener

# Conditions are sampled with a seed of their own, so that a picture always encodes to the same latents.
_POSTERIOR_SEED = 42


@frozen(kw_only=True)
class DiffusersVaes:
    """`weights` opens `vae/` and `audio_vae/`. With `swap` a VAE's weights wait in host memory between its uses: in
    this process's own if `owned`, else where the source has them. `tiles_at_once` tiles of a video are decoded in one
    batch: one is the reference's own order of work; each takes about 117 MB (released sizes, BF16) on top of the rest.
    `fp8_fast_accum` is for the video decoder `fused-fp8`: partial sums in reduced precision.
    """

    weights: WeightOpener
    swap: bool = False
    owned: bool = True
    tiles_at_once: int = field(default=1, validator=ge(1))
    video_decoder: VideoDecoder = VideoDecoder.DIFFUSERS
    fp8_fast_accum: bool = False

    def check(self, model_dir: Path, *, device: torch.device, dtype: torch.dtype) -> None:
        """Whether the video decoder can run; the configuration is read for the ones that are not diffusers' own."""
        if self.video_decoder is not VideoDecoder.DIFFUSERS:
            config = read_config(model_dir / VIDEO_VAE.folder / "config.json")
            check_video_decoder(self.video_decoder, config, device=device, dtype=dtype)

    @contextmanager
    def open(self, model_dir: Path, *, device: torch.device, dtype: torch.dtype) -> Iterator[DiffusersCodec]:
        codec = DiffusersCodec(
            model_dir=model_dir,
            weights=self.weights,
            device=device,
            dtype=dtype,
            swap=self.swap,
            owned=self.owned,
            video_decoder=self.video_decoder,
            fp8_fast_accum=self.fp8_fast_accum,
            tiles_at_once=self.tiles_at_once,
        )
        try:
            yield codec
        finally:
            codec.close()


@define(kw_only=True, eq=False)
class DiffusersCodec:
    """Always tiled, as released. Each VAE is loaded at its first use; after the scope, `ClosedError`."""

    _model_dir: Path
    _weights: WeightOpener
    _device: torch.device
    _dtype: torch.dtype
    _swap: bool = False
    _owned: bool = True
    _video_decoder: VideoDecoder = VideoDecoder.DIFFUSERS
    _fp8_fast_accum: bool = False
    _tiles_at_once: int = 1
    _loaded: dict[str, Any] = field(factory=dict, init=False)
    _masters: dict[str, HostMasters] = field(factory=dict, init=False)
    _closed: bool = field(default=False, init=False)

    def encode_pixels(self, pixels: torch.Tensor) -> torch.Tensor:
        frames = pixels.to(self._device).permute(3, 0, 1, 2)[None]
        mean, std = per_channel(PIXEL_MEAN, self._device), per_channel(PIXEL_STD, self._device)
        with self._at_work(VIDEO_VAE) as vae, self._exact():
            posterior = vae.encode((frames.to(torch.float32).div(255.0) - mean) / std, return_dict=False)[0]
        sample = posterior.sample(generator=torch.Generator().manual_seed(_POSTERIOR_SEED))
        # The model was trained on conditions that had passed through float16.
        latents = sample.to(torch.float16).float().cpu()
        mean, std = _statistics(vae, latents, channel_axis=1)
        return _finite((latents - mean) / std, "the video VAE's encoding")

    def encode_waveform(self, waveform: torch.Tensor) -> torch.Tensor:
        if not waveform.shape[-1]:
            raise ContractError("a reference sound has no samples; leave it out")
        with self._at_work(AUDIO_VAE) as vae, self._exact():
            posterior = vae.encode(waveform.to(self._device)[:, None], return_dict=False)[0]
        latents = posterior.mode().float().cpu().transpose(1, 2)
        mean, std = _statistics(vae, latents, channel_axis=2)
        return _finite((latents - mean) / std, "the audio VAE's encoding")

    def decode_video(self, latents: torch.Tensor) -> Iterator[torch.Tensor]:
        latents = latents.to(self._device)
        with self._at_work(VIDEO_VAE) as vae:
            mean, std = _statistics(vae, latents, channel_axis=1)
            decode = tile_decoder(vae, self._video_decoder, self._device, fp8_fast_accum=self._fp8_fast_accum)
            clips = decode_windows(
                vae, latents * std + mean, tiles_at_once=self._tiles_at_once, decode=self._exactly(decode)
            )
            yield from delivered_frames(clips, self._device)

    def decode_audio(self, latents: torch.Tensor) -> torch.Tensor:
        latents = latents.to(self._device)
        with self._at_work(AUDIO_VAE) as vae, self._exact():
            mean, std = _statistics(vae, latents, channel_axis=1)
            # The decoder clamps its output, so an infinity is only visible before it.
            ready = _finite(latents * std + mean, "the audio latents")
            waveform = vae.decode(ready, return_dict=False)[0]
        return _finite(waveform.float()[:, 0].cpu(), "the decoded waveform")

    def close(self) -> None:
        """Release both VAEs; idempotent."""
        self._closed = True
        self._loaded.clear()
        for masters in self._masters.values():
            masters.close()
        self._masters.clear()
        gc.collect()  # modules refer to each other in cycles
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _exactly(self, decode: DecodeTiles) -> DecodeTiles:
        def exact(tiles: torch.Tensor) -> torch.Tensor:
            with self._exact():  # for each batch anew: never open while frames are handed on
                return decode(tiles)

        return exact

    @contextmanager
    def _exact(self) -> Iterator[None]:
        with torch.no_grad(), exact_convolutions(self._dtype, self._device):
            yield

    @contextmanager
    def _at_work(self, kind: VaeKind) -> Iterator[Any]:
        """The VAE with its weights on the device."""
        vae = self._vae(kind)
        if not self._swap:
            yield vae
            return
        with self._masters[kind.folder].at_work():
            yield vae

    def _vae(self, kind: VaeKind) -> Any:
        if self._closed:
            raise ClosedError("the VAEs were released when their scope ended; open the codec again")
        if kind.folder not in self._loaded:
            device = torch.device("cpu") if self._swap else self._device
            vae = load_vae(kind, self._model_dir, weights=self._weights, device=device, dtype=self._dtype)
            if self._swap:
                self._masters[kind.folder] = HostMasters(vae, self._device, owned=self._owned)
            self._loaded[kind.folder] = vae
        return self._loaded[kind.folder]


def _statistics(vae: Any, like: torch.Tensor, *, channel_axis: int) -> tuple[torch.Tensor, torch.Tensor]:
    shape = [-1 if axis == channel_axis else 1 for axis in range(like.ndim)]
    mean, std = (
        torch.tensor(values, device=like.device) for values in (vae.config.latents_mean, vae.config.latents_std)
    )
    return mean.view(shape), std.view(shape)


def _finite(values: torch.Tensor, what: str) -> torch.Tensor:
    if not bool(torch.isfinite(values).all()):
        raise NonFiniteError(f"{what} holds NaN or infinity")
    return values
