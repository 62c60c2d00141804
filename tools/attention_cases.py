"""For measuring attention: real MiniMax-H3 geometries, random and video-like q, k, v, a random predictor, and the exact
backends of a device."""

from __future__ import annotations

import torch
from attrs import frozen

from vflash_adapters.attention.device_default import DEVICE_BACKENDS
from vflash_adapters.attention.hopper.admission import admits
from vflash_adapters.attention.sdpa import SdpaAttention
from vflash_adapters.attention.veda.plans import Plan
from vflash_adapters.attention.veda.predictor import Projections
from vflash_adapters.attention.veda.tiles import Extents
from vflash_ports.attention import Attention, AttentionLayout, Segment, SegmentKind

HEADS, HEAD_DIM = 56, 128
SHAPES: tuple[Extents, ...] = ((8, 4, 4), (2, 8, 8), (4, 4, 8), (4, 8, 4), (8, 2, 8), (8, 8, 2))


@frozen(kw_only=True)
class Case:
    """A canvas and a length; `audio_rows` and `text_rows` come before the video rows."""

    name: str
    grid: Extents
    audio_rows: int
    text_rows: int = 512
    heads: int = HEADS
    head_dim: int = HEAD_DIM

    @property
    def rows(self) -> int:
        T, H, W = self.grid
        return self.text_rows + self.audio_rows + T * H * W

    def layout(self, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> AttentionLayout:
        before = self.text_rows + self.audio_rows
        video = self.rows - before
        return AttentionLayout(
            segments=(
                Segment(kind=SegmentKind.TEXT, start=0, rows=self.text_rows),
                Segment(kind=SegmentKind.TARGET_AUDIO, start=self.text_rows, rows=self.audio_rows),
                Segment(kind=SegmentKind.TARGET_VIDEO, start=before, rows=video, grid=self.grid),
            ),
            rows=self.rows,
            heads=self.heads,
            head_dim=self.head_dim,
            blocks=50,
            evaluations=1,
            device=device,
            dtype=dtype,
        )


MAIN = Case(name="1344x768 5 s", grid=(37, 24, 42), audio_rows=414)
LONG = Case(name="1344x768 10 s", grid=(72, 24, 42), audio_rows=810)
LARGE = Case(name="2048x2048 5 s", grid=(37, 64, 64), audio_rows=414)
SMALLER = (
    Case(name="928x512 5 s", grid=(37, 16, 29), audio_rows=414),
    Case(name="512x512 5 s", grid=(37, 16, 16), audio_rows=414),
    Case(name="448x256 5 s", grid=(37, 8, 14), audio_rows=414),
    Case(name="256x256 5 s", grid=(37, 8, 8), audio_rows=414),
)


def exact_names(layout: AttentionLayout) -> tuple[str, ...]:
    """The exact backends of the layout's device and dtype, without the reference."""
    return tuple(backend.name for backend in DEVICE_BACKENDS if _is_for(backend, layout))


def _is_for(backend: Attention, layout: AttentionLayout) -> bool:
    if isinstance(backend, SdpaAttention):
        return layout.device.type == backend.device_type and layout.dtype in backend.dtypes
    return admits(layout.device, layout.dtype, layout.head_dim)


def random_qkv(case: Case, device: torch.device, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k normalised per head as the model does; v a view of the fused projection, as in the model."""
    generator = torch.Generator(device).manual_seed(seed)
    shape = (case.rows, 3, case.heads, case.head_dim)
    fused = torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16)
    q, k = (_normalised(fused[:, side]) for side in (0, 1))
    return q, k, fused[:, 2]


def video_like_qkv(case: Case, device: torch.device, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As `random_qkv`, but video rows near in time and space have similar q and k: random cosine features of the
    position, a length scale per head, plus noise."""
    q, k, v = random_qkv(case, device, seed)
    generator = torch.Generator(device).manual_seed(seed + 1)
    T, H, W = case.grid
    axes = torch.meshgrid(*(torch.arange(n, device=device) for n in (T, H, W)), indexing="ij")
    position = torch.stack([axis.flatten().float() for axis in axes], dim=1)
    for head in range(case.heads):
        lengths = torch.rand(3, generator=generator, device=device) * torch.tensor([8.0, 10.0, 10.0], device=device) + 2
        waves = torch.randn(3, case.head_dim, generator=generator, device=device) / lengths[:, None]
        phases = torch.rand(case.head_dim, generator=generator, device=device) * 6.2832
        smooth = torch.cos(position @ waves + phases) * 2**0.5
        for x in (q, k):
            x[case.rows - len(smooth) :, head] = _normalised(0.8 * smooth + 0.6 * x[-len(smooth) :, head].float())
    return q, k, v


def random_plan(case: Case, *, blocks: int = 1, seed: int = 0) -> Plan:
    """Two shapes of the published menu per block, heads assigned at random."""
    generator = torch.Generator().manual_seed(seed)
    table = []
    for _ in range(blocks):
        pair = torch.randperm(len(SHAPES), generator=generator)[:2]
        table.append(tuple(pair[torch.randint(2, (case.heads,), generator=generator)].tolist()))
    return Plan(name="random", grid=case.grid, shapes=SHAPES, head_shape=tuple(table))


def random_projections(case: Case, device: torch.device, seed: int = 0) -> Projections:
    """As before training: N(0, 1e-4^2), so that the scores are nearly those of mean pooling."""
    generator = torch.Generator(device).manual_seed(seed)
    shape = (2, case.heads, 3 * case.head_dim, case.head_dim)
    q, k = (torch.randn(shape, generator=generator, device=device) * 1e-4).bfloat16()
    return Projections(q=q, k=k)


def _normalised(x: torch.Tensor) -> torch.Tensor:
    x = x.float()
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)).bfloat16()
