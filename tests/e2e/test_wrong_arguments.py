"""Arguments of a wrong type, at every public Python entry: refused by name before any work, and nothing is harmed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from vflash.native.h3_buffered_weights import SequentialWeights
from vflash.native.h3_fp8_linear import RowFP8Execution, RowFP8Linear
from vflash.native.h3_media import encode_mp4
from vflash.native.h3_weight_codec import prepare
from vflash.native.session import NativeEngineSession
from vflash.pipeline import ConditioningReuseScope, H3Pipeline
from vflash_ports.errors import ContractError

WRONG: dict[str, list[Any]] = {
    "path": [5, True, None, b"clip.mp4", ["clip.mp4"], "", "a\0b"],
    "callback": [5, True, "print", b"", [], {}],
    "flag": [5, 0, None, "yes", []],
    "scope": [5, True, "mine", [], ConditioningReuseScope],
    "word": [5, True, None, "no such word", [], {}],
    "count": [1.5, True, None, "8", [], {}, 0],
    "quality": [1.5, True, None, "8", [], {}, 52],
    "threads": [1.5, True, "8", [], {}, 0],
    "seconds": [True, None, "8", [], {}, 0, float("inf"), 10**400],
    "tensor": [5, None, "tensor", [[1.0]]],
}
"""What an argument is -> values that it is not."""

PIPELINE: dict[Callable[..., Any], dict[str, str]] = {
    H3Pipeline.generate: {
        "request": "scope",
        "output_path": "path",
        "progress": "callback",
        "profile_denoise": "flag",
        "conditioning_reuse_scope": "scope",
    },
    H3Pipeline.plan: {"request": "scope"},
    H3Pipeline.encode: {"request": "scope", "bundle_path": "path", "progress": "callback"},
    H3Pipeline.decode: {
        "latents_path": "path",
        "output_path": "path",
        "audio_delivery_profile": "word",
        "progress": "callback",
    },
}
SESSION: dict[str, str] = {
    "bundle": "path",
    "output_latents": "path",
    "progress_callback": "callback",
    "profile_denoise": "flag",
}
ENCODE_MP4 = {
    "video": "tensor",
    "audio": "tensor",
    "output_path": "path",
    "fps": "count",
    "audio_sample_rate": "count",
    "preset": "word",
    "crf": "quality",
    "timeout_seconds": "seconds",
    "audio_delivery_profile": "word",
    "video_input": "word",
    "video_threads": "threads",
    "video_encoder": "word",
}


def parameters(call: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(call).parameters) - {"self"}


def cases(kinds: Mapping[str, str]) -> list[tuple[str, Any]]:
    return [(name, value) for name, kind in kinds.items() for value in WRONG[kind]]


@pytest.mark.parametrize("method", PIPELINE, ids=lambda method: method.__name__)
def test_a_pipeline_names_the_argument_and_stays_healthy(checkpoint, ask, tmp_path, method):
    """Every argument of every method: nothing loads, no request is counted, the next one is admitted."""
    kinds = PIPELINE[method]
    assert parameters(method) == set(kinds)
    right = {"request": ask(), "output_path": "o.mp4", "bundle_path": "bundle", "latents_path": "l.safetensors"}
    with H3Pipeline(checkpoint, device="cpu", dtype="float32") as pipeline:
        for name, value in cases(kinds):
            call = {key: tmp_path / item if isinstance(item, str) else item for key, item in right.items()}
            with pytest.raises(ContractError, match=name):
                method(pipeline, **{key: call[key] for key in kinds if key in call} | {name: value})
        assert (pipeline.request_count, pipeline.initialization_seconds) == (0, 0.0)
        pipeline.plan(ask())
    assert list(tmp_path.iterdir()) == []


def test_a_session_names_the_argument_and_stays_healthy(checkpoint, tmp_path):
    """As the whole pipeline does."""
    assert parameters(NativeEngineSession.generate) == set(SESSION)
    with NativeEngineSession(checkpoint, device="cpu", dtype="float32") as session:
        for name, value in cases(SESSION):
            right = {"bundle": tmp_path / "bundle", "output_latents": tmp_path / "latents"}
            with pytest.raises(ContractError, match=rf"^{name}: expected"):
                session.generate(**right | {name: value})
        assert session.request_count == 0


@pytest.mark.parametrize("made", [H3Pipeline, NativeEngineSession])
def test_a_model_folder_is_a_path(made):
    """Refused by the name of its field."""
    for wrong in WRONG["path"]:
        with pytest.raises(ContractError, match=r"^model_dir: expected a path"):
            made(wrong)


def test_a_text_encoder_loader_is_a_callable():
    """Never a string that names one."""
    for wrong in (5, "module:function", []):
        with pytest.raises(ContractError, match="text_encoder_loader must be a callable"):
            H3Pipeline("model", text_encoder_loader=wrong)


def test_encode_mp4_names_the_argument(tmp_path):
    """Nothing is written for any of them."""
    assert parameters(encode_mp4) == set(ENCODE_MP4)
    right = {"video": torch.zeros(1, 3, 24, 32, 64), "audio": torch.zeros(1, 2, 32000)}
    spoken = {"video_threads": "video threads", "video_encoder": "video encoder", "timeout_seconds": "timeout"}
    for name, value in cases(ENCODE_MP4):
        with pytest.raises(ContractError, match=spoken.get(name, name)):
            encode_mp4(**{**right, "output_path": tmp_path / "new.mp4", name: value})
    assert list(tmp_path.iterdir()) == []


def test_the_weight_codec_names_the_argument(tmp_path):
    """An unknown merge is no longer another name for numpy."""
    save_file({"weight": torch.zeros(64, 64)}, tmp_path / "a.safetensors")
    right = {"source": tmp_path / "a.safetensors", "sidecar": tmp_path / "side"}
    kinds = {"source": "path", "sidecar": "path", "workers": "count", "block_bytes": "count", "merge": "word"}
    assert parameters(prepare) == {*kinds, "observer"}
    for name, value in [*cases(kinds), ("observer", 5), ("observer", [])]:
        with pytest.raises(ContractError, match=name):
            prepare(**right | {name: value})
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]
    prepare(**right, merge="numpy")


def test_buffered_weights_name_the_argument(tmp_path):
    """Before a file is opened."""
    save_file({"weight": torch.zeros(4, 4)}, tmp_path / "a.safetensors")
    for name, value in cases({"source": "path", "read_workers": "count", "compressed_directory": "path"}):
        if (name, value) == ("compressed_directory", None):
            continue
        with pytest.raises(ContractError, match=name):
            SequentialWeights(**{"source": tmp_path / "a.safetensors", name: value})
    with SequentialWeights(str(tmp_path / "a.safetensors")) as weights:
        for wrong in (5, None, ["weight"]):
            with pytest.raises(ContractError, match="name: expected a tensor's name"):
                weights.get_tensor(wrong)
        assert weights.get_tensor("weight").shape == (4, 4)


def test_fp8_operators_name_the_argument():
    """Flags are flags, operands are tensors, a layer stands in for a layer."""
    for name in ("fast_accum", "measure"):
        for wrong in (5, None, "yes"):
            with pytest.raises(ContractError, match=name):
                RowFP8Execution("weight-only", **{name: wrong})
    for wrong in ("", 0, [], "fast"):
        with pytest.raises(ContractError, match="restorer must be one of"):
            RowFP8Execution("weight-only", restorer=wrong)
    execution = RowFP8Execution("weight-only")
    operands = {
        "values": torch.zeros(2, 16),
        "codes": torch.zeros(16, 16, dtype=torch.float8_e4m3fn),
        "scales": torch.ones(16, 1),
    }
    for name in (*operands, "bias", "out"):
        for wrong in (5, "tensor", [1.0]):
            with pytest.raises(ContractError, match=rf"^{name}: expected a torch.Tensor, got a"):
                execution.linear(**operands | {name: wrong})
    with pytest.raises(ContractError, match=r"source: expected a torch\.nn\.Linear"):
        RowFP8Linear("layer", execution)
    with pytest.raises(ContractError, match="execution: expected a RowFP8Execution"):
        RowFP8Linear(torch.nn.Linear(16, 16), "weight-only")


def test_a_reuse_scope_is_an_instance(checkpoint, ask, tmp_path):
    """Not the class, nor anything else that would silently never match: the message says what to make."""
    with (
        H3Pipeline(checkpoint, device="cpu", dtype="float32") as pipeline,
        pytest.raises(ContractError, match=r"^conditioning_reuse_scope: expected a ConditioningReuseScope\(\)"),
    ):
        pipeline.generate(ask(), tmp_path / "o.mp4", conditioning_reuse_scope=ConditioningReuseScope)
