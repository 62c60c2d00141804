"""Compile: a checkpoint and its adapter, laid out once for one profile, so that every later start only reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import asdict, frozen

from vflash import __version__
from vflash.domain.model_facts import DenoiserFacts
from vflash.domain.profiles import KEYFRAMES, Profile
from vflash.model.compiled import compiled_parts, kept_residuals
from vflash.model.compiled_layout import CompiledLayout
from vflash.model.modulation import evaluation_timesteps
from vflash.model.positions import Role
from vflash.model.sigmas import grids
from vflash.model.tables import Plans
from vflash.model.transformer import LoadedBase, read_base
from vflash.stages.adapter import adapter_receipt
from vflash.stages.backends import Backends
from vflash.stages.current_device import current_device
from vflash_ports.assets import AssetStore
from vflash_ports.errors import ContractError
from vflash_ports.observer import Observer

_TARGETS = (Role.VIDEO, Role.TEXT, Role.AUDIO)
_ROLES_OF_KEYFRAMES = (_TARGETS, (*_TARGETS, Role.CONDITION_VIDEO))
_ROLES_OF_REFERENCES = ((*_TARGETS, Role.CONDITION_VIDEO), (*_TARGETS, Role.CONDITION_VIDEO, Role.CONDITION_AUDIO))


@frozen(kw_only=True, eq=False)
class Compiler:
    """Everything a compilation reads; `store` is where it goes."""

    model_dir: Path
    backends: Backends
    store: AssetStore

    def compile(
        self, output: Path, facts: DenoiserFacts, *, verify_content_hashes: bool, observer: Observer
    ) -> dict[str, Any]:
        """Write the new directory `output`; what it was made from is identified, by content too if that is asked for.

        Raises `ContractError` without a profile or for an existing output, `CheckpointError` for unfit weights.
        """
        profile = self.backends.profile
        if profile is None:
            raise ContractError("compiled assets are for one schedule: name a profile, or a published adapter")
        component = self.model_dir / profile.component
        with current_device(self.backends.device):
            self.backends.check_component(component, facts)
            with self.store.create(output) as writer, torch.inference_mode():
                sources = self._identify(component, verify_content_hashes, observer)
                body = self._write(writer.add, component, facts, profile, observer)
                writer.seal({**body, **sources})
        return {"assets": str(output), "profile": profile.name, **sources}

    def _identify(self, component: Path, hash_content: bool, observer: Observer) -> dict[str, Any]:
        adapter = self.backends.adapter
        return {
            "source": self.store.identify(component, hash_content=hash_content, observer=observer),
            "adapter_source": None
            if adapter is None
            else self.store.identify(adapter.path, hash_content=hash_content, observer=observer),
        }

    def _write(
        self, add: Any, component: Path, facts: DenoiserFacts, profile: Profile, observer: Observer
    ) -> dict[str, Any]:
        backends, variants = self.backends, schedule_variants(profile)
        source = backends.weights(component)
        adapter = None if backends.adapter is None else backends.adapter.load(component.name, source)
        with source.open() as reader:
            base = read_base(
                source,
                reader,
                what=str(component),
                facts=facts,
                execution=backends.linear,
                device=backends.device,
                dtype=backends.dtype,
                adapter=adapter,
            )
            total = facts.num_layers + 1 + len(variants)
            for done, (stem, tensors) in enumerate(compiled_parts(base, variants), 1):
                add(stem, tensors)
                observer.progress("compile", done, total)
        report = None if adapter is None else adapter.report
        return {
            "vflash": __version__,
            "torch": torch.__version__,
            "profile": profile.name,
            "component": profile.component,
            "schedule": asdict(profile.schedule),
            "dtype": str(backends.dtype).removeprefix("torch."),
            "linear": backends.linear.name,
            "target": target_of(backends.device),
            "facts": {**asdict(facts), "patch_size": list(facts.patch_size)},
            "adapter": adapter_receipt(report),
            "layout": _layout(base, variants).to_json(),
        }


def schedule_variants(profile: Profile) -> tuple[Plans, ...]:
    """The distinct timesteps of every kind of request the profile runs: with and without conditions, sound among them.

    Their number decides the row count of each projection, hence its rounding; so each kind has tables of its own.
    """
    sets = _ROLES_OF_KEYFRAMES if profile.component == KEYFRAMES else _ROLES_OF_REFERENCES
    both = grids(profile.schedule)
    return tuple(evaluation_timesteps(both, list(roles)) for roles in sets)


def target_of(device: torch.device) -> str:
    """Tables are rounded by the GEMM that made them: assets of one architecture are not those of another."""
    if device.type != "cuda":
        return device.type
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm{major}{minor}"


def _layout(base: LoadedBase, variants: tuple[Plans, ...]) -> CompiledLayout:
    outer: Mapping[str, Any] = kept_residuals(base.residuals, base.auxiliary)
    tables_only = ("time_embedder.", "norm_out.linear")
    return CompiledLayout(
        residuals=base.planned,
        outer_scales={name: pair.scale for name, pair in outer.items() if not name.startswith(tables_only)},
        variants=variants,
    )
