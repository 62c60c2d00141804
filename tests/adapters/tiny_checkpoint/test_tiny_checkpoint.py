"""The tiny checkpoint has the released layout, real geometry and repeatable bytes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from vflash_adapters.tiny_checkpoint import OTHER, SMALL, StoredDtype, Variant, layout, write_tiny_checkpoint
from vflash_adapters.tiny_checkpoint.weights import TRANSFORMER_FLOAT32
from vflash_ports.errors import ContractError

VARIANTS = list(Variant)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[Variant, Path]:
    root = tmp_path_factory.mktemp("tiny")
    for variant in VARIANTS:
        write_tiny_checkpoint(root / variant, dimensions=variant)
    return {variant: root / variant for variant in VARIANTS}


def stored(folder: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return tensors


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_same_seed_writes_the_same_bytes(checkpoints: dict[Variant, Path], tmp_path: Path) -> None:
    """Two runs with one seed agree in every file; another seed changes the weights and no config."""
    write_tiny_checkpoint(tmp_path / "again")
    write_tiny_checkpoint(tmp_path / "moved", seed=1)
    first, again, moved = (contents(p) for p in (checkpoints[Variant.SMALL], tmp_path / "again", tmp_path / "moved"))
    assert first == again
    assert first.keys() == moved.keys()
    changed = {name for name in first if first[name] != moved[name]}
    assert changed == {name for name in first if name.endswith(".safetensors")}


def test_tool_writes_what_the_library_writes(checkpoints: dict[Variant, Path], tmp_path: Path) -> None:
    """The command line writes the same checkpoint as the call."""
    tool = Path(__file__).parents[3] / "tools" / "make_tiny_checkpoint.py"
    subprocess.run([sys.executable, tool, "--output", tmp_path / "cli", "--variant", "other"], check=True)
    assert contents(tmp_path / "cli") == contents(checkpoints[Variant.OTHER])


@pytest.mark.parametrize("variant", VARIANTS)
def test_layout_is_the_released_one(checkpoints: dict[Variant, Path], variant: Variant) -> None:
    """Both indexes are equal, name every folder there is, and large components are sharded with a full index."""
    root = checkpoints[variant]
    index = json.loads((root / "model_index.json").read_text())
    assert (root / "modular_model_index.json").read_bytes() == (root / "model_index.json").read_bytes()
    folders = {path.name for path in root.iterdir() if path.is_dir()}
    assert folders == {name for name, value in index.items() if isinstance(value, list)}
    for name in ("transformer", "transformer_ref", "vae", "text_encoder"):
        (shard_index,) = (root / name).glob("*.index.json")
        weight_map = json.loads(shard_index.read_text())["weight_map"]
        assert len(set(weight_map.values())) > 1
        assert set(weight_map) == set(stored(root / name))


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_weight_is_alive(checkpoints: dict[Variant, Path], variant: Variant) -> None:
    """No learned tensor is zero or non-finite, so no block is the identity, and the two transformers differ."""
    root = checkpoints[variant]
    for name in ("transformer", "transformer_ref", "vae", "audio_vae", "text_encoder"):
        for key, tensor in stored(root / name).items():
            assert tensor.isfinite().all(), key
            assert key.endswith("zero_k_bias") or tensor.count_nonzero() == tensor.numel(), key
    plain, ref = stored(root / "transformer"), stored(root / "transformer_ref")
    assert plain.keys() == ref.keys()
    assert not any(torch.equal(plain[key], ref[key]) for key in plain)


def test_variants_share_only_the_geometry() -> None:
    """Widths, depths and heads differ between the variants; latent channels and rates do not."""
    for name in ("hidden_size", "num_attention_heads", "attention_head_dim", "num_layers", "ffn_dim", "text_dim"):
        assert SMALL.transformer[name] != OTHER.transformer[name]
    for sizes in (SMALL, OTHER):
        assert sizes.transformer["in_channels"] == sizes.vae["latent_channels"] == 24
        assert sizes.transformer["audio_in_channels"] == sizes.audio_vae["latent_channels"] == 32
        assert torch.tensor(sizes.audio_vae["encoder_rates"]).prod() == 800
        assert sizes.text["num_hidden_layers"] > 51


def test_mixed_keeps_twelve_float32_tensors(tmp_path: Path) -> None:
    """`mixed` stores both transformers in BF16 but for 12 tensors, the text encoder in BF16, the VAEs in FP32."""
    write_tiny_checkpoint(tmp_path / "mixed", dtype=StoredDtype.MIXED)
    for name in ("transformer", "transformer_ref"):
        tensors = stored(tmp_path / "mixed" / name)
        kept = {key for key, tensor in tensors.items() if tensor.dtype is torch.float32}
        assert len(kept) == 12
        assert all(key.startswith(TRANSFORMER_FLOAT32) for key in kept)
        assert all(tensors[key].dtype is torch.bfloat16 for key in tensors.keys() - kept)
    assert {t.dtype for t in stored(tmp_path / "mixed" / "text_encoder").values()} == {torch.bfloat16}
    for name in ("vae", "audio_vae"):
        assert {t.dtype for t in stored(tmp_path / "mixed" / name).values()} == {torch.float32}


def test_an_occupied_folder_is_left_alone(tmp_path: Path) -> None:
    """A folder with something in it is refused by name and not touched."""
    (tmp_path / "kept.txt").write_text("mine")
    with pytest.raises(ContractError, match="not an empty folder"):
        write_tiny_checkpoint(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]


def test_tokenizer_knows_the_released_special_tokens(checkpoints: dict[Variant, Path]) -> None:
    """Special tokens are one id each in the released order, H3's own listed in tokenizer_config.json alone."""
    from tokenizers import Tokenizer
    from transformers import Qwen2Tokenizer

    root = checkpoints[Variant.SMALL]
    tokenizer = Qwen2Tokenizer.from_pretrained(root / "tokenizer", local_files_only=True)
    specials = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<d>", "<|caption_end|>"]
    ids = [tokenizer.convert_tokens_to_ids(token) for token in specials]
    assert [tokenizer(token, add_special_tokens=False)["input_ids"] for token in specials] == [[i] for i in ids]
    assert [i - ids[0] for i in ids] == [0, 1, 3, 4, 17, 23]
    assert Tokenizer.from_file(str(root / "tokenizer" / "tokenizer.json")).token_to_id("<d>") is None
    text = "<Picture 1>: a fox, 一只狐狸"
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text
    config = json.loads((root / "text_encoder" / "config.json").read_text())
    assert len(tokenizer) <= config["text_config"]["vocab_size"]


def test_an_interrupted_writer_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a checkpoint would be taken for a whole one by whoever finds its folder."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(layout, "_write_autoencoders", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_tiny_checkpoint(tmp_path / "tiny")
    assert list(tmp_path.iterdir()) == []
