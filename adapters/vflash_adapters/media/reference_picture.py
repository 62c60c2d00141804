"""Pictures: one still image of any usual kind becomes upright 8-bit RGB."""

from __future__ import annotations

import io
import struct
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from vflash_adapters.media.reference_limits import ReferenceLimits, require_file
from vflash_ports.errors import MediaError

if TYPE_CHECKING:
    import torch
    from PIL import Image

# Plain raster formats (JPEG includes MPO); those that run programs or hold layers (EPS, PSD) are left out.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF", "PPM")
SIXTEEN_BIT = ("I;16", "I;16B", "I;16L", "I;16N", "I")
# What Pillow's decoders raise on damaged data.
DAMAGE = (OSError, SyntaxError, ValueError, TypeError, LookupError, EOFError, MemoryError, struct.error)
BACKDROP = (255, 255, 255, 255)


def read_picture(path: Path, limits: ReferenceLimits) -> torch.Tensor:
    """uint8 RGB [H, W, 3], upright by EXIF.

    Grey and palette become RGB; 16-bit grey is scaled to 8 bits; transparency is laid over white, as a page would
    show it; embedded colour profiles are not applied. `MediaError` for an animation, a damaged file or one over
    the limits.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    require_file(path, limits.picture_bytes, what="picture")
    Image.init()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # doubtful metadata is of no use here; the pixels are checked below
            # From memory: a reader of files allocates whatever length a chunk claims, this one what is there.
            with Image.open(io.BytesIO(path.read_bytes()), formats=FORMATS) as picture:
                _require_still(picture, path, limits)
                picture.load()
                return _pixels(_rgb(ImageOps.exif_transpose(picture), path))
    except UnidentifiedImageError:
        raise MediaError(f"picture {path} is not a {', '.join(FORMATS)} file") from None
    except Image.DecompressionBombError as error:
        raise MediaError(f"picture {path} is too large: {error}") from error
    except MediaError:
        raise
    except DAMAGE as error:
        raise MediaError(f"picture {path} is damaged: {error}") from error


def _require_still(picture: Image.Image, path: Path, limits: ReferenceLimits) -> None:
    width, height = picture.size
    if width * height > limits.picture_pixels or width < 1 or height < 1:
        raise MediaError(
            f"picture {path} has {width}x{height} pixels, more than {limits.picture_pixels}: scale it down"
        )
    # A phone's MPO is one photograph with previews behind it; the first is the photograph.
    if getattr(picture, "n_frames", 1) > 1 and picture.format != "MPO":
        raise MediaError(f"picture {path} is animated or has several pages: save one frame of it as PNG")


def _rgb(picture: Image.Image, path: Path) -> Image.Image:
    from PIL import Image

    if picture.mode in SIXTEEN_BIT:
        return _from_sixteen_bits(picture, path)
    if picture.mode == "F":
        raise MediaError(f"picture {path} holds floating-point pixels: save it as 8-bit PNG")
    if picture.has_transparency_data:
        layered = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layered.size, BACKDROP), layered).convert("RGB")
    return picture.convert("RGB")


def _from_sixteen_bits(picture: Image.Image, path: Path) -> Image.Image:
    """Pillow's own conversion would clip everything above 255."""
    import numpy as np
    from PIL import Image

    values = np.asarray(picture).astype(np.int64)
    if values.size and (values.min() < 0 or values.max() > 65535):
        raise MediaError(f"picture {path} holds values outside 16 bits: save it as 8-bit PNG")
    return Image.fromarray(((values + 128) // 257).astype(np.uint8), "L").convert("RGB")


def _pixels(picture: Image.Image) -> torch.Tensor:
    import numpy as np
    import torch

    return torch.from_numpy(np.array(picture, dtype=np.uint8))
