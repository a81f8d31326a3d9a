"""Host memory for the ops: workspaces and output pairs."""

from __future__ import annotations

import numpy as np

from .._binding import DEVICES, choice, library


def workspace_size(
    op: str,
    *,
    tokens: int = 0,
    heads: int = 0,
    window_width: int = 0,
    compressed_width: int = 0,
    groups: int = 0,
    in_features: int = 0,
    out_features: int = 0,
    num_threads: int = 0,
    device: str = "cpu",
) -> int:
    """Bytes of workspace that cover every call of ``op`` within these shapes.

    op: "decode_attention" (tokens, heads, window_width, compressed_width), "prefill_attention" (tokens, heads,
    compressed_width = topk), "kv_compress" (tokens), "block_scaled_linear" (tokens, groups, in_features, out_features
    per group). The other ops need none. num_threads: as in the call.

    Raises ValueError for another op, a negative size or an unknown device.
    """
    number = choice("workspace_size", "device", device, DEVICES)
    sizes = (tokens, heads, window_width, compressed_width, groups, in_features, out_features, num_threads)
    size: int = library().workspace_size(op, number, *sizes)
    return size


def alloc_workspace(size: int) -> np.ndarray:
    """Host memory for ``workspace=``: uint8 [size], 256-byte aligned, contents undefined."""
    buffer = np.empty(size + 255, np.uint8)
    start = -buffer.ctypes.data % 256
    return buffer[start : start + size]


def alloc_output_pair(tokens: int, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """An empty fp8 output pair in host memory: data uint8 (e4m3) [T, G, 4096], scale int32 [T, G, 32] with strides
    (1, 32 A, A), A = T rounded up to a multiple of 4. The scale words of the padding tokens are 0.

    For a step of fewer tokens pass the first rows of both: the scale's strides stay those of the buffer.
    """
    padded = (tokens + 3) // 4 * 4
    scale = np.zeros((groups, 32, padded), np.int32).transpose(2, 0, 1)
    return np.empty((tokens, groups, 4096), np.uint8), scale[:tokens]
