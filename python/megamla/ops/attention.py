"""decode_attention and prefill_attention."""

from __future__ import annotations

from typing import Optional

from .._binding import DEVICES, PAGE_LAYOUTS, Output, Tensor, choice, library, taking

Q_LAYOUTS = {"standard": 0, "chunked": 1}
OUTPUTS = {"fp8_pair": 0, "bf16": 1, "f32": 2}
_SCALE = 512**-0.5

# The library's functions; python/binding/attention.cpp has their arguments.
library_decode = library().decode_attention
run_decode = taking(
    "decode_attention",
    "q - - - - positions? cos_sin? window - window_slots window_lens? compressed? - compressed_slots? "
    "compressed_lens? attn_sink? - - - out! out_scale!? lse!? - - workspace!?",
)
run_prefill = taking(
    "prefill_attention",
    "q - - - - positions? cos_sin? kv indices topk_length? attn_sink? - - out! out_scale!? lse!? max_logits!? - - "
    "workspace!?",
)


def decode_attention(
    q: Tensor,
    window: Tensor,
    window_slots: Tensor,
    *,
    out: Output,
    out_scale: Optional[Output] = None,
    lse: Optional[Output] = None,
    output: str = "fp8_pair",
    q_layout: str = "standard",
    q_norm_eps: Optional[float] = None,
    softmax_scale: float = _SCALE,
    positions: Optional[Tensor] = None,
    cos_sin: Optional[Tensor] = None,
    window_layout: str = "planar",
    window_lens: Optional[Tensor] = None,
    compressed: Optional[Tensor] = None,
    compressed_layout: str = "planar",
    compressed_slots: Optional[Tensor] = None,
    compressed_lens: Optional[Tensor] = None,
    attn_sink: Optional[Tensor] = None,
    live_heads: int = 0,
    batch_invariant: bool = False,
    workspace: Optional[Output] = None,
    device: str = "auto",
    num_threads: int = 0,
) -> Tensor:
    """Rotates Q, attends to the rows that the slot lists name, un-rotates, casts. Returns ``out``.

    q: bf16 [T, H, 512] before RoPE, H a multiple of 8 up to 128. q_layout "standard": token and head strides free;
        "chunked": element (h, d) of a token at (d // 16) * (16 H) + 16 h + d % 16, token stride free.
    q_norm_eps: not None: logits times rsqrt(mean(q^2) + eps) of the unrotated q.
    softmax_scale: factor of the logits, 512^-0.5 for the model.
    positions: int32 or int64 [T], rows of cos_sin. cos_sin: float32 [P, 64], 32 cosines then 32 sines. Both None: no
        rotation, in or out.
    window, compressed: bytes [pages, page_size, record] or [pages, page_size, 1, record], record 528, 584 or
        (compressed only) 288; page stride free, a multiple of 16 bytes. Their layouts: "planar" or "interleaved".
    window_slots: int32 [T, W]; compressed_slots: int32 [T, K]. Slot = page * page_size + row; entries that are negative
        or past the pool may stand anywhere and are skipped. window_lens, compressed_lens: int32 [T]; None: all columns.
    attn_sink: float32 [H], natural-log logits. live_heads: 0 = H, else heads beyond it are neither computed nor
        written.
    output "fp8_pair": out e4m3 [T, G, 4096] contiguous, out_scale int32 [T, G, 32] with strides (1, 32 A, A), A >= T a
        multiple of 4 (``alloc_output_pair``). "bf16", "f32": out [T, H, 512] of that dtype, no out_scale.
    lse: float32 [T, H] or [T, H, 1], natural log of the sum of exp(logit) without the sink; +inf where no key is valid.
    batch_invariant: a row's bits do not depend on the other rows of the call.

    T of q, slots, out and lse may be two dimensions that merge, [requests, tokens of each]; zero tokens are no error.
    Raises TypeError, ValueError, NotImplementedError, RuntimeError (see ``megamla.ops``).
    """
    op = "decode_attention"
    run_decode(
        q,
        choice(op, "q_layout", q_layout, Q_LAYOUTS),
        q_norm_eps is not None,
        q_norm_eps or 0.0,
        softmax_scale,
        positions,
        cos_sin,
        window,
        choice(op, "window_layout", window_layout, PAGE_LAYOUTS),
        window_slots,
        window_lens,
        compressed,
        choice(op, "compressed_layout", compressed_layout, PAGE_LAYOUTS),
        compressed_slots,
        compressed_lens,
        attn_sink,
        live_heads,
        choice(op, "output", output, OUTPUTS),
        batch_invariant,
        out,
        out_scale,
        lse,
        choice(op, "device", device, DEVICES),
        num_threads,
        workspace,
    )
    return out


def prefill_attention(
    q: Tensor,
    kv: Tensor,
    indices: Tensor,
    *,
    out: Output,
    out_scale: Optional[Output] = None,
    lse: Optional[Output] = None,
    max_logits: Optional[Output] = None,
    output: str = "fp8_pair",
    q_layout: str = "standard",
    q_norm_eps: Optional[float] = None,
    softmax_scale: float = _SCALE,
    positions: Optional[Tensor] = None,
    cos_sin: Optional[Tensor] = None,
    topk_length: Optional[Tensor] = None,
    attn_sink: Optional[Tensor] = None,
    live_heads: int = 0,
    workspace: Optional[Output] = None,
    device: str = "auto",
    num_threads: int = 0,
) -> Tensor:
    """decode_attention over gathered rows. Returns ``out``.

    kv: bf16 [s_kv, 512] or [s_kv, 1, 512], RoPE already applied; row stride free, a multiple of 8 elements, 16-byte
        aligned.
    indices: int32 [T, topk] or [T, 1, topk], rows of kv; others are skipped. topk_length: int32 [T]; None: all columns.
    max_logits: float32 [T, H], the largest softmax_scale * q.k; -inf where no key is valid.
    Everything else as in ``decode_attention``.

    Raises TypeError, ValueError, NotImplementedError, RuntimeError (see ``megamla.ops``).
    """
    op = "prefill_attention"
    run_prefill(
        q,
        choice(op, "q_layout", q_layout, Q_LAYOUTS),
        q_norm_eps is not None,
        q_norm_eps or 0.0,
        softmax_scale,
        positions,
        cos_sin,
        kv,
        indices,
        topk_length,
        attn_sink,
        live_heads,
        choice(op, "output", output, OUTPUTS),
        out,
        out_scale,
        lse,
        max_logits,
        choice(op, "device", device, DEVICES),
        num_threads,
        workspace,
    )
    return out
