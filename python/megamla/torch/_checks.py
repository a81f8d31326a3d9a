"""What the library does not see of a PyTorch call: refused with the library's voice."""

from __future__ import annotations

from typing import Any


def expect(holds: bool, op: str, name: str, expected: str, got: Any) -> None:
    """ValueError unless the fact holds."""
    if not holds:
        raise ValueError(f"{op}: {name}: expected {expected}, got {got}")
