#!/usr/bin/env bash
# Tests and times megamla.torch on a machine with an H200 and PyTorch. Usage, in a checkout:
#   bench/h200/python.sh WHEELS OUT_DIR
# WHEELS: a folder with the wheel of this commit, built where nvcc is (pip wheel --no-deps -w WHEELS .), and one of
# apache-tvm-ffi for the machine's Python. Nothing else is installed: PYTHON (default python3) has PyTorch, numpy and pytest.
# Exit 1 if something failed.
set -uo pipefail
cd "$(dirname "$0")/../.."
wheels=${1:?WHEELS}
mkdir -p "${2:?OUT_DIR}" && out=$(readlink -f "$2")
python=${PYTHON:-python3}
packages=$(mktemp -d)
trap 'rm -rf "$packages"' EXIT
failed=0

"$python" -m pip install --quiet --no-index --no-deps --target "$packages" "$wheels"/megamla-*.whl "$wheels"/apache_tvm_ffi-*.whl || exit 1
export PYTHONPATH=$packages
"$python" -m megamla doctor | tee "$out/doctor.txt" || failed=1
"$python" -m pytest -q -rs --junit-xml="$out/pytest.xml" python/tests/pytorch 2>&1 | tee "$out/pytest.txt" || failed=1
device=$("$python" -c "import torch; print('cuda' if torch.cuda.is_available() else 'cpu')")
"$python" scripts/call_overhead.py --device "$device" --json "$out/call_overhead.json" | tee "$out/call_overhead.txt" || failed=1
exit $failed
