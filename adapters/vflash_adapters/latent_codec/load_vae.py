"""Loading one of the two VAEs strictly: every stored tensor has a place, every place a stored tensor."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from torch import nn
from torch.overrides import TorchFunctionMode

from vflash_adapters.strict_json import parse_object
from vflash_ports.errors import CheckpointError
from vflash_ports.weights import WeightOpener


@frozen(kw_only=True)
class VaeKind:
    """A component folder, its diffusers class, and the modules that stay in FP32 whatever dtype is asked for."""

    folder: str
    class_name: str
    float32_modules: frozenset[str]


# The released precision: the video decoder's projections follow the pipeline, norms and the encoder do not; the audio
# VAE is FP32 throughout.
VIDEO_VAE = VaeKind(
    folder="vae",
    class_name="AutoencoderKLMiniMaxH3",
    float32_modules=frozenset({"encoder", "quant_conv", "norm1", "norm2", "norm_out", "scale1", "scale2"}),
)
AUDIO_VAE = VaeKind(
    folder="audio_vae",
    class_name="AutoencoderKLMiniMaxH3Audio",
    float32_modules=frozenset({"encoder", "decoder", "pre_block", "dec_in_proj", "mean_proj", "logs_proj"}),
)


def load_vae(kind: VaeKind, model_dir: Path, *, weights: WeightOpener, device: torch.device, dtype: torch.dtype) -> Any:
    """The diffusers model on `device`, in eval mode. Raises `CheckpointError` naming the file or tensor at fault."""
    folder = model_dir / kind.folder
    model = empty_vae(kind, folder)
    expected = model.state_dict()
    source = weights(folder)
    stored = source.specs()
    for name in sorted(expected.keys() ^ stored.keys()):
        wrong = "lacks" if name in expected else "holds the unknown tensor"
        raise CheckpointError(f"{folder} {wrong} {name}; download the VAE again")
    for name, spec in stored.items():
        if spec.shape != tuple(expected[name].shape):
            raise CheckpointError(
                f"{folder} stores {name} as {list(spec.shape)}, config.json asks for {list(expected[name].shape)}"
            )
    with source.open() as reader:
        tensors = {name: _placed(name, reader.get_tensor(name), kind, device, dtype) for name in expected}
    model.requires_grad_(requires_grad=False)
    model.load_state_dict(tensors, assign=True)
    return model.to(device).eval()


def _placed(name: str, tensor: torch.Tensor, kind: VaeKind, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    keeps_float32 = not kind.float32_modules.isdisjoint(name.split("."))
    return tensor.to(device=device, dtype=torch.float32 if keeps_float32 else dtype)


def empty_vae(kind: VaeKind, folder: Path) -> Any:
    """The diffusers model that `config.json` describes, on the CPU; the memory of its weights is not touched."""
    import diffusers

    path = folder / "config.json"
    config = read_config(path)
    if config.get("_class_name") != kind.class_name:
        raise CheckpointError(f"{path} describes a {config.get('_class_name')}; {kind.class_name} is needed")
    model_class: Callable[..., Any] = getattr(diffusers, kind.class_name)
    known = inspect.signature(model_class.__init__).parameters
    arguments = {name: value for name, value in config.items() if name in known}
    with warnings.catch_warnings(), _NoRandomInit():
        # The audio VAE is stored in the weight_norm form that torch now calls old.
        warnings.filterwarnings("ignore", message=".*weight_norm", category=FutureWarning)
        try:
            return model_class(**arguments)
        except (TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"{path} does not describe a {kind.class_name}: {error}") from error


def read_config(path: Path) -> Mapping[str, Any]:
    """Raises `CheckpointError` for a file that cannot be read or is no JSON object."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}; copy it again from the release") from error
    return parse_object(content, str(path))


_DRAWS = {torch.Tensor.uniform_, torch.Tensor.normal_, nn.init.uniform_, nn.init.normal_, nn.init.kaiming_uniform_}


class _NoRandomInit(TorchFunctionMode):
    """Skips the random fill of weights that are about to be replaced, so that their memory is never even touched.

    The functions of `nn.init` are stopped themselves: what they call inside no longer passes through here.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _DRAWS:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))
