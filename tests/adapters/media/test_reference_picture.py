"""One still picture of any usual kind becomes upright 8-bit RGB; everything else is refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vflash_adapters.media.reference_limits import ReferenceLimits
from vflash_adapters.media.reference_reader import FileReferenceReader
from vflash_ports.errors import MediaError

READER = FileReferenceReader()


def gradient(height: int, width: int) -> np.ndarray:
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([x * 5 % 256, y * 7 % 256, (x + y) * 3 % 256], axis=-1).astype(np.uint8)


@pytest.mark.parametrize("name", ["p.png", "p.bmp", "p.tiff", "p.ppm", "p.webp"])
def test_lossless_formats_return_their_pixels(name: str, tmp_path: Path) -> None:
    """RGB goes through unchanged, [H, W, 3] uint8, odd sizes too."""
    pixels = gradient(21, 33)
    Image.fromarray(pixels).save(tmp_path / name, lossless=True)
    found = READER.picture(tmp_path / name)
    assert found.dtype is torch.uint8
    assert np.array_equal(found.numpy(), pixels)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation: int, tmp_path: Path) -> None:
    """All eight orientations come out upright."""
    pixels = gradient(24, 40)
    undo = {
        1: pixels,
        2: pixels[:, ::-1],
        3: pixels[::-1, ::-1],
        4: pixels[::-1],
        5: pixels.transpose(1, 0, 2),
        6: np.rot90(pixels, 1),
        7: np.rot90(pixels, 2).transpose(1, 0, 2),
        8: np.rot90(pixels, -1),
    }
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(np.ascontiguousarray(undo[orientation])).save(tmp_path / "p.png", exif=exif)
    assert np.array_equal(READER.picture(tmp_path / "p.png").numpy(), pixels)


def test_grey_palette_and_16_bit_become_rgb(tmp_path: Path) -> None:
    """8-bit grey repeats; 16-bit grey keeps its scale (65535 is 255, 257 * k is k); a palette is looked up."""
    grey = gradient(16, 20)[..., 0]
    Image.fromarray(grey).save(tmp_path / "grey.png")
    assert np.array_equal(READER.picture(tmp_path / "grey.png").numpy(), np.repeat(grey[..., None], 3, axis=-1))
    Image.fromarray(grey.astype(np.uint16) * 257).save(tmp_path / "deep.png")
    assert np.array_equal(READER.picture(tmp_path / "deep.png").numpy(), np.repeat(grey[..., None], 3, axis=-1))
    palette = Image.fromarray(gradient(16, 20)).quantize(16)
    palette.save(tmp_path / "palette.png")
    assert np.array_equal(READER.picture(tmp_path / "palette.png").numpy(), np.asarray(palette.convert("RGB")))


def test_transparency_is_laid_over_white(tmp_path: Path) -> None:
    """Opaque pixels stay, transparent ones are white whatever colour hides there, half is half way."""
    pixels = np.zeros((1, 3, 4), dtype=np.uint8)
    pixels[0, :, 0] = 200
    pixels[0, :, 3] = (255, 0, 128)
    Image.fromarray(pixels).save(tmp_path / "p.png")
    found = READER.picture(tmp_path / "p.png").numpy()[0]
    assert found[0].tolist() == [200, 0, 0]
    assert found[1].tolist() == [255, 255, 255]
    assert np.abs(found[2].astype(int) - [227, 127, 127]).max() <= 1


@pytest.mark.parametrize("name", ["p.gif", "p.webp", "p.png", "p.tiff"])
def test_animations_and_pages_are_refused(name: str, tmp_path: Path) -> None:
    """A file with more than one frame is no still picture."""
    first, second = Image.fromarray(gradient(16, 16)), Image.fromarray(gradient(16, 16)[::-1].copy())
    first.save(tmp_path / name, save_all=True, append_images=[second])
    with pytest.raises(MediaError, match=r"animated|pages"):
        READER.picture(tmp_path / name)


def test_limits_are_checked_from_the_header(tmp_path: Path) -> None:
    """Too many pixels, too many bytes, nothing, a folder and a float picture are refused before decoding."""
    Image.fromarray(gradient(64, 64)).save(tmp_path / "p.png")
    Image.new("L", (20000, 20000)).save(tmp_path / "bomb.png")
    Image.fromarray(np.ones((4, 4), dtype=np.float32)).save(tmp_path / "float.tiff")
    (tmp_path / "empty.png").touch()
    small = FileReferenceReader(limits=ReferenceLimits(picture_pixels=4095))
    with pytest.raises(MediaError, match="64x64"):
        small.picture(tmp_path / "p.png")
    with pytest.raises(MediaError, match="bytes"):
        FileReferenceReader(limits=ReferenceLimits(picture_bytes=10)).picture(tmp_path / "p.png")
    for name, message in [
        ("bomb.png", "too large|pixels"),
        ("empty.png", "empty"),
        ("absent.png", "does not exist"),
        (".", "not a regular file"),
        ("float.tiff", "floating-point"),
    ]:
        with pytest.raises(MediaError, match=message):
            READER.picture(tmp_path / name)


def test_what_is_no_picture_is_refused(tmp_path: Path) -> None:
    """Text, and PostScript that Pillow would hand to a program, are not read as pictures."""
    (tmp_path / "p.png").write_text("not a picture")
    (tmp_path / "p.eps").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n")
    for name in ("p.png", "p.eps"):
        with pytest.raises(MediaError, match="is not a"):
            READER.picture(tmp_path / name)
