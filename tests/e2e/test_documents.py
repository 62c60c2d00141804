"""Every command and program in the README and the docs runs as written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from make_tiny_predictor import write_predictor
from vflash_adapters.weights.mmap_source import MmapWeights

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("README*.md"), *ROOT.glob("docs/**/*.md")])
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)\)")


def blocks(document: Path) -> list[tuple[str, str]]:
    return BLOCK.findall(document.read_text(encoding="utf-8"))


def code(document: Path) -> list[tuple[str, str]]:
    """The blocks without their comments."""
    return [(language, re.sub(r"\s*#.*", "", text)) for language, text in blocks(document)]


@pytest.fixture
def desk(tmp_path: Path, tiny_checkpoints) -> Path:
    """A folder with a checkpoint and the files that the documents name."""
    (tmp_path / "MiniMax-H3").symlink_to(tiny_checkpoints["small"])
    noise = np.random.default_rng(0).integers(0, 255, (96, 128, 3), dtype=np.uint8)
    for name in ("cat.png", "person.png"):
        Image.fromarray(noise).save(tmp_path / name)
    write_predictor(tmp_path / "veda_predictor.safetensors", blocks=3, heads=4, head_dim=16, grids=[(37, 24, 42)])
    save_file({"weight": torch.randn(300, 300).bfloat16()}, tmp_path / "weights.safetensors")
    save_file(style_adapter(tiny_checkpoints["small"]), tmp_path / "style.safetensors")
    with av.open(tmp_path / "dance.mp4", "w") as container:
        stream = container.add_stream("mpeg4", rate=24)
        stream.width, stream.height = 128, 96
        for frame in range(24):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.roll(noise, frame, axis=1))))
        container.mux(stream.encode(None))
    return tmp_path


def style_adapter(model: Path) -> dict[str, torch.Tensor]:
    """A small LoRA for the checkpoint on the desk."""
    out, width = MmapWeights(model / "transformer").specs()["transformer_blocks.0.ff.net.2.weight"].shape
    name = "diffusion_model.blocks.0.mlp.fc2"
    return {f"{name}.lora_A.weight": torch.randn(2, width), f"{name}.lora_B.weight": torch.randn(out, 2) * 0.01}


def environment() -> dict[str, str]:
    """The documents' commands, on a machine without a GPU."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "VFLASH_DEVICE": "cpu", "VFLASH_DTYPE": "float32", "OMP_NUM_THREADS": "1"}


def run(command: list[str], cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def named_extras(command: str) -> set[str]:
    """The extras that an install command asks for; installing itself is what `make setup` does."""
    return set(re.findall(r"[\w-]+", "".join(re.findall(r"\[([^\]]+)\]", command))))


def declared_extras() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return set(project["optional-dependencies"])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_run_as_written(document: Path, desk: Path):
    """Shell and Python blocks run in order in one folder; set-up commands are checked against the Makefile instead.

    A translation that holds the same code as its English twin has run when the twin has.
    """
    if document.parent.name == "zh" and code(document) == code(document.parents[1] / document.name):
        return
    for language, text in blocks(document):
        if language == "python":
            run([sys.executable, "-c", text], desk)
            continue
        for command in text.replace("\\\n", " ").splitlines():
            if command.startswith("make "):
                run(["make", "--dry-run", *command.split()[1:]], ROOT)
            elif command.startswith("pip install"):
                assert named_extras(command) <= declared_extras(), command
            elif command.strip():
                run(["bash", "-euc", command], desk)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path):
    """Every relative link names a file of the project."""
    for target in LINK.findall(document.read_text(encoding="utf-8")):
        assert (document.parent / target).exists(), f"{document}: {target}"


def test_every_document_has_a_chinese_twin():
    """Half of the users read Chinese: user documents come in both languages."""
    english = {path.name for path in (ROOT / "docs").glob("*.md")}
    chinese = {path.name for path in (ROOT / "docs" / "zh").glob("*.md")}
    assert english == chinese
