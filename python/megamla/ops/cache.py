"""Writers and readers of the paged caches."""

from __future__ import annotations

from typing import NamedTuple, Optional

from .._binding import DEVICES, PAGE_LAYOUTS, Output, Tensor, choice, library
from .._binding import read, read_optional, write, write_optional

_WRITERS = {"window": 0, "compressed": 1}


def kv_insert(
    latent: Tensor,
    slot_mapping: Tensor,
    *,
    out: Output,
    layout: str = "planar",
    writer: str = "window",
    compress_ratio: int = 0,
    positions: Optional[Tensor] = None,
    cos_sin: Optional[Tensor] = None,
    skipped_rows: Optional[Output] = None,
    device: str = "auto",
    num_threads: int = 0,
) -> Tensor:
    """Rotates latent rows, quantises them and writes them into a paged cache, and nothing else there. Returns ``out``.

    latent: bf16 [T, 512] before RoPE, row stride free. slot_mapping: int64 [S]; min(T, S) rows are written, a negative
        slot skips its row; no slot may appear twice.
    out: the cache, bytes [pages, page_size, record] or [pages, page_size, 1, record]; record 528, 288 or 584 bytes is
        the format. layout: "planar" or "interleaved" (not for 584).
    writer "window": every token, at its own position. "compressed": tokens with (position + 1) % compress_ratio == 0,
        rotated at the first position of their group; compress_ratio 1 or 2.
    positions: int32 or int64 [T]; cos_sin: float32 [P, 64]; both None ("window" only): rows are stored unrotated.
    skipped_rows: int64 [1], set to the number of rows with a slot past the pool or a position outside the table.

    Raises TypeError, ValueError, NotImplementedError, RuntimeError (see ``megamla.ops``).
    """
    op = "kv_insert"
    library().kv_insert(
        read(op, "latent", latent),
        read_optional(op, "positions", positions),
        read_optional(op, "cos_sin", cos_sin),
        read(op, "slot_mapping", slot_mapping),
        write(op, "cache", out),
        choice(op, "layout", layout, PAGE_LAYOUTS),
        choice(op, "writer", writer, _WRITERS),
        compress_ratio,
        write_optional(op, "skipped_rows", skipped_rows),
        choice(op, "device", device, DEVICES),
        num_threads,
        None,
    )
    return out


def kv_gather(
    cache: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    *,
    out: Output,
    layout: str = "planar",
    gather_lens: Optional[Tensor] = None,
    offset: int = 0,
    device: str = "auto",
    num_threads: int = 0,
) -> Tensor:
    """Dequantises the last rows of each request's cache into a bf16 workspace for prefill_attention. Returns ``out``.

    cache: as ``kv_insert``'s out, with its layout. seq_lens: int32 [R], in cache rows. gather_lens: int32 [R], of these
        the last ones; None: all. block_table: int32 [R, nb], page of each page_size rows, row stride free.
    out: bf16 [R, M, 512]. Row out[r, offset + i] = position seq_len - gather_len + i; rows that no page backs and rows
        beyond stay as they were.

    Raises TypeError, ValueError, NotImplementedError, RuntimeError (see ``megamla.ops``).
    """
    op = "kv_gather"
    library().kv_gather(
        read(op, "cache", cache),
        choice(op, "layout", layout, PAGE_LAYOUTS),
        read(op, "seq_lens", seq_lens),
        read_optional(op, "gather_lens", gather_lens),
        read(op, "block_table", block_table),
        offset,
        write(op, "out", out),
        choice(op, "device", device, DEVICES),
        num_threads,
        None,
    )
    return out


def kv_compress(
    kv_score: Tensor,
    weight: Tensor,
    *,
    out: Output,
    compress_ratio: int,
    eps: float = 1e-20,
    token_to_req: Optional[Tensor] = None,
    positions: Optional[Tensor] = None,
    state_block: Optional[Tensor] = None,
    state: Optional[Output] = None,
    written: Optional[Output] = None,
    workspace: Optional[Output] = None,
    device: str = "auto",
    num_threads: int = 0,
) -> Tensor:
    """The compressor: kv and scores of tokens to normalised latent rows. Returns ``out``.

    kv_score: float32, compress_ratio 1: [T, 512] = kv; 2: [T, 1024] = kv then score; row stride free.
    weight: bf16 [512], of the RMS norm with ``eps``.
    Ratio 2 only: token_to_req int32 [T] (out of range: the token is skipped); positions int32 or int64 [T], consecutive
        within a request's tokens; state_block int32 [R], block of each request, 0 = none; state float32 [blocks,
        capacity, 1024], contiguous, read and written, capacity a power of two >= 8.
    out: bf16 [T, 512], row stride free; row t is written where token t closes a group (ratio 1: every token).
    written: uint8 or bool [T], 1 where row t of out was written.

    Raises TypeError, ValueError, NotImplementedError, RuntimeError (see ``megamla.ops``).
    """
    op = "kv_compress"
    library().kv_compress(
        compress_ratio,
        eps,
        read(op, "kv_score", kv_score),
        read(op, "weight", weight),
        read_optional(op, "token_to_req", token_to_req),
        read_optional(op, "positions", positions),
        read_optional(op, "state_block", state_block),
        write_optional(op, "state", state),
        write(op, "latent", out),
        write_optional(op, "written", written),
        choice(op, "device", device, DEVICES),
        num_threads,
        write_optional(op, "workspace", workspace),
    )
    return out


class PageLayoutScores(NamedTuple):
    """Per layout the share, 0 to 1, of scale groups that an encoder can have written; the layout that fits or None."""

    planar: float
    interleaved: float
    likely: Optional[str]


def page_layout_scores(cache: Tensor, *, slots: Optional[Tensor] = None) -> PageLayoutScores:
    """Tells planar pages from interleaved ones by their bytes.

    cache: bytes [pages, page_size, 528 or 288] in host memory. slots: int64 [n] that hold rows; None: every slot.

    Raises TypeError; ValueError for another format or a slot that the cache does not have.
    """
    op = "page_layout_scores"
    planar, interleaved, likely = library().page_layout_scores(
        read(op, "cache", cache), read_optional(op, "slots", slots)
    )
    names = {number: name for name, number in PAGE_LAYOUTS.items()}
    return PageLayoutScores(planar, interleaved, names.get(int(likely)))
