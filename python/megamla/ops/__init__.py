"""Every op of the library on caller-owned tensors.

What holds for all of them:

* Tensors are numpy arrays or anything with ``__dlpack__``. Strides are respected and nothing is copied; what an op
  wants contiguous, and is not, is refused. numpy passes bf16 as uint16 and fp8 as uint8 (``megamla.numbers``).
* Outputs are written in place, the first one is ``out`` and is returned. An output given as None is not computed.
* ``device``: "auto" (cuda for tensors in GPU memory, else cpu), "reference" (double precision), "cpu" or "cuda".
  ``num_threads``: CPU threads, 0 = all cores; results do not depend on it. On a GPU the work goes on the stream that
  the tensors' framework has set.
* ``workspace``: uint8 [bytes] in memory of the device, 256-byte aligned, at least ``workspace_size``. None: made for
  the call in host memory; on a GPU what the stream keeps from call to call, or the framework's (docs/python.md).
* Errors, all but the last before anything is written: TypeError (no tensor, or of another dtype), ValueError (any other
  argument that breaks the op's contract), NotImplementedError (valid, but no implementation on the device covers it),
  RuntimeError (the device or a dependency failed). The message names op, argument, what was expected and what came.

T tokens, H heads, G = H / 8 groups, R requests, P rows of the RoPE table. The contract of each op is its C header.
"""

from .attention import decode_attention, prefill_attention
from .cache import kv_compress, kv_gather, kv_insert, page_layout_scores
from .dense import block_scaled_linear, output_cast, permute_weights, rms_norm, rope_table
from .index import combine_topk_swa, compressed_slot_mapping, swa_metadata, topk_to_slots
from .plan import prefill_chunk_plan, split_batch
from .workspace import alloc_output_pair, alloc_workspace, workspace_size

__all__ = [
    "alloc_output_pair",
    "alloc_workspace",
    "block_scaled_linear",
    "combine_topk_swa",
    "compressed_slot_mapping",
    "decode_attention",
    "kv_compress",
    "kv_gather",
    "kv_insert",
    "output_cast",
    "page_layout_scores",
    "permute_weights",
    "prefill_attention",
    "prefill_chunk_plan",
    "rms_norm",
    "rope_table",
    "split_batch",
    "swa_metadata",
    "topk_to_slots",
    "workspace_size",
]
