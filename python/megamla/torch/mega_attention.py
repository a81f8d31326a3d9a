"""Step two of two: the SM100 operators of "mega attention" on every device that the library has, with their argument
order and their results. RoPE, attention, inverse RoPE and the cast to fp8 are one call, and the cache takes half the
bytes (records of 528 and 288).

Each function is also the operator of its name in ``torch.ops.megamla``.
"""

from __future__ import annotations

from typing import List, NamedTuple, Optional, Union

import torch

from .. import ops
from .._binding import DEVICES, NOT_TAKEN, PAGE_LAYOUTS, choice
from ..ops.attention import OUTPUTS, Q_LAYOUTS, library_decode, run_decode
from ._checks import expect
from ._registry import composite, direct

_decode = torch.ops.megamla.decode_attention
_prefill = torch.ops.megamla.prefill_attention
_FP8_PAIR, _AUTO = OUTPUTS["fp8_pair"], DEVICES["auto"]
_PLANAR, _CHUNKED = PAGE_LAYOUTS["planar"], Q_LAYOUTS["chunked"]

_GROUP_HEADS = 8
_GROUP_WIDTH = _GROUP_HEADS * 512
_SCALE_WORDS = _GROUP_WIDTH // 32 // 4


class MegaAttnOutput(NamedTuple):
    """The fp8 pair that attention writes and the output projection reads."""

    data: torch.Tensor
    scale: torch.Tensor


@composite(schema="(SymInt num_tokens, SymInt n_wv_group, Device? device=None) -> (Tensor data, Tensor scale)")
def alloc_mega_attn_output(
    num_tokens: int, n_wv_group: int, device: Union[torch.device, str, None] = None
) -> MegaAttnOutput:
    """The output pair of a step: data e4m3 [T, G, 4096], scale int32 [T, G, 32] with strides (1, 32 A, A), A = T
    rounded up to a multiple of 4; contents undefined.

    For a range of tokens slice both: ``data[a:b]``, ``scale[a:b]`` keep the strides that the operators want.
    """
    padded = (num_tokens + 3) // 4 * 4
    data = torch.empty((num_tokens, n_wv_group, _GROUP_WIDTH), dtype=torch.float8_e4m3fn, device=device)
    scale = torch.empty((n_wv_group, _SCALE_WORDS, padded), dtype=torch.int32, device=device)
    return MegaAttnOutput(data, scale.permute(2, 0, 1)[:num_tokens])


def _refuse_other(
    name: str,
    q: torch.Tensor,
    d_v: int,
    is_rope_neox_style: bool,
    rope_dim: int,
    n_wv_group: int,
    num_per_channels: int,
    *scale_flags: bool,
) -> None:
    """Refuses what the SM100 operators refuse."""
    expect(q.dim() == 3, name, "q", "[T, H, 512]", list(q.shape))
    expect(d_v == 512, name, "d_v", "512", d_v)
    expect(not is_rope_neox_style, name, "is_rope_neox_style", "False (pairs are neighbours)", is_rope_neox_style)
    expect(rope_dim == 64, name, "rope_dim", "64", rope_dim)
    groups = q.shape[1] // _GROUP_HEADS
    expect(n_wv_group == groups, name, "n_wv_group", f"{groups} ({_GROUP_HEADS} heads a group)", n_wv_group)
    expect(num_per_channels == 32, name, "num_per_channels", "32", num_per_channels)
    for argument, flag in zip(("use_tma_aligned_col_major_sf", "round_sf", "use_packed_ue8m0"), scale_flags):
        expect(flag, name, argument, "True", flag)


def _new_output(
    name: str, q: torch.Tensor, out_fp8: Optional[torch.Tensor], out_sf: Optional[torch.Tensor]
) -> MegaAttnOutput:
    """Where the caller gave no pair. Half of one is refused."""
    missing = "out_sf" if out_fp8 is not None else "out_fp8"
    expect(out_fp8 is None and out_sf is None, name, missing, "out_fp8 and out_sf, or neither", "only one of them")
    return alloc_mega_attn_output(q.shape[0], q.shape[1] // _GROUP_HEADS, q.device)


@composite("out_fp8", "out_sf")
def fused_norm_rope_attn_rope_cast_decode(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    sm_scale: float,
    d_v: int,
    attn_sink: Optional[torch.Tensor],
    topk_length: Optional[torch.Tensor],
    extra_kv: Optional[torch.Tensor],
    extra_indices: Optional[torch.Tensor],
    extra_topk_length: Optional[torch.Tensor],
    enable_q_norm: bool,
    rms_norm_eps: float,
    token_positions: torch.Tensor,
    is_rope_neox_style: bool,
    rope_dim: int,
    cos_sin_cache: torch.Tensor,
    n_wv_group: int,
    num_per_channels: int,
    use_tma_aligned_col_major_sf: bool,
    round_sf: bool,
    use_packed_ue8m0: bool,
    out_fp8: Optional[torch.Tensor] = None,
    out_sf: Optional[torch.Tensor] = None,
    *,
    page_layout: str = "planar",
    extra_page_layout: str = "planar",
    q_layout: str = "chunked",
    live_heads: int = 0,
) -> List[torch.Tensor]:
    """Rotates q, attends to rows of the paged caches, un-rotates, casts. Returns [out_fp8, out_sf, lse].

    q: bf16 [T, H, 512] before RoPE, H a multiple of 8 up to 128, in chunked order (``permute_q_b_proj``), token stride
        free; q_layout "standard": in the plain one, head stride free too.
    kv, extra_kv: any dtype of one byte, [pages, page_size, 1, record], the record's bytes are the format: 584, or 528
        with an extra_kv of 528 or 288; page stride free, a multiple of 16 bytes. page_layout, extra_page_layout:
        "planar" or "interleaved" (not for 584).
    indices, extra_indices: int32 [T, topk], slot = page * page_size + row, others are skipped; row stride free.
        topk_length, extra_topk_length: int32 [T], clamped to topk; None: all.
    sm_scale: factor of the logits. attn_sink: float32 [H], natural-log logits.
    enable_q_norm: logits times rsqrt(mean(q^2) + rms_norm_eps).
    token_positions: int32 or int64 [T], rows of cos_sin_cache, float32 [P, 64]: 32 cosines, 32 sines.
    d_v 512, is_rope_neox_style False, rope_dim 64, n_wv_group H / 8, num_per_channels 32 and the three flags True: what
        the operators of SM100 fix, fixed here.
    out_fp8, out_sf: a pair of ``alloc_mega_attn_output`` or a range of its tokens; both or neither.
    live_heads: the first heads of padded input, a multiple of 8; outputs of the others are not written. 0 = all.
    lse: float32 [T, H], natural log of the sum of exp(logit) without the sink; +inf where no key is valid.

    Raises TypeError, ValueError, NotImplementedError, RuntimeError (see ``megamla.ops``).
    """
    name = "fused_norm_rope_attn_rope_cast_decode"
    scales = num_per_channels == 32 and use_tma_aligned_col_major_sf and round_sf and use_packed_ue8m0
    fixed = d_v == 512 and not is_rope_neox_style and rope_dim == 64 and scales
    shape = q.shape
    if not fixed or len(shape) != 3 or n_wv_group != shape[1] // _GROUP_HEADS:
        flags = (use_tma_aligned_col_major_sf, round_sf, use_packed_ue8m0)
        _refuse_other(name, q, d_v, is_rope_neox_style, rope_dim, n_wv_group, num_per_channels, *flags)
    if out_fp8 is None or out_sf is None:
        out_fp8, out_sf = _new_output(name, q, out_fp8, out_sf)
    lse = q.new_empty(shape[0], shape[1], dtype=torch.float32)
    if direct(q):  # the call below in the library's terms
        op = "decode_attention"
        order = _CHUNKED if q_layout == "chunked" else choice(op, "q_layout", q_layout, Q_LAYOUTS)
        layout = extra_layout = _PLANAR
        if page_layout != "planar" or extra_page_layout != "planar":
            layout = choice(op, "window_layout", page_layout, PAGE_LAYOUTS)
            extra_layout = choice(op, "compressed_layout", extra_page_layout, PAGE_LAYOUTS)
        # fmt: off
        arguments = (
            q, order, enable_q_norm, rms_norm_eps if enable_q_norm else 0.0, sm_scale, token_positions, cos_sin_cache,
            kv, layout, indices, topk_length,
            extra_kv, extra_layout, extra_indices, extra_topk_length,
            attn_sink, live_heads, _FP8_PAIR, False, out_fp8, out_sf, lse,
            _AUTO, 0, None,
        )
        # fmt: on
        try:
            library_decode(*arguments)
        except NOT_TAKEN:
            run_decode(*arguments)  # says which
    else:
        _decode(
            q,
            kv,
            indices,
            out=out_fp8,
            out_scale=out_sf,
            lse=lse,
            q_layout=q_layout,
            q_norm_eps=rms_norm_eps if enable_q_norm else None,
            softmax_scale=sm_scale,
            positions=token_positions,
            cos_sin=cos_sin_cache,
            window_layout=page_layout,
            window_lens=topk_length,
            compressed=extra_kv,
            compressed_layout=extra_page_layout,
            compressed_slots=extra_indices,
            compressed_lens=extra_topk_length,
            attn_sink=attn_sink,
            live_heads=live_heads,
        )
    return [out_fp8, out_sf, lse]


@composite("out_fp8", "out_sf")
def fused_norm_rope_attn_rope_cast_fwd(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    sm_scale: float,
    d_v: int,
    attn_sink: Optional[torch.Tensor],
    topk_length: Optional[torch.Tensor],
    enable_q_norm: bool,
    rms_norm_eps: float,
    token_positions: torch.Tensor,
    is_rope_neox_style: bool,
    rope_dim: int,
    cos_sin_cache: torch.Tensor,
    n_wv_group: int,
    num_per_channels: int,
    use_tma_aligned_col_major_sf: bool,
    round_sf: bool,
    use_packed_ue8m0: bool,
    out_fp8: Optional[torch.Tensor] = None,
    out_sf: Optional[torch.Tensor] = None,
    *,
    q_layout: str = "chunked",
    live_heads: int = 0,
) -> List[torch.Tensor]:
    """The same over gathered rows. Returns [out_fp8, out_sf, max_logits, lse].

    kv: bf16 [s_kv, 1, 512], rotated; row stride free, a multiple of 8 elements. indices: int32 [T, 1, topk], rows of
        kv; others are skipped. topk_length: int32 [T]; None: all.
    max_logits: float32 [T, H], the largest sm_scale * q.k; -inf where no key is valid.
    Everything else as in ``fused_norm_rope_attn_rope_cast_decode``.
    """
    name = "fused_norm_rope_attn_rope_cast_fwd"
    scales = num_per_channels == 32 and use_tma_aligned_col_major_sf and round_sf and use_packed_ue8m0
    fixed = d_v == 512 and not is_rope_neox_style and rope_dim == 64 and scales
    shape = q.shape
    if not fixed or len(shape) != 3 or n_wv_group != shape[1] // _GROUP_HEADS:
        flags = (use_tma_aligned_col_major_sf, round_sf, use_packed_ue8m0)
        _refuse_other(name, q, d_v, is_rope_neox_style, rope_dim, n_wv_group, num_per_channels, *flags)
    if out_fp8 is None or out_sf is None:
        out_fp8, out_sf = _new_output(name, q, out_fp8, out_sf)
    expect(kv.dim() == 3 and kv.shape[1] == 1, name, "kv", "[s_kv, 1, 512]", list(kv.shape))
    expect(indices.dim() == 3 and indices.shape[1] == 1, name, "indices", "[T, 1, topk]", list(indices.shape))
    max_logits = q.new_empty(shape[0], shape[1], dtype=torch.float32)
    lse = q.new_empty(shape[0], shape[1], dtype=torch.float32)
    attend = ops.prefill_attention if direct(q) else _prefill
    attend(
        q,
        kv,
        indices,
        out=out_fp8,
        out_scale=out_sf,
        lse=lse,
        max_logits=max_logits,
        q_layout=q_layout,
        q_norm_eps=rms_norm_eps if enable_q_norm else None,
        softmax_scale=sm_scale,
        positions=token_positions,
        cos_sin=cos_sin_cache,
        topk_length=topk_length,
        attn_sink=attn_sink,
        live_heads=live_heads,
    )
    return [out_fp8, out_sf, max_logits, lse]
