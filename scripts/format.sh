#!/usr/bin/env bash
# clang-format over every C, C++ and CUDA source that git knows. Usage: scripts/format.sh [--check]
set -euo pipefail
cd "$(dirname "$0")/.."
mode=(-i)
[ "${1:-}" != "--check" ] || mode=(--dry-run -Werror)
git ls-files -z '*.c' '*.h' '*.hpp' '*.cpp' '*.cu' '*.cuh' | xargs -0 -n 32 -P "$(nproc)" clang-format "${mode[@]}"
