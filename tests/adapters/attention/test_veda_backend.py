"""Veda as a backend: which blocks are sparse, what the report says, what is refused and with which cure."""

from __future__ import annotations

import sys

import pytest
import torch
from attrs import evolve, frozen

from make_tiny_predictor import write_predictor
from vflash_adapters.attention.sdpa import sdpa_attention
from vflash_adapters.attention.veda.adapter import VedaAttention
from vflash_adapters.attention.veda.budget import Budget, BudgetKind
from vflash_adapters.attention.veda.device_kernels import DeviceKernels
from vflash_adapters.attention.veda.fast import HopperKernels, TritonKernels
from vflash_adapters.attention.veda.kernels import SparseCall
from vflash_adapters.attention.veda.predictor import Predictor, read_predictor
from vflash_adapters.attention.veda.reference import ReferenceKernels, ReferenceSparseCall
from vflash_adapters.attention.veda.tiling import Tiling
from vflash_ports.attention import AttentionFn, AttentionLayout, Segment, SegmentKind
from vflash_ports.errors import ContractError, UnsupportedError

BLOCKS, HEADS, HEAD_DIM, EVALUATIONS = 8, 2, 16, 2
GRID = (5, 12, 12)


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    path = tmp_path_factory.mktemp("veda") / "tiny.safetensors"
    write_predictor(path, blocks=BLOCKS, heads=HEADS, head_dim=HEAD_DIM, grids=[GRID, (9, 12, 12)])
    return read_predictor(path)


def layout(grid: tuple[int, int, int] = GRID, **changes: object) -> AttentionLayout:
    video = grid[0] * grid[1] * grid[2]
    made = AttentionLayout(
        segments=(
            Segment(kind=SegmentKind.TEXT, start=0, rows=30),
            Segment(kind=SegmentKind.CONDITION_VIDEO, start=30, rows=128, grid=(1, 8, 16)),
            Segment(kind=SegmentKind.TARGET_AUDIO, start=158, rows=10),
            Segment(kind=SegmentKind.TARGET_VIDEO, start=168, rows=video, grid=grid),
        ),
        rows=168 + video,
        heads=HEADS,
        head_dim=HEAD_DIM,
        blocks=BLOCKS,
        evaluations=EVALUATIONS,
        device=torch.device("cpu"),
        dtype=torch.float32,
    )
    return evolve(made, **changes)


def veda(predictor: Predictor | None, **options: object) -> VedaAttention:
    path = predictor and predictor.path
    return VedaAttention(predictor=path, kernels=ReferenceKernels(), dense=sdpa_attention("sdpa"), **options)


def run(attend: AttentionFn, made: AttentionLayout) -> dict[tuple[int, int], torch.Tensor]:
    fused = torch.randn(made.rows, 3, HEADS, HEAD_DIM, generator=torch.Generator().manual_seed(0))
    q, k, v = fused.unbind(1)
    places = [(block, evaluation) for evaluation in range(EVALUATIONS) for block in range(BLOCKS)]
    return {place: attend(q, k, v, block=place[0], evaluation=place[1]) for place in places}


def test_three_edge_blocks_on_either_side_are_dense(predictor: Predictor) -> None:
    """Of eight blocks two are sparse, in each of two evaluations; the dense ones equal the exact backend."""
    attend = veda(predictor).prepare(layout())
    out = run(attend, layout())
    report = attend.report()
    assert (report.backend, report.exact, report.dense_calls, report.sparse_calls) == ("veda", False, 12, 4)
    assert report.details["dense_layers"] == [0, 1, 2, 5, 6, 7]
    exact = run(sdpa_attention("sdpa").prepare(layout()), layout())
    same = [place for place in out if torch.equal(out[place], exact[place])]
    assert same == [place for place in out if place[0] not in (3, 4)]


def test_the_released_model_has_44_sparse_and_6_dense_blocks(predictor: Predictor) -> None:
    """Fifty blocks at the default of three edge blocks."""
    backend = veda(predictor)
    assert sum(backend.is_dense(block, 0, 50) for block in range(50)) == 6
    assert sum(veda(predictor, dense_edge_layers=5).is_dense(block, 0, 50) for block in range(50)) == 10


@pytest.mark.parametrize("edge", [0, 1, 3])
def test_what_is_held_is_what_prepare_puts_on_the_device(predictor: Predictor, edge: int) -> None:
    """Two projections a head in every sparse block, in BF16; known before a tensor of the file is read."""
    backend = veda(predictor, dense_edge_layers=edge)
    held = backend.held_bytes(layout())
    assert backend._projections == {}
    backend.prepare(layout())
    (projections,) = backend._projections.values()
    assert len(projections) == BLOCKS - 2 * edge
    assert held == sum(one.q.nbytes + one.k.nbytes for one in projections.values())


def test_the_released_predictor_holds_484_megabytes(predictor: Predictor) -> None:
    """44 sparse blocks of 56 heads of 128."""
    released = evolve(predictor, blocks=50, heads=56, head_dim=128)
    assert 44 * released.block_bytes == 484_442_112


def test_dense_steps_run_whole_evaluations_exactly(predictor: Predictor) -> None:
    """Evaluation 0 dense, evaluation 1 sparse in the middle."""
    attend = veda(predictor, dense_steps=(0,)).prepare(layout())
    run(attend, layout())
    assert (attend.report().dense_calls, attend.report().sparse_calls) == (14, 2)
    assert attend.report().details["dense_steps"] == [0]


def test_the_report_says_plan_budgets_and_fractions(predictor: Predictor) -> None:
    """Kept pairs are counted on the device; the fractions follow from them and the tile counts."""
    attend = veda(predictor).prepare(layout())
    run(attend, layout())
    details = attend.report().details
    assert (details["plan"], details["plan_exact"]) == ("tiny_t5_12x12", True)
    assert details["target_budget"] == "ratio=0.1"
    assert details["reference_budget"] is None
    assert details["tiled_references"] == 0
    assert details["predictor"] == str(predictor.path)
    shapes = [shape for block in (3, 4) for shape in predictor.plans[0].head_shape[block]]
    layouts = [attend.tiling.layouts[shape] for shape in shapes]
    kept = [int(attend.tiling.keep[shape].sum()) for shape in shapes]
    assert details["kept_fraction"] == pytest.approx(sum(kept) / sum(tiles.n_video**2 for tiles in layouts))
    computed = sum(kept) + sum(tiles.n_global * (tiles.n_tiles + tiles.n_video) for tiles in layouts)
    assert details["compute_fraction"] == pytest.approx(computed / (2 * HEADS * (layout().rows / 128) ** 2))


def test_another_length_is_reported_as_inexact(predictor: Predictor) -> None:
    """Six latent frames use the plan of five."""
    details = veda(predictor).prepare(layout((6, 12, 12))).report().details
    assert (details["plan"], details["plan_exact"]) == ("tiny_t5_12x12", False)


def test_the_predictor_free_baseline_needs_no_file() -> None:
    """It is a backend of its own name, scores by mean pooling, and keeps a tenth unless told otherwise."""
    attend = veda(None, dense_edge_layers=0, target_budget=Budget(kind=BudgetKind.TILES, value=2)).prepare(layout())
    run(attend, layout())
    report = attend.report()
    assert (report.backend, report.dense_calls, report.sparse_calls) == ("veda-meanpool", 0, 16)
    assert report.details["target_budget"] == "tiles=2"
    assert veda(None).prepare(layout()).report().details["target_budget"] == "ratio=0.1"


def test_a_budget_that_keeps_all_runs_dense_and_exact(predictor: Predictor) -> None:
    """Then no sparse call is made, and the report does not claim one."""
    attend = veda(predictor, target_budget=Budget(kind=BudgetKind.RATIO, value=1)).prepare(layout())
    run(attend, layout())
    report = attend.report()
    assert (report.exact, report.dense_calls, report.sparse_calls) == (True, 16, 0)
    assert report.details["kept_fraction"] is None


def test_two_identical_requests_give_identical_output(predictor: Predictor) -> None:
    """Nothing is carried from one request to the next."""
    backend = veda(predictor)
    first, second = (run(backend.prepare(layout()), layout()) for _ in range(2))
    assert all(torch.equal(first[place], second[place]) for place in first)


@pytest.mark.parametrize("change", [{"blocks": 9}, {"heads": 4}, {"head_dim": 32}])
def test_a_predictor_of_another_model_is_refused(predictor: Predictor, change: dict[str, int]) -> None:
    """The message names the file, both sizes and the cure."""
    with pytest.raises(ContractError, match=r"tiny\.safetensors was trained for .*\(8, 2, 16\).*this model has"):
        veda(predictor).prepare(layout(**change))


@pytest.mark.parametrize("edge", [4, 5, -1])
def test_edge_blocks_that_leave_nothing_sparse_are_refused(predictor: Predictor, edge: int) -> None:
    """With eight blocks at most three on either side."""
    with pytest.raises(ContractError, match=r"veda_dense_edge_layers=.*0 to 3"):
        veda(predictor, dense_edge_layers=edge).prepare(layout())


def test_a_grid_that_does_not_hold_its_rows_is_refused(predictor: Predictor) -> None:
    """Tiling needs the target's geometry."""
    made = layout()
    target = evolve(made.segments[-1], grid=(5, 12, 11))
    with pytest.raises(ContractError, match="target-video"):
        veda(predictor).prepare(evolve(made, segments=(*made.segments[:-1], target)))
    with pytest.raises(ContractError, match="one target video"):
        veda(predictor).prepare(evolve(made, segments=made.segments[:-1]))


@pytest.mark.parametrize("kernels", [TritonKernels(), HopperKernels()], ids=lambda kernels: kernels.name)
def test_gpu_kernels_are_refused_on_a_cpu(kernels: TritonKernels, predictor: Predictor) -> None:
    """No dense fallback, no other kernels: an error with the cure."""
    with pytest.raises(UnsupportedError, match=rf"'{kernels.name}' run on CUDA.*veda_kernels='auto'"):
        evolve(veda(predictor), kernels=kernels).prepare(layout())


def test_hopper_kernels_need_a_triton_with_gluon(monkeypatch: pytest.MonkeyPatch) -> None:
    """An older one is named before its compiler fails on them."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr("triton.__version__", "3.5.1")
    tiling = veda(None).prepare(layout()).tiling
    cuda = layout(dtype=torch.bfloat16, device=torch.device("cuda"), head_dim=128)
    with pytest.raises(UnsupportedError, match=r"Triton 3\.6 or later.*not 3\.5\.1.*veda_kernels='triton'"):
        HopperKernels().prepare(tiling, cuda)


def test_a_later_triton_that_moved_a_name_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the import of the kernels raises, with the cure."""
    from triton.experimental.gluon.language.nvidia.ampere import async_copy

    for name in ("async_load", "async_copy_global_to_shared"):
        monkeypatch.delattr(async_copy, name, raising=False)
    for name in ("hopper_attend", "hopper_producer"):
        monkeypatch.delitem(sys.modules, f"vflash_adapters.attention.veda.{name}", raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr("triton.__version__", "9.1.0")
    tiling = veda(None).prepare(layout()).tiling
    cuda = layout(dtype=torch.bfloat16, device=torch.device("cuda"), head_dim=128)
    with pytest.raises(UnsupportedError, match=r"'hopper' does not load with Triton 9\.1\.0 \(.*veda_kernels='triton'"):
        HopperKernels().prepare(tiling, cuda)


def test_auto_is_the_reference_on_a_cpu_and_says_so(predictor: Predictor) -> None:
    """The report names what ran, not what was asked for."""
    attend = evolve(veda(predictor), kernels=DeviceKernels()).prepare(layout())
    assert attend.report().details["kernels"] == "reference"


@frozen(kw_only=True)
class SpoiledKernels:
    """The reference with one fault: it ignores the budget, its output is a tenth too large, or it does not compile."""

    fault: str
    name: str = "spoiled"

    def prepare(self, tiling: Tiling, layout: AttentionLayout) -> SparseCall:
        if self.fault == "greedy":
            return ReferenceKernels().prepare(evolve(tiling, keep=torch.full_like(tiling.keep, tiling.tiles)), layout)
        return SpoiledCall(tiling=tiling, name=self.fault)


class SpoiledCall(ReferenceSparseCall):
    def __call__(self, *inputs: torch.Tensor, **options: object) -> torch.Tensor:
        if self.name == "broken":
            raise AttributeError("no such instruction")
        if self.name == "full":
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().__call__(*inputs, **options) * 1.1


@pytest.mark.parametrize(
    ("fault", "message"), [("greedy", "not kept"), ("large", "error"), ("broken", "no such instruction")]
)
def test_kernels_that_fail_the_self_test_are_refused(predictor: Predictor, fault: str, message: str) -> None:
    """Kernels that attend to everything, compute wrongly or do not run at all stop before the first call."""
    backend = evolve(veda(predictor), kernels=SpoiledKernels(fault=fault))
    with pytest.raises(UnsupportedError, match=f"self-test.*{message}.*exact attention backend"):
        backend.prepare(layout(dtype=torch.bfloat16))


def test_memory_that_runs_out_is_no_fault_of_the_kernels(predictor: Predictor) -> None:
    """Torch's own error passes through the self-test as it is."""
    with pytest.raises(torch.OutOfMemoryError, match=r"^CUDA out of memory"):
        evolve(veda(predictor), kernels=SpoiledKernels(fault="full")).prepare(layout(dtype=torch.bfloat16))
