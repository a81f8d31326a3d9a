"""Ops on dense rows and weights."""

from __future__ import annotations

from typing import Optional

from .._binding import DEVICES, Output, Tensor, choice, library
from .._binding import read, read_optional, write, write_optional

_INPUTS = {"bf16": 0, "fp8_pair": 1, "mxfp8": 2}
_WEIGHTS = {"bf16": 0, "block_32": 1, "row_32": 2}
_OUTPUTS = {"bf16": 0, "f32": 1, "mxfp8": 2}
_CASTS = {"attention_output": 0, "mxfp8": 1}
_KINDS = {"q": 0, "pad_q": 1, "o": 2, "o_chunks": 3, "wq_b": 4, "wo_a": 5}
_ANGLES = {"exact": 0, "fp32": 1}


def block_scaled_linear(
    x: Tensor,
    weight: Tensor,
    *,
    out: Output,
    out_scale: Optional[Output] = None,
    x_scale: Optional[Tensor] = None,
    weight_scale: Optional[Tensor] = None,
    input: str = "bf16",
    weight_kind: str = "block_32",
    output: str = "bf16",
    batch_invariant: bool = False,
    workspace: Optional[Output] = None,
    device: str = "auto",
    num_threads: int = 0,
) -> Tensor:
    """out[t, g, :] = W[g] x[t, g, :]. Returns ``out``.

    input "bf16": x bf16 [T, G, in]. "fp8_pair": x e4m3 [T, G, in], x_scale int32 [T, G, in / 128] as attention writes
        it. "mxfp8": x e4m3 [T, in], x_scale ue8m0, flat in the F8_128x4 layout. A G of 1 may be left out; token and
        group strides free, features contiguous.
    weight_kind "bf16": weight bf16 [G, out, in]. "block_32": e4m3, weight_scale ue8m0 [G, out / 32, in / 32]. "row_32":
        e4m3, weight_scale ue8m0 [G, out, in / 32]. Contiguous.
    output "bf16", "f32": out [T, G, out]. "mxfp8": out e4m3 [T, G * out], out_scale ue8m0, flat F8_128x4.
    batch_invariant: a row's bits do not depend on the other rows of the call.

    Raises TypeError, ValueError, NotImplementedError, RuntimeError (see ``megamla.ops``).
    """
    op = "block_scaled_linear"
    library().block_scaled_linear(
        choice(op, "input", input, _INPUTS),
        choice(op, "weight_kind", weight_kind, _WEIGHTS),
        choice(op, "output", output, _OUTPUTS),
        batch_invariant,
        read(op, "x", x),
        read_optional(op, "x_scale", x_scale),
        read(op, "weight", weight),
        read_optional(op, "weight_scale", weight_scale),
        write(op, "y", out),
        write_optional(op, "y_scale", out_scale),
        choice(op, "device", device, DEVICES),
        num_threads,
        write_optional(op, "workspace", workspace),
    )
    return out


def output_cast(
    x: Tensor,
    *,
    out: Output,
    out_scale: Output,
    target: str = "attention_output",
    device: str = "auto",
    num_threads: int = 0,
) -> Tensor:
    """The two fp8 casts as an op of their own. Returns ``out``.

    target "attention_output": x float32 or bf16 [T, H, 512]; out, out_scale as decode_attention's fp8 pair.
    "mxfp8": x float32 (rounded to bf16 first) or bf16 [T, K], K a multiple of 32; out e4m3 [T, K], out_scale ue8m0,
        flat F8_128x4: round_up(T, 128) * round_up(K / 32, 4) bytes, padding bytes 0.

    Raises TypeError, ValueError, NotImplementedError, RuntimeError (see ``megamla.ops``).
    """
    op = "output_cast"
    library().output_cast(
        choice(op, "target", target, _CASTS),
        read(op, "in", x),
        write(op, "out", out),
        write(op, "out_scale", out_scale),
        choice(op, "device", device, DEVICES),
        num_threads,
        None,
    )
    return out


def permute_weights(
    x: Tensor,
    *,
    out: Output,
    kind: str,
    x_scale: Optional[Tensor] = None,
    out_scale: Optional[Output] = None,
    out_scale_packed: Optional[Output] = None,
    device: str = "auto",
    num_threads: int = 0,
) -> Tensor:
    """Standard to chunked order, once at load; all contiguous, x and out apart. Returns ``out``.

    kind "q": [n, H, 512], any dtype. "pad_q": chunked [n, local, 512] to chunked [n, padded, 512], zeros after the live
        heads. "o": [n, G, 4096]. "o_chunks": [n, G, 128].
    "wq_b": x e4m3 [H * 512, r], x_scale ue8m0 [H * 16, r / 32]; out rows in chunked order, out_scale ue8m0 [H * 512,
        r / 32], out_scale_packed int32 [ceil(r / 128), H * 512].
    "wo_a": x e4m3 [G * d, 4096], x_scale ue8m0 [G * d / 32, 128]; out [G, d, 4096] with columns in chunked order,
        out_scale ue8m0 [G, d, 128], out_scale_packed int32 [G, 32, d].
    out_scale_packed may be None: not wanted.

    Raises TypeError, ValueError, NotImplementedError, RuntimeError (see ``megamla.ops``).
    """
    op = "permute_weights"
    library().permute_weights(
        choice(op, "kind", kind, _KINDS),
        read(op, "in", x),
        read_optional(op, "in_scale", x_scale),
        write(op, "out", out),
        write_optional(op, "out_scale", out_scale),
        write_optional(op, "out_scale_packed", out_scale_packed),
        choice(op, "device", device, DEVICES),
        num_threads,
        None,
    )
    return out


def rms_norm(
    x: Tensor, weight: Tensor, *, out: Output, eps: float = 1e-20, device: str = "auto", num_threads: int = 0
) -> Tensor:
    """out = x * rsqrt(mean(x^2) + eps) * weight, rounded to bf16 once, after the weight. Returns ``out``.

    x: bf16 or float32 [T, n]; weight: bf16 [n]; out: bf16 [T, n]. Row strides free.

    Raises TypeError, ValueError, NotImplementedError, RuntimeError (see ``megamla.ops``).
    """
    op = "rms_norm"
    library().rms_norm(
        read(op, "x", x),
        read(op, "weight", weight),
        eps,
        write(op, "y", out),
        choice(op, "device", device, DEVICES),
        num_threads,
        None,
    )
    return out


def rope_table(
    *,
    out: Output,
    theta: float,
    factor: float = 1.0,
    original_max_position: float = 0.0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    angles: str = "exact",
    positions: Optional[Tensor] = None,
    inv_freq: Optional[Output] = None,
    device: str = "auto",
    num_threads: int = 0,
) -> Tensor:
    """Cosines and sines of RoPE, plain (factor 1) or with YaRN as DeepSeek uses it. Returns ``out``.

    out: float32 [P, 64], 32 cosines (dimensionless) then 32 sines; row stride free. positions: int64 [P]; None: 0 ..
        P - 1. inv_freq: float64 [32] in host memory, radians per position, written.
    theta > 1; factor >= 1; original_max_position in tokens and beta_fast, beta_slow in turns, for factor > 1 only.
    angles "exact": float64 angles, rounded once; "fp32": as engines build it, off by up to about position * 6e-8.

    Raises TypeError, ValueError, NotImplementedError, RuntimeError (see ``megamla.ops``).
    """
    op = "rope_table"
    library().rope_table(
        theta,
        factor,
        original_max_position,
        beta_fast,
        beta_slow,
        choice(op, "angles", angles, _ANGLES),
        read_optional(op, "positions", positions),
        write(op, "cos_sin", out),
        write_optional(op, "inv_freq", inv_freq),
        choice(op, "device", device, DEVICES),
        num_threads,
        None,
    )
    return out
