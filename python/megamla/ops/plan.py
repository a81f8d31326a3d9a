"""Pure functions from lengths in host memory to the shape of a step."""

from __future__ import annotations

from typing import List, NamedTuple

from .._binding import Tensor, library, read


class BatchSplit(NamedTuple):
    """Requests and tokens of a step, decodes first."""

    num_decodes: int
    num_prefills: int
    num_decode_tokens: int
    num_prefill_tokens: int


class PrefillChunk(NamedTuple):
    """Requests start .. end - 1; n: most compressed rows of one of them; m: workspace rows per request."""

    start: int
    end: int
    n: int
    m: int


def split_batch(query_lens: Tensor, *, threshold: int) -> BatchSplit:
    """Where a step's prefills begin.

    query_lens: int32 [R], tokens, decodes first. threshold: 1 + speculative tokens. All decode if no query is longer,
    all prefill if the first is; else the first longer one starts the prefills.

    Raises TypeError, ValueError (see ``megamla.ops``).
    """
    return BatchSplit(*library().split_batch(read("split_batch", "query_lens", query_lens), threshold))


def prefill_chunk_plan(
    seq_lens: Tensor,
    query_lens: Tensor,
    *,
    compress_ratio: int,
    has_compressed: bool,
    max_model_len: int,
    max_num_batched_tokens: int,
    chunk_size: int = 4,
    window: int = 128,
) -> List[PrefillChunk]:
    """The chunks of requests that share a gathered workspace.

    seq_lens (with the new tokens), query_lens: int32 [R], tokens. compress_ratio: 0, 1 or 2. chunk_size: requests.
    window, max_model_len, max_num_batched_tokens: tokens.

    Raises TypeError, ValueError (see ``megamla.ops``).
    """
    op = "prefill_chunk_plan"
    plan = library().prefill_chunk_plan(
        read(op, "seq_lens", seq_lens),
        read(op, "query_lens", query_lens),
        compress_ratio,
        has_compressed,
        chunk_size,
        window,
        max_model_len,
        max_num_batched_tokens,
    )
    return [PrefillChunk(*chunk) for chunk in plan]
