"""Step one of two: the functions that Hopper engines call today, under the names, arguments and results they know.

Nothing but an import changes: the cache keeps its records (584 bytes, or 528 and 288), q comes rotated and the output
leaves unrotated in bf16. Beyond what the names promise, every head count that is a multiple of 8 up to 128 is taken.
"""

from __future__ import annotations

from typing import Any, Optional

import torch

from .. import ops
from .._binding import DEVICES, NOT_TAKEN, PAGE_LAYOUTS
from ..ops.attention import OUTPUTS, Q_LAYOUTS, library_decode, run_decode
from ._checks import expect
from ._registry import direct

_decode = torch.ops.megamla.decode_attention
_prefill = torch.ops.megamla.prefill_attention
_STANDARD, _PLANAR, _BF16, _AUTO = Q_LAYOUTS["standard"], PAGE_LAYOUTS["planar"], OUTPUTS["bf16"], DEVICES["auto"]


class FlashMLASchedMeta:
    """Stands where a schedule was: the work is divided anew in every call, from its shapes alone."""


def get_mla_metadata(*args: Any, **kwargs: Any) -> tuple[FlashMLASchedMeta, None]:
    """A schedule to hand to ``flash_mla_with_kvcache``, which needs none. Arguments are accepted and unused."""
    return FlashMLASchedMeta(), None


def flash_mla_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    block_table: Optional[torch.Tensor],
    cache_seqlens: Optional[torch.Tensor],
    head_dim_v: int,
    tile_scheduler_metadata: Any = None,
    num_splits: Any = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    is_fp8_kvcache: bool = False,
    indices: Optional[torch.Tensor] = None,
    attn_sink: Optional[torch.Tensor] = None,
    extra_k_cache: Optional[torch.Tensor] = None,
    extra_indices_in_kvcache: Optional[torch.Tensor] = None,
    topk_length: Optional[torch.Tensor] = None,
    extra_topk_length: Optional[torch.Tensor] = None,
    out: Optional[torch.Tensor] = None,
    *,
    live_heads: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sparse decode attention over one or two paged caches. Returns (out, lse).

    q: bf16 [b, s_q, H, 512], already rotated; H a multiple of 8 up to 128; strides free.
    k_cache, extra_k_cache: any dtype of one byte, [pages, page_size, 1, record], record 584 (or 528; extra_k_cache
        beside it 528 or 288); page stride free, a multiple of 16 bytes.
    indices, extra_indices_in_kvcache: int32 [b, s_q, topk], slot = page * page_size + row; a slot that is negative or
        past the cache is skipped. topk_length, extra_topk_length: int32 [b], how many of them count; None: all.
    attn_sink: float32 [H], natural-log logits. softmax_scale: None = 512^-0.5. head_dim_v: 512.
    is_fp8_kvcache: True, and causal False: the form with indices has no other.
    block_table, cache_seqlens, tile_scheduler_metadata, num_splits: accepted and unused.
    out: bf16 [b, s_q, H, 512], written instead of a new tensor. live_heads: the first heads of padded input, a multiple
        of 8; out and lse of the others are not written. 0 = all.
    lse: float32 [b, H, s_q], natural log of the sum of exp(logit) without the sink; +inf where no key is valid.

    With s_q > 1, q or indices whose first two strides do not merge are copied; nothing else is.
    Raises TypeError, ValueError, NotImplementedError, RuntimeError (see ``megamla.ops``).
    """
    name = "flash_mla_with_kvcache"
    if indices is None:
        raise NotImplementedError(f"{name}: indices: expected int32 [b, s_q, topk] (no dense form is here), got None")
    shape = q.shape
    if head_dim_v != 512 or causal or not is_fp8_kvcache or len(shape) != 4:
        expect(head_dim_v == 512, name, "head_dim_v", "512", head_dim_v)
        expect(not causal, name, "causal", "False (indices say which keys count)", causal)
        expect(is_fp8_kvcache, name, "is_fp8_kvcache", "True (a cache of bytes)", is_fp8_kvcache)
        expect(len(shape) == 4, name, "q", "dimensions [b, s_q, H, 512]", len(shape))
    batch, s_q, heads, _ = shape
    if s_q > 1:  # a length per request, for each of its tokens
        q, indices = _mergeable(q), _mergeable(indices)
        extra_indices_in_kvcache = None if extra_indices_in_kvcache is None else _mergeable(extra_indices_in_kvcache)
        topk_length = None if topk_length is None else topk_length.repeat_interleave(s_q)
        extra_topk_length = None if extra_topk_length is None else extra_topk_length.repeat_interleave(s_q)
    if out is None:
        out = torch.empty_like(q) if q.is_contiguous() else q.new_empty(batch, s_q, heads, 512)
    if s_q == 1:  # the result's shape needs no transposing
        lse = q.new_empty(batch, heads, 1, dtype=torch.float32)
    else:
        lse = q.new_empty(batch, s_q, heads, dtype=torch.float32)
    scale = 512**-0.5 if softmax_scale is None else softmax_scale
    if direct(q):  # the call below in the library's terms
        # fmt: off
        arguments = (
            q, _STANDARD, False, 0.0, scale, None, None,
            k_cache, _PLANAR, indices, topk_length,
            extra_k_cache, _PLANAR, extra_indices_in_kvcache, extra_topk_length,
            attn_sink, live_heads, _BF16, False, out, None, lse,
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
            k_cache,
            indices,
            window_lens=topk_length,
            compressed=extra_k_cache,
            compressed_slots=extra_indices_in_kvcache,
            compressed_lens=extra_topk_length,
            softmax_scale=scale,
            attn_sink=attn_sink,
            live_heads=live_heads,
            output="bf16",
            out=out,
            lse=lse,
        )
    return out, lse if s_q == 1 else lse.transpose(1, 2)


def _mergeable(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor whose first two dimensions are one run: the same, or a copy."""
    if tensor.shape[0] <= 1 or tensor.stride(0) == tensor.shape[1] * tensor.stride(1):
        return tensor
    return tensor.contiguous()


def flash_mla_sparse_fwd(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    sm_scale: float,
    d_v: int = 512,
    attn_sink: Optional[torch.Tensor] = None,
    topk_length: Optional[torch.Tensor] = None,
    out: Optional[torch.Tensor] = None,
    *,
    live_heads: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sparse prefill attention over gathered rows. Returns (out, max_logits, lse).

    q: bf16 [s_q, H, 512], already rotated; H a multiple of 8 up to 128; token and head strides free.
    kv: bf16 [s_kv, 1, 512], rotated; row stride free, a multiple of 8 elements.
    indices: int32 [s_q, 1, topk], rows of kv; others are skipped. topk_length: int32 [s_q]; None: all.
    sm_scale: factor of the logits. d_v: 512. attn_sink: float32 [H], natural-log logits.
    out: bf16 [s_q, H, 512], written instead of a new tensor. live_heads: as in ``flash_mla_with_kvcache``.
    max_logits: float32 [s_q, H], the largest sm_scale * q.k, -inf where no key is valid; lse: float32 [s_q, H], natural
        log, without the sink, +inf there.

    Raises TypeError, ValueError, NotImplementedError, RuntimeError (see ``megamla.ops``).
    """
    name = "flash_mla_sparse_fwd"
    expect(d_v == 512, name, "d_v", "512", d_v)
    expect(q.dim() == 3, name, "q", "dimensions [s_q, H, 512]", q.dim())
    expect(kv.dim() == 3 and kv.shape[1] == 1, name, "kv", "[s_kv, 1, 512]", list(kv.shape))
    expect(indices.dim() == 3 and indices.shape[1] == 1, name, "indices", "[s_q, 1, topk]", list(indices.shape))
    s_q, heads, _ = q.shape
    if out is None:
        out = q.new_empty(s_q, heads, 512)
    max_logits = q.new_empty(s_q, heads, dtype=torch.float32)
    lse = q.new_empty(s_q, heads, dtype=torch.float32)
    attend = ops.prefill_attention if direct(q) else _prefill
    attend(
        q,
        kv,
        indices,
        topk_length=topk_length,
        softmax_scale=sm_scale,
        attn_sink=attn_sink,
        live_heads=live_heads,
        output="bf16",
        out=out,
        max_logits=max_logits,
        lse=lse,
    )
    return out, max_logits, lse
