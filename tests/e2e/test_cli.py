"""The program as people and scripts use it: `vflash generate`, `decode`, `doctor`, `demo`."""

from __future__ import annotations

import errno
import io
import json
import shlex
import sys
from collections.abc import Callable

import pytest
from attrs import frozen
from dependency_injector import providers
from fakes import FailingSink

from vflash import __version__
from vflash.cli import main
from vflash.container import Container
from vflash_adapters.media.ffmpeg_pipe import FfmpegPipeSink
from vflash_adapters.media.frames_dir import FramesDirSink


@frozen(kw_only=True)
class Answer:
    code: int
    out: str
    err: str


class FullStream(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


Vflash = Callable[..., Answer]


@pytest.fixture
def vflash(monkeypatch, capsys) -> Vflash:
    """Run the program in this process."""

    def run(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["vflash", *(str(argument) for argument in arguments)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        told = capsys.readouterr()
        return Answer(code=code, out=told.out, err=told.err)

    return run


@pytest.fixture
def small(checkpoint) -> list[str]:
    """A small request on a CPU."""
    sizes = ["--width", "96", "--height", "64", "--steps", "2"]
    return ["--model", str(checkpoint), "--device", "cpu", "--dtype", "float32", *sizes]


def test_json_is_lines_on_stderr_and_the_receipt_on_stdout(vflash, small, tmp_path):
    """A program can follow it: one event a line, then the receipt that also lies beside the clip."""
    answer = vflash("generate", *small, "--prompt", "rain", "--output", tmp_path / "clip.mp4", "--json")
    assert answer.code == 0
    events = [json.loads(line) for line in answer.err.splitlines()]
    assert all(event.keys() == {"stage", "completed", "total"} for event in events)
    assert [event["completed"] for event in events if event["stage"] == "denoising"] == [1, 2]
    assert events[-1] == {"stage": "decoding", "completed": 120, "total": 120}
    receipt = json.loads(answer.out)
    assert receipt == json.loads((tmp_path / "clip.receipt.json").read_text())
    assert receipt["schedule"]["evaluations"] == 2
    assert (tmp_path / "clip.mp4").stat().st_size == receipt["delivery"]["size_bytes"]


def test_progress_that_nobody_can_read_does_not_cost_the_clip(vflash, small, tmp_path, monkeypatch):
    """Standard error on a full disk: the clip is made, and its receipt is on standard output."""
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", FullStream())
        answer = vflash("generate", *small, "--prompt", "rain", "--output", tmp_path / "clip.mp4", "--json")
    assert answer.code == 0
    assert json.loads(answer.out)["delivery"]["frames"] == 120


def test_a_person_sees_bars_and_where_the_clip_is(vflash, small, tmp_path):
    """Bars go to stderr; stdout has one line with the path and the seconds."""
    answer = vflash("generate", *small, "--prompt", "rain", "--output", tmp_path / "clip.mp4")
    assert answer.code == 0
    assert answer.out.startswith(f"{tmp_path / 'clip.mp4'} (")
    assert answer.out.count("\n") == 1
    for stage in ("encoding", "denoising", "decoding"):
        assert stage in answer.err
    assert "120/120" in answer.err


def test_a_prompt_file_is_the_prompt(vflash, small, tmp_path):
    """Its text without the final newline and without a byte order mark: the same clip as with `--prompt`."""
    (tmp_path / "prompt.txt").write_bytes("雨落在铁皮屋顶上\n".encode("utf-8-sig"))
    spoken = vflash("generate", *small, "--prompt", "雨落在铁皮屋顶上", "--output", tmp_path / "spoken.mp4")
    written = vflash("generate", *small, "--prompt-file", tmp_path / "prompt.txt", "--output", tmp_path / "written.mp4")
    assert (spoken.code, written.code) == (0, 0)
    assert (tmp_path / "spoken.mp4").read_bytes() == (tmp_path / "written.mp4").read_bytes()


def test_a_config_file_asks_and_options_win(vflash, checkpoint, media, tmp_path):
    """[settings] and [request] of a TOML file are the fields of Python's; an option given beside it is stronger."""
    (tmp_path / "ask.toml").write_text(
        f"""
[settings]
model_dir = {json.dumps(str(checkpoint))}
device = "cpu"
dtype = "float32"
weight_residency = "resident"

[request]
prompt = "<Picture 1> hears <Audio 1>."
references = [{json.dumps(str(media / "first.png"))}, {json.dumps(str(media / "sound.wav"))}]
width = 96
height = 64
steps = 4
seed = 3
"""
    )
    answer = vflash("generate", "--config", tmp_path / "ask.toml", "--steps", 1, "-o", tmp_path / "clip.mp4", "--json")
    receipt = json.loads(answer.out)
    assert (receipt["mode"], receipt["seed"], receipt["schedule"]["evaluations"]) == ("ref2va", 3, 1)
    assert receipt["inputs"]["references"] == ["picture", "audio"]
    assert receipt["backends"]["weight_residency"] == "resident"


def test_references_keep_their_order(vflash, small, media, tmp_path):
    """`--reference` again and again, prefixes included."""
    references = [f"audio:{media / 'loud.mp4'}", media / "first.png", media / "silent.mp4"]
    repeated = [word for item in references for word in ("--reference", item)]
    answer = vflash("generate", *small, "--prompt", "rain", *repeated, "--output", tmp_path / "clip.mp4", "--json")
    assert json.loads(answer.out)["inputs"]["references"] == ["audio", "picture", "video"]


def test_the_command_that_a_failed_delivery_names_runs_as_written(vflash, small, tmp_path):
    """Exit 1, one text with the command; running it gives the clip. Paths with spaces are no obstacle."""
    folder = tmp_path / "my clips"
    folder.mkdir()
    with Container.sink.override(providers.Object(FailingSink(OSError("disk full")))):
        failed = vflash("generate", *small, "--prompt", "rain", "--output", folder / "clip.mp4")
    assert failed.code == 1
    assert "vflash: disk full" in failed.err
    assert "Traceback" not in failed.err
    command = shlex.split(failed.err.rsplit("decode them again with:", 1)[1])
    assert command[:2] == ["vflash", "decode"]
    answer = vflash(*command[1:], "--json")
    assert answer.code == 0
    assert json.loads(answer.out)["delivery"]["frames"] == 120
    assert (folder / "clip.mp4").exists()
    assert (folder / "clip.receipt.json").exists()


def test_an_interrupted_delivery_says_what_is_kept(vflash, small, tmp_path):
    """Control-C: exit 130, no traceback, the command that goes on from the latents."""
    with Container.sink.override(providers.Object(FailingSink(KeyboardInterrupt()))):
        stopped = vflash("generate", *small, "--prompt", "rain", "--output", tmp_path / "clip.mp4", "--json")
    assert stopped.code == 130
    told = [line for line in stopped.err.splitlines() if not line.startswith("{")]
    assert told[0] == "vflash: interrupted"
    command = shlex.split(told[1].rsplit("decode them again with:", 1)[1])
    assert vflash(*command[1:]).code == 0
    assert (tmp_path / "clip.mp4").exists()


@pytest.mark.parametrize("feed", ["pipe", "frames-dir"])
def test_the_way_back_is_the_way_it_went(vflash, small, tmp_path, monkeypatch, feed):
    """The command names the sink and the decoder of the run: a folder of frames is no MP4."""
    output = tmp_path / ("clip" if feed == "frames-dir" else "clip.mp4")
    kind = FramesDirSink if feed == "frames-dir" else FfmpegPipeSink
    with monkeypatch.context() as patched:
        patched.setattr(kind, "write", FailingSink(OSError("disk full")).write)
        failed = vflash(
            "generate", *small, "--prompt", "rain", "-o", output, "--media-video-input", feed, "--vae-tiles-at-once", 2
        )
    command = shlex.split(failed.err.rsplit("decode them again with:", 1)[1])
    assert command[command.index("--media-video-input") + 1] == feed
    assert command[command.index("--vae-tiles-at-once") + 1] == "2"
    assert vflash(*command[1:]).code == 0
    assert output.exists()


def test_doctor_looks_at_every_weight_header(vflash, checkpoint, tmp_path):
    """A whole checkpoint is well; one with a missing shard is named, with exit 1."""
    whole = vflash("doctor", "--model", checkpoint, "--json")
    findings = json.loads(whole.out)
    assert findings["problems"] == []
    assert whole.code == 0
    assert "tensors" in findings["checkpoint"]["transformer_ref"]
    for item in checkpoint.iterdir():
        (tmp_path / item.name).symlink_to(item)
    (tmp_path / "transformer").unlink()
    (tmp_path / "transformer").mkdir()
    shards = sorted((checkpoint / "transformer").iterdir())
    missing = next(path for path in shards if path.suffix == ".safetensors")
    for item in shards:
        if item != missing:
            (tmp_path / "transformer" / item.name).symlink_to(item)
    broken = vflash("doctor", "--model", tmp_path)
    assert broken.code == 1
    assert missing.name in broken.err
    assert "not usable" in broken.out


@pytest.mark.parametrize("name", ["none", "file"])
def test_doctor_says_once_that_there_is_no_model_folder(vflash, tmp_path, name):
    """One problem, not one for every component."""
    (tmp_path / "file").touch()
    answer = vflash("doctor", "--model", tmp_path / name, "--json")
    (problem,) = json.loads(answer.out)["problems"]
    assert str(tmp_path / name) in problem
    assert ("does not exist" if name == "none" else "is not a folder") in problem
    assert answer.code == 1


def test_version_and_short_help_are_answered(vflash):
    """What people type first."""
    assert vflash("--version").out == f"vflash {__version__}\n"
    for words in ((), ("generate",), ("sidecar", "prepare")):
        answer = vflash(*words, "-h")
        assert (answer.code, answer.err) == (0, "")
        assert "Usage" in answer.out
