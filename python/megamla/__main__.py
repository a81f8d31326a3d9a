"""``python -m megamla COMMAND``: the program of the library, as this package carries it, and ``plot``, which draws its
records."""

import os
import pathlib
import sys


def main() -> None:
    if sys.argv[1:2] == ["plot"]:
        from .plot import main as plot

        sys.exit(plot(sys.argv[2:]))
    program = pathlib.Path(__file__).resolve().parent / "bin" / "megamla"
    os.execv(program, [str(program), *sys.argv[1:]])


if __name__ == "__main__":
    main()
