"""How many bytes a request's own tensors need, stage by stage: pure numbers, made before anything loads.

Each formula follows the tensors that are alive at a stage's widest moment.
"""

from __future__ import annotations

from attrs import frozen

from vflash.domain.choices import Linear, VideoDecoderChoice
from vflash.domain.model_facts import CodecFacts, DenoiserFacts

FLOAT32 = 4
ROLES, TABLE_PARTS = 5, 6
TILE_PIXELS = 256
"""The VAEs' tiles, width and height."""


@frozen(kw_only=True)
class Rows:
    """Rows of the packed sequence."""

    text: int
    condition: int
    target_audio: int
    target_video: int

    @property
    def total(self) -> int:
        return self.text + self.condition + self.target_audio + self.target_video


NO_ROWS = Rows(text=0, condition=0, target_audio=0, target_video=0)


@frozen(kw_only=True)
class Pixels:
    """The target's canvas, and the frames of the longest reference or keyframe that is encoded (0: none)."""

    width: int
    height: int
    reference_frames: int = 0


def block_bytes(facts: DenoiserFacts, storage: Linear, dtype_bytes: int) -> int:
    """One packed block: four norms, four linears."""
    c, inner, ffn = facts.hidden_size, facts.inner_dim, facts.ffn_dim
    shapes = ((3 * inner, c), (c, inner), (2 * ffn, c), (c, ffn))
    norms = 2 * (c + facts.attention_head_dim) * dtype_bytes
    if storage is Linear.BF16:
        return norms + dtype_bytes * sum(out * width for out, width in shapes)
    return norms + sum(out * width + FLOAT32 * out for out, width in shapes)


def table_bytes(facts: DenoiserFacts, evaluations: int, dtype_bytes: int) -> int:
    """Modulation of every block and of the output norm, for one whole schedule."""
    rows = evaluations * ROLES * facts.hidden_size * dtype_bytes
    return rows * (TABLE_PARTS * facts.num_layers + 2)


def denoise_bytes(facts: DenoiserFacts, rows: Rows, storage: Linear, *, dtype_bytes: int, chunk_rows: int) -> int:
    """One evaluation at its widest: the attention, a chunk of the FFN, or the output head."""
    c, inner, ffn = facts.hidden_size, facts.inner_dim, facts.ffn_dim
    attention = rows.total * (4 * inner * dtype_bytes + facts.num_attention_heads * FLOAT32)
    restored = 2 * ffn * c * dtype_bytes if storage is Linear.FP8_WEIGHT_ONLY else 0
    chunk = min(rows.total, chunk_rows) * 3 * ffn * dtype_bytes + restored
    head = rows.target_video * c * max(3 * dtype_bytes, 2 * dtype_bytes + FLOAT32)
    return _kept_bytes(facts, rows, dtype_bytes) + max(attention, chunk, head)


def _kept_bytes(facts: DenoiserFacts, rows: Rows, dtype_bytes: int) -> int:
    """Alive through the whole evaluation: x, the rows before the targets, rotary tables, roles, latents."""
    rotary = 2 * 6 * facts.rope_freq_dim * FLOAT32
    stream = rows.total * (facts.hidden_size * dtype_bytes + rotary + 8)
    prefix = (rows.text + rows.condition) * facts.hidden_size * dtype_bytes
    latents = rows.target_video * facts.video_row_dim + rows.target_audio * facts.audio_in_channels
    return stream + prefix + 2 * FLOAT32 * latents


def text_bytes(rows: Rows, *, hidden: int, ffn: int, dtype_bytes: int) -> int:
    """One layer of the text encoder over its rows."""
    return rows.text * dtype_bytes * (6 * hidden + 3 * ffn)


def encode_bytes(codec: CodecFacts, pixels: Pixels) -> int:
    """The video encoder's first level over one tile of a clip: three tensors, float32; and the pixels themselves."""
    frames = min(pixels.reference_frames, codec.clip_frames)
    tile = frames * TILE_PIXELS**2 * codec.encoder_width * 3 * FLOAT32
    return tile + 3 * pixels.reference_frames * pixels.width * pixels.height * 3 * FLOAT32


def decode_bytes(
    codec: CodecFacts, pixels: Pixels, *, tiles_at_once: int, dtype_bytes: int, decoder: VideoDecoderChoice
) -> int:
    """A batch of tiles in one layer of the video decoder, beside the pixels of a window and of the clip before it, and
    what the decoder copies of its weights for one clip."""
    window = codec.clip_latents + 2
    tokens = tiles_at_once * window * (TILE_PIXELS // codec.spatial_ratio) ** 2
    product = 1 if decoder is VideoDecoderChoice.FUSED_FP8 else dtype_bytes
    layer = tokens * (2 * FLOAT32 * codec.decoder_hidden + (2 * dtype_bytes + product) * codec.decoder_ffn)
    frame = 3 * pixels.width * pixels.height
    copied = codec.decoder_layers * _copied_bytes(codec, decoder, dtype_bytes)
    return copied + layer + frame * 4 * window * 3 * dtype_bytes + frame * codec.clip_frames * 3 * FLOAT32


def _copied_bytes(codec: CodecFacts, decoder: VideoDecoderChoice, dtype_bytes: int) -> int:
    """Of one layer: nothing, the attention's input projections side by side, or every linear as codes and scales."""
    c, ffn = codec.decoder_hidden, codec.decoder_ffn
    if decoder is VideoDecoderChoice.DIFFUSERS:
        return 0
    if decoder is VideoDecoderChoice.FUSED:
        return 3 * c * c * dtype_bytes
    shapes = ((3 * c, c), (c, c), (2 * ffn, c), (c, ffn))
    return sum(out * width + FLOAT32 * out for out, width in shapes)
