"""``python -m megamla COMMAND``: the program of the library, as this package carries it."""

import os
import pathlib
import sys


def main() -> None:
    program = pathlib.Path(__file__).resolve().parent / "bin" / "megamla"
    os.execv(program, [str(program), *sys.argv[1:]])


if __name__ == "__main__":
    main()
