"""Row quantisation: what it keeps, what it bounds, what it never hides."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vflash_adapters.linear.row_quantiser import SMALLEST_SCALE, quantise_rows, restore_rows

SHAPES = st.tuples(st.integers(0, 7), st.integers(1, 40))
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
MAGNITUDES = st.integers(-30, 30)


def drawn(shape: tuple[int, int], seed: int, magnitude: int, dtype: torch.dtype) -> torch.Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 2.0**magnitude
    limit = torch.finfo(dtype).max
    return values.clamp(-limit, limit).to(dtype)


@settings(deadline=None, max_examples=60)
@given(shape=SHAPES, seed=st.integers(0, 2**16), magnitude=MAGNITUDES, dtype=DTYPES)
def test_the_error_is_bounded_by_the_value_and_by_the_row_amax(
    shape: tuple[int, int], seed: int, magnitude: int, dtype: torch.dtype
) -> None:
    """Half a step of E4M3: 1/16 of a normal value, 2^-10 of the scale below that; so 1/28 of the row's amax at most."""
    values = drawn(shape, seed, magnitude, dtype).double()
    rows = quantise_rows(values.to(dtype))
    restored = rows.codes.double() * rows.scales.double()
    error, scales = (restored - values).abs(), rows.scales.double()
    assert (error <= torch.maximum(values.abs() / 16, scales * 2**-10) * (1 + 1e-6)).all()
    if shape[0]:
        assert (error <= values.abs().amax(1, keepdim=True) / 28 + SMALLEST_SCALE).all()


@settings(deadline=None, max_examples=30)
@given(shape=SHAPES, seed=st.integers(0, 2**16), magnitude=MAGNITUDES)
def test_the_amax_of_each_row_is_kept(shape: tuple[int, int], seed: int, magnitude: int) -> None:
    """The largest magnitude maps to code 448, so it survives to within float32 rounding."""
    values = drawn(shape, seed, magnitude, torch.float32)
    if shape[0]:
        restored = restore_rows(*_parts(values), torch.float32)
        assert torch.allclose(restored.abs().amax(1), values.abs().amax(1), rtol=1e-6, atol=0)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**16), rows=st.integers(1, 6), width=st.integers(1, 24))
def test_strides_make_no_difference(seed: int, rows: int, width: int) -> None:
    """Row-strided, transposed and reversed-step views give what their contiguous copies give."""
    wide = drawn((2 * rows, 3 * width), seed, 0, torch.bfloat16)
    for view in (wide[::2, width : 2 * width], wide.t(), wide[:, ::3]):
        seen, plain = quantise_rows(view), quantise_rows(view.contiguous())
        assert torch.equal(seen.codes.view(torch.uint8), plain.codes.view(torch.uint8))
        assert torch.equal(seen.scales, plain.scales)


def test_zero_rows_have_scale_one() -> None:
    """An all-zero row restores to exact zeros, and its neighbours do not notice."""
    values = torch.randn(3, 16)
    values[1] = 0
    rows = quantise_rows(values)
    assert rows.scales[1] == 1
    assert (restore_rows(rows.codes, rows.scales, torch.float32)[1] == 0).all()
    alone = quantise_rows(values[[0, 2]])
    assert torch.equal(rows.codes[[0, 2]].view(torch.uint8), alone.codes.view(torch.uint8))


def test_extreme_rows_stay_finite() -> None:
    """The largest and the smallest numbers of float32 and BF16 neither overflow nor divide by zero."""
    for dtype in (torch.float32, torch.bfloat16):
        limits = torch.finfo(dtype)
        values = torch.tensor(
            [[limits.max, -limits.max], [limits.tiny, 0], [limits.smallest_normal / 4, 0]], dtype=dtype
        )
        rows = quantise_rows(values)
        assert rows.scales.isfinite().all()
        assert (rows.scales >= SMALLEST_SCALE).all()
        assert rows.codes.float().isfinite().all()
        assert torch.allclose(restore_rows(rows.codes, rows.scales, torch.float32)[0], values[0].float())


def test_non_finite_values_are_never_hidden() -> None:
    """NaN and infinity make the whole row's scale non-finite; other rows are untouched."""
    for bad in (float("nan"), float("inf"), -float("inf")):
        values = torch.randn(3, 16)
        values[1, 5] = bad
        rows = quantise_rows(values)
        assert not rows.scales[1].isfinite()
        assert rows.scales[[0, 2]].isfinite().all()


def test_long_tensors_are_quantised_piece_by_piece(monkeypatch) -> None:
    """The bound on temporaries changes no bit."""
    values = torch.randn(50, 33)
    whole = quantise_rows(values)
    monkeypatch.setattr("vflash_adapters.linear.row_quantiser._CHUNK_ELEMENTS", 100)
    pieces = quantise_rows(values)
    assert torch.equal(whole.codes.view(torch.uint8), pieces.codes.view(torch.uint8))
    assert torch.equal(whole.scales, pieces.scales)


@settings(deadline=None, max_examples=20)
@given(shape=SHAPES, seed=st.integers(0, 2**16), dtype=DTYPES)
def test_restoring_rounds_once(shape: tuple[int, int], seed: int, dtype: torch.dtype) -> None:
    """codes * scales in float32, then one rounding to the model's dtype."""
    codes, scales = _parts(drawn(shape, seed, 0, torch.float32))
    assert torch.equal(restore_rows(codes, scales, dtype), (codes.float() * scales).to(dtype))


def _parts(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rows = quantise_rows(values)
    return rows.codes, rows.scales
