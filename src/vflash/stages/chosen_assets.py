"""Assets chosen for a pipeline: what they were compiled for is compared with what it is set to run."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from attrs import asdict, define

from vflash.domain.model_facts import DenoiserFacts
from vflash.domain.profiles import Profile, find_profile
from vflash.model.compiled import open_compiled
from vflash.model.compiled_layout import CompiledLayout, report_from_json
from vflash.model.transformer import Denoiser
from vflash.stages.compile import target_of
from vflash_ports.assets import CompiledAssets
from vflash_ports.errors import CheckpointError, ContractError
from vflash_ports.weights import WeightSource

FIELDS = {
    "vflash", "torch", "profile", "component", "schedule", "dtype", "linear", "target", "facts", "adapter", "layout",
    "source", "adapter_source",
}  # fmt: skip


@define(kw_only=True, eq=False)
class ChosenAssets:
    """Compiled assets in a pipeline's place of one denoiser's checkpoint."""

    assets: CompiledAssets

    def __attrs_post_init__(self) -> None:
        odd = FIELDS.symmetric_difference(self.assets.body)
        if odd:
            raise CheckpointError(f"compiled assets: manifest fields differ ({', '.join(sorted(odd))}); compile again")
        if asdict(self.profile.schedule) != self.assets.body["schedule"]:
            raise CheckpointError(
                f"compiled assets: profile {self.profile.name} has another schedule in this release; compile them again"
            )

    @property
    def component(self) -> str:
        return str(self.assets.body["component"])

    @property
    def profile(self) -> Profile:
        return find_profile(str(self.assets.body["profile"]))

    @property
    def source(self) -> WeightSource:
        return self.assets.source

    def check(self, component: str, facts: DenoiserFacts, backends: Any) -> None:
        """Once a request: stamps, then everything that must agree. Raises `ContractError` with the cure."""
        self.assets.check_unchanged()
        body = self.assets.body
        if component != self.component:
            raise ContractError(
                f"these assets hold {self.component}, but this request runs {component}; use assets compiled for it"
            )
        self._check_equal("dtype", str(backends.dtype).removeprefix("torch."))
        self._check_equal("target", target_of(backends.device))
        self.check_linear(backends.linear.name)
        if body["facts"] != {**asdict(facts), "patch_size": list(facts.patch_size)}:
            raise ContractError("these assets were compiled from a model of other dimensions than model_dir's config")

    def check_linear(self, name: str) -> None:
        self._check_equal("linear", name)

    def _check_equal(self, name: str, value: str) -> None:
        compiled = self.assets.body[name]
        if compiled != value:
            raise ContractError(
                f"these assets were compiled for {name} {compiled}, the pipeline is set to {value}; "
                "change the setting, or compile assets for it"
            )

    def open(self, facts: DenoiserFacts, backends: Any) -> AbstractContextManager[Denoiser]:
        body = self.assets.body
        return open_compiled(
            self.assets.source,
            CompiledLayout.from_json(body["layout"]),
            facts=facts,
            adapter=report_from_json(body["adapter"]),
            execution=backends.linear,
            kernels=backends.kernels,
            residency=backends.residency,
            device=backends.device,
            dtype=backends.dtype,
            ffn_chunk_rows=backends.ffn_chunk_rows,
        )

    def receipt(self) -> dict[str, Any]:
        """What ran in the checkpoint's place, and how far its origin was measured."""
        body = self.assets.body
        return {name: body[name] for name in ("profile", "component", "target", "torch", "source", "adapter_source")}
