#!/usr/bin/env bash
# Builds the wheel, installs it into a new virtual environment and tests it there: golden cases through its program,
# pytest, the documentation's examples. Usage: scripts/python.sh. Environment: JOBS, CMAKE_ARGS, MEGAMLA_GOLDEN_DIR; TORCH=1
# installs PyTorch, too, and tests megamla.torch.
set -euo pipefail
cd "$(dirname "$0")/.."
export CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-$(nproc)}
export CC=${CC:-cc} CXX=${CXX:-c++}  # CMake's own choice, so that ccache has the files of the other builds
unset MAKEFLAGS MFLAGS  # of the make that calls this, not for the build tool that CMake starts
folder=$PWD/build/python
rm -rf "$folder/venv" "$folder/dist"

python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet wheel --no-deps --wheel-dir "$folder/dist" .
wheel=$(echo "$folder"/dist/megamla-*.whl)
"$folder/venv/bin/pip" --quiet install "$wheel[test${TORCH:+,torch}]"
bytes=$(stat -c %s "$wheel")
echo "wheel: $(basename "$wheel"), $bytes bytes"
[ "$bytes" -lt 30000000 ] || { echo "python: expected a wheel below 30 MB" >&2; exit 1; }

"$folder/venv/bin/python" -m megamla check "${MEGAMLA_GOLDEN_DIR:-tests/golden}" | tail -n 1
OMP_WAIT_POLICY=passive "$folder/venv/bin/python" -m pytest -q python/tests
