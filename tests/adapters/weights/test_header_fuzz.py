"""A corpus of mutated files: each is refused in our own words, or read exactly as the public reader reads it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError, safe_open

from vflash_adapters.weights.mmap_source import MmapWeights
from vflash_ports.errors import CheckpointError

CASES = 480


def build(fields: dict[str, object], payload: bytes) -> bytes:
    body = json.dumps(fields).encode()
    return len(body).to_bytes(8, "little") + body + payload


FIELDS: dict[str, object] = {
    "__metadata__": {"format": "pt", "note": "x"},
    "blocks.0.w": {"dtype": "BF16", "shape": [4, 8], "data_offsets": [0, 64]},
    "blocks.0.b": {"dtype": "F32", "shape": [4], "data_offsets": [64, 80]},
    "empty": {"dtype": "F16", "shape": [0, 3], "data_offsets": [80, 80]},
    "scalar": {"dtype": "I64", "shape": [], "data_offsets": [80, 88]},
    "fp8": {"dtype": "F8_E4M3", "shape": [8], "data_offsets": [88, 96]},
}
WHOLE = build(FIELDS, bytes(range(96)))
HEADER_END = len(WHOLE) - 96
TOKENS = [b'"', b"{", b"}", b"[", b"]", b",", b":", b"0", b"-1", b"1e3", b"NaN", b"true", b"null", b" ", b"\\ud800",
          b'"a":', b"99999999999999999999", b"\xff", b"\0", b"F4", b"F64", b'"dtype":"U8",']  # fmt: skip


def flip_bit(draw: random.Random, data: bytearray) -> None:
    data[draw.randrange(HEADER_END)] ^= 1 << draw.randrange(8)


def replace_byte(draw: random.Random, data: bytearray) -> None:
    data[draw.randrange(HEADER_END)] = draw.randrange(256)


def delete_bytes(draw: random.Random, data: bytearray) -> None:
    start = draw.randrange(HEADER_END)
    del data[start : start + draw.choice([1, 1, 2, 8, 40])]


def insert_token(draw: random.Random, data: bytearray) -> None:
    at = draw.randrange(8, HEADER_END)
    data[at:at] = draw.choice(TOKENS)


def insert_token_and_fix_length(draw: random.Random, data: bytearray) -> None:
    before = len(data)
    insert_token(draw, data)
    fix_length(data, HEADER_END - 8 + len(data) - before)


def copy_span(draw: random.Random, data: bytearray) -> None:
    start, at = draw.randrange(8, HEADER_END), draw.randrange(8, HEADER_END)
    span = data[start : min(start + draw.randrange(1, 80), HEADER_END)]
    data[at:at] = span
    fix_length(data, HEADER_END - 8 + len(span))


def change_number(draw: random.Random, data: bytearray) -> None:
    digits = [i for i in range(8, HEADER_END) if chr(data[i]).isdigit()]
    data[draw.choice(digits)] = ord(draw.choice("0123456789"))


def cut_or_extend_file(draw: random.Random, data: bytearray) -> None:
    if draw.random() < 0.5:
        del data[draw.randrange(len(data)) :]
    else:
        data += bytes(draw.randrange(1, 20))


def change_length(draw: random.Random, data: bytearray) -> None:
    fix_length(data, draw.choice([0, 1, HEADER_END - 9, HEADER_END - 7, 2**31, 2**63, 2**64 - 1, draw.randrange(400)]))


def change_tree(draw: random.Random, data: bytearray) -> None:
    """A mutation that stays valid JSON: swapped, doubled or overwritten values."""
    fields = json.loads(json.dumps(FIELDS))
    name = draw.choice(list(fields))
    entry = fields[name]
    key = draw.choice(list(entry))
    entry[key] = draw.choice(
        [None, [], {}, "F32", "BOOL", "C64", [64, 80], [0, 0], [80, 80], [4], [2, 2], -1, 1.5, True]
    )
    if draw.random() < 0.3:
        fields[draw.choice(["x", "", "重", name + "2"])] = entry
    data[:] = build(fields, bytes(data[HEADER_END:]))


def fix_length(data: bytearray, length: int) -> None:
    data[:8] = length.to_bytes(8, "little")


MUTATIONS: list[Callable[[random.Random, bytearray], None]] = [
    flip_bit, replace_byte, delete_bytes, insert_token, insert_token_and_fix_length, copy_span, change_number,
    cut_or_extend_file, change_length, change_tree,
]  # fmt: skip


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_mutated_files(mutation: Callable[[random.Random, bytearray], None], tmp_path: Path) -> None:
    """48 mutants of each kind: no other exception than `CheckpointError`, and no reading of our own."""
    path = tmp_path / "m.safetensors"
    refused = 0
    for number in range(CASES // len(MUTATIONS)):
        data = bytearray(WHOLE)
        draw = random.Random(f"{mutation.__name__}{number}")
        mutation(draw, data)
        path.write_bytes(data)
        read = read_ours(path)
        if isinstance(read, CheckpointError):
            refused += 1
            assert str(path) in str(read)
            assert len(str(read)) < 3000
        else:
            assert read == read_public(path), data
    assert refused > 0


def read_ours(path: Path) -> dict[str, tuple[object, ...]] | CheckpointError:
    source = MmapWeights(path)
    try:
        with source.open() as reader:
            return {name: described(reader.get_tensor(name)) for name in source.specs()}
    except CheckpointError as error:
        return error


def read_public(path: Path) -> dict[str, tuple[object, ...]] | SafetensorError:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: described(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        return error


def described(tensor: torch.Tensor) -> tuple[object, ...]:
    flat = tensor.contiguous().reshape(-1)
    return tensor.dtype, tuple(tensor.shape), flat.view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
