"""Pictures meet their canvas as the released preparation does: stretched, or covered and cut around the centre."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from vflash_adapters.media.reference_reader import FileReferenceReader
from vflash_ports.errors import MediaError
from vflash_ports.media import PictureFit

READER = FileReferenceReader()


def noise(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, (*shape, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))


def test_stretch_is_lanczos_to_the_exact_size() -> None:
    """The pixels are Pillow's own LANCZOS, for one picture and for each frame of a clip."""
    clip = noise(2, 30, 50)
    fitted = READER.fit_picture(clip, 64, 32, PictureFit.STRETCH)
    assert fitted.shape == (2, 32, 64, 3)
    for before, after in zip(clip, fitted, strict=True):
        wanted = np.asarray(Image.fromarray(before.numpy()).resize((64, 32), Image.Resampling.LANCZOS))
        assert np.array_equal(after.numpy(), wanted)


@settings(deadline=None, max_examples=40)
@given(
    source=st.tuples(st.integers(8, 120), st.integers(8, 120)), target=st.tuples(st.integers(1, 4), st.integers(1, 4))
)
def test_cover_fills_the_canvas_and_cuts_the_centre(source: tuple[int, int], target: tuple[int, int]) -> None:
    """The scaled picture is never smaller than the canvas, and the cut starts at half the surplus, rounded down."""
    (width, height), (canvas_w, canvas_h) = source, (target[0] * 32, target[1] * 32)
    pixels = noise(height, width)
    fitted = READER.fit_picture(pixels, canvas_w, canvas_h, PictureFit.COVER)
    scale = max(canvas_w / width, canvas_h / height)
    scaled = (max(canvas_w, round(width * scale)), max(canvas_h, round(height * scale)))
    left, top = (scaled[0] - canvas_w) // 2, (scaled[1] - canvas_h) // 2
    if (width, height) == (canvas_w, canvas_h):
        assert torch.equal(fitted, pixels)
        return
    wanted = np.asarray(Image.fromarray(pixels.numpy()).resize(scaled, Image.Resampling.LANCZOS))
    assert np.array_equal(fitted.numpy(), wanted[top : top + canvas_h, left : left + canvas_w])


def test_the_right_size_passes_untouched_and_nonsense_is_refused() -> None:
    """No resampling where none is needed; floats, grey and empty pictures and zero sizes are refused."""
    pixels = noise(32, 64)
    assert READER.fit_picture(pixels, 64, 32, PictureFit.COVER) is pixels
    for wrong in (pixels.float(), pixels[..., 0], pixels[:0]):
        with pytest.raises(MediaError, match="uint8"):
            READER.fit_picture(wrong, 64, 64, PictureFit.STRETCH)
    with pytest.raises(MediaError, match="0x32"):
        READER.fit_picture(pixels, 0, 32, PictureFit.STRETCH)
