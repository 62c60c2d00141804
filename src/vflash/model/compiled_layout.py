"""What compiled tensors alone do not say, as JSON values of the manifest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import asdict, frozen

from vflash.model.load import LINEARS
from vflash.model.modulation import EvaluationTimesteps
from vflash.model.residual import PackedResidual, Part
from vflash.model.tables import Plans
from vflash_ports.adapters import AdaptedModule, AdapterReport
from vflash_ports.errors import CheckpointError


@frozen(kw_only=True)
class CompiledLayout:
    """What the tensors alone do not say."""

    residuals: tuple[PackedResidual, ...]
    outer_scales: Mapping[str, float]
    variants: tuple[Plans, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "residuals": [asdict(plan) for plan in self.residuals],
            "outer_scales": dict(self.outer_scales),
            "variants": [[asdict(plan) for plan in plans] for plans in self.variants],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CompiledLayout:
        """Raises `CheckpointError` for anything `to_json` does not write."""
        try:
            return cls(
                residuals=tuple(_packed_residual(plan) for plan in value["residuals"]),
                outer_scales={str(name): float(scale) for name, scale in value["outer_scales"].items()},
                variants=tuple(tuple(_timesteps(plan) for plan in plans) for plans in value["variants"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"compiled assets: the layout cannot be read ({error!r}); compile them again"
            ) from error


def report_from_json(value: Mapping[str, Any] | None) -> AdapterReport | None:
    """The adapter's report as `attrs.asdict` wrote it."""
    if value is None:
        return None
    try:
        modules = tuple(AdaptedModule(**{**module, "targets": tuple(module["targets"])}) for module in value["modules"])
        rest = {name: item for name, item in value.items() if name not in ("modules", "path", "unmatched", "matched")}
        return AdapterReport(path=Path(value["path"]), modules=modules, unmatched=tuple(value["unmatched"]), **rest)
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"compiled assets: the adapter's report cannot be read ({error!r})") from error


def _packed_residual(value: Mapping[str, Any]) -> PackedResidual:
    if value["linear"] not in LINEARS:
        raise ValueError(f"no linear {value['linear']!r}")
    return PackedResidual(
        linear=value["linear"],
        in_features=int(value["in_features"]),
        parts=tuple(Part(**part) for part in value["parts"]),
        modules=tuple(tuple(names) for names in value["modules"]),
    )


def _timesteps(value: Mapping[str, Any]) -> EvaluationTimesteps:
    return EvaluationTimesteps(
        distinct=tuple(float(t) for t in value["distinct"]), of_role=tuple(int(row) for row in value["of_role"])
    )
