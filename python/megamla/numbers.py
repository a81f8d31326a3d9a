"""The number formats of the ops that numpy has no dtype for.

The ops take bf16 as ``uint16`` and fp8 as ``uint8`` arrays of bits; frameworks with such dtypes pass theirs as they
are.
"""

from __future__ import annotations

import numpy as np


def to_bf16(values: np.ndarray) -> np.ndarray:
    """Bits (uint16) of the bf16 nearest to each float, ties to even; NaN stays NaN."""
    floats = np.asarray(values, dtype=np.float32)
    bits = floats.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(floats), quiet, rounded).astype(np.uint16)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    """The float32 values of bf16 bits (uint16)."""
    return (np.asarray(bits, dtype=np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def from_e4m3(bits: np.ndarray) -> np.ndarray:
    """The float32 values of e4m3fn bits (uint8)."""
    codes = np.asarray(bits, dtype=np.uint8).astype(np.int32)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    magnitude = np.where(exponent == 0, np.ldexp(mantissa / 8.0, -6), np.ldexp(1 + mantissa / 8.0, exponent - 7))
    magnitude = np.where(codes & 0x7F == 0x7F, np.nan, magnitude)
    return np.where(codes & 0x80 != 0, -magnitude, magnitude).astype(np.float32)


def from_e8m0(bits: np.ndarray) -> np.ndarray:
    """The float32 values of ue8m0 scales (uint8): 2^(byte - 127), 0xff = NaN."""
    codes = np.asarray(bits, dtype=np.uint8).astype(np.int32)
    return np.where(codes == 255, np.nan, np.ldexp(1.0, codes - 127)).astype(np.float32)
