"""MegaMLA: the DeepSeek V4.1 attention layer's ops on tensors of any framework, without one.

``megamla.ops`` has every op, ``megamla.numbers`` the formats that numpy lacks, ``python -m megamla`` the program.
"""

from . import numbers, ops
from ._binding import library

__version__: str = library().version()
__all__ = ["__version__", "numbers", "ops"]
