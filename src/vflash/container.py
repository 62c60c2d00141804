"""The composition root: the one place that knows ports and adapters both. Each choice is made once, from `Settings`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from dependency_injector import containers, providers
from dependency_injector.providers import Provider

from vflash.composition import (
    checkpoint_opener,
    chosen_adapter,
    chosen_assets,
    compile_assets,
    decode_words,
    facts_reader,
    memory_options,
    models_of,
    running_profile,
    torch_dtype,
)
from vflash.denoise_session import DenoiseSession
from vflash.domain.model_facts import TEXT_HIDDEN_STATE, ModelFacts
from vflash.engine import Engine
from vflash.settings import Settings
from vflash.stages.adapter import ChosenAdapter
from vflash.stages.backends import Backends
from vflash.stages.chosen_assets import ChosenAssets
from vflash.stages.compile import Compiler
from vflash.stages.foresee import Foresight
from vflash.stages.models import Models
from vflash_adapters.assets.safetensors_store import SafetensorsAssets
from vflash_adapters.attention.device_default import DEVICE_BACKENDS, DeviceDefaultAttention
from vflash_adapters.attention.naive import NaiveAttention
from vflash_adapters.attention.veda.opening import open_veda
from vflash_adapters.block_kernels.device_default import default_block_kernels, triton_block_kernels
from vflash_adapters.block_kernels.torch_reference import TorchBlockKernels
from vflash_adapters.conditioning.sealed_folder import SealedFolder
from vflash_adapters.event_log.structured import StructuredLog
from vflash_adapters.latent_codec.diffusers_vaes import DiffusersVaes
from vflash_adapters.latent_codec.video_decoders import VideoDecoder
from vflash_adapters.linear.bf16 import Bf16Linear
from vflash_adapters.linear.fp8 import Fp8WeightOnlyLinear, W8A8Linear, default_row_kernels
from vflash_adapters.machine_limits import MachineMemory
from vflash_adapters.media.encoding import Encoding
from vflash_adapters.media.ffmpeg_file import FfmpegFileSink
from vflash_adapters.media.ffmpeg_pipe import FfmpegPipeSink
from vflash_adapters.media.frames_dir import FramesDirSink
from vflash_adapters.media.latent_store import SafetensorsLatentStore
from vflash_adapters.media.reference_reader import FileReferenceReader
from vflash_adapters.residency.block_ring import BlockRing
from vflash_adapters.residency.resident import Resident
from vflash_adapters.text_encoder.qwen3_vl import Qwen3VLProvider
from vflash_adapters.weights.mmap_source import MmapWeights
from vflash_adapters.weights.openers import BufferedOpener, SidecarOpener
from vflash_ports.assets import AssetStore
from vflash_ports.attention import Attention
from vflash_ports.block_kernels import BlockKernels
from vflash_ports.conditioning import ConditioningStore
from vflash_ports.event_log import EventLog, SilentLog
from vflash_ports.latent_codec import LatentCodecProvider
from vflash_ports.linear import LinearExecution
from vflash_ports.machine import MachineReader
from vflash_ports.media import LatentStore, MediaSink, ReferenceReader
from vflash_ports.residency import Residency
from vflash_ports.text_encoder import TextEncoderLoader, TextEncoderProvider
from vflash_ports.weights import WeightOpener


def _all_of(selector: Provider[Any]) -> Provider[dict[str, Callable[[], Any]]]:
    """Every choice of a selector by name, each still to be made."""
    assert isinstance(selector, providers.Selector)
    return providers.Dict({name: choice.provider for name, choice in selector.providers.items()})


EXACT_ATTENTION: dict[str, Provider[Attention]] = {
    "auto": providers.Singleton(DeviceDefaultAttention),
    "naive": providers.Singleton(NaiveAttention),
    **{backend.name: providers.Object(backend) for backend in DEVICE_BACKENDS},
}

RESIDENCY: dict[str, Provider[Residency]] = {
    "block-ring": providers.Singleton(BlockRing),
    "resident": providers.Singleton(Resident),
}


EVENT_LOG: dict[str, Provider[EventLog]] = {
    "none": providers.Singleton(SilentLog),
    "json": providers.Factory(StructuredLog, as_json=True),
    "console": providers.Factory(StructuredLog, as_json=False),
}
FRAMES_DIR: dict[str, Provider[MediaSink]] = {"frames-dir": providers.Singleton(FramesDirSink)}


class Container(containers.DeclarativeContainer):
    """`Container(settings=Settings(...)).pipeline()`. Override a provider on a fresh container, before it is used."""

    settings = providers.Dependency(instance_of=Settings)
    device: Provider[torch.device] = providers.Singleton(torch.device, settings.provided.device)
    dtype: Provider[torch.dtype] = providers.Callable(torch_dtype, settings)

    weights: Provider[WeightOpener] = providers.Selector(
        settings.provided.weight_reading,
        mmap=providers.Object(MmapWeights),
        buffered=providers.Singleton(BufferedOpener, read_workers=settings.provided.weight_read_workers),
        sidecar=providers.Singleton(
            SidecarOpener,
            sidecar=settings.provided.weight_sidecar,
            read_workers=settings.provided.weight_read_workers,
            merge=settings.provided.sidecar_merge,
        ),
    )
    asset_store: Provider[AssetStore] = providers.Singleton(SafetensorsAssets, opener=weights)
    assets: Provider[ChosenAssets | None] = providers.Singleton(chosen_assets, settings, asset_store)
    checkpoint: Provider[WeightOpener] = providers.Singleton(checkpoint_opener, settings, weights, assets)
    fp8_kernels: Provider[str] = providers.Callable(default_row_kernels, settings.provided.fp8_kernels, device)
    linear: Provider[LinearExecution] = providers.Selector(
        settings.provided.linear,
        bf16=providers.Singleton(Bf16Linear),
        w8a8=providers.Singleton(W8A8Linear, row_kernels=fp8_kernels, fast_accum=settings.provided.fp8_fast_accum),
        **{"fp8-weight-only": providers.Singleton(Fp8WeightOnlyLinear, row_kernels=fp8_kernels)},
    )
    block_kernels: Provider[BlockKernels] = providers.Selector(
        settings.provided.block_kernels,
        auto=providers.Singleton(default_block_kernels, device),
        torch=providers.Singleton(TorchBlockKernels),
        triton=providers.Singleton(triton_block_kernels),
    )
    veda_dense: Provider[Attention] = providers.Selector(settings.provided.veda_dense_backend, **EXACT_ATTENTION)
    veda: Provider[Attention] = providers.Singleton(
        open_veda,
        settings.provided.veda_predictor,
        veda_dense,
        kernels=settings.provided.veda_kernels,
        dense_edge_layers=settings.provided.veda_dense_edge_layers,
        dense_steps=settings.provided.veda_dense_steps,
        target_budget=settings.provided.veda_target_budget,
        reference_budget=settings.provided.veda_reference_budget,
    )
    attention: Provider[Attention] = providers.Selector(
        settings.provided.attention_backend, **EXACT_ATTENTION, veda=veda, **{"veda-meanpool": veda}
    )
    residency: Provider[Residency] = providers.Selector(settings.provided.weight_residency, **RESIDENCY)
    event_log: Provider[EventLog] = providers.Selector(settings.provided.log, **EVENT_LOG)
    reference_reader: Provider[ReferenceReader] = providers.Singleton(FileReferenceReader)
    latent_store: Provider[LatentStore] = providers.Singleton(SafetensorsLatentStore)
    video_decoder: Provider[VideoDecoder] = providers.Callable(VideoDecoder, settings.provided.video_decoder)
    latent_codec: Provider[LatentCodecProvider] = providers.Singleton(
        DiffusersVaes,
        weights=weights,
        swap=settings.provided.swaps,
        owned=settings.provided.keeps,
        video_decoder=video_decoder,
        fp8_fast_accum=settings.provided.fp8_fast_accum,
        tiles_at_once=settings.provided.vae_tiles_at_once,
    )
    text_encoder_loader: Provider[TextEncoderLoader | None] = providers.Object(None)
    text_encoder: Provider[TextEncoderProvider] = providers.Singleton(
        Qwen3VLProvider,
        hidden_state_index=TEXT_HIDDEN_STATE,
        loader=text_encoder_loader,
        streamed=settings.provided.swaps,
        owned=settings.provided.keeps,
    )
    encoding: Provider[Encoding] = providers.Singleton(
        Encoding,
        encoder=settings.provided.media_video_encoder,
        preset=settings.provided.media_preset,
        crf=settings.provided.media_crf,
        threads=settings.provided.media_video_threads,
    )
    sink: Provider[MediaSink] = providers.Selector(
        settings.provided.media_video_input,
        file=providers.Singleton(FfmpegFileSink, encoding=encoding),
        pipe=providers.Singleton(FfmpegPipeSink, encoding=encoding),
        **FRAMES_DIR,
    )

    adapter: Provider[ChosenAdapter | None] = providers.Singleton(chosen_adapter, settings)
    backends: Provider[Backends] = providers.Singleton(
        Backends,
        device=device,
        dtype=dtype,
        attention=attention,
        linear=linear,
        kernels=block_kernels,
        residency=residency,
        weights=checkpoint,
        weight_reading=settings.provided.weight_reading,
        ffn_chunk_rows=settings.provided.ffn_chunk_rows,
        codec=latent_codec,
        video_decoder=video_decoder,
        vae_tiles_at_once=settings.provided.vae_tiles_at_once,
        model_placement=settings.provided.model_placement,
        profile=providers.Callable(running_profile, settings, assets),
        adapter=adapter,
        assets=assets,
    )
    machine_memory: Provider[MachineReader] = providers.Singleton(
        MachineMemory,
        device_gib=settings.provided.device_memory_gib,
        host_gib=settings.provided.host_memory_gib,
    )
    foresight: Provider[Foresight] = providers.Singleton(
        Foresight,
        model_dir=settings.provided.model_dir,
        backends=backends,
        residencies=_all_of(residency),
        linears=_all_of(linear),
        options=providers.Callable(memory_options, settings),
        limits=machine_memory,
    )
    model_facts: Provider[Callable[[str], ModelFacts]] = providers.Singleton(facts_reader, settings.provided.model_dir)
    compile: Provider[dict[str, Any]] = providers.Callable(
        compile_assets,
        providers.Factory(Compiler, model_dir=settings.provided.model_dir, backends=backends, store=asset_store),
        model_facts,
    )
    models: Provider[Models] = providers.Factory(
        models_of, settings, backends, model_facts, encoder=text_encoder, codec=latent_codec
    )
    conditioning_store: Provider[ConditioningStore] = providers.Singleton(SealedFolder)
    denoise_session: Provider[DenoiseSession] = providers.Factory(
        DenoiseSession,
        model_dir=settings.provided.model_dir,
        model_facts=model_facts,
        backends=backends,
        foresight=foresight,
        models=models,
        conditioning_store=conditioning_store,
        latent_store=latent_store,
        log=event_log,
    )
    pipeline: Provider[Engine] = providers.Factory(
        Engine,
        model_dir=settings.provided.model_dir,
        model_facts=model_facts,
        backends=backends,
        foresight=foresight,
        models=models,
        reader=reference_reader,
        sink=sink,
        latent_store=latent_store,
        conditioning_store=conditioning_store,
        decoding=providers.Callable(decode_words, settings),
        log=event_log,
    )
