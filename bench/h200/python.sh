#!/usr/bin/env bash
# Tests and times megamla.torch on a machine with an H200 and PyTorch. Usage, in a checkout:
#   bench/h200/python.sh WHEELS OUT_DIR
# WHEELS: a folder with the wheel of this commit, built where nvcc is (CMAKE_ARGS=-DMEGAMLA_CUDA=ON pip wheel --no-deps
# -w WHEELS .), and one of apache-tvm-ffi for the machine's Python. Nothing else is installed: PYTHON (default python3) has
# PyTorch, numpy and pytest. Every step has a time limit, and one that fails does not end the others. Exit 1 if one did.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
wheels=${1:?WHEELS}
mkdir -p "${2:?OUT_DIR}" && out=$(readlink -f "$2")
python=${PYTHON:-python3}
packages=$(mktemp -d)
trap 'rm -rf "$packages"' EXIT
failures=()

# step NAME LIMIT COMMAND...: the output is shown and goes to OUT_DIR/NAME.txt.
step() {
  local name=$1 limit=$2 begin=$SECONDS
  shift 2
  timeout --kill-after=5 "$limit" "$@" 2>&1 | tee "$out/$name.txt"
  local status=${PIPESTATUS[0]}
  echo "== $name: $([[ $status -eq 0 ]] && echo ok || echo "FAILED ($status)"), $((SECONDS - begin)) s"
  [[ $status -eq 0 ]] || failures+=("$name")
}

"$python" -m pip install --quiet --no-index --no-deps --target "$packages" \
  "$wheels"/megamla-*.whl "$wheels"/apache_tvm_ffi-*.whl || exit 1
export PYTHONPATH=$packages PYTHONUNBUFFERED=1
device=$("$python" -c "import torch; print('cuda' if torch.cuda.is_available() else 'cpu')")
beside=$("$python" -c "import xdist" 2>/dev/null && echo "-n 6")

step doctor 60 "$python" -m megamla doctor
step golden 120 "$python" -m megamla check tests/golden --device "$device"
step call_overhead 120 "$python" scripts/call_overhead.py --device "$device" --json "$out/call_overhead.json"
# shellcheck disable=SC2086  # two arguments or none
step pytest 300 "$python" -m pytest -q -rs $beside --junit-xml="$out/pytest.xml" python/tests/pytorch
echo "${#failures[@]} failed: ${failures[*]-}"
[[ ${#failures[@]} -eq 0 ]]
