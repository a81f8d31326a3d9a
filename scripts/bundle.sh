#!/usr/bin/env bash
# Collects the program, the tests that have something for a GPU (or those that are named) and the libraries they need in
# one folder that runs on a machine with nothing but the NVIDIA driver.
# Usage: scripts/bundle.sh BUILD_DIR OUT_DIR [TEST...]
#
# OUT_DIR/megamla and OUT_DIR/TEST are small scripts. They take the machine's own C library where it is new enough, else
# the one that is carried along, with its loader. OUT_DIR/run.sh checks and measures them (bench/h200/run.sh).
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?BUILD_DIR} out=${2:?OUT_DIR}
shift 2

rm -rf "$out"
mkdir -p "$out/bin" "$out/lib" "$out/glibc"
add_program() {
  local name=$1 file=$2
  install -s "$file" "$out/bin/$name"
  cat >"$out/$name" <<'WRAPPER'
#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
program=$here/bin/$(basename "$0")
if LD_LIBRARY_PATH=$here/lib LD_BIND_NOW=1 "$here/bin/megamla" --version >/dev/null 2>&1; then
  export LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  exec "$program" "$@"
fi
exec "$here/glibc/ld-linux-x86-64.so.2" --library-path "$here/glibc:$here/lib" "$program" "$@"
WRAPPER
  chmod +x "$out/$name"
  ldd "$file" | grep -o '/[^ ]*' | while read -r library; do
    case $(basename "$library") in
      ld-linux*|libc.so.*|libm.so.*) cp -L "$library" "$out/glibc/" ;;
      *) cp -L "$library" "$out/lib/" ;;
    esac
  done
}

# What run.sh runs; beside what is on every device, tests whose fixtures are about GPUs.
has_gpu_tests() { [ "$("$1" --gtest_list_tests --gtest_filter='*/cuda*:Cuda*:*Gpus*' | wc -l)" -gt 1 ]; }
if [ $# -eq 0 ]; then
  for test in "$build"/tests/*_test; do
    if [ "$(basename "$test")" != c_abi_test ] && has_gpu_tests "$test"; then set -- "$@" "$(basename "$test")"; fi
  done
fi

add_program megamla "$build/apps/megamla/megamla"
for trace in "$build"/decode_trace*; do
  if [[ -x $trace ]]; then add_program "$(basename "$trace")" "$trace"; fi
done
for test in "$@"; do add_program "$test" "$build/tests/$test"; done
# What the driver's library asks the C library for beside libc and libm.
libc_folder=$(dirname "$(ldd "$build/apps/megamla/megamla" | grep -o '/[^ ]*/libc\.so\.6')")
for name in libdl.so.2 libpthread.so.0 librt.so.1; do cp -L "$libc_folder/$name" "$out/glibc/"; done
cp bench/h200/run.sh "$out/"
git rev-parse HEAD >"$out/COMMIT" 2>/dev/null || echo unknown >"$out/COMMIT"

du -sh "$out"
"$out/megamla" --version
