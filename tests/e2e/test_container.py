"""Every choice through the container: each branch can be built, each port's adapter swapped, and the clip agrees."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dependency_injector import providers
from fakes import FlatCodecs, MemoryLatentStore
from PIL import Image
from recording import RecordingCodecs, RecordingSink, RecordingTextEncoders

from vflash.container import Container
from vflash.engine import Engine
from vflash.pipeline import H3Pipeline, VideoRequest
from vflash.settings import Settings
from vflash_adapters.block_kernels.torch_reference import TorchBlockKernels
from vflash_adapters.media.frames_dir import FramesDirSink
from vflash_adapters.text_encoder.offline_loader import OfflineLoader
from vflash_ports.attention import Attention
from vflash_ports.block_kernels import BlockKernels
from vflash_ports.errors import CheckpointError, ContractError, MediaError
from vflash_ports.event_log import EventLog
from vflash_ports.linear import LinearExecution
from vflash_ports.media import Latents, MediaSink, PictureFit, ReferenceClip
from vflash_ports.residency import Residency
from vflash_ports.text_encoder import TextConditioning
from vflash_ports.weights import WeightOpener

SELECTED: dict[str, str] = {
    "attention": "attention_backend",
    "block_kernels": "block_kernels",
    "event_log": "log",
    "linear": "linear",
    "residency": "weight_residency",
    "sink": "media_video_input",
    "veda_dense": "veda_dense_backend",
    "weights": "weight_reading",
}
"""Container provider -> the setting that chooses its adapter."""
BESIDE = {
    "sidecar": {"weight_sidecar": "side"},
    "veda": {"veda_predictor": "predictor.safetensors"},
    "veda_dense": {"attention_backend": "veda-meanpool"},
}
"""Choice or provider -> what must be given with it; that it exists is found out later."""
PORTS: dict[str, Any] = {
    "attention": Attention,
    "block_kernels": BlockKernels,
    "event_log": EventLog,
    "linear": LinearExecution,
    "residency": Residency,
    "sink": MediaSink,
    "veda_dense": Attention,
    "weights": WeightOpener,
}


def choices(setting: str) -> type:
    return type(getattr(Settings(model_dir="model"), setting))


def members(port: Any) -> list[str]:
    return [name for name in vars(port) if name == "__call__" or not name.startswith("_")]


def test_every_selector_offers_exactly_its_enum():
    """A choice that settings accept has a branch, and a branch has a choice."""
    selectors = {name: item for name, item in Container.providers.items() if isinstance(item, providers.Selector)}
    assert selectors.keys() == SELECTED.keys()
    for name, selector in selectors.items():
        assert set(selector.providers) == {str(member) for member in choices(SELECTED[name])}


@pytest.mark.parametrize(
    ("name", "choice"), [(name, str(item)) for name, setting in sorted(SELECTED.items()) for item in choices(setting)]
)
def test_every_branch_can_be_built(name, choice):
    """Composition loads nothing and probes nothing, so even a GPU's adapters are built here; they refuse in `check`."""
    beside = BESIDE.get(choice, BESIDE.get(name, {}))
    settings = Settings(model_dir="model", device="cpu", **{SELECTED[name]: choice}, **beside)
    adapter = getattr(Container(settings=settings), name)()
    assert members(PORTS[name])
    assert [member for member in members(PORTS[name]) if not hasattr(adapter, member)] == []


def kept(engine: Engine, store: MemoryLatentStore, request: VideoRequest, folder: Path) -> Latents:
    engine.generate(request, folder / f"{len(store.kept)}.mp4")
    return list(store.kept.values())[-1]


@pytest.fixture
def denoised(make, ask, tmp_path) -> Callable[..., tuple[Latents, dict[str, Any]]]:
    """The latents of one small request under the given settings or adapters, and the receipt."""

    def run(**options: Any) -> tuple[Latents, dict[str, Any]]:
        store = MemoryLatentStore()
        engine = make(latent_store=store, **options)
        result = engine.generate(ask(), tmp_path / f"{len(list(tmp_path.iterdir()))}.mp4")
        return next(iter(store.kept.values())), result.receipt

    return run


def relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours.double() - theirs.double()).norm() / theirs.double().norm())


EXACT = {
    "residency": ({"weight_residency": "resident"}, {"weight_residency": "block-ring"}),
    "weights": ({"weight_reading": "mmap"}, {"weight_reading": "buffered"}),
    "readers": ({"weight_reading": "buffered", "weight_read_workers": 1}, {"weight_reading": "buffered"}),
    "lifetime": ({"model_lifetime": "keep"}, {"model_lifetime": "per-request"}),
    "block kernels": ({"block_kernels": "auto"}, {"block_kernels": "torch"}),
    "attention": ({"attention_backend": "auto"}, {"attention_backend": "sdpa"}),
}


@pytest.mark.parametrize("port", sorted(EXACT))
def test_exact_choices_are_bit_equal(denoised, port):
    """How weights are read, where blocks live and how long, and what `auto` stands for: not one bit changes."""
    one, other = (denoised(**options)[0] for options in EXACT[port])
    assert torch.equal(one.video, other.video)
    assert torch.equal(one.audio, other.audio)


ROUNDED = {
    "attention": ({"attention_backend": "naive"}, {"attention_backend": "sdpa"}),
    "ffn rows": ({"ffn_chunk_rows": 64}, {"ffn_chunk_rows": 28_672}),
}


@pytest.mark.parametrize("port", sorted(ROUNDED))
def test_other_orders_of_sums_agree_within_rounding(denoised, port):
    """Float32 sums in another order: 1e-5 relative."""
    one, other = (denoised(**options)[0] for options in ROUNDED[port])
    assert 0 <= relative(one.video, other.video) < 1e-5
    assert 0 <= relative(one.audio, other.audio) < 1e-5


class OwnKernels(TorchBlockKernels):
    """Somebody else's adapter."""

    name = "own"


def test_an_overridden_adapter_is_the_one_that_runs(denoised):
    """Its name is in the receipt, and it changes nothing that it does not mean to."""
    mine, receipt = denoised(block_kernels=OwnKernels())
    assert receipt["backends"]["block_kernels"] == "own"
    assert torch.equal(mine.video, denoised()[0].video)


def test_quantised_weights_are_named_and_near(denoised):
    """An approximate choice is explicit: its name is in the receipt and its latents are near, not equal."""
    exact, _ = denoised(dtype="bfloat16")
    near, receipt = denoised(dtype="bfloat16", linear="fp8-weight-only")
    assert receipt["backends"]["linear"] == "fp8-weight-only"
    assert 0 < relative(near.video, exact.video) < 0.1


def test_both_feeds_give_the_same_mp4(make, ask, tmp_path):
    """Through a file or a pipe, byte for byte."""
    for feed in ("file", "pipe"):
        engine = make(real=True, latent_codec=FlatCodecs(), media_video_input=feed)
        assert engine.generate(ask(), tmp_path / f"{feed}.mp4").receipt["delivery"]["sink"] == feed
    assert (tmp_path / "file.mp4").read_bytes() == (tmp_path / "pipe.mp4").read_bytes()


def test_a_folder_of_frames_holds_what_the_decoder_gave(make, ask, tmp_path):
    """The lossless sink takes the MP4's place; its pictures are the decoded frames, rounded to bytes."""
    recorded = RecordingSink()
    make(sink=recorded).generate(ask(), tmp_path / "clip.mp4")
    make(sink=FramesDirSink()).generate(ask(), tmp_path / "frames")
    pictures = sorted((tmp_path / "frames").glob("*.png"))
    assert len(pictures) == 120
    expected = (recorded.frames[[0, 60, 119]] * 255).round().to(torch.uint8).permute(0, 2, 3, 1)
    found = np.stack([np.array(Image.open(pictures[index])) for index in (0, 60, 119)])
    assert np.array_equal(found, expected.numpy())


class PaintedPictures:
    """A reader whose pictures come from nowhere; it has no videos and no sounds."""

    def picture(self, path: Path) -> torch.Tensor:
        return torch.full((64, 96, 3), int(path.stem), dtype=torch.uint8)

    def fit_picture(self, pixels: torch.Tensor, width: int, height: int, mode: PictureFit) -> torch.Tensor:
        assert pixels.shape == (height, width, 3)
        return pixels

    def video(self, path: Path, **_: Any) -> ReferenceClip:
        raise MediaError(f"{path}: no videos here")

    audio = video


def test_pictures_may_come_from_anywhere(make, ask, tmp_path):
    """What a reader gives is what is encoded, in order; its own refusal reaches the caller and harms nothing."""
    codecs = RecordingCodecs(FlatCodecs())
    engine = make(reference_reader=PaintedPictures(), latent_codec=codecs)
    engine.generate(ask(first_frame=Path("7"), last_frame=Path("9")), tmp_path / "clip.mp4")
    assert [int(pixels[0, 0, 0, 0]) for pixels in codecs.pixels] == [7, 9]
    with pytest.raises(MediaError, match="no videos here"):
        engine.generate(ask(references=["video:1"]), tmp_path / "next.mp4")
    engine.generate(ask(), tmp_path / "next.mp4")


class FixedText:
    """A text encoder that says the same to everybody."""

    def open(self, model_dir: Path, *, device: torch.device, dtype: torch.dtype) -> FixedText:
        return self

    def __enter__(self) -> FixedText:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def encode(self, presentation: object) -> TextConditioning:
        return TextConditioning(embeds=torch.ones(5, 32), tags=torch.ones(5, dtype=torch.int64))


def test_the_text_encoder_is_a_port_as_well(make, ask, tmp_path):
    """With an encoder that ignores the prompt two prompts give one clip: the prompt goes through it and only it."""
    store = MemoryLatentStore()
    engine = make(text_encoder=FixedText(), latent_store=store)
    one, other = (kept(engine, store, ask(prompt), tmp_path) for prompt in ("Rain.", "A fox."))
    assert torch.equal(one.video, other.video)


def test_models_are_opened_once_for_a_kept_pipeline(checkpoint, ask, tmp_path):
    """Recorded through the container: two requests, one opening; per request, one opening each."""
    for lifetime, openings in (("keep", 1), ("per-request", 2)):
        settings = Settings(model_dir=checkpoint, device="cpu", dtype="float32", model_lifetime=lifetime)
        container = Container(settings=settings)
        encoders, codecs = RecordingTextEncoders(container.text_encoder()), RecordingCodecs(FlatCodecs())
        container.text_encoder.override(providers.Object(encoders))
        container.latent_codec.override(providers.Object(codecs))
        container.sink.override(providers.Object(RecordingSink()))
        with container.pipeline() as engine:
            for number in (1, 2):
                engine.generate(ask(), tmp_path / f"{lifetime}{number}.mp4")
        assert (encoders.opened, codecs.opened) == (openings, openings)


class CountingLoader:
    """A trusted text encoder loader that counts its calls, or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[Path] = []
        self._error = error

    def __call__(self, model_dir: Path) -> Any:
        self.calls.append(model_dir)
        if self._error is not None:
            raise self._error
        return OfflineLoader(hidden_state_index=50)(model_dir)


def open_with(loader: Any, checkpoint: Path) -> H3Pipeline:
    return H3Pipeline(checkpoint, device="cpu", dtype="float32", text_encoder_loader=loader)


def test_a_loader_is_called_once_for_its_pipeline(checkpoint, ask, tmp_path):
    """Not when the pipeline is built: at `prepare()` or the first request, with the checkpoint's folder, once."""
    loader = CountingLoader()
    with open_with(loader, checkpoint) as pipeline:
        assert loader.calls == []
        pipeline.prepare()
        assert loader.calls == [checkpoint]
        for number in (1, 2):
            pipeline.generate(ask(save_latents=tmp_path / f"{number}"), tmp_path / f"{number}.mp4")
    assert loader.calls == [checkpoint]
    first = CountingLoader()
    with open_with(first, checkpoint) as pipeline:
        pipeline.generate(ask(), tmp_path / "3.mp4")
    assert first.calls == [checkpoint]


def test_a_loader_s_failure_stays_with_its_pipeline(checkpoint, ask, tmp_path):
    """It arrives as an error that names the loader; that pipeline can try again, another one never notices."""
    broken, whole = CountingLoader(OSError("no such bucket")), CountingLoader()
    with open_with(broken, checkpoint) as failing, open_with(whole, checkpoint) as healthy:
        for attempt in (1, 2):
            with pytest.raises(CheckpointError, match="loader CountingLoader failed: no such bucket"):
                failing.generate(ask(), tmp_path / "failing.mp4")
            assert len(broken.calls) == attempt
        assert healthy.generate(ask(), tmp_path / "healthy.mp4").path.exists()
    assert not (tmp_path / "failing.mp4").exists()


@pytest.mark.parametrize("loader", ["module:function", 5, Path("loader.py")])
def test_a_loader_is_never_a_string(checkpoint, loader):
    """Nothing that would have to be turned into code."""
    with pytest.raises(ContractError, match="text_encoder_loader must be a callable"):
        open_with(loader, checkpoint)


def test_misspelt_options_are_refused_before_anything_loads(checkpoint):
    """In Python as on the command line, with the nearest name."""
    with pytest.raises(ContractError, match="unknown field 'devise' in H3Pipeline options; did you mean 'device'"):
        H3Pipeline(checkpoint, devise="cpu")
    with pytest.raises(ContractError, match="device: must be cpu, cuda or cuda:N"):
        H3Pipeline(checkpoint, device="gpu")


def test_a_device_that_is_not_there_is_refused_with_the_cure(make, ask, tmp_path):
    """Before anything loads; the pipeline can still say so a second time."""
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    engine = make(device="cuda")
    for _ in range(2):
        with pytest.raises(ContractError, match="choose device cpu"):
            engine.generate(ask(), tmp_path / "clip.mp4")
    assert engine.initialization_seconds == 0.0


class ListLog:
    """Keeps events in memory."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def record(self, event: str, fields: dict[str, Any]) -> None:
        self.events.append((event, dict(fields)))


def test_the_log_follows_a_request_and_keeps_its_prompt_out(checkpoint, ask, tmp_path):
    """Request and stage events with seconds; neither prompt nor path is among them."""
    container = Container(settings=Settings(model_dir=checkpoint, device="cpu", dtype="float32"))
    log = ListLog()
    container.event_log.override(providers.Object(log))
    container.sink.override(providers.Object(RecordingSink()))
    with container.pipeline() as engine:
        engine.generate(ask("a secret wish"), tmp_path / "clip.mp4")
    names = [event for event, _ in log.events]
    assert names[0] == "request started"
    assert names[-2:] == ["request finished", "pipeline closed"]
    stages = [fields["stage"] for event, fields in log.events if event == "stage ended"]
    assert stages == ["input_preparation", "encoding", "denoising", "latent_export", "media"]
    assert "secret" not in str(log.events)
    assert str(tmp_path) not in str(log.events)
