"""A Qwen3-VL of the real depth with every linear layer in FP8, against the same model with restored weights."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from vflash_adapters.linear.row_fp8 import RowFP8Execution
from vflash_adapters.linear.row_fp8_linear import RowFP8Linear
from vflash_adapters.linear.row_quantiser import restore_rows
from vflash_adapters.quantised.model_folder import quantise_model
from vflash_adapters.text_encoder.offline_loader import OfflineLoader
from vflash_adapters.text_encoder.qwen3_vl import Qwen3VLProvider
from vflash_adapters.text_encoder.qwen3_vl_fp8 import Fp8TextEncoderLoader, stored_loader
from vflash_adapters.weights.mmap_source import MmapWeights
from vflash_ports.errors import CheckpointError
from vflash_ports.observer import SilentObserver
from vflash_ports.text_encoder import Part, PicturePart, TextPart, VideoPart

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folders(tiny_checkpoints: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(every linear in FP8, the same values restored to full width)."""
    root = tmp_path_factory.mktemp("fp8-text")
    quantise_model(
        MmapWeights,
        {},
        tiny_checkpoints["small"],
        root / "fp8",
        denoiser_layers=(),
        text_encoder_layers=("language", "vision"),
        observer=SilentObserver(),
    )
    shutil.copytree(root / "fp8", root / "restored")
    folder = root / "restored" / "text_encoder"
    stored = load_file(folder / "model.safetensors")
    restored = {
        name: restore_rows(tensor, stored[f"{name}_scale"], torch.float32) if f"{name}_scale" in stored else tensor
        for name, tensor in stored.items()
        if not name.endswith("_scale")
    }
    save_file(restored, folder / "model.safetensors", {"format": "pt"})
    return root / "fp8", root / "restored"


def picture(seed: int, height: int = 64, width: int = 96) -> torch.Tensor:
    return torch.randint(0, 256, (height, width, 3), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


PRESENTATIONS: dict[str, list[Part]] = {
    "text": [TextPart(text="a fox in the snow")],
    "one picture": [TextPart(text="<Picture 1>: "), PicturePart(pixels=picture(1)), TextPart(text="a fox")],
    "several pictures": [
        TextPart(text="<Picture 1>: "),
        PicturePart(pixels=picture(2)),
        TextPart(text="<Picture 2>: "),
        PicturePart(pixels=picture(3, 96, 64)),
        TextPart(text="a fox"),
    ],
    "video": [
        TextPart(text="<Video 1>: "),
        VideoPart(frames=torch.stack([picture(seed) for seed in range(4)]), pair_seconds=(0.2, 1.2)),
        TextPart(text="a fox"),
    ],
}


@pytest.mark.parametrize("name", PRESENTATIONS)
def test_fp8_equals_the_restored_weights_value_by_value(folders: tuple[Path, Path], name: str) -> None:
    """51 layers and the vision tower: only where the weights are kept differs."""
    fp8, restored = (
        Qwen3VLProvider(hidden_state_index=50).open(folder, device=CPU, dtype=torch.float32) for folder in folders
    )
    with fp8 as encoder:
        seen = encoder.encode(PRESENTATIONS[name])
    with restored as encoder:
        control = encoder.encode(PRESENTATIONS[name])
    assert torch.equal(seen.embeds, control.embeds)
    assert torch.equal(seen.tags, control.tags)


def test_every_linear_layer_is_fp8_and_stays_so(folders: tuple[Path, Path]) -> None:
    """357 text layers and the vision tower's; the rotary frequencies are float32 and on the CPU."""
    model = Fp8TextEncoderLoader(hidden_state_index=50)(folders[0])
    linears = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    quantised = [name for name, module in model.named_modules() if isinstance(module, RowFP8Linear)]
    assert linears == []
    assert sum("language_model.layers" in name for name in quantised) == 51 * 7
    assert sum("visual" in name for name in quantised) == len(quantised) - 51 * 7 > 0
    for name, buffer in model.named_buffers():
        if "inv_freq" in name:
            assert buffer.dtype == torch.float32
            assert buffer.device == CPU
            assert bool((buffer != 0).all())


def test_rotary_buffers_equal_those_of_an_ordinary_load(folders: tuple[Path, Path]) -> None:
    """They are computed, never stored."""
    fp8 = dict(Fp8TextEncoderLoader(hidden_state_index=50)(folders[0]).named_buffers())
    plain = dict(OfflineLoader(hidden_state_index=50)(folders[1]).named_buffers())
    rotary = [name for name in plain if "inv_freq" in name]
    assert len(rotary) >= 2
    assert all(torch.equal(fp8[name], plain[name]) for name in rotary)


def test_the_execution_is_the_callers(folders: tuple[Path, Path]) -> None:
    """Every layer counts on the one object that was handed in."""
    execution = RowFP8Execution("weight-only")
    loader = Fp8TextEncoderLoader(hidden_state_index=50, execution=execution)
    provider = Qwen3VLProvider(hidden_state_index=50, loader=loader)
    with provider.open(folders[0], device=CPU, dtype=torch.float32) as encoder:
        encoder.encode(PRESENTATIONS["text"])
    assert execution.counters.weight_only_calls == 51 * 7


def test_what_is_stored_decides_the_loader(folders: tuple[Path, Path]) -> None:
    """FP8 codes in the headers, and nothing else."""
    assert isinstance(stored_loader(folders[0], 50), Fp8TextEncoderLoader)
    assert isinstance(stored_loader(folders[1], 50), OfflineLoader)


def test_a_damaged_folder_is_refused_by_name(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """A missing scale, and codes where no linear layer is."""
    shutil.copytree(folders[0] / "text_encoder", tmp_path / "text_encoder")
    path = tmp_path / "text_encoder" / "model.safetensors"
    stored = load_file(path)
    scale = "model.language_model.layers.3.mlp.up_proj.weight_scale"
    save_file({name: tensor for name, tensor in stored.items() if name != scale}, path, {"format": "pt"})
    with pytest.raises(CheckpointError, match=re.escape("layers.3.mlp.up_proj.weight_scale")):
        Fp8TextEncoderLoader(hidden_state_index=50)(tmp_path)
    norm = "model.language_model.layers.3.input_layernorm.weight"
    save_file(stored | {norm: stored[norm].to(torch.float8_e4m3fn)}, path, {"format": "pt"})
    with pytest.raises(CheckpointError, match="no linear layer"):
        Fp8TextEncoderLoader(hidden_state_index=50)(tmp_path)
