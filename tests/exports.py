"""The same weights written in every layout people bring: canonical tensors in, stored tensors out.

Written from the layouts' descriptions, not from the loader's tables, so that the two can disagree.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save_file

Tensors = dict[str, torch.Tensor]

RENAMES = (
    ("transformer_blocks.", "blocks."),
    ("token_refiner.refiner_blocks.", "token_refiner.blocks."),
    ("audio_proj_in.", "audio_patch_proj."),
    ("audio_proj_out.", "final_layer.audio_out."),
    ("proj_in.", "video_patch_proj."),
    ("proj_out.", "final_layer.video_out."),
    ("context_embedder.", "condition_proj."),
    ("time_embedder.linear_1.", "time_embedder.proj_in."),
    ("time_embedder.linear_2.", "time_embedder.proj_out."),
    ("norm_out.norm.", "final_layer.norm."),
    ("norm_out.linear.", "final_layer.adaln_proj.linear."),
    (".attn.norm_q.", ".attn.q_norm."),
    (".attn.norm_k.", ".attn.k_norm."),
    (".attn.to_out.0.", ".attn.out_proj."),
    (".ff.net.0.proj.", ".mlp.fc1."),
    (".ff.net.2.", ".mlp.fc2."),
)


def native_name(name: str) -> str:
    for canonical, native in RENAMES:
        inner = canonical.startswith(".")
        if (inner and canonical in name) or (not inner and name.startswith(canonical)):
            name = name.replace(canonical, native, 1)
    return name


def fuse_qkv(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, heads: int | None) -> torch.Tensor:
    """All q, all k, all v; or per head q, k, v."""
    if heads is None:
        return torch.cat([q, k, v])
    width = q.shape[0] // heads
    rows = []
    for head in range(heads):
        rows += [part[head * width : (head + 1) * width] for part in (q, k, v)]
    return torch.cat(rows)


def swap_halves(rows: torch.Tensor) -> torch.Tensor:
    half = rows.shape[0] // 2
    return torch.cat([rows[half:], rows[:half]])


def export_native(tensors: Tensors, *, heads: int | None, prefix: str = "") -> Tensors:
    """The original release's names; `heads` given: interleaved per head, as released; None: grouped, as ComfyUI."""
    stored: Tensors = {}
    for name, tensor in tensors.items():
        if ".attn.to_q." in name:
            fused = fuse_qkv(*(tensors[name.replace("to_q", f"to_{part}")] for part in "qkv"), heads=heads)
            stored[native_name(name).replace("to_q", "qkv_proj")] = fused
        elif ".attn.to_k." not in name and ".attn.to_v." not in name:
            stored[native_name(name)] = swap_halves(tensor) if ".ff.net.0." in name else tensor.clone()
    stored["rope.inv_freq"] = torch.ones(4)
    return {prefix + name: tensor.contiguous() for name, tensor in stored.items()}


@dataclass(frozen=True)
class AdapterFile:
    """An adapter as one writer would have saved it. `options` are what a user must add for it."""

    tensors: Tensors
    metadata: dict[str, str] = field(default_factory=dict)
    options: dict[str, object] = field(default_factory=dict)
    peft_config: dict[str, object] | None = None
    file_name: str = "adapter.safetensors"

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        save_file({name: t.contiguous() for name, t in self.tensors.items()}, folder / self.file_name, self.metadata)
        if self.peft_config is not None:
            (folder / "adapter_config.json").write_text(json.dumps(self.peft_config))
        return folder / self.file_name


Delta = dict[str, tuple[torch.Tensor, torch.Tensor]]
"""Canonical module -> (down [rank, in], up [out, rank]); q, k and v of a block share one `down`."""


def export_adapters(delta: Delta, *, heads: int, alpha: float) -> dict[str, AdapterFile]:
    """One delta in every plain family. Where a family has no place for alpha, it is given as an option."""
    rank = {down.shape[0] for down, _ in delta.values()}.pop()
    canonical = {name: {"A": down, "B": up} for name, (down, up) in delta.items()}
    grouped, interleaved = native_pairs(delta, heads=None), native_pairs(delta, heads=heads)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha}
    return {
        "lightx2v": AdapterFile(peft_keys(canonical, infix=".default"), metadata={"alpha": f"{alpha:g}"}),
        "lightx2v-comfyui": AdapterFile(
            peft_keys(block_diagonal(delta), prefix="diffusion_model.") | block_diagonal_alphas(delta, alpha)
        ),
        "larryvrh": AdapterFile(peft_keys(grouped), options={"alpha": alpha}),
        "ai-toolkit": AdapterFile(peft_keys(grouped, prefix="diffusion_model."), options={"alpha": alpha}),
        "ai-toolkit-alpha": AdapterFile(
            peft_keys(grouped, prefix="diffusion_model.") | alphas(grouped, alpha, prefix="diffusion_model.")
        ),
        "musubi": AdapterFile(kohya_keys(grouped, alpha)),
        "diffsynth": AdapterFile(
            {name: tensor.float() for name, tensor in peft_keys(interleaved, infix=".default").items()},
            options={"alpha": alpha},
        ),
        "fizgig": AdapterFile(fizgig_keys(delta, alpha)),
        "peft": AdapterFile(
            peft_keys(canonical, prefix="base_model.model."),
            peft_config=config,
            file_name="adapter_model.safetensors",
        ),
        "diffusers": AdapterFile(
            peft_keys(canonical, prefix="transformer."),
            metadata={
                "lora_adapter_metadata": json.dumps({f"transformer.{key}": value for key, value in config.items()})
            },
        ),
        "native-metadata": AdapterFile(
            peft_keys(interleaved),
            metadata={"lora_alpha": f"{alpha:g}", "qkv_layout": "interleaved"},
        ),
    }


Pairs = dict[str, dict[str, torch.Tensor]]


def native_pairs(delta: Delta, *, heads: int | None) -> Pairs:
    """Fused QKV on one `down`, gate and value swapped."""
    pairs: Pairs = {}
    for name, (down, up) in delta.items():
        if name.endswith(".attn.to_q"):
            ups = [delta[name.replace("to_q", f"to_{part}")][1] for part in "qkv"]
            fused = native_name(f"{name}.")[:-1].replace("to_q", "qkv_proj")
            pairs[fused] = {"A": down, "B": fuse_qkv(*ups, heads=heads)}
        elif not name.endswith((".attn.to_k", ".attn.to_v")):
            pairs[native_name(f"{name}.")[:-1]] = {"A": down, "B": swap_halves(up) if ".ff.net.0." in name else up}
    return pairs


def block_diagonal(delta: Delta) -> Pairs:
    """ComfyUI twins of q, k, v files: three downs above each other, three ups on the diagonal."""
    pairs = native_pairs(delta, heads=None)
    for name, pair in pairs.items():
        if name.endswith("qkv_proj"):
            pair["A"] = torch.cat([pair["A"]] * 3)
            pair["B"] = torch.block_diag(*pair["B"].chunk(3))
    return pairs


def block_diagonal_alphas(delta: Delta, alpha: float) -> Tensors:
    """A fused rank is three times the rank, and so is its alpha."""
    return {
        f"diffusion_model.{name}.alpha": torch.tensor(alpha * (3 if name.endswith("qkv_proj") else 1))
        for name in native_pairs(delta, heads=None)
    }


def peft_keys(pairs: Pairs, *, prefix: str = "", infix: str = "") -> Tensors:
    return {
        f"{prefix}{name}.lora_{side}{infix}.weight": matrix.clone()
        for name, pair in pairs.items()
        for side, matrix in pair.items()
    }


def alphas(pairs: Pairs, alpha: float, *, prefix: str = "") -> Tensors:
    return {f"{prefix}{name}.alpha": torch.tensor(alpha) for name in pairs}


def kohya_keys(pairs: Pairs, alpha: float) -> Tensors:
    stored: Tensors = {}
    for name, pair in pairs.items():
        flat = f"lora_unet_{name.replace('.', '_')}"
        stored[f"{flat}.lora_down.weight"], stored[f"{flat}.lora_up.weight"] = pair["A"].clone(), pair["B"].clone()
        stored[f"{flat}.alpha"] = torch.tensor(alpha)
    return stored


def fizgig_keys(delta: Delta, alpha: float) -> Tensors:
    """Split projections under native names, AdaLN half flattened."""
    stored: Tensors = {}
    for name, (down, up) in delta.items():
        module = native_name(f"{name}.")[:-1].replace(".adaln_proj.linear", "_adaln_proj_linear")
        for part in "qkv":
            module = module.replace(f".attn.to_{part}", f".attn.{part}_proj")
        stored[f"{module}.lora_down.weight"] = down.clone()
        stored[f"{module}.lora_up.weight"] = swap_halves(up) if ".ff.net.0." in name else up.clone()
        stored[f"{module}.alpha"] = torch.tensor(alpha)
    return stored


def export_pruned(tensors: Tensors, curve: torch.Tensor, *, width: int) -> Tensors:
    """ComfyUI's pruned form: `curve` = silu(temb) at i / (grid - 1), [grid, time_embed_dim], cut to its `width` largest
    directions; every AdaLN matrix is folded into that basis, and the time embedder is gone."""
    basis = torch.linalg.svd(curve.double(), full_matrices=False).Vh[:width].T
    pruned: Tensors = {"adaln_t_table": (curve.double() @ basis).float()}
    for name, tensor in export_native(tensors, heads=None).items():
        if name.startswith("time_embedder."):
            continue
        folds = name.endswith("adaln_proj.linear.weight")
        pruned[name] = (tensor.double() @ basis).to(tensor.dtype) if folds else tensor
    return {f"model.diffusion_model.{name}": tensor for name, tensor in pruned.items()}
