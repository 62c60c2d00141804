"""What the Qwen3-VL provider promises about loading, precision, errors and release."""

from __future__ import annotations

import gc
import json
import shutil
import subprocess
import sys
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from vflash_adapters.text_encoder.offline_loader import OfflineLoader
from vflash_adapters.text_encoder.prefix import place
from vflash_adapters.text_encoder.presentation import Presenter
from vflash_adapters.text_encoder.qwen3_vl import Qwen3VLProvider
from vflash_ports.errors import CheckpointError, ClosedError, ContractError, NonFiniteError
from vflash_ports.text_encoder import TextPart, VideoPart

CPU = torch.device("cpu")
PROMPT = [TextPart(text="a fox")]


@pytest.fixture
def checkpoint(tiny_checkpoints: Mapping[str, Path], tmp_path: Path) -> Path:
    """A copy of the text encoder's folders that a test may damage."""
    for name in ("text_encoder", "tokenizer", "processor"):
        shutil.copytree(tiny_checkpoints["small"] / name, tmp_path / name)
    return tmp_path


def encode(model_dir: Path, loader: Any = None, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    with Qwen3VLProvider(hidden_state_index=50, loader=loader).open(model_dir, device=CPU, dtype=dtype) as encoder:
        return encoder.encode(PROMPT).embeds


def edit_config(model_dir: Path, **changes: Any) -> None:
    path = model_dir / "text_encoder" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_tensor(model_dir: Path, key: str, change: Any) -> None:
    """Replace one stored tensor by `change(tensor)`; None removes it."""
    folder = model_dir / "text_encoder"
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    shard = folder / index["weight_map"][key]
    tensors = load_file(shard)
    changed = change(tensors.pop(key))
    if changed is not None:
        tensors[key] = changed
    save_file(tensors, shard, {"format": "pt"})


def test_only_the_prefix_is_loaded(tiny_checkpoints: Mapping[str, Path]) -> None:
    """51 of the stored layers are built, the language head is dropped, and the model runs exact attention."""
    loaders = []

    def loader(path: Path) -> Any:
        model = OfflineLoader(hidden_state_index=50)(path)
        loaders.append((model, len(model.model.language_model.layers)))
        return model

    encode(tiny_checkpoints["small"], loader)
    ((model, layers),) = loaders
    assert layers == len(model.model.language_model.layers) == 51
    assert isinstance(model.lm_head, nn.Identity)
    assert model.config._attn_implementation == "sdpa"


def test_layers_beyond_the_prefix_may_be_damaged(checkpoint: Path) -> None:
    """Weights after the prefix are never used: NaN there changes nothing, NaN inside is reported."""
    expected = encode(checkpoint)
    edit_tensor(checkpoint, "model.language_model.layers.51.mlp.up_proj.weight", lambda t: t * float("nan"))
    torch.testing.assert_close(encode(checkpoint), expected, rtol=0, atol=0)
    edit_tensor(checkpoint, "model.language_model.layers.20.mlp.up_proj.weight", lambda t: t * float("nan"))
    with pytest.raises(NonFiniteError, match="hidden state 50"):
        encode(checkpoint)


def test_any_depth_follows_the_same_rule(tiny_checkpoints: Mapping[str, Path]) -> None:
    """hidden_states[k] of the whole model equals the k + 1 layer prefix for other k too."""
    from transformers import Qwen3VLForConditionalGeneration

    path = tiny_checkpoints["other"]
    whole = Qwen3VLForConditionalGeneration.from_pretrained(path / "text_encoder", local_files_only=True)
    for index in (12, 53):
        with Qwen3VLProvider(hidden_state_index=index).open(path, device=CPU, dtype=torch.float32) as encoder:
            found = encoder.encode(PROMPT).embeds
            ids = encoder._presenter.present(PROMPT).ids[None]
        with torch.no_grad():
            states = whole.model(input_ids=ids, output_hidden_states=True).hidden_states
        torch.testing.assert_close(found, states[index][0], rtol=0, atol=0)
    with pytest.raises(CheckpointError, match="54 text layers; reading hidden state 54 needs 55"):
        OfflineLoader(hidden_state_index=54)(path)


def test_rotary_frequencies_stay_float32(tiny_checkpoints: Mapping[str, Path]) -> None:
    """Casting to BF16 leaves the computed rotary buffers in FP32, and every stored weight in BF16."""
    provider = Qwen3VLProvider(hidden_state_index=50)
    with provider.open(tiny_checkpoints["small"], device=CPU, dtype=torch.bfloat16) as encoder:
        model = encoder._model
        assert model is not None
        assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
        buffers = dict(model.named_buffers())
        assert any("rotary" in name for name in buffers)
        assert {buffer.dtype for buffer in buffers.values()} == {torch.float32}
        assert encoder.encode(PROMPT).embeds.dtype is torch.bfloat16


def test_fp8_modules_keep_their_dtypes() -> None:
    """A module that holds FP8 codes keeps them and its FP32 scales when the rest is cast."""

    class Coded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.codes = nn.Parameter(torch.zeros(2, 2, dtype=torch.float8_e4m3fn), requires_grad=False)
            self.scales = nn.Parameter(torch.ones(2, 1))

    model = nn.Sequential(Coded(), nn.Linear(2, 2))
    place(model, device=CPU, dtype=torch.bfloat16)
    dtypes = {name: parameter.dtype for name, parameter in model.named_parameters()}
    assert dtypes["0.codes"] is torch.float8_e4m3fn
    assert dtypes["0.scales"] is torch.float32
    assert dtypes["1.weight"] is dtypes["1.bias"] is torch.bfloat16


def test_nothing_holds_the_encoder_after_its_scope(tiny_checkpoints: Mapping[str, Path]) -> None:
    """Weights are freed when the scope ends, even where the encoder object itself is kept, and after an error too."""
    provider, seen = Qwen3VLProvider(hidden_state_index=50), []
    with provider.open(tiny_checkpoints["small"], device=CPU, dtype=torch.float32) as encoder:
        seen.append(weakref.ref(encoder._model))
        encoder.encode(PROMPT)
    assert seen[0]() is None
    with pytest.raises(ClosedError, match="open it again"):
        encoder.encode(PROMPT)
    scope = provider.open(tiny_checkpoints["small"], device=CPU, dtype=torch.float32)
    seen.append(weakref.ref(scope.__enter__()._model))
    error = RuntimeError("mine")
    assert not scope.__exit__(type(error), error, None)
    gc.collect()
    assert seen[1]() is None


def test_a_failing_loader_is_named() -> None:
    """A loader's own exception is kept as the cause of a CheckpointError that names the loader."""

    def my_loader(path: Path) -> Any:
        raise KeyError("weights of mine")

    with pytest.raises(CheckpointError, match=r"my_loader failed.*weights of mine") as caught:
        Qwen3VLProvider(hidden_state_index=50, loader=my_loader)._call_loader(Path())
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_loader_must_return_the_architecture_on_the_cpu(tiny_checkpoints: Mapping[str, Path]) -> None:
    """Another class, too few layers, and a tensor left on another device are refused by name."""

    def wrong_class(path: Path) -> Any:
        return nn.Linear(1, 1)

    def shallow(path: Path) -> Any:
        return OfflineLoader(hidden_state_index=7)(path)

    def on_meta(path: Path) -> Any:
        model = OfflineLoader(hidden_state_index=50)(path)
        model.model.language_model.layers[3].to("meta")
        return model

    for loader, message in (
        (wrong_class, r"wrong_class returned Linear"),
        (shallow, r"has 8 layers; reading hidden state 50 needs 51"),
        (on_meta, r"on_meta left model\.language_model\.layers\.3\..* on meta"),
    ):
        with pytest.raises(CheckpointError, match=message):
            encode(tiny_checkpoints["small"], loader)


def test_attention_is_exact_whatever_the_loader_chose(tiny_checkpoints: Mapping[str, Path]) -> None:
    """A loader that configured another attention gets the exact kernel, in the text stack and the vision tower."""

    def eager(path: Path) -> Any:
        model = OfflineLoader(hidden_state_index=50)(path)
        model.set_attn_implementation("eager")
        return model

    provider = Qwen3VLProvider(hidden_state_index=50, loader=eager)
    with provider.open(tiny_checkpoints["small"], device=CPU, dtype=torch.float32) as encoder:
        core = encoder._model.model
        chosen = {part.config._attn_implementation for part in (core, core.language_model, core.visual)}
        assert chosen == {"sdpa"}


def test_each_frame_pair_needs_its_time(tiny_checkpoints: Mapping[str, Path]) -> None:
    """A video whose pair count and times disagree is refused before the model runs."""
    frames = torch.zeros(4, 32, 32, 3, dtype=torch.uint8)
    presenter = Presenter.read(tiny_checkpoints["small"])
    with pytest.raises(ContractError, match="4 frames has 2 frame pairs but 1 pair_seconds"):
        presenter.present([VideoPart(frames=frames, pair_seconds=(0.25,))])


def test_damaged_checkpoints_are_named(checkpoint: Path) -> None:
    """A missing tensor, a wrong shape, an unknown tensor and a missing shard each name what is wrong."""
    key = "model.language_model.layers.9.self_attn.q_proj.weight"
    original = {path: path.read_bytes() for path in (checkpoint / "text_encoder").iterdir()}

    def fails(message: str) -> None:
        with pytest.raises(CheckpointError, match=message):
            encode(checkpoint)
        for path, content in original.items():
            path.write_bytes(content)

    edit_tensor(checkpoint, key, lambda tensor: None)
    fails(rf"{key}.* is in model-00001-of-00003\.safetensors, but it is not")
    edit_tensor(checkpoint, key, lambda tensor: tensor[:-1].clone())
    fails(rf"stores {key} as \[31, 32\], config.json asks for \[32, 32\]")
    shard = checkpoint / "text_encoder" / "model-00001-of-00003.safetensors"
    save_file(load_file(shard) | {"model.stranger": torch.zeros(1)}, shard, {"format": "pt"})
    fails(r"model\.stranger")
    shard.unlink()
    fails(r"lacks model-00001-of-00003\.safetensors")


def test_foreign_tokenizers_are_refused(checkpoint: Path) -> None:
    """A tokenizer without the pad tokens, or with other ids than the encoder's config, is a CheckpointError."""
    edit_config(checkpoint, image_token_id=3)
    with pytest.raises(CheckpointError, match=r"<\|image_pad\|> the id \d+, .* says 3"):
        encode(checkpoint)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        path = checkpoint / "tokenizer" / name
        path.write_text(path.read_text().replace("<|video_pad|>", "<|other|>"))
    with pytest.raises(CheckpointError, match=r"does not know <\|video_pad\|>"):
        encode(checkpoint)
    (checkpoint / "tokenizer" / "tokenizer_config.json").unlink()
    with pytest.raises(CheckpointError, match="no tokenizer_config"):
        encode(checkpoint)


def test_prompts_cannot_smuggle_pads(tiny_checkpoints: Mapping[str, Path]) -> None:
    """Text that spells a pad token is refused instead of being read as a picture; so is an empty presentation."""
    provider = Qwen3VLProvider(hidden_state_index=50)
    with provider.open(tiny_checkpoints["small"], device=CPU, dtype=torch.float32) as encoder:
        with pytest.raises(ContractError, match=r"<\|image_pad\|>"):
            encoder.encode([TextPart(text="a <|image_pad|> fox")])
        with pytest.raises(ContractError, match="empty"):
            encoder.encode([TextPart(text="")])


def test_torchvision_is_never_needed(tiny_checkpoints: Mapping[str, Path]) -> None:
    """A fresh process encodes text and a picture without importing torchvision, progress bar or log line."""
    script = """
import sys, torch
from pathlib import Path
from vflash_adapters.text_encoder.qwen3_vl import Qwen3VLProvider
from vflash_ports.text_encoder import PicturePart, TextPart
provider = Qwen3VLProvider(hidden_state_index=50)
with provider.open(Path(sys.argv[1]), device=torch.device("cpu"), dtype=torch.float32) as encoder:
    encoder.encode([PicturePart(pixels=torch.zeros(40, 40, 3, dtype=torch.uint8)), TextPart(text="x")])
assert "torchvision" not in sys.modules
"""
    command = [sys.executable, "-W", "ignore", "-c", script, tiny_checkpoints["small"]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
