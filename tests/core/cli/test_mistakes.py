"""Mistakes on the command line are told at once: exit 2, one plain text with the cure, and torch never imported."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

# One interpreter for all cases, so that the whole table costs one start-up.
PROGRAM = """
import contextlib, io, json, sys
from vflash.cli import main
told = {}
for name, arguments in json.load(sys.stdin).items():
    sys.argv = ["vflash", *arguments]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code
    told[name] = [code, out.getvalue(), err.getvalue(), "torch" in sys.modules]
print(json.dumps(told))
"""
ASK = ["generate", "--model", "model", "--output", "new.mp4"]
RAIN = [*ASK, "--prompt", "rain"]

# name: arguments, what the message says
CASES: dict[str, tuple[list[str], str]] = {
    "unknown option": ([*RAIN, "--promt", "x"], "No such option: --promt"),
    "unknown command": (["genrate"], "No such command 'genrate'"),
    "no output": (["generate", "--prompt", "rain"], "Missing option '--output'"),
    "no prompt": (ASK, "vflash: give --prompt or --prompt-file, or prompt in the --config file"),
    "no model": (
        ["generate", "--prompt", "rain", "--output", "new.mp4"],
        "vflash: give --model, or model_dir in the --config file",
    ),
    "nothing to plan": (["plan"], "vflash: give --model, or model_dir in the --config file"),
    "blank prompt": ([*ASK, "--prompt", "  "], "prompt: must be a text that is not blank"),
    "steps are no number": ([*RAIN, "--steps", "many"], "Invalid value for '--steps'"),
    "no steps": ([*RAIN, "--steps", "0"], "steps must be between 1 and 1000, got 0"),
    "short": ([*RAIN, "--duration", "4"], "duration_s must be between 5 and 15, got 4"),
    "negative seed": ([*RAIN, "--seed", "-1"], "seed must be between 0 and 9223372036854775807, got -1"),
    "width alone": ([*RAIN, "--width", "64"], "width and height must be given together"),
    "bad canvas": ([*RAIN, "--width", "100", "--height", "64"], "width must be a positive multiple of 32, got 100"),
    "over budget": ([*RAIN, "--width", "2048", "--height", "2048", "--duration", "15"], "over the joint limit"),
    "missing keyframe": ([*RAIN, "--first-frame", "none.png"], "input file none.png does not exist"),
    "keyframe that is a folder": ([*RAIN, "--first-frame", "empty"], "input file empty is not a file"),
    "keyframe on the web": (
        [*RAIN, "--first-frame", "https://example.com/a.png"],
        "first_frame: expected a path on this machine, got the URL",
    ),
    "reference on the web": (
        [*RAIN, "--reference", "http://example.com/a.png"],
        "got the URL 'http://example.com/a.png'",
    ),
    "missing reference": (
        [*RAIN, "--reference", "none.wav", "--reference", "here.png"],
        "input file none.wav",
    ),
    "unclear reference": ([*RAIN, "--reference", "here.txt"], "references: cannot tell what reference 'here.txt' is"),
    "two kinds": ([*RAIN, "--reference", "here.png", "--last-frame", "here.png"], "references cannot be combined"),
    "label of nothing": ([*ASK, "--prompt", "<Picture 1>"], "names <Picture 1> but no such input"),
    "existing output": (
        ["generate", "--model", "model", "--output", "here.mp4", "--prompt", "rain"],
        "output here.mp4 exists already; choose another name or remove it",
    ),
    "output without a name": ([*RAIN, "--output", ""], "output must name a file, got '.'"),
    "missing checkpoint": (
        ["generate", "--model", "none", "--output", "new.mp4", "--prompt", "rain"],
        "model folder none does not exist",
    ),
    "checkpoint that is a file": (
        ["generate", "--model", "here.png", "--output", "new.mp4", "--prompt", "rain"],
        "model folder here.png is not a folder; give the folder that holds model_index.json",
    ),
    "empty checkpoint": (
        ["generate", "--model", "empty", "--output", "new.mp4", "--prompt", "rain"],
        "config.json is missing; the checkpoint download is not complete",
    ),
    "device": ([*RAIN, "--device", "gpu"], "device: must be cpu, cuda or cuda:N, got 'gpu'"),
    "dtype": ([*RAIN, "--dtype", "fp16"], "dtype: 'fp16' is not a Dtype; choose one of bfloat16, float32"),
    "attention": ([*RAIN, "--attention-backend", "fast"], "attention_backend: 'fast' is not a"),
    "tiles": ([*RAIN, "--vae-tiles-at-once", "0"], "vae_tiles_at_once must be between 1 and 4096, got 0"),
    "threads": ([*RAIN, "--media-video-threads", "0"], "media_video_threads must be between 1 and 256, got 0"),
    "missing prompt file": ([*ASK, "--prompt-file", "none.txt"], "--prompt-file none.txt cannot be read"),
    "binary prompt file": ([*ASK, "--prompt-file", "binary"], "--prompt-file binary cannot be read"),
    "two prompts": ([*RAIN, "--prompt-file", "prompt.txt"], "give --prompt or --prompt-file, not both"),
    "prompt file is read": ([*ASK, "--prompt-file", "prompt.txt"], "names <Video 1> but no such input"),
    "prompt file with a byte order mark": ([*ASK, "--prompt-file", "marked.txt"], "must be a text that is not blank"),
    "missing config": ([*RAIN, "--config", "none.toml"], "--config none.toml cannot be read"),
    "broken config": ([*RAIN, "--config", "broken.toml"], "--config broken.toml cannot be read"),
    "endless number in config": ([*RAIN, "--config", "endless.toml"], "--config endless.toml cannot be read"),
    "misspelt table": ([*RAIN, "--config", "table.toml"], "'requests' in table.toml; did you mean 'request'?"),
    "table that is none": ([*RAIN, "--config", "flat.toml"], "flat.toml: request must be a table, [request], got 3"),
    "misspelt request": (
        [*RAIN, "--config", "request.toml"],
        "unknown field 'step' in the request; did you mean",
    ),
    "misspelt setting": (
        [*RAIN, "--config", "settings.toml"],
        "unknown field 'attention_backed' in the settings; did you mean 'attention_backend'?",
    ),
    "wrong type in config": ([*RAIN, "--config", "type.toml"], "steps must be a whole number, got '4'"),
    "options win over config": ([*RAIN, "--steps", "0", "--config", "type.toml"], "between 1 and 1000, got 0"),
    "missing latents": (
        ["decode", "--model", "model", "--latents", "none.safetensors", "--output", "new.mp4"],
        "latents file none.safetensors does not exist",
    ),
    "latents that are a folder": (
        ["decode", "--model", "model", "--latents", "empty", "--output", "new.mp4"],
        "latents file empty is not a file",
    ),
    "idle option": ([*RAIN, "--fp8-kernels", "torch"], "fp8_kernels is given, but linear is bf16; drop it"),
}


@frozen(kw_only=True)
class Told:
    code: int
    out: str
    err: str
    torch: bool


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoints: Mapping[str, Path]) -> Mapping[str, Told]:
    """What each command line was answered, in a folder where some of the files exist."""
    desk = tmp_path_factory.mktemp("desk")
    (desk / "model").symlink_to(tiny_checkpoints["small"])
    (desk / "empty").mkdir()
    for name in ("here.mp4", "here.png", "here.txt"):
        (desk / name).touch()
    texts = {
        "prompt.txt": "<Video 1> by night\n",
        "broken.toml": "[request",
        "table.toml": "[requests]\nsteps = 4\n",
        "flat.toml": "request = 3\n",
        "request.toml": "[request]\nstep = 4\n",
        "settings.toml": '[settings]\nattention_backed = "sdpa"\n',
        "endless.toml": f"[request]\nseed = {'9' * 5000}\n",
        "type.toml": '[request]\nsteps = "4"\n',
    }
    for name, text in texts.items():
        (desk / name).write_text(text)
    (desk / "binary").write_bytes(b"\xff\xfe\xfa")
    (desk / "marked.txt").write_bytes(b"\xef\xbb\xbf \n")
    before = sorted(desk.iterdir())
    asked = json.dumps({name: arguments for name, (arguments, _) in CASES.items()})
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=asked, cwd=desk, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answers: dict[str, list[Any]] = json.loads(done.stdout)
    assert sorted(desk.iterdir()) == before
    return {name: Told(code=code, out=out, err=err, torch=torch) for name, (code, out, err, torch) in answers.items()}


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_mistake_is_told_before_anything_heavy(told, name):
    """Exit 2, the message on stderr with the name and the cure, nothing on stdout, no traceback, no torch."""
    answer, message = told[name], CASES[name][1]
    plain = " ".join(answer.err.replace("│", " ").split())
    assert " ".join(message.split()) in plain
    assert (answer.code, answer.out) == (2, "")
    assert "Traceback" not in answer.err
    assert not answer.torch
