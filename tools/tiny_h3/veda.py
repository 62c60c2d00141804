"""Train a Veda predictor: which tiles of keys each tile of queries looks at most, from pooled q and k alone.

The target is the dense teacher's tile heat, the largest attention probability of each pair of tiles, as a distribution
over key tiles; the loss is the divergence of the predictor's softmax from it. Plans hold two tile shapes for each grid;
a head takes the one under which its hottest tiles hold more.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from attrs import frozen
from safetensors.torch import save_file

from tiny_h3.denoiser import BatchLayout
from tiny_h3.model import Model, open_model
from tiny_h3.pool import Pool
from tiny_h3.stage import Budget, Log, Progress, compute_dtype, learning_rate
from tiny_h3.tasks import LATENT_FRAMES, Example, Laying, Task, draw_base, draw_noise, noised_at
from tiny_h3.text import Presenter
from vflash_adapters.attention.veda.tiles import LEGAL_SHAPES, PAD, Extents, Span, tile_count, tile_layout
from vflash_adapters.tiny_checkpoint import Dimensions

KEEP_RATIO = 0.5
PEAK_RATE = 3e-3
E4M3_MAX = 448.0


@frozen(kw_only=True)
class VedaJob:
    sizes: Dimensions
    denoiser: Path
    predictor: Path
    log: Path
    budget: Budget
    batch: int = 8
    seed: int = 5


def train_veda(job: VedaJob, pools: list[Pool], presenter: Presenter, device: torch.device) -> None:
    """Learn the projections on text-to-video batches of every canvas, choose the shapes, write the published format."""
    model, _ = open_model(job.sizes, presenter, job.denoiser, device, compiled=False)
    facts = model.facts
    generator = torch.Generator().manual_seed(job.seed)
    shape = (facts.num_layers, 2, facts.num_attention_heads, 3 * facts.attention_head_dim, facts.attention_head_dim)
    projections = torch.nn.Parameter((torch.randn(shape, generator=generator) * 1e-4).to(device))
    optimiser = torch.optim.AdamW([projections], lr=PEAK_RATE, weight_decay=0.0)
    laying = Laying(presenter, facts, device, compute_dtype(device))
    log, progress = Log(path=job.log, stage="veda"), Progress(budget=job.budget)
    chosen = {canvas: _HeadShapes(canvas, model) for canvas in {(p.height, p.width) for p in pools}}
    loss = torch.zeros(())
    while not progress.done:
        pool = pools[progress.step % len(pools)]
        shapes = chosen[(pool.height, pool.width)]
        shapes.turn = progress.step // len(pools) % 2
        example = laying.example(pool, Task.T2VA, *laying.draw(pool, Task.T2VA, job.batch, generator))
        loss = _batch_loss(model, example, projections, shapes)
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(PEAK_RATE, progress.share, progress.step, warmup=20)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        progress.step += 1
        if progress.step % 50 == 0:
            log.write(step=progress.step, share=progress.share, divergence=float(loss.detach()))
    write_predictor(job.predictor, projections.detach().cpu(), [s.plan() for s in chosen.values()], progress.step)
    log.write(step=progress.step, share=1.0, divergence=float(loss.detach()))


def pooled(rows: torch.Tensor, tiles: torch.Tensor) -> torch.Tensor:
    """rows [B, S, heads, D]; tiles [n, 128] of row numbers, PAD after the real ones -> [B, heads, n, 3 * D] float32:
    mean, largest, smallest over each tile's real rows."""
    real = (tiles != PAD)[None, :, :, None, None]
    taken = rows[:, tiles.clamp(min=0)].float()
    mean = (taken * real).sum(2) / real.sum(2)
    largest = taken.masked_fill(~real, float("-inf")).amax(2)
    smallest = taken.masked_fill(~real, float("inf")).amin(2)
    return torch.cat([mean, largest, smallest], dim=-1).transpose(1, 2)


def tile_scores(q: torch.Tensor, k: torch.Tensor, tiles: torch.Tensor, projections: torch.Tensor) -> torch.Tensor:
    """q, k [B, S, heads, D]; projections [2, heads, 3 * D, D] -> [B, heads, n, n]."""
    width = q.shape[-1]
    embedded = []
    for side, rows in enumerate((q, k)):
        features = pooled(rows, tiles)
        embedded.append(features @ projections[side] + features[..., :width])
    return embedded[0] @ embedded[1].mT / width**0.5


def tile_heat(q: torch.Tensor, k: torch.Tensor, tiles: torch.Tensor) -> torch.Tensor:
    """The largest attention probability of each pair of tiles, [B, heads, n, n]; probabilities are over all rows."""
    q, k = q.transpose(1, 2).float(), k.transpose(1, 2).float()
    probabilities = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1)
    real = tiles != PAD
    by_key = probabilities[..., tiles.clamp(min=0)].masked_fill(~real, 0.0).amax(-1)
    return by_key[:, :, tiles.clamp(min=0)].masked_fill(~real[:, :, None], 0.0).amax(3)


def write_predictor(path: Path, projections: torch.Tensor, plans: list[tuple[str, object]], steps: int) -> None:
    """FP8 with one scale a head, and the metadata of the published files."""
    blocks, _, heads, _, width = projections.shape
    tensors: dict[str, torch.Tensor] = {}
    for block in range(blocks):
        for side, name in enumerate(("proj_q", "proj_k")):
            weight = projections[block, side].float()
            scale = (weight.abs().amax((1, 2)) / E4M3_MAX).clamp(min=torch.finfo(torch.float32).tiny)
            tensors[f"layers.{block}.{name}"] = (weight / scale[:, None, None]).to(torch.float8_e4m3fn)
            tensors[f"layers.{block}.{name}.__scale"] = scale
    metadata = {
        "format": "miowtion-veda-predictor-v1",
        "num_layers": str(blocks),
        "num_heads": str(heads),
        "head_dim": str(width),
        "dtype": "float8_e4m3fn",
        "step": str(steps),
        "source": "tiny-h3",
        "source_weights": "live",
        "keep_ratio": str(KEEP_RATIO),
        "tile_conditions": "false",
        "plans": json.dumps(dict(plans)),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path, metadata=metadata)


def two_shapes(grid: Extents) -> tuple[Extents, Extents]:
    """The two shapes to choose from: those inside the grid before those that reach beyond it, then the fewest tiles,
    then the less stretched."""

    def rank(shape: Extents) -> tuple[bool, int, float, Extents]:
        beyond = any(extent > size for extent, size in zip(shape, grid, strict=True))
        return beyond, tile_count(grid, shape), max(shape) / min(shape), shape

    first, second, *_ = sorted(LEGAL_SHAPES, key=rank)
    return first, second


class _HeadShapes:
    """Two shapes of one grid, and how much of each head's heat the kept tiles hold under each, as training sees it."""

    def __init__(self, canvas: tuple[int, int], model: Model) -> None:
        self.canvas = canvas
        self.grid: Extents = (LATENT_FRAMES, canvas[0] // 32, canvas[1] // 32)
        self.shapes = two_shapes(self.grid)
        self.held = torch.zeros(2, model.facts.num_layers, model.facts.num_attention_heads)
        self.seen = [0, 0]
        self.turn = 0

    def rows(self, layout: BatchLayout) -> torch.Tensor:
        total = layout.membership.shape[0]
        count = self.grid[0] * self.grid[1] * self.grid[2]
        tiling = tile_layout(total, [], Span(start=total - count, grid=self.grid, shape=self.shapes[self.turn]))
        return torch.from_numpy(tiling.rows[: tiling.n_video]).long().to(layout.membership.device)

    def note(self, block: int, heat: torch.Tensor) -> None:
        kept = max(1, round(KEEP_RATIO * heat.shape[-1]))
        share = heat.topk(kept, dim=-1).values.sum(-1) / heat.sum(-1)
        self.held[self.turn, block] += share.mean((0, 2)).cpu()
        self.seen[self.turn] += int(block == 0)

    def plan(self) -> tuple[str, object]:
        mean = self.held / torch.tensor([max(n, 1) for n in self.seen])[:, None, None]
        name = f"{self.canvas[1]}x{self.canvas[0]}_t{self.grid[0]}"
        return name, {
            "geometry": name,
            "grid": list(self.grid),
            "shapes": ["x".join(map(str, shape)) for shape in self.shapes],
            "head_shape": (mean[1] > mean[0]).long().tolist(),
        }


def _batch_loss(model: Model, example: Example, projections: torch.Tensor, shapes: _HeadShapes) -> torch.Tensor:
    tiles = shapes.rows(example.layout)
    losses: list[torch.Tensor] = []

    def watch(block: int, q: torch.Tensor, k: torch.Tensor) -> None:
        with torch.no_grad():
            heat = tile_heat(q, k, tiles)
            shapes.note(block, heat)
            wanted = heat / heat.sum(-1, keepdim=True)
        with torch.enable_grad():
            scores = tile_scores(q.detach(), k.detach(), tiles, projections[block])
            losses.append(F.kl_div(torch.log_softmax(scores, -1), wanted, reduction="none").sum(-1).mean())

    with torch.no_grad():
        noised = noised_at(
            example, draw_noise(example), draw_base(len(example.ids), example.video.device), model.encoder
        )
        model.denoiser.velocities(model.parameters, noised, example.layout, watch)
    return torch.stack(losses).mean()
