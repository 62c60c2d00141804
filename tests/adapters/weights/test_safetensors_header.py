"""Header rules: what is accepted, what is refused and by which words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vflash_adapters.weights.safetensors_header import MAX_HEADER_BYTES, parse_header, parse_header_length
from vflash_ports.errors import CheckpointError


def entry(begin: int, end: int, *, shape: list[Any] | None = None, dtype: Any = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}


def parse(fields: dict[str, Any] | str, payload: int = 8) -> Any:
    body = (fields if isinstance(fields, str) else json.dumps(fields)).encode("utf-8", "surrogatepass")
    return parse_header(body, file_bytes=8 + len(body) + payload, label="w.safetensors")


def test_offset_order_may_differ_from_header_order() -> None:
    """Tensors are accepted in any header order and kept in payload order."""
    header = parse({"late": entry(5, 8), "early": entry(0, 5)})
    assert list(header.tensors) == ["early", "late"]
    assert header.tensors["late"].begin == header.data_start + 5


def test_empty_scalar_odd_names_and_metadata_are_legal() -> None:
    """Zero-size tensors, scalars, any UTF-8 name (`..`, `/`, NUL, empty), padding, null or string metadata."""
    header = parse(
        {
            "__metadata__": {"format": "pt"},
            "": entry(0, 0, shape=[4, 0]),
            "../x\0": entry(0, 4, shape=[], dtype="F32"),
            "重み": entry(4, 8, shape=[1], dtype="F32"),
        }
    )
    assert header.metadata == {"format": "pt"}
    assert header.tensors["../x\0"].shape == ()
    assert parse(json.dumps({"__metadata__": None, "a": entry(0, 8)}) + "   ").metadata == {}


def test_names_are_compared_as_code_points() -> None:
    """A composed and a decomposed u-umlaut are two tensors."""
    assert len(parse({"\u00fc": entry(0, 4), "u\u0308": entry(4, 8)}).tensors) == 2


def test_misaligned_payload_is_legal() -> None:
    """An F32 tensor may start at an odd byte."""
    assert parse({"a": entry(0, 3), "b": entry(3, 7, shape=[1], dtype="F32"), "c": entry(7, 8)}).tensors["b"].end


WHOLE, LEFT, RIGHT = json.dumps(entry(0, 8)), json.dumps(entry(0, 4)), json.dumps(entry(4, 8))
REFUSED: dict[str, tuple[Any, str]] = {
    "overlap": ({"a": entry(0, 5), "b": entry(4, 8)}, "overlaps"),
    "same range": ({"a": entry(0, 8), "b": entry(0, 8)}, "overlaps"),
    "hole": ({"a": entry(0, 3), "b": entry(4, 8)}, "hole"),
    "late start": ({"a": entry(1, 8)}, "hole"),
    "end before begin": ({"a": {"dtype": "U8", "shape": [0], "data_offsets": [8, 0]}}, "before it begins"),
    "empty inside another": ({"a": entry(0, 8), "b": entry(4, 4)}, "overlaps"),
    "truncated": ({"a": entry(0, 9)}, "truncated: expected"),
    "trailing bytes": ({"a": entry(0, 7)}, "longer than its header says"),
    "duplicate, same range": (f'{{"a":{WHOLE},"a":{WHOLE}}}', "duplicate key"),
    "duplicate, other range": (f'{{"a":{LEFT},"a":{RIGHT}}}', "duplicate key"),
    "duplicate metadata": (f'{{"__metadata__":{{}},"__metadata__":{{}},"a":{WHOLE}}}', "duplicate key"),
    "duplicate field": ('{"a":{"dtype":"U8","dtype":"U8","shape":[8],"data_offsets":[0,8]}}', "duplicate key"),
    "lone surrogate name": (f'{{"\\ud800":{WHOLE}}}', "surrogate"),
    "raw surrogate": (f'{{"\ud800":{WHOLE}}}', "not valid JSON"),
    "NaN": ('{"a":{"dtype":"U8","shape":[NaN],"data_offsets":[0,8]}}', "NaN is not JSON"),
    "infinity": ('{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,Infinity]}}', "Infinity is not JSON"),
    "byte order mark": ("\ufeff" + json.dumps({"a": entry(0, 8)}), "does not start"),
    "leading space": (" " + json.dumps({"a": entry(0, 8)}), "does not start"),
    "trailing garbage": (json.dumps({"a": entry(0, 8)}) + "x", "not valid JSON"),
    "list": ("[1]", "does not start"),
    "deep nesting": ('{"a":' * 100_000, "not valid JSON"),
    "metadata number": ({"__metadata__": {"a": 1}, "a": entry(0, 8)}, "__metadata__"),
    "metadata list": ({"__metadata__": [], "a": entry(0, 8)}, "__metadata__"),
    "extra field": ({"a": entry(0, 8) | {"scale": 1}}, "exactly the fields"),
    "missing field": ({"a": {"dtype": "U8", "shape": [8]}}, "exactly the fields"),
    "tensor is a list": ({"a": []}, "exactly the fields"),
    "unknown dtype": ({"a": entry(0, 8, dtype="I4")}, "unknown dtype"),
    "dtype is a number": ({"a": entry(0, 8, dtype=3)}, "unknown dtype"),
    "F4": ({"a": entry(0, 8, dtype="F4")}, "smaller than a byte"),
    "F6": ({"a": entry(0, 8, dtype="F6_E2M3")}, "smaller than a byte"),
    "size mismatch": ({"a": entry(0, 8, shape=[9])}, "needs 9 bytes"),
    "negative dimension": ({"a": entry(0, 8, shape=[-8])}, "non-negative"),
    "float dimension": ({"a": entry(0, 8, shape=[8.0])}, "non-negative"),
    "boolean dimension": ({"a": entry(0, 8, shape=[True, 8])}, "non-negative"),
    "too many dimensions": ({"a": entry(0, 8, shape=[8] + [1] * 16)}, "at most 16"),
    "product past 64 bits": ({"a": entry(0, 0, shape=[0, 2**62, 4])}, "64 bits"),
    "wrapping product": ({"a": entry(0, 8, shape=[2**33, 2**31 + 1, 8])}, "64 bits"),
    "dimension past 64 bits": ({"a": entry(0, 0, shape=[0, 2**70])}, "non-negative"),
    "thousand-digit offset": ('{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,1%s]}}' % ("0" * 4000), "data_offsets"),
    "ten-thousand-digit offset": ('{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,%s]}}' % ("9" * 9999), "JSON"),
    "float offset": ({"a": {"dtype": "U8", "shape": [8], "data_offsets": [0.0, 8]}}, "data_offsets"),
    "three offsets": ({"a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 4, 8]}}, "data_offsets"),
    "no tensors but payload": ({}, "longer than its header says"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    """Each malformed header is refused with a message that names the file and the fault."""
    fields, words = REFUSED[case]
    with pytest.raises(CheckpointError, match=words) as caught:
        parse(fields)
    assert str(caught.value).startswith("w.safetensors")
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize(
    ("prefix", "file_bytes", "words"),
    [
        (b"", 0, "too short"),
        (b"\1\0\0", 3, "too short"),
        ((100).to_bytes(8, "little"), 50, "holds only 50"),
        ((2**63).to_bytes(8, "little"), 1000, "more than the"),
        ((MAX_HEADER_BYTES + 1).to_bytes(8, "little"), 2**40, "more than the"),
    ],
)
def test_header_length_is_checked_before_allocation(prefix: bytes, file_bytes: int, words: str) -> None:
    """A length that the file cannot hold, or larger than the cap, is refused from the first eight bytes alone."""
    with pytest.raises(CheckpointError, match=words):
        parse_header_length(prefix, file_bytes=file_bytes, label="w.safetensors")


def test_a_header_as_long_as_a_pickle_mark_is_no_pickle() -> None:
    """640 bytes of header begin with the two bytes of a pickle; only impossible lengths are looked at for marks."""
    assert parse_header_length(b"\x80\x02\0\0\0\0\0\0", file_bytes=10_000, label="w") == 640
