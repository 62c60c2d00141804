"""The header of a safetensors file, read with more suspicion than the format's own reader.

Format: 8 bytes little-endian header length, a JSON object, then the payload. The public reader lets a duplicated key,
extra fields, leading spaces and lone surrogates pass; here each of them is an error, because two readers that disagree
about a file would load different weights from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from vflash_adapters.strict_json import brief, parse_object
from vflash_adapters.weights.dtypes import ITEM_BYTES, SUB_BYTE_DTYPES
from vflash_ports.errors import CheckpointError

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 16 * 2**20  # the released 33 B transformer needs 60 KB
MAX_RANK = 16
MAX_COUNT = 2**63 - 1  # torch and the kernel count in signed 64 bits
METADATA_KEY = "__metadata__"
_OTHER_CONTAINERS = (
    (b"GGUF", "a GGUF file"),
    (b"PK\x03\x04", "a zip archive (a pickle checkpoint?)"),
    (b"\x80\x02", "a pickle"),
    (b"\x80\x04", "a pickle"),
)


@frozen(kw_only=True)
class StoredTensor:
    """One tensor of a file: `begin` and `end` count bytes from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def byte_count(self) -> int:
        return self.end - self.begin


@frozen(kw_only=True)
class SafetensorsHeader:
    """A valid header. `tensors` is in payload order; together they cover [`data_start`, `file_bytes`) exactly."""

    tensors: Mapping[str, StoredTensor]
    metadata: Mapping[str, str]
    data_start: int
    file_bytes: int


def parse_header_length(prefix: bytes, *, file_bytes: int, label: str) -> int:
    """Length in bytes of the JSON part, checked against the file's real size before anything is allocated."""
    if len(prefix) < LENGTH_BYTES:
        raise CheckpointError(
            f"{label}: {file_bytes} bytes is too short for a safetensors file; download the file again"
        )
    length = int.from_bytes(prefix[:LENGTH_BYTES], "little")
    if length > MAX_HEADER_BYTES and (container := known_container(prefix)):
        raise CheckpointError(f"{label}: {container}, not safetensors; get the safetensors file instead")
    if length > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"{label}: the header claims {length} bytes, more than the {MAX_HEADER_BYTES} allowed; "
            "this is not a safetensors file, or it is damaged"
        )
    if LENGTH_BYTES + length > file_bytes:
        raise CheckpointError(
            f"{label}: the header claims {length} bytes but the file holds only {file_bytes}; download the file again"
        )
    return length


def known_container(prefix: bytes) -> str | None:
    """What a file that begins with `prefix` is, if it is one of the formats that are never read."""
    return next((name for magic, name in _OTHER_CONTAINERS if prefix.startswith(magic)), None)


def parse_header(body: bytes, *, file_bytes: int, label: str) -> SafetensorsHeader:
    """Validate the JSON part `body` of a file of `file_bytes` bytes; `label` names the file in messages.

    Raises `CheckpointError` for anything but a header whose tensors tile the payload without hole or overlap.
    """
    if body[:1] != b"{":
        raise CheckpointError(f"{label}: the header does not start with '{{'; this is not a safetensors file")
    fields = parse_object(body, f"{label}: header")
    metadata = _metadata(fields.pop(METADATA_KEY, None), label)
    data_start = LENGTH_BYTES + len(body)
    tensors = [_tensor(name, value, data_start, label) for name, value in fields.items()]
    tensors.sort(key=lambda tensor: (tensor.begin, tensor.end))
    _check_cover(tensors, data_start, file_bytes, label)
    return SafetensorsHeader(
        tensors={tensor.name: tensor for tensor in tensors},
        metadata=metadata,
        data_start=data_start,
        file_bytes=file_bytes,
    )


def _metadata(value: Any, label: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise CheckpointError(f"{label}: {METADATA_KEY} must map names to strings")
    return value


def _tensor(name: str, value: Any, data_start: int, label: str) -> StoredTensor:
    where = f"{label}: tensor {brief(name)}"
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"{where} must have exactly the fields dtype, shape and data_offsets")
    item_bytes = _item_bytes(value["dtype"], where)
    shape = _shape(value["shape"], where)
    begin, end = _offsets(value["data_offsets"], where)
    expected = _element_count(shape, where) * item_bytes
    if end - begin != expected:
        raise CheckpointError(
            f"{where} of {value['dtype']} {list(shape)} needs {expected} bytes but its offsets hold {end - begin}"
        )
    return StoredTensor(name=name, dtype=value["dtype"], shape=shape, begin=data_start + begin, end=data_start + end)


def _item_bytes(dtype: Any, where: str) -> int:
    if isinstance(dtype, str) and dtype in SUB_BYTE_DTYPES:
        raise CheckpointError(f"{where} has dtype {dtype}, smaller than a byte, which is not supported")
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise CheckpointError(f"{where} has unknown dtype {brief(dtype)}; known: {', '.join(ITEM_BYTES)}")
    return ITEM_BYTES[dtype]


def _shape(value: Any, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(_is_count(size) for size in value) or len(value) > MAX_RANK:
        raise CheckpointError(
            f"{where} must have a shape of at most {MAX_RANK} non-negative integers, not {brief(value)}"
        )
    return tuple(value)


def _element_count(shape: tuple[int, ...], where: str) -> int:
    """Elements of `shape`; the product without its zeros is bounded too, since torch multiplies it in 64 bits."""
    count, bound = 1, 1
    for size in shape:
        count *= size
        bound *= max(size, 1)
    if bound > MAX_COUNT:
        raise CheckpointError(f"{where} has a shape too large for 64 bits: {brief(list(shape))}")
    return count


def _offsets(value: Any, where: str) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2 or not all(_is_count(offset) for offset in value):
        raise CheckpointError(f"{where} must have two non-negative integers as data_offsets, not {brief(value)}")
    if value[1] < value[0]:
        raise CheckpointError(f"{where} ends at byte {value[1]}, before it begins at {value[0]}")
    return value[0], value[1]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT


def _check_cover(tensors: list[StoredTensor], data_start: int, file_bytes: int, label: str) -> None:
    """Sorted tensors must follow each other from `data_start` to the end of the file."""
    cursor = data_start
    for tensor in tensors:
        if tensor.begin != cursor:
            kind = "overlaps the tensor before it" if tensor.begin < cursor else "leaves a hole before it"
            raise CheckpointError(
                f"{label}: tensor {brief(tensor.name)} {kind} (begins at payload byte {tensor.begin - data_start}, "
                f"expected {cursor - data_start})"
            )
        cursor = tensor.end
    if cursor != file_bytes:
        kind = "truncated" if cursor > file_bytes else "longer than its header says"
        raise CheckpointError(
            f"{label}: the file is {kind}: expected {cursor} bytes, found {file_bytes}; download the file again"
        )
