"""Between an engine's metadata and the attention ops' lists."""

from __future__ import annotations

from typing import Optional

from .._binding import DEVICES, Output, Tensor, choice, library, read, read_optional, write


def topk_to_slots(
    topk: Tensor,
    token_to_req: Tensor,
    block_table: Tensor,
    *,
    out: Output,
    lens: Output,
    slots_per_page: int,
    num_pages: int = 0,
    is_valid_token: Optional[Tensor] = None,
    device: str = "auto",
    num_threads: int = 0,
) -> Tensor:
    """Request-local compressed positions to slots of the paged cache. Returns ``out``.

    topk: int32 [n, K], row stride free, negative = none. token_to_req: int32 [n]. block_table: int32 [R, nb], row
        stride free. is_valid_token: uint8 or bool [n]; None: all valid. num_pages: pages of the cache, 0 = not checked.
    out: int32 [n, K], table[req, l // slots_per_page] * slots_per_page + l % slots_per_page, or -1; order kept.
    lens: int32 [n], written: number of slots >= 0.

    Raises TypeError, ValueError, NotImplementedError, RuntimeError (see ``megamla.ops``).
    """
    op = "topk_to_slots"
    library().topk_to_slots(
        read(op, "topk", topk),
        read(op, "token_to_req", token_to_req),
        read_optional(op, "is_valid_token", is_valid_token),
        read(op, "block_table", block_table),
        slots_per_page,
        num_pages,
        write(op, "slots", out),
        write(op, "lens", lens),
        choice(op, "device", device, DEVICES),
        num_threads,
        None,
    )
    return out


def combine_topk_swa(
    topk: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    gather_lens: Tensor,
    *,
    out: Output,
    lens: Output,
    window: int,
    compress_ratio: int,
    m: int,
    n: int,
    device: str = "auto",
    num_threads: int = 0,
) -> Tensor:
    """The rows of a prefill chunk's gathered workspace that each of its tokens attends to. Returns ``out``.

    topk: int32 [rows, K], row stride free, compressed positions per token. query_start_loc: int32 [R + 1], its first
        element is subtracted. seq_lens, gather_lens (gathered window rows): int32 [R]. window: tokens. compress_ratio:
        0, 1 or 2. m: rows of the workspace per request, of which n before the window rows.
    out: int32 [rows, W], W = K + window rounded up to a multiple of 128. lens: int32 [rows], written.

    Raises TypeError, ValueError, NotImplementedError, RuntimeError (see ``megamla.ops``).
    """
    op = "combine_topk_swa"
    library().combine_topk_swa(
        read(op, "topk", topk),
        read(op, "query_start_loc", query_start_loc),
        read(op, "seq_lens", seq_lens),
        read(op, "gather_lens", gather_lens),
        window,
        compress_ratio,
        m,
        n,
        write(op, "indices", out),
        write(op, "lens", lens),
        choice(op, "device", device, DEVICES),
        num_threads,
        None,
    )
    return out


def swa_metadata(
    query_start_loc: Tensor,
    seq_lens: Tensor,
    slot_mapping: Tensor,
    block_table: Tensor,
    *,
    out: Output,
    decode_swa_lens: Output,
    is_valid_token: Output,
    token_to_req: Output,
    prefill_gather_lens: Output,
    page_size: int,
    num_decodes: int,
    window: int = 128,
    num_pages: int = 0,
    causal: bool = True,
    replay_start: Optional[Tensor] = None,
    device: str = "auto",
    num_threads: int = 0,
) -> Tensor:
    """Window slots of decode tokens, token to request, valid tokens, gather lengths of prefills. Returns ``out``.

    query_start_loc: int32 [R + 1]. seq_lens: int32 [R]. slot_mapping: int64 [tokens], padding included, negative =
        invalid. block_table: int32 [R, nb] of the window cache. replay_start: int32 [R], no earlier position is listed.
        The first num_decodes requests are decodes. causal False: draft block, every token of a request sees the same.
    out: int32 [decode tokens, width], row stride free: slots ascending by position, then -1. Written too:
        decode_swa_lens int32 [tokens], is_valid_token uint8 or bool [tokens], token_to_req int32 [real tokens],
        prefill_gather_lens int32 [R - num_decodes].

    Raises TypeError, ValueError, NotImplementedError, RuntimeError (see ``megamla.ops``).
    """
    op = "swa_metadata"
    library().swa_metadata(
        read(op, "query_start_loc", query_start_loc),
        read(op, "seq_lens", seq_lens),
        read(op, "slot_mapping", slot_mapping),
        read(op, "block_table", block_table),
        read_optional(op, "replay_start", replay_start),
        page_size,
        num_pages,
        window,
        num_decodes,
        causal,
        write(op, "is_valid_token", is_valid_token),
        write(op, "token_to_req", token_to_req),
        write(op, "decode_swa_indices", out),
        write(op, "decode_swa_lens", decode_swa_lens),
        write(op, "prefill_gather_lens", prefill_gather_lens),
        choice(op, "device", device, DEVICES),
        num_threads,
        None,
    )
    return out


def compressed_slot_mapping(
    query_start_loc: Tensor, seq_lens: Tensor, block_table: Tensor, *, out: Output, states_per_page: int
) -> Tensor:
    """Slots of the compressed rows that a step's tokens close (ratio 2). Host memory only. Returns ``out``.

    query_start_loc: int32 [R + 1]. seq_lens: int32 [R]. block_table: int32 [R, nb].
    out: int64 [tokens], table[r, g // states_per_page] * states_per_page + g % states_per_page with g = position // 2
        where position is odd, else -1.

    Raises TypeError, ValueError (see ``megamla.ops``).
    """
    op = "compressed_slot_mapping"
    library().compressed_slot_mapping(
        read(op, "query_start_loc", query_start_loc),
        read(op, "seq_lens", seq_lens),
        read(op, "block_table", block_table),
        states_per_page,
        write(op, "slot_mapping", out),
    )
    return out
