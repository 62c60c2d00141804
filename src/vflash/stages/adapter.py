"""The pipeline's adapter: matched against headers before anything loads, loaded with the denoiser it belongs to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attrs import asdict, define, field

from vflash.domain.profiles import Profile, check_adapter
from vflash_ports.adapters import Adapter, AdapterLoader, AdapterReport
from vflash_ports.weights import WeightSource


@define(kw_only=True, eq=False)
class ChosenAdapter:
    """One adapter file for every request of a pipeline; `profile` is the one it must run under, if any."""

    path: Path
    loader: AdapterLoader
    profile: Profile | None
    _reports: dict[str, AdapterReport] = field(factory=dict, init=False)

    def check(self, component: str, source: WeightSource) -> AdapterReport:
        """Headers only, once a component. Raises `CheckpointError` or `ContractError` for what would not run whole."""
        if component not in self._reports:
            report = self.loader.inspect(self.path, source.specs(), component=component)
            scales = {module.stored_name: module.scale for module in report.modules}
            check_adapter(self.profile, scales, report.strength)
            self._reports[component] = report
        return self._reports[component]

    def load(self, component: str, source: WeightSource) -> Adapter:
        self.check(component, source)
        return self.loader.load(self.path, source.specs(), component=component)


def adapter_receipt(report: AdapterReport | None) -> dict[str, Any] | None:
    """Family, alpha's source, and every module's rank, alpha and scale; the path is not repeated, only its name."""
    if report is None:
        return None
    values = asdict(report)
    return {**values, "path": report.path.name, "matched": len(report.modules), "unmatched": list(report.unmatched)}
