"""Runs the diffusers pipeline over job folders and writes every intermediate beside each job; see `oracle.py`.

Called as `python reference_process.py FOLDER ...`, each folder holding job.json and job.safetensors; imports nothing of
this project.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

Tensor = torch.Tensor


def main(folders: list[Path]) -> None:
    torch.set_num_threads(1)
    declare_torchvision_operators()
    from diffusers.utils import logging

    logging.disable_progress_bar()
    pipelines: dict[tuple[str, str], Any] = {}
    for folder in folders:
        job = json.loads((folder / "job.json").read_text())
        key = (job["checkpoint"], job["dtype"])
        if key not in pipelines:
            pipelines[key] = load_pipeline(*key)
        values, tensors = run_job(pipelines[key], job, load_file(folder / "job.safetensors"))
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "result.safetensors")
        (folder / "result.json").write_text(json.dumps(values))


def declare_torchvision_operators() -> None:
    """torchvision's wheel registers fake kernels for two operators that its CUDA-linked library would have defined.

    Beside a CUDA build of torch that library loads and defines them itself.
    """
    if torch.version.cuda is not None:
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    declare_torchvision_operators.kept = library  # type: ignore[attr-defined]


def load_pipeline(checkpoint: str, dtype: str) -> Any:
    from diffusers import ModularPipeline

    pipeline = ModularPipeline.from_pretrained(checkpoint)
    pipeline.load_components(dtype=getattr(torch, dtype))
    missing = [name for name, component in pipeline.components.items() if component is None]
    if missing:
        raise RuntimeError(f"the reference could not load {missing} of {checkpoint}")
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def run_job(pipeline: Any, job: dict[str, Any], media: dict[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    seen: dict[str, Any] = {"calls": []}
    hooks = [
        pipeline.text_encoder.model.register_forward_pre_hook(text_hook(seen), with_kwargs=True),
        pipeline.transformer.register_forward_hook(velocity_hook(seen), with_kwargs=True),
        pipeline.transformer_ref.register_forward_hook(velocity_hook(seen), with_kwargs=True),
    ]
    try:
        state = pipeline(**call_arguments(job, media))
    finally:
        for hook in hooks:
            hook.remove()
    return collect(state, seen)


def call_arguments(job: dict[str, Any], media: dict[str, Tensor]) -> dict[str, Any]:
    arguments = {
        "prompt": job["prompt"],
        "num_frames": job["num_frames"],
        "num_inference_steps": job["evaluations"] + 1,
        "generator": torch.Generator().manual_seed(job["seed"]),
        "output_type": "pt",
    }
    if job["height"] is not None:
        arguments |= {"height": job["height"], "width": job["width"]}
    for name, key in (("first", "image"), ("last", "last_image")):
        if job[name] is not None:
            arguments[key] = Image.fromarray(media[job[name]["tensor"]].numpy())
    if job["references"]:
        arguments["references"] = [reference(given, media) for given in job["references"]]
    return arguments


def reference(given: dict[str, Any], media: dict[str, Tensor]) -> Any:
    from diffusers.modular_pipelines.minimax_h3 import (
        MiniMaxH3AudioReference,
        MiniMaxH3ImageReference,
        MiniMaxH3VideoReference,
    )

    tensors = {key: media[value["tensor"]] for key, value in given.items() if isinstance(value, dict)}
    if given["kind"] == "Picture":
        return MiniMaxH3ImageReference(image=Image.fromarray(tensors["pixels"].numpy()))
    sound = {"audio": tensors.get("waveform"), "sample_rate": given["sample_rate_hz"]}
    if given["kind"] == "Sound":
        return MiniMaxH3AudioReference(**sound)
    return MiniMaxH3VideoReference(frames=tensors["frames"].numpy(), fps=given["fps"], **sound)


def text_hook(seen: dict[str, Any]) -> Any:
    def hook(_module: Any, _positional: Any, named: dict[str, Any]) -> None:
        seen["text"] = {key: value for key, value in named.items() if isinstance(value, Tensor)}

    return hook


def velocity_hook(seen: dict[str, Any]) -> Any:
    def hook(_module: Any, _positional: Any, named: dict[str, Any], output: tuple[Tensor, Tensor]) -> None:
        # The loop writes the rows in place, so what the transformer saw is copied.
        rows = (named["hidden_states"][0].clone(), named["audio_hidden_states"][0].clone())
        seen["calls"].append((*rows, named["timestep"], named["timestep_indices"], output[0][0], output[1][0]))

    return hook


def collect(state: Any, seen: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    calls, text = seen["calls"], seen["text"]
    numbers = ("height", "width", "num_frames", "num_condition_video_rows", "num_condition_audio_rows")
    values = {name: int(state.get(name)) for name in numbers}
    values["sample_rate_hz"] = int(state.get("sampling_rate"))
    plain = ("position_ids", "token_tags", "video_indices", "audio_indices", "text_indices", "text_token_tags")
    tensors = {name: state.get(name) for name in (*plain, "timesteps", "audio_timesteps", "latents", "audio_latents")}
    tensors |= {"token_ids": text["input_ids"][0], "mm_token_type_ids": text["mm_token_type_ids"][0]}
    vision = ("pixel_values", "image_grid_thw", "pixel_values_videos", "video_grid_thw")
    tensors |= {name: text[name] for name in vision if name in text}
    tensors |= {"prompt_embeds": state.get("prompt_embeds")[0], "waveform": state.get("audio")[0]}
    videos = state.get("videos")
    tensors["frames"] = videos[0]
    tensors |= {"initial_video_rows": calls[0][0], "initial_audio_rows": calls[0][1]}
    names = ("unique_timesteps", "timestep_indices", "video_velocities", "audio_velocities")
    several = {name: [call[2 + place] for call in calls] for place, name in enumerate(names)}
    several |= {name: state.get(name) or [] for name in ("condition_latents", "audio_condition_latents")}
    several["keyframes"] = [torch.from_numpy(np.array(image)) for image in state.get("keyframes") or []]
    several |= normalized_media(state.get("normalized_references") or [])
    tensors |= {f"{name}.{i}": item for name, items in several.items() for i, item in enumerate(items)}
    return values, tensors


def normalized_media(references: list[Any]) -> dict[str, list[Tensor]]:
    pixels = [
        torch.from_numpy(np.array(entry.image if entry.kind == "image" else entry.frames))
        for entry in references
        if entry.kind != "audio"
    ]
    waveforms = [entry.audio for entry in references if entry.has_audio]
    return {"reference_pixels": pixels, "reference_waveforms": waveforms}


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
