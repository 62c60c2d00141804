"""What the diffusers codec promises about loading, streaming, errors and release (bits are a golden test)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from vflash_adapters.latent_codec.diffusers_vaes import DiffusersCodec, DiffusersVaes
from vflash_adapters.latent_codec.load_vae import AUDIO_VAE, VIDEO_VAE, load_vae
from vflash_adapters.weights.mmap_source import MmapWeights
from vflash_ports.errors import CheckpointError, ClosedError, ContractError, NonFiniteError

CPU = torch.device("cpu")


def opened(model_dir: Path) -> DiffusersCodec:
    return DiffusersCodec(model_dir=model_dir, weights=MmapWeights, device=CPU, dtype=torch.float32)


@pytest.fixture
def checkpoint(tiny_checkpoints: Mapping[str, Path], tmp_path: Path) -> Path:
    """A copy of both VAEs that a test may damage."""
    for name in ("vae", "audio_vae"):
        shutil.copytree(tiny_checkpoints["small"] / name, tmp_path / name)
    return tmp_path


@pytest.fixture(scope="module")
def video_latents() -> torch.Tensor:
    return torch.randn(1, 24, 12, 2, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("variant", ["small", "other"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_where_diffusers_puts_them(
    tiny_checkpoints: Mapping[str, Path], variant: str, dtype: torch.dtype
) -> None:
    """Every tensor has the dtype and value that diffusers' own strict loading gives it."""
    import diffusers

    for kind in (VIDEO_VAE, AUDIO_VAE):
        ours = load_vae(kind, tiny_checkpoints[variant], weights=MmapWeights, device=CPU, dtype=dtype)
        theirs = getattr(diffusers, kind.class_name).from_pretrained(
            tiny_checkpoints[variant] / kind.folder, torch_dtype=dtype, local_files_only=True
        )
        mine, reference = ours.state_dict(), theirs.state_dict()
        assert mine.keys() == reference.keys()
        for name, tensor in reference.items():
            assert mine[name].dtype is tensor.dtype, name
            torch.testing.assert_close(mine[name], tensor, rtol=0, atol=0)
        buffers = dict(theirs.named_buffers())
        for name, buffer in ours.named_buffers():
            torch.testing.assert_close(buffer, buffers[name], rtol=0, atol=0)
        assert not ours.training


def test_loading_draws_no_random_weights(tiny_checkpoints: Mapping[str, Path]) -> None:
    """Weights that are about to be replaced are not filled first: at the released size that took 35 s."""
    before = torch.get_rng_state()
    for kind in (VIDEO_VAE, AUDIO_VAE):
        load_vae(kind, tiny_checkpoints["small"], weights=MmapWeights, device=CPU, dtype=torch.float32)
    assert torch.equal(torch.get_rng_state(), before)


def test_frames_stream_by_window(tiny_checkpoints: Mapping[str, Path], video_latents: torch.Tensor) -> None:
    """Chunks of 17, 17 and the last 5 frames arrive, each before the next window is decoded."""
    codec = opened(tiny_checkpoints["small"])
    vae = codec._vae(VIDEO_VAE)
    decoded: list[int] = []
    vae.decoder.register_forward_pre_hook(lambda _, given: decoded.append(given[0].shape[2]))
    frames = codec.decode_video(video_latents)
    assert len(next(frames)) == 17
    assert decoded == [7]
    assert [len(chunk) for chunk in frames] == [17, 5]
    assert decoded == [7, 7]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 8, 11])
def test_other_lengths_are_refused(tiny_checkpoints: Mapping[str, Path], count: int) -> None:
    """A latent length that no clip has is the caller's error, before anything is decoded."""
    with pytest.raises(ContractError, match=rf"{count} latent frames cannot be decoded"):
        next(opened(tiny_checkpoints["small"]).decode_video(torch.zeros(1, 24, count, 2, 2)))


def test_each_vae_is_loaded_at_its_first_use(tiny_checkpoints: Mapping[str, Path], video_latents: torch.Tensor) -> None:
    """Opening loads nothing; video work loads the video VAE alone."""
    codec = opened(tiny_checkpoints["small"])
    assert not codec._loaded
    list(codec.decode_video(video_latents))
    assert list(codec._loaded) == ["vae"]
    codec.decode_audio(torch.zeros(2, 32, 3))
    assert list(codec._loaded) == ["vae", "audio_vae"]


def test_nothing_holds_the_vaes_after_the_scope(tiny_checkpoints: Mapping[str, Path]) -> None:
    """The weights are freed when the scope ends, even where the codec object is kept; a later use says so."""
    with DiffusersVaes(weights=MmapWeights).open(tiny_checkpoints["small"], device=CPU, dtype=torch.float32) as codec:
        codec.decode_audio(torch.zeros(2, 32, 3))
        held = weakref.ref(codec._loaded["audio_vae"])
    assert held() is None
    with pytest.raises(ClosedError, match="open the codec again"):
        codec.decode_audio(torch.zeros(2, 32, 3))


def test_non_finite_values_are_named(checkpoint: Path, video_latents: torch.Tensor) -> None:
    """NaN in the second window names clip 1 after clip 0 was delivered; audio and encodings are checked too."""
    poisoned = video_latents.clone()
    poisoned[0, 0, 9, 0, 0] = torch.nan
    frames = opened(checkpoint).decode_video(poisoned)
    assert next(frames).isfinite().all()
    with pytest.raises(NonFiniteError, match="decoded video clip 1"):
        next(frames)
    with pytest.raises(NonFiniteError, match="the audio latents"):
        opened(checkpoint).decode_audio(torch.full((2, 32, 3), torch.inf))
    damage(checkpoint / "audio_vae", lambda tensors: {n: t * torch.nan for n, t in tensors.items()})
    with pytest.raises(NonFiniteError, match="the audio VAE's encoding"):
        opened(checkpoint).encode_waveform(torch.zeros(2, 800))


def test_a_silent_length_is_refused(tiny_checkpoints: Mapping[str, Path]) -> None:
    """A sound without samples is the caller's error."""
    with pytest.raises(ContractError, match="no samples"):
        opened(tiny_checkpoints["small"]).encode_waveform(torch.zeros(2, 0))


def damage(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    path = folder / "diffusion_pytorch_model.safetensors"
    save_file(change(load_file(path)), path, {"format": "pt"})


def test_damaged_checkpoints_are_named(checkpoint: Path) -> None:
    """A missing, unknown or misshapen tensor, a foreign config and a missing one each name what is wrong."""
    folder = checkpoint / "audio_vae"
    config = json.loads((folder / "config.json").read_text())
    original = {path: path.read_bytes() for path in folder.iterdir()}

    def fails(message: str) -> None:
        with pytest.raises(CheckpointError, match=message):
            opened(checkpoint).decode_audio(torch.zeros(2, 32, 3))
        for path, content in original.items():
            path.write_bytes(content)

    key = "dec_in_proj.bias"
    damage(folder, lambda tensors: {name: tensor for name, tensor in tensors.items() if name != key})
    fails(rf"audio_vae lacks {key}")
    damage(folder, lambda tensors: tensors | {"stranger": torch.zeros(1)})
    fails("holds the unknown tensor stranger")
    damage(folder, lambda tensors: tensors | {key: tensors[key][:-1].clone()})
    fails(rf"stores {key} as \[63\], config.json asks for \[64\]")
    (folder / "config.json").write_text(json.dumps(config | {"_class_name": "AutoencoderKL"}))
    fails("describes a AutoencoderKL")
    (folder / "config.json").write_text(json.dumps(config | {"decoder_rates": [2, 2, 2]}))
    fails("does not describe a AutoencoderKLMiniMaxH3Audio")
    (folder / "config.json").unlink()
    fails(r"config\.json cannot be read")


def test_nothing_is_printed(tiny_checkpoints: Mapping[str, Path]) -> None:
    """A fresh process encodes and decodes without a warning, a log line or a progress bar."""
    script = """
import sys
import torch
from pathlib import Path
from vflash_adapters.latent_codec.diffusers_vaes import DiffusersVaes
from vflash_adapters.weights.mmap_source import MmapWeights
scope = DiffusersVaes(weights=MmapWeights).open(Path(sys.argv[1]), device=torch.device("cpu"), dtype=torch.bfloat16)
with scope as codec:
    codec.decode_audio(torch.zeros(2, 32, 3))
    codec.encode_pixels(torch.zeros(1, 32, 32, 3, dtype=torch.uint8))
"""
    command = [sys.executable, "-c", script, tiny_checkpoints["small"]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
