"""PyTorch on the library's ops, in two steps.

Step one, the functions that Hopper engines call today: ``flash_mla_with_kvcache``, ``flash_mla_sparse_fwd``,
``get_mla_metadata``. Step two, the SM100 operators: ``fused_norm_rope_attn_rope_cast_decode``, ``..._fwd``,
``permute_q_b_proj``, ``permute_wv_proj``, ``alloc_mega_attn_output``. docs/adopting.md shows both, line by line.

Importing this module registers ``torch.ops.megamla``: step two, and every op of ``megamla.ops`` under its own name.
They say what they write, so ``torch.compile`` and CUDA graphs take them; they run on tensors of the CPU and of Hopper
GPUs, on the stream that PyTorch has set, and never synchronise.
"""

from .flashmla import FlashMLASchedMeta, flash_mla_sparse_fwd, flash_mla_with_kvcache, get_mla_metadata
from .mega_attention import (
    MegaAttnOutput,
    alloc_mega_attn_output,
    fused_norm_rope_attn_rope_cast_decode,
    fused_norm_rope_attn_rope_cast_fwd,
)
from .weights import permute_q_b_proj, permute_wv_proj

__all__ = [
    "FlashMLASchedMeta",
    "MegaAttnOutput",
    "alloc_mega_attn_output",
    "flash_mla_sparse_fwd",
    "flash_mla_with_kvcache",
    "fused_norm_rope_attn_rope_cast_decode",
    "fused_norm_rope_attn_rope_cast_fwd",
    "get_mla_metadata",
    "permute_q_b_proj",
    "permute_wv_proj",
]
