"""The plan of a gathered request: its rows are those that will be packed, its bytes those that will be allocated."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from torch.utils._python_dispatch import TorchDispatchMode

from vflash.container import Container
from vflash.domain.choices import Linear, ModelPlacement, VideoDecoderChoice
from vflash.domain.footprint import Pixels, Rows, block_bytes, decode_bytes, denoise_bytes, table_bytes
from vflash.domain.memory import need
from vflash.domain.model_facts import TEXT_HIDDEN_STATE, read_model_facts
from vflash.domain.plan import Plan, plan_request
from vflash.domain.request import VideoRequest
from vflash.model.transformer import open_denoiser
from vflash.settings import Settings
from vflash.stages.denoise import denoise, lay_out
from vflash.stages.encode import Conditioning, Conditions
from vflash.stages.gather import Gathered, KeyframeInput, PictureInput, SoundInput, VideoInput, sample_frames
from vflash.stages.inventory import weigh
from vflash.stages.planned_rows import planned_rows
from vflash_adapters.attention.sdpa import sdpa_attention
from vflash_adapters.block_kernels import torch_reference
from vflash_adapters.block_kernels.torch_reference import TorchBlockKernels
from vflash_adapters.latent_codec.load_vae import VIDEO_VAE, load_vae
from vflash_adapters.latent_codec.video_decoders import VideoDecoder, tile_decoder
from vflash_adapters.linear.bf16 import Bf16Linear
from vflash_adapters.residency.block_ring import BlockRing
from vflash_adapters.residency.resident import Resident
from vflash_adapters.text_encoder.offline_loader import OfflineLoader
from vflash_adapters.tiny_checkpoint import SMALL, write_tiny_checkpoint
from vflash_adapters.weights.mmap_source import MmapWeights
from vflash_ports.errors import ContractError, UnsupportedError
from vflash_ports.observer import SilentObserver
from vflash_ports.text_encoder import TextConditioning
from vflash_ports.weights import TensorSpec, WeightReader

CPU = torch.device("cpu")


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of every storage that an operation gave birth to, while it lives."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, list | tuple) else (result,):
            if isinstance(tensor, torch.Tensor):
                self._watch(tensor.untyped_storage())
        return result

    def _watch(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        self._seen.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.live -= size


@pytest.fixture(scope="module")
def wide_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wide and shallow, so that activations outweigh weights as they do in the released model."""
    wide = {"num_attention_heads": 8, "attention_head_dim": 32, "hidden_size": 192, "num_layers": 3, "ffn_dim": 512}
    folder = tmp_path_factory.mktemp("wide") / "checkpoint"
    write_tiny_checkpoint(folder, dimensions=evolve(SMALL, transformer={**SMALL.transformer, **wide}))
    return folder


def plan_of(folder: Path, **request: Any) -> Plan:
    return plan_request(VideoRequest(prompt="x", **request), read_model_facts(folder))


def text(rows: int, width: int) -> TextConditioning:
    return TextConditioning(embeds=torch.randn(rows, width), tags=torch.ones(rows, dtype=torch.int64))


@pytest.mark.parametrize("residency", [Resident(), BlockRing()], ids=lambda item: item.name)
@pytest.mark.parametrize(("width", "height", "chunk_rows"), [(192, 128, 16_384), (320, 192, 16_384), (320, 192, 512)])
def test_denoising_allocates_what_is_planned(
    wide_checkpoint: Path, residency, width: int, height: int, chunk_rows: int, monkeypatch
) -> None:
    """Device bytes of weights, tables and activations at their peak are within 10 % of the plan's."""
    monkeypatch.setattr(torch_reference, "_CHUNK_ELEMENTS", 1 << 14)  # as small beside the rows as it is at full size
    facts = read_model_facts(wide_checkpoint)
    plan = plan_of(wide_checkpoint, width=width, height=height, steps=2)
    conditioning = Conditioning(text=text(20, facts.denoiser.text_dim), conditions=Conditions())
    layout = lay_out(plan, facts.denoiser, conditioning)
    rows = Rows(text=20, condition=0, target_audio=414, target_video=layout.rows - 434)
    with (
        LiveBytes() as measured,
        open_denoiser(
            MmapWeights(wide_checkpoint / "transformer"),
            what="wide",
            facts=facts.denoiser,
            execution=Bf16Linear(),
            kernels=TorchBlockKernels(),
            residency=residency,
            device=CPU,
            dtype=torch.float32,
            ffn_chunk_rows=chunk_rows,
        ) as denoiser,
    ):
        held = measured.live
        denoise(plan, conditioning, denoiser, sdpa_attention("sdpa"), SilentObserver())
    block = block_bytes(facts.denoiser, Linear.BF16, 4)
    assert held > 2 * block
    planned = table_bytes(facts.denoiser, 2, 4) + denoise_bytes(
        facts.denoiser, rows, Linear.BF16, dtype_bytes=4, chunk_rows=chunk_rows
    )
    assert (measured.peak - held) == pytest.approx(planned, rel=0.1)


def inputs_of(mode: str, plan: Plan) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(0)

    def pixels(*shape: int) -> torch.Tensor:
        return torch.randint(0, 256, (*shape, 3), generator=generator, dtype=torch.uint8)

    keyframe = pixels(plan.canvas.height, plan.canvas.width)
    clip = VideoInput(frames=pixels(39, 64, 96), waveform=torch.randn(2, 52_000), sampled=sample_frames(39, what="x"))
    return {
        "t2va": (),
        "i2va": (KeyframeInput(pixels=keyframe, last=False),),
        "l2va": (KeyframeInput(pixels=keyframe, last=True),),
        "fl2va": (KeyframeInput(pixels=keyframe, last=False), KeyframeInput(pixels=keyframe, last=True)),
        "ref2va": (PictureInput(pixels=pixels(64, 96)), clip, SoundInput(waveform=torch.randn(2, 33_333))),
    }[mode]


@pytest.mark.parametrize("mode", ["t2va", "i2va", "l2va", "fl2va", "ref2va"])
def test_planned_rows_are_those_that_get_packed(tiny_checkpoints: Mapping[str, Path], mode: str) -> None:
    """Condition and target rows are exact in every mode, from pixels alone; the VAEs decide the real ones."""
    folder = tiny_checkpoints["small"]
    facts, plan = read_model_facts(folder), plan_of(folder, width=128, height=64)
    gathered = Gathered(plan=plan, inputs=inputs_of(mode, plan))
    planned = planned_rows("A ball.", gathered, facts)
    with Container(settings=Settings(model_dir=folder, device="cpu", dtype="float32")).pipeline() as engine:
        from vflash.stages.encode import encode_conditions

        with engine.models.codec.use() as codec:
            conditions = encode_conditions(gathered, facts, codec)
    layout = lay_out(plan, facts.denoiser, Conditioning(text=text(planned.text, 32), conditions=conditions))
    assert planned.total == layout.rows


@pytest.mark.parametrize("name", list(VideoDecoderChoice))
def test_a_video_decoder_holds_what_is_planned(tiny_checkpoints: Mapping[str, Path], name: VideoDecoderChoice) -> None:
    """The weights it copies for one clip, to the byte."""
    folder = tiny_checkpoints["small"]
    codec = read_model_facts(folder).codec
    vae = load_vae(VIDEO_VAE, folder, weights=MmapWeights, device=CPU, dtype=torch.bfloat16)

    def planned(decoder: VideoDecoderChoice) -> int:
        return decode_bytes(codec, Pixels(width=64, height=64), tiles_at_once=0, dtype_bytes=2, decoder=decoder)

    with LiveBytes() as measured, torch.no_grad():
        measured._seen |= {parameter.untyped_storage()._cdata for parameter in vae.parameters()}  # views of them
        decoder = tile_decoder(vae, VideoDecoder(name), CPU)
    assert callable(decoder)
    biases = 0 if name is VideoDecoderChoice.DIFFUSERS else codec.decoder_layers * 3 * codec.decoder_hidden * 2
    assert measured.live == planned(name) - planned(VideoDecoderChoice.DIFFUSERS) + biases


def test_what_cannot_fit_is_refused_before_anything_loads(tiny_checkpoints: Mapping[str, Path], tmp_path: Path) -> None:
    """The refusal carries the numbers; nothing was opened, nothing was written, and the pipeline stays healthy."""
    settings = Settings(model_dir=tiny_checkpoints["small"], device="cpu", dtype="float32", host_memory_gib=0.25)
    request = VideoRequest(prompt="A ball.", width=128, height=64, steps=1)
    with Container(settings=settings).pipeline() as engine:
        plan = engine.plan(request)
        assert not plan.chosen.fits
        with pytest.raises(ContractError, match=r"the host has 0\.2 GiB.*Nothing makes it fit"):
            engine.generate(request, tmp_path / "out.mp4")
        assert engine.initialization_seconds == 0
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(ContractError, match="does not fit"):
            engine.generate(request, tmp_path / "out.mp4")


@pytest.mark.parametrize("device_memory_gib", [None, 80])
def test_a_plan_for_a_device_that_is_not_there_is_refused(
    tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch, device_memory_gib: float | None
) -> None:
    """What backends a CUDA device admits only the device can say, so its size alone is not enough to plan with."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    settings = Settings(model_dir=tiny_checkpoints["small"], device="cuda", device_memory_gib=device_memory_gib)
    with (
        Container(settings=settings).pipeline() as engine,
        pytest.raises(UnsupportedError, match="torch sees no CUDA device; choose device cpu"),
    ):
        engine.plan(VideoRequest(prompt="A ball.", width=128, height=64))


def test_a_plan_is_plain_values_and_says_what_was_chosen(tiny_checkpoints: Mapping[str, Path]) -> None:
    """`describe` is JSON; the chosen line is among the choices; a machine of any size can be planned for."""
    import json

    settings = Settings(model_dir=tiny_checkpoints["small"], device="cpu", dtype="float32", host_memory_gib=512)
    with Container(settings=settings).pipeline() as engine:
        described = engine.plan(VideoRequest(prompt="A ball.", width=128, height=64)).describe()
    assert json.loads(json.dumps(described)) == described
    assert described["machine"] == {"device": "cpu", "device_bytes": None, "host_bytes": 512 << 30}
    assert described["chosen"] in described["choices"]
    assert described["chosen"]["fits"]
    assert described["chosen"]["model_placement"] == ModelPlacement.TOGETHER


@pytest.mark.parametrize(("width", "height"), [(1344, 768), (2048, 512), (96, 384)])
@pytest.mark.parametrize("duration_s", [5, 15])
def test_an_advised_request_is_legal_and_fits(
    tiny_checkpoints: Mapping[str, Path], width: int, height: int, duration_s: int
) -> None:
    """Asking for the named length or canvas is not refused, and its plan fits; the next larger machine needs less."""
    model_dir, named = tiny_checkpoints["small"], set()
    for gigabytes in (3.05, 3.15, 3.4, 4.5, 6.5):
        options = {"device": "cpu", "dtype": "float32", "host_memory_gib": gigabytes}
        with Container(settings=Settings(model_dir=model_dir, **options)).pipeline() as engine:
            asked = {"prompt": "A ball.", "width": width, "height": height, "duration_s": duration_s}
            plan = engine.plan(VideoRequest(**asked))
            found = re.search(r"a duration of (\d+) s|a canvas of (\d+)x(\d+)", plan.advice)
            if found is None:
                assert plan.chosen.fits or plan.advice.startswith(("What", "Nothing"))
                continue
            seconds, *sides = (int(value) if value else None for value in found.groups())
            changed = {"duration_s": seconds} if seconds else {"width": sides[0], "height": sides[1]}
            named.add(found[0])
            assert engine.plan(VideoRequest(**{**asked, **changed})).chosen.fits
    assert named or width * height < 40_000


def test_encoding_is_planned_without_the_denoiser(tiny_checkpoints: Mapping[str, Path], tmp_path: Path) -> None:
    """A bundle is made where the rest of the request does not fit; what even encoding lacks room for is refused; and
    beside a denoiser that is loaded the whole request counts."""
    request = VideoRequest(prompt="A ball.", width=1344, height=768, steps=1)
    options = {"model_dir": tiny_checkpoints["small"], "device": "cpu", "dtype": "float32"}
    with Container(settings=Settings(**options, host_memory_gib=3.2)).pipeline() as engine:
        assert not engine.plan(request).chosen.fits
        engine.encode(request, tmp_path / "bundle")
        assert (tmp_path / "bundle").is_dir()
        engine.prepare()
        with pytest.raises(ContractError, match="does not fit"):
            engine.encode(request, tmp_path / "another")
    with (
        Container(settings=Settings(**options, host_memory_gib=1)).pipeline() as engine,
        pytest.raises(ContractError, match="Nothing makes it fit"),
    ):
        engine.encode(request, tmp_path / "another")
    assert not (tmp_path / "another").exists()


class CountingReader:
    def __init__(self, reader: WeightReader, asked: list[str]) -> None:
        self._reader, self._asked = reader, asked

    def get_tensor(self, name: str) -> torch.Tensor:
        self._asked.append(name)
        return self._reader.get_tensor(name)

    def read_into(self, name: str, out: torch.Tensor) -> None:
        self._asked.append(name)
        self._reader.read_into(name, out)


class CountingSource:
    """Mapped weights that remember which tensors were asked for."""

    def __init__(self, path: Path, asked: list[str]) -> None:
        self._source, self._asked = MmapWeights(path), asked

    def specs(self) -> Mapping[str, TensorSpec]:
        return self._source.specs()

    @contextmanager
    def open(self) -> Iterator[CountingReader]:
        with self._source.open() as reader:
            yield CountingReader(reader, self._asked)


def test_the_encoder_reads_the_bytes_that_are_planned(tiny_checkpoints: Mapping[str, Path]) -> None:
    """51 layers without the language head, each tensor once; no tensor of a later layer is asked for."""
    model_dir = tiny_checkpoints["small"]
    asked: list[str] = []
    OfflineLoader(hidden_state_index=TEXT_HIDDEN_STATE, open_weights=lambda path: CountingSource(path, asked))(
        model_dir
    )
    specs = MmapWeights(model_dir / "text_encoder").specs()
    planned = weigh(MmapWeights, model_dir, "transformer", torch.float32).encoder.read
    assert len(set(asked)) == len(asked)
    assert sum(specs[name].byte_count for name in asked) == planned
    unread = specs.keys() - set(asked)
    assert unread
    assert all(name == "lm_head.weight" or ".language_model.layers.51." in name for name in unread)


def test_what_was_read_from_files_counts_against_the_host(tiny_checkpoints: Mapping[str, Path]) -> None:
    """Every byte of pixels and sound that waits in host memory for the encoders."""
    facts = read_model_facts(tiny_checkpoints["small"])
    plan = plan_request(VideoRequest(prompt="x", width=64, height=64, steps=2), facts)
    video = torch.zeros(48, 64, 96, 3, dtype=torch.uint8)
    inputs = (
        PictureInput(pixels=torch.zeros(64, 64, 3, dtype=torch.uint8)),
        VideoInput(frames=video, waveform=torch.zeros(2, 64_000), sampled=sample_frames(48, what="x")),
        SoundInput(waveform=torch.zeros(2, 32_000)),
    )
    settings = Settings(model_dir=tiny_checkpoints["small"], device="cpu", dtype="float32")
    foresight = Container(settings=settings).foresight()
    request = VideoRequest(prompt="x")
    work = foresight.workload(request, Gathered(plan=plan, inputs=inputs), facts)
    assert work.input_bytes == 64 * 64 * 3 + video.nbytes + 4 * 2 * (64_000 + 32_000)
    free = evolve(work, input_bytes=0)
    assert need(work, foresight.options).host - need(free, foresight.options).host == work.input_bytes
    assert foresight.workload(request, Gathered(plan=plan, inputs=()), facts).input_bytes == 0
