"""The composition root: the one place that knows ports and adapters both. Each choice is made once, from `Settings`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from dependency_injector import containers, providers
from dependency_injector.providers import Provider

from vflash.domain.model_facts import ModelFacts, read_model_facts
from vflash.engine import Engine
from vflash.model.transformer import Denoiser
from vflash.settings import Lifetime, Settings
from vflash.stages.backends import Backends
from vflash.stages.kept import Kept
from vflash_adapters.attention.device_default import DeviceDefaultAttention
from vflash_adapters.attention.naive import NaiveAttention
from vflash_adapters.attention.sdpa import SDPA_BACKENDS
from vflash_adapters.block_kernels.torch_reference import TorchBlockKernels
from vflash_adapters.latent_codec.diffusers_vaes import DiffusersVaes
from vflash_adapters.linear.bf16 import Bf16Linear
from vflash_adapters.media.encoding import Encoding
from vflash_adapters.media.ffmpeg_file import FfmpegFileSink
from vflash_adapters.media.ffmpeg_pipe import FfmpegPipeSink
from vflash_adapters.media.latent_store import SafetensorsLatentStore
from vflash_adapters.media.reference_reader import MediaReferenceReader
from vflash_adapters.residency.resident import Resident
from vflash_adapters.text_encoder.qwen3_vl import Qwen3VLProvider
from vflash_adapters.weights.mmap_source import MmapWeights
from vflash_ports.attention import Attention
from vflash_ports.block_kernels import BlockKernels
from vflash_ports.latent_codec import LatentCodec, LatentCodecProvider
from vflash_ports.linear import LinearExecution
from vflash_ports.media import LatentStore, MediaSink, ReferenceReader
from vflash_ports.residency import Residency
from vflash_ports.text_encoder import TextEncoder, TextEncoderLoader, TextEncoderProvider
from vflash_ports.weights import WeightOpener
