"""A picture of what the shipped tiny H3 does: sixteen held-out captions, each clip a strip, with the judge's count.

    PYTHONPATH=tools python tools/tiny_h3_sheet.py --output docs/images/tiny-h3.png

The captions are the first English ones of the gate's set, not a choice. Takes about two minutes on two cores.
"""

from __future__ import annotations

import argparse
import io
import tempfile
from pathlib import Path

from PIL import Image

from tiny_h3.prompts import Prompt, prompt_set
from tiny_h3.sheet import Strip, drawn
from tiny_h3.tasks import Task
from vflash.pipeline import H3Pipeline, VideoRequest
from vflash_adapters.judge.reading import read_clip
from vflash_adapters.judge.verdict import Verdict, judge, measure
from vflash_adapters.packed.unpacked_cache import cached_tiny_h3

CLIPS, COLUMNS, FRAMES = 16, 2, 5
WIDTH, HEIGHT, EVALUATIONS = 128, 96, 16
MAX_BYTES = 600_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--model", type=Path, help="a checkpoint folder instead of the shipped one")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        model = args.model or cached_tiny_h3(Path(scratch) / "cache")
        strips = make_strips(model, english_prompts(CLIPS), Path(scratch))
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_bytes(small_png(drawn(strips, columns=COLUMNS, frames=FRAMES)))
    print(f"{args.output}: {args.output.stat().st_size} bytes")


def english_prompts(count: int) -> list[Prompt]:
    """Pillow's own font has no Chinese."""
    return [prompt for prompt in prompt_set(Task.T2VA) if prompt.caption.isascii()][:count]


def make_strips(model: Path, prompts: list[Prompt], folder: Path) -> list[Strip]:
    strips = []
    with H3Pipeline(model, device="cpu", dtype="float32") as pipeline:
        for prompt in prompts:
            path = folder / f"{prompt.number}.mp4"
            request = VideoRequest(
                prompt=prompt.caption, width=WIDTH, height=HEIGHT, steps=EVALUATIONS, seed=prompt.number
            )
            pipeline.generate(request, path)
            clip = read_clip(path)
            count = _count(judge(measure(clip), prompt.expected))
            strips.append(Strip(caption=prompt.caption, note=count, frames=clip.frames))
            print(f"{count} {prompt.caption}", flush=True)
    return strips


def small_png(picture: Image.Image) -> bytes:
    """With as many colours as `MAX_BYTES` allow."""
    for colours in (256, 128, 64, 32, 16):
        content = io.BytesIO()
        picture.quantize(colours, dither=Image.Dither.NONE).save(content, "png", optimize=True)
        if content.tell() <= MAX_BYTES:
            return content.getvalue()
    raise ValueError(f"the sheet does not fit {MAX_BYTES} bytes with 16 colours")


def _count(verdict: Verdict) -> str:
    return f"{sum(attribute.right for attribute in verdict.attributes)}/{len(verdict.attributes)}"


if __name__ == "__main__":
    main()
