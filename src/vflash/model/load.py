"""From a weight source to packed blocks and auxiliary tensors. Names are the diffusers checkpoint's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from attrs import evolve, frozen

from vflash.domain.model_facts import DenoiserFacts
from vflash.model.block import BlockWeights
from vflash.model.residual import PackedResidual, bind_residual, moved
from vflash.model.stored_fp8 import CODES, check_stored_fp8, is_quantised, read_codes, read_dense, scale_names
from vflash_ports.adapters import LowRank
from vflash_ports.errors import CheckpointError
from vflash_ports.linear import BoundLinear, LinearExecution, PackedLinear
from vflash_ports.weights import TensorSpec, WeightReader

NORMS = {"norm1": "norm1", "norm2": "norm2", "norm_q": "attn.norm_q", "norm_k": "attn.norm_k"}
LINEARS = {
    "attn.qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
    "attn.out": ("attn.to_out.0",),
    "ff.in": ("ff.net.0.proj",),
    "ff.out": ("ff.net.2",),
}
"""Packed name -> checkpoint modules, stacked by rows; every one is bias-free."""
MODULATION_TABLE = "adaln_t_table"
"""Of a pruned checkpoint, in the time embedder's place: [grid, width], row i at t = i / (grid - 1)."""
FLOAT32 = (
    MODULATION_TABLE,
    "proj_in",
    "audio_proj_in",
    "time_embedder.linear_1",
    "time_embedder.linear_2",
    "proj_out",
    "audio_proj_out",
)
"""Kept in float32 whatever the model's dtype."""


def expected_shapes(facts: DenoiserFacts, table: tuple[int, ...] | None = None) -> dict[str, tuple[int, ...]]:
    """Every tensor of a denoiser by checkpoint name; `table` is the shape of a pruned checkpoint's modulation table."""
    if table is not None:
        narrow = expected_shapes(evolve(facts, time_embed_dim=table[1]))
        pruned = {name: shape for name, shape in narrow.items() if not name.startswith("time_embedder.")}
        return {**pruned, MODULATION_TABLE: table}
    c, inner, d, f = facts.hidden_size, facts.inner_dim, facts.attention_head_dim, facts.ffn_dim
    plain = {
        "norm1.weight": (c,),
        "norm2.weight": (c,),
        "attn.norm_q.weight": (d,),
        "attn.norm_k.weight": (d,),
        **{f"attn.to_{name}.weight": (inner, c) for name in "qkv"},
        "attn.to_out.0.weight": (c, inner),
        "ff.net.0.proj.weight": (2 * f, c),
        "ff.net.2.weight": (c, f),
    }
    linear = {
        "proj_in": (c, facts.video_row_dim),
        "audio_proj_in": (c, facts.audio_in_channels),
        "context_embedder": (c, facts.text_dim),
        "time_embedder.linear_1": (facts.time_embed_hidden_dim, facts.freq_dim),
        "time_embedder.linear_2": (facts.time_embed_dim, facts.time_embed_hidden_dim),
        "norm_out.linear": (2 * c, facts.time_embed_dim),
        "proj_out": (facts.video_row_dim, c),
        "audio_proj_out": (facts.audio_in_channels, c),
        **{
            f"transformer_blocks.{i}.adaln_proj.linear": (18 * c, facts.time_embed_dim) for i in range(facts.num_layers)
        },
    }
    shapes: dict[str, tuple[int, ...]] = {"norm_out.norm.weight": (c,), "token_refiner.final_norm.weight": (c,)}
    for name, shape in linear.items():
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = shape, shape[:1]
    prefixes = [f"transformer_blocks.{i}." for i in range(facts.num_layers)]
    prefixes += [f"token_refiner.refiner_blocks.{i}." for i in range(facts.num_refiner_layers)]
    shapes.update({prefix + name: shape for prefix in prefixes for name, shape in plain.items()})
    return shapes


def check_specs(specs: Mapping[str, TensorSpec], facts: DenoiserFacts, *, what: str) -> None:
    """Every expected tensor is there with its shape, and nothing else is but the scales of FP8 weights.

    Raises `CheckpointError`, naming tensors.
    """
    expected = expected_shapes(facts, _table_shape(specs, what))
    missing = sorted(expected.keys() - specs.keys())
    extra = sorted(specs.keys() - expected.keys() - scale_names(specs) - {"rope.inv_freq"})
    if missing or extra:
        raise CheckpointError(
            f"{what} does not match its config.json: {_some('missing', missing)}{_some('not expected', extra)}"
        )
    for name, shape in expected.items():
        if specs[name].shape != shape:
            raise CheckpointError(f"{what}: tensor {name} has shape {specs[name].shape}, its config.json says {shape}")
        if not specs[name].dtype.is_floating_point:
            raise CheckpointError(f"{what}: tensor {name} has dtype {specs[name].dtype}, which is not a float")
    check_stored_fp8(specs, FLOAT32, what=what)


def _table_shape(specs: Mapping[str, TensorSpec], what: str) -> tuple[int, ...] | None:
    if MODULATION_TABLE not in specs:
        return None
    shape = specs[MODULATION_TABLE].shape
    if len(shape) != 2 or shape[0] < 2 or shape[1] < 1:
        raise CheckpointError(f"{what}: {MODULATION_TABLE} must have at least two rows and a column, got {shape}")
    return shape


def _some(word: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{word} {', '.join(names[:3])}{more}; "


def read_auxiliary(
    reader: WeightReader, specs: Mapping[str, TensorSpec], *, device: torch.device, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """What is outside the block stack, on the device: the few float32 tensors as they are, the rest in `dtype`."""
    tensors = {}
    for name in specs.keys() - scale_names(specs) - {"rope.inv_freq"}:
        if name.startswith("transformer_blocks."):
            continue
        kept = name.rsplit(".", 1)[0] in FLOAT32
        tensors[name] = read_dense(reader, specs, name, device=device, dtype=torch.float32 if kept else dtype)
    return tensors


def outer_residuals(
    residuals: Mapping[str, LowRank], auxiliary: Mapping[str, torch.Tensor], device: torch.device
) -> dict[str, LowRank]:
    """Residuals that are not packed beside a block's linears: on the device in their weight's dtype; those of AdaLN
    projections, which run once a schedule, wait on the CPU."""
    packed = {module for modules in LINEARS.values() for module in modules}
    outer = {}
    for name, pair in residuals.items():
        if f"{name}.weight" in auxiliary:
            outer[name] = moved(pair, device, auxiliary[f"{name}.weight"].dtype)
        elif name.split(".", 2)[2] not in packed:
            outer[name] = pair
    return outer


def packed_specs(
    facts: DenoiserFacts,
    execution: LinearExecution,
    dtype: torch.dtype,
    stored: Mapping[str, TensorSpec] | None = None,
) -> dict[str, TensorSpec]:
    """The packed tensors of any one block, without reading one. Raises `UnsupportedError` if `execution` cannot run
    what is `stored`."""
    shapes = expected_shapes(facts)
    specs = {}
    for packed, module in NORMS.items():
        specs[packed] = _spec(packed, dtype, shapes[f"transformer_blocks.0.{module}.weight"])
    for packed, modules in LINEARS.items():
        parts = [shapes[f"transformer_blocks.0.{module}.weight"] for module in modules]
        shape = sum(p[0] for p in parts), parts[0][1]
        for suffix, tensor in _tensors(_packed_form(packed, shape, execution, dtype, stored)):
            specs[packed + suffix] = _spec(packed + suffix, tensor.dtype, tuple(tensor.shape))
    return specs


def _packed_form(
    packed: str,
    shape: tuple[int, int],
    execution: LinearExecution,
    dtype: torch.dtype,
    stored: Mapping[str, TensorSpec] | None,
) -> PackedLinear:
    """On meta: FP8 codes as stored, a matrix left dense beside them as it is, else what the execution packs."""
    quantised = stored_in_fp8(stored or {})
    if packed in quantised:
        codes = torch.empty(shape, dtype=CODES, device="meta")
        form = PackedLinear(weight=codes, scales=torch.empty(shape[0], 1, dtype=torch.float32, device="meta"))
        execution.bind(form)
        return form
    whole = torch.empty(shape, dtype=dtype, device="meta")
    return PackedLinear(weight=whole) if quantised else execution.pack(whole)


def fp8_linears(packed: Mapping[str, TensorSpec]) -> tuple[str, ...]:
    """The linears of a block that are packed as FP8 codes."""
    return tuple(name for name in LINEARS if f"{name}.scale" in packed)


def stored_in_fp8(stored: Mapping[str, TensorSpec]) -> tuple[str, ...]:
    """The packed linears whose matrices every block stores in FP8. `CheckpointError` where only some are."""
    found = []
    for packed, modules in LINEARS.items():
        ends = tuple(f".{module}.weight" for module in modules)
        names = [name for name in stored if name.startswith("transformer_blocks.") and name.endswith(ends)]
        quantised = [name for name in names if is_quantised(stored, name)]
        if quantised and len(quantised) < len(names):
            odd = min(set(names) - set(quantised))
            raise CheckpointError(f"{quantised[0]} is stored in FP8 but {odd} is not: convert all blocks alike")
        if quantised:
            found.append(packed)
    return tuple(found)


def stack_bytes(facts: DenoiserFacts, execution: LinearExecution, dtype: torch.dtype) -> int:
    """What all blocks together weigh, packed."""
    return facts.num_layers * sum(spec.byte_count for spec in packed_specs(facts, execution, dtype).values())


@frozen(kw_only=True, eq=False)
class CheckpointBlocks:
    """A `BlockLoader` over a checkpoint: fuses QKV, casts to the model's dtype, packs for the linear execution.

    Packing runs on `device`, wherever the packed tensors are kept, so that every residency holds the same bits.
    """

    reader: WeightReader
    source_specs: Mapping[str, TensorSpec]
    facts: DenoiserFacts
    execution: LinearExecution
    dtype: torch.dtype
    device: torch.device

    @property
    def count(self) -> int:
        return self.facts.num_layers

    def specs(self) -> Mapping[str, TensorSpec]:
        return packed_specs(self.facts, self.execution, self.dtype, self.source_specs)

    def load_into(self, index: int, out: Mapping[str, torch.Tensor]) -> None:
        prefix = f"transformer_blocks.{index}."
        for packed, module in NORMS.items():
            out[packed].copy_(self.reader.get_tensor(f"{prefix}{module}.weight"))
        for packed, modules in LINEARS.items():
            names = [f"{prefix}{module}.weight" for module in modules]
            if is_quantised(self.source_specs, names[0]):
                self._copy_codes(packed, names, out)
            elif not self._read_directly(names, out[packed + ".weight"]):
                self._pack_into(packed, names, out)

    def _read_directly(self, names: list[str], out: torch.Tensor) -> bool:
        """Straight from the source into the caller's memory where stored and packed form are the same."""
        if out.device.type != "cpu" or any(self.source_specs[name].dtype != out.dtype for name in names):
            return False
        start = 0
        for name in names:
            rows = self.source_specs[name].shape[0]
            self.reader.read_into(name, out[start : start + rows])
            start += rows
        return True

    def _copy_codes(self, packed: str, names: list[str], out: Mapping[str, torch.Tensor]) -> None:
        start = 0
        for name in names:
            codes, scales = read_codes(self.reader, name)
            rows = slice(start, start + codes.shape[0])
            out[packed + ".weight"][rows].copy_(codes)
            out[packed + ".scale"][rows].copy_(scales)
            start = rows.stop

    def _pack_into(self, packed: str, names: list[str], out: Mapping[str, torch.Tensor]) -> None:
        parts = [self.reader.get_tensor(name).to(device=self.device, dtype=self.dtype) for name in names]
        whole = torch.cat(parts) if len(parts) > 1 else parts[0]
        if f"{packed}.scale" not in out:
            out[f"{packed}.weight"].copy_(whole)
            return
        for suffix, tensor in _tensors(self.execution.pack(whole)):
            out[packed + suffix].copy_(tensor)


def bind_block(
    tensors: Mapping[str, torch.Tensor], execution: LinearExecution, residuals: Sequence[PackedResidual] = ()
) -> BlockWeights:
    """Views over one block's packed tensors, with the residuals that an adapter packed beside them."""
    planned = {plan.linear: plan for plan in residuals}

    def linear(name: str) -> BoundLinear:
        packed = PackedLinear(weight=tensors[f"{name}.weight"], scales=tensors.get(f"{name}.scale"))
        return bind_residual(execution.bind(packed), tensors, planned.get(name))

    return BlockWeights(
        **{name: tensors[name] for name in NORMS},
        qkv=linear("attn.qkv"),
        out=linear("attn.out"),
        ffn_in=linear("ff.in"),
        ffn_out=linear("ff.out"),
    )


def _tensors(linear: PackedLinear) -> list[tuple[str, torch.Tensor]]:
    pairs = [(".weight", linear.weight)]
    return pairs if linear.scales is None else [*pairs, (".scale", linear.scales)]


def _spec(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> TensorSpec:
    count = 1
    for size in shape:
        count *= size
    return TensorSpec(name=name, dtype=dtype, shape=shape, byte_count=count * dtype.itemsize)
