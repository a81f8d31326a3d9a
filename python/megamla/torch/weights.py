"""Weights into the chunked orders of "mega attention", once when a checkpoint is loaded: the SM100 operators
``permute_q_b_proj`` and ``permute_wv_proj``, for the scales that DeepGEMM reads.

The orders themselves are the library's: it is asked which row and which column goes where.
"""

from __future__ import annotations

from typing import List

import torch

from ._checks import expect
from ._registry import composite

_permute = torch.ops.megamla.permute_weights


@composite()
def permute_q_b_proj(q_b_proj: torch.Tensor, scale_factors: torch.Tensor, h_q: int, d_q: int) -> List[torch.Tensor]:
    """Rows of q_b_proj and of its scales in the order in which the fused operators read q. Returns [weight, scales].

    q_b_proj: e4m3 [h_q * 512, r]. scale_factors: int32 [h_q * 512, r / (4 g)], 4 ue8m0 bytes a word for groups of g =
        32 or 128 columns (g follows from the shapes), stride 1 along the rows. d_q: 512.
    The results are new tensors of these shapes and strides.

    Raises TypeError, ValueError.
    """
    op = "permute_q_b_proj"
    expect(d_q == 512, op, "d_q", "512", d_q)
    expect(h_q > 0 and h_q % 8 == 0, op, "h_q", "a positive multiple of 8", h_q)
    _expect_weight(op, "q_b_proj", q_b_proj, 2)
    rows, rank = q_b_proj.shape
    expect(rows == h_q * d_q, op, "q_b_proj", f"{h_q * d_q} rows", rows)
    _expect_scales(op, scale_factors, (rows,), rank, (32, 128))
    order = torch.empty((1, h_q, d_q), dtype=torch.int32)
    numbers = torch.arange(rows, dtype=torch.int32).view(1, h_q, d_q)
    _permute(numbers, out=order, kind="q")
    order = order.flatten().to(q_b_proj.device)
    weight = q_b_proj.view(torch.uint8).index_select(0, order).view(q_b_proj.dtype)
    return [weight, scale_factors.t().index_select(1, order).t()]


@composite()
def permute_wv_proj(
    wv_proj: torch.Tensor, scale_factors: torch.Tensor, wv_group_size: int, d_o: int
) -> List[torch.Tensor]:
    """Columns of wv_proj and of its scales in the order in which the fused operators write their output. Returns
    [weight, scales].

    wv_proj: e4m3 [G, d, 8 * 512]. scale_factors: int32 [G, d, 32], 4 ue8m0 bytes a word for groups of 32 columns,
        stride 1 along d. wv_group_size: 8. d_o: 512.
    The results are new tensors of these shapes and strides.

    Raises TypeError, ValueError.
    """
    op = "permute_wv_proj"
    expect(wv_group_size == 8, op, "wv_group_size", "8", wv_group_size)
    expect(d_o == 512, op, "d_o", "512", d_o)
    _expect_weight(op, "wv_proj", wv_proj, 3)
    groups, d, width = wv_proj.shape
    expect(width == wv_group_size * d_o, op, "wv_proj", f"{wv_group_size * d_o} columns", width)
    _expect_scales(op, scale_factors, (groups, d), width, (32,))
    weight = torch.empty_like(wv_proj, memory_format=torch.contiguous_format)
    _permute(wv_proj.contiguous(), out=weight, kind="o")
    scale_bytes = scale_factors.contiguous().view(torch.uint8)
    chunked = torch.empty_like(scale_bytes)
    _permute(scale_bytes, out=chunked, kind="o_chunks")
    return [weight, chunked.view(torch.int32).transpose(1, 2).contiguous().transpose(1, 2)]


def _expect_weight(op: str, name: str, weight: torch.Tensor, dims: int) -> None:
    if weight.dtype != torch.float8_e4m3fn:
        raise TypeError(f"{op}: {name}: expected float8_e4m3fn, got {weight.dtype}")
    expect(weight.dim() == dims, op, name, f"{dims} dimensions", list(weight.shape))
    expect(weight.stride(-1) == 1, op, name, "stride 1 in the last dimension", weight.stride())


def _expect_scales(op: str, scales: torch.Tensor, rows: tuple[int, ...], width: int, grains: tuple[int, ...]) -> None:
    name = "scale_factors"
    if scales.dtype != torch.int32:
        raise TypeError(f"{op}: {name}: expected int32, got {scales.dtype}")
    shapes = [[*rows, width // (4 * grain)] for grain in grains if width % (4 * grain) == 0]
    expected = (
        " or ".join(str(shape) for shape in shapes) or f"a width of weights that is a multiple of {4 * grains[0]}"
    )
    expect(list(scales.shape) in shapes, op, name, expected, list(scales.shape))
    expect(scales.stride(-2) == 1, op, name, "stride 1 along the rows", scales.stride())
