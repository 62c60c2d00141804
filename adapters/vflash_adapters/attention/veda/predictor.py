"""The published predictor: per block and head, two projections of pooled features, and the plans they were trained on.

Format `miowtion-veda-predictor-v1`, a safetensors file. Reading is strict: a missing, surplus or mis-shaped tensor, or
FP8 values without their scales, is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from attrs import field, frozen
from safetensors import SafetensorError, safe_open

from vflash_adapters.attention.veda.budget import Budget, BudgetKind
from vflash_adapters.attention.veda.plans import Plan, parse_plans
from vflash_ports.errors import CheckpointError

FORMAT = "miowtion-veda-predictor-v1"
SIDES = ("proj_q", "proj_k")
StoredSpecs = Mapping[str, tuple[str, tuple[int, ...]]]
STORED_DTYPES = {"float32": "F32", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3"}


@frozen(kw_only=True, eq=False)
class Projections:
    """`q`, `k` [heads, 3 * head_dim, head_dim] bfloat16: what one block adds to its mean-pooled rows."""

    q: torch.Tensor
    k: torch.Tensor


@frozen(kw_only=True)
class Predictor:
    """A checked file: its header and metadata are read, its tensors only when asked for."""

    path: Path
    blocks: int
    heads: int
    head_dim: int
    plans: tuple[Plan, ...]
    target_budget: Budget
    reference_budget: Budget | None
    tile_conditions: bool
    stored_dtype: str
    metadata: Mapping[str, str] = field(repr=False, eq=False)

    @property
    def block_bytes(self) -> int:
        """Of one block's `Projections`."""
        return len(SIDES) * self.heads * 3 * self.head_dim * self.head_dim * torch.bfloat16.itemsize

    def projections(self, blocks: range, device: torch.device) -> dict[int, Projections]:
        """Decoded to float32 and rounded to bfloat16, on `device`, for the given blocks."""
        with safe_open(str(self.path), framework="pt", device="cpu") as file:
            return {
                block: Projections(
                    **{side[-1]: self._decode(file, f"layers.{block}.{side}").to(device) for side in SIDES}
                )
                for block in blocks
            }

    def _decode(self, file: safe_open, name: str) -> torch.Tensor:
        values = file.get_tensor(name).float()
        if self.stored_dtype == "float8_e4m3fn":
            values *= file.get_tensor(scale_name(name))[:, None, None]
        if not torch.isfinite(values).all():
            raise CheckpointError(f"{self.path}: tensor {name!r} holds NaN or infinity; download the file again")
        return values.bfloat16()


def read_predictor(path: Path) -> Predictor:
    """Check header and metadata. Raises `CheckpointError` naming the file, the field or tensor, and the cure."""
    if not path.is_file():
        raise CheckpointError(
            f"Veda predictor {path} is not a file; give the path of a downloaded predictor, "
            "or choose the backend 'veda-meanpool', which needs none"
        )
    try:
        with safe_open(str(path), framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
            found = {name: (view.get_dtype(), tuple(view.get_shape())) for name, view in tensors.items()}
    except SafetensorError as error:
        raise CheckpointError(f"{path} is not a readable safetensors file ({error}); download it again") from error
    return _checked(path, metadata, found)


def scale_name(name: str) -> str:
    return f"{name}.__scale"


def _checked(path: Path, metadata: Mapping[str, str], found: StoredSpecs) -> Predictor:
    if metadata.get("format") != FORMAT:
        raise CheckpointError(f"{path}: metadata 'format' is {metadata.get('format')!r}, not {FORMAT!r}")
    stored = metadata.get("dtype", "float32")
    if stored not in STORED_DTYPES:
        raise CheckpointError(f"{path}: metadata 'dtype' is {stored!r}; known are {', '.join(STORED_DTYPES)}")
    blocks, heads, head_dim = (_count(path, metadata, key) for key in ("num_layers", "num_heads", "head_dim"))
    _check_tensors(path, found, _expected(blocks, heads, head_dim, stored))
    tile_conditions = _flag(path, metadata, "tile_conditions")
    return Predictor(
        path=path,
        blocks=blocks,
        heads=heads,
        head_dim=head_dim,
        plans=parse_plans(metadata.get("plans", ""), blocks=blocks, heads=heads, source=str(path)),
        target_budget=_target_budget(path, metadata),
        reference_budget=_budget(path, metadata, "ref_budget") if tile_conditions else None,
        tile_conditions=tile_conditions,
        stored_dtype=stored,
        metadata=dict(metadata),
    )


def _expected(blocks: int, heads: int, head_dim: int, stored: str) -> StoredSpecs:
    names = [f"layers.{block}.{side}" for block in range(blocks) for side in SIDES]
    expected: dict[str, tuple[str, tuple[int, ...]]] = dict.fromkeys(
        names, (STORED_DTYPES[stored], (heads, 3 * head_dim, head_dim))
    )
    if stored == "float8_e4m3fn":
        expected |= {scale_name(name): ("F32", (heads,)) for name in names}
    return expected


def _check_tensors(
    path: Path,
    found: StoredSpecs,
    expected: StoredSpecs,
) -> None:
    for problem, names in (("lacks", expected.keys() - found.keys()), ("has surplus", found.keys() - expected.keys())):
        if names:
            raise CheckpointError(f"{path} {problem} tensors ({len(names)}), among them {min(names)!r}: wrong file")
    for name, want in expected.items():
        if found[name] != want:
            raise CheckpointError(f"{path}: tensor {name!r} is {found[name]}, the format says {want}: wrong file")


def _count(path: Path, metadata: Mapping[str, str], key: str) -> int:
    text = metadata.get(key, "")
    if not (text.isascii() and text.isdigit() and int(text[:5]) > 0 and len(text) <= 5):
        raise CheckpointError(f"{path}: metadata {key!r} must be a positive whole number, not {text!r}")
    return int(text)


def _flag(path: Path, metadata: Mapping[str, str], key: str) -> bool:
    text = metadata.get(key, "false")
    if text not in ("true", "false"):
        raise CheckpointError(f"{path}: metadata {key!r} must be 'true' or 'false', not {text!r}")
    return text == "true"


def _target_budget(path: Path, metadata: Mapping[str, str]) -> Budget:
    if "target_budget_kind" in metadata or "target_budget_value" in metadata:
        return _budget(path, metadata, "target_budget")
    return _parsed_budget(path, "keep_ratio", BudgetKind.RATIO, metadata.get("keep_ratio"))


def _budget(path: Path, metadata: Mapping[str, str], prefix: str) -> Budget:
    kind = metadata.get(f"{prefix}_kind")
    if kind not in list(BudgetKind):
        raise CheckpointError(f"{path}: metadata '{prefix}_kind' must be 'ratio' or 'tiles', not {kind!r}")
    return _parsed_budget(path, f"{prefix}_value", BudgetKind(kind), metadata.get(f"{prefix}_value"))


def _parsed_budget(path: Path, key: str, kind: BudgetKind, text: str | None) -> Budget:
    try:
        return Budget(kind=kind, value=float(text or ""))
    except ValueError as error:
        raise CheckpointError(f"{path}: metadata {key!r} is {text!r}, not a usable budget ({error})") from error
