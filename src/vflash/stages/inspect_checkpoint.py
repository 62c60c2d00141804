"""Look at a checkpoint folder without loading it: configs, and every weight header."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vflash.domain.model_facts import read_model_facts, require_model_folder
from vflash.model.load import check_specs
from vflash_ports.errors import ContractError
from vflash_ports.weights import WeightOpener

WEIGHT_FOLDERS = ("transformer", "transformer_ref", "vae", "audio_vae", "text_encoder")


def report_checkpoint(weights: WeightOpener, model_dir: Path, problems: list[str]) -> dict[str, Any]:
    """Tensor counts and bytes a component; what is wrong is added to `problems`."""
    report: dict[str, Any] = {"folder": str(model_dir)}
    try:
        require_model_folder(model_dir)
    except ContractError as error:
        problems.append(str(error))
        return report
    for folder in WEIGHT_FOLDERS:
        try:
            specs = weights(model_dir / folder).specs()
            if folder.startswith("transformer"):
                facts = read_model_facts(model_dir, denoiser=folder)
                check_specs(specs, facts.denoiser, what=str(model_dir / folder))
            total = sum(spec.byte_count for spec in specs.values())
            report[folder] = f"{len(specs)} tensors, {total / 2**30:.2f} GiB"
        except ContractError as error:
            report[folder] = "not usable"
            problems.append(str(error))
    return report
