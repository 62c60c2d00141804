"""A whole model folder in row-scaled FP8, beside the original, complete in itself, sealed by a manifest."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from vflash_adapters.manifest import ManifestKind, write_sealed
from vflash_adapters.publish import new_directory
from vflash_adapters.quantised.component import QuantisedComponent, quantise_component
from vflash_ports.errors import CheckpointError, ContractError
from vflash_ports.observer import Observer
from vflash_ports.weights import WeightOpener

MANIFEST = "vflash-fp8.json"
DENOISER_FOLDERS = ("transformer", "transformer_ref")
KIND = ManifestKind(format="vflash-row-fp8", version=1, max_bytes=16 * 2**20)
_WEIGHTS = (".safetensors", ".safetensors.index.json")


@frozen(kw_only=True)
class ComponentChoice:
    """`folder` of the model, the `stem` its files are named by, and the modules to quantise: role -> pattern."""

    folder: str
    stem: str
    roles: Mapping[str, str]

    def pattern(self, roles: tuple[str, ...]) -> re.Pattern[str]:
        """Raises `ContractError` for a role this component has not."""
        unknown = sorted(set(roles) - self.roles.keys())
        if unknown:
            raise ContractError(f"{self.folder} has no layers {unknown[0]!r}; choose from {', '.join(self.roles)}")
        return re.compile("|".join(f"(?:{self.roles[role]})" for role in roles))


TEXT_ENCODER = ComponentChoice(
    folder="text_encoder",
    stem="model",
    roles={
        "language": r"model\.language_model\.layers\.\d+\.(?:self_attn\.[qkvo]_proj|mlp\.(?:gate|up|down)_proj)",
        "vision": r"model\.visual\.(?:blocks\.\d+\.(?:attn\.(?:qkv|proj)|mlp\.linear_fc[12])"
        r"|merger\.linear_fc[12]|deepstack_merger_list\.\d+\.linear_fc[12])",
    },
)
"""Every linear layer of Qwen3-VL but the language head, which conditioning never runs."""


def denoiser_choice(folder: str, block_linears: Mapping[str, tuple[str, ...]]) -> ComponentChoice:
    """A denoiser folder; `block_linears` names the modules of a block by role, as the model packs them."""
    roles = {
        role: rf"transformer_blocks\.\d+\.(?:{'|'.join(re.escape(module) for module in modules)})"
        for role, modules in block_linears.items()
    }
    return ComponentChoice(folder=folder, stem="diffusion_pytorch_model", roles=roles)


def quantise_model(
    open_weights: WeightOpener,
    block_linears: Mapping[str, tuple[str, ...]],
    model_dir: Path,
    output: Path,
    *,
    denoiser_layers: tuple[str, ...],
    text_encoder_layers: tuple[str, ...],
    observer: Observer,
) -> dict[str, Any]:
    """Write `output`, a new folder that runs in the place of `model_dir`; returns what its manifest says.

    The layers are roles: those of `block_linears` for both denoisers, those of `TEXT_ENCODER`. A component without
    roles, and whatever is no component, is copied. `output` appears complete or not at all. Raises `ContractError` or
    `CheckpointError` naming what is wrong.
    """
    denoisers = (denoiser_choice(folder, block_linears) for folder in DENOISER_FOLDERS)
    chosen = [*((choice, denoiser_layers) for choice in denoisers), (TEXT_ENCODER, text_encoder_layers)]
    if not (model_dir / "model_index.json").is_file():
        raise CheckpointError(f"{model_dir}: holds no model_index.json; pass the model's folder")
    if (model_dir / MANIFEST).exists():
        raise CheckpointError(f"{model_dir}: is quantised already; start from the original")
    work = {choice.folder: (choice, choice.pattern(roles)) for choice, roles in chosen if roles}
    present = {folder: each for folder, each in work.items() if (model_dir / folder).is_dir()}
    if not present:
        raise ContractError(f"{model_dir}: none of the chosen components is there: {', '.join(work) or 'none chosen'}")
    _check_space(model_dir, output)
    done: dict[str, QuantisedComponent] = {}
    with new_directory(output) as folder:
        _copy_rest(model_dir, folder, set(present))
        for name, (choice, pattern) in present.items():
            done[name] = quantise_component(
                open_weights(model_dir / name),
                folder / name,
                stem=choice.stem,
                chosen=pattern,
                observer=observer,
                what=str(model_dir / name),
            )
        body = {"components": {name: _described(component) for name, component in done.items()}}
        write_sealed(folder / MANIFEST, KIND, body)
    return body


def _check_space(model_dir: Path, output: Path) -> None:
    needed = sum(path.stat().st_size for path in model_dir.rglob("*") if path.is_file())
    free = shutil.disk_usage(output.parent).free if output.parent.is_dir() else needed
    if free < needed:
        raise ContractError(f"{output}: {free >> 20} MiB are free there, up to {needed >> 20} MiB are needed")


def _copy_rest(model_dir: Path, folder: Path, quantised: set[str]) -> None:
    """Everything but hidden files and the weight files that are about to be written anew."""
    for path in sorted(model_dir.rglob("*")):
        relative = path.relative_to(model_dir)
        if any(part.startswith(".") for part in relative.parts):
            continue
        if path.is_dir():
            (folder / relative).mkdir()
        elif not (relative.parts[0] in quantised and path.name.endswith(_WEIGHTS)):
            shutil.copyfile(path, folder / relative)


def _described(component: QuantisedComponent) -> dict[str, Any]:
    return {
        "encoding": "e4m3fn, one float32 scale an output row",
        "quantised": list(component.modules),
        "kept_tensors": component.kept_tensors,
        "source_bytes": component.source_bytes,
        "stored_bytes": component.stored_bytes,
        "files": {file.name: {"size": file.size, "sha256": file.sha256} for file in component.files},
    }
