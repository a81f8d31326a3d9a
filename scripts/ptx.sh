#!/usr/bin/env bash
# Compiles the GPU kernels to PTX and runs their tests and the golden cases on the CPU, by tests/ptx_interpreter. nvcc is
# CUDACXX's or PATH's, else the one of NVIDIA's wheels on PyPI, which go to build/nvcc.
# Usage: scripts/ptx.sh. Environment: JOBS, CMAKE_ARGS.
set -euo pipefail
cd "$(dirname "$0")/.."
unset MAKEFLAGS MFLAGS  # of the make that calls this, not for the build tool that CMake starts
jobs=${JOBS:-$(nproc)}

if [ -z "${CUDACXX:-}" ] && ! command -v nvcc >/dev/null; then
  if [ ! -d build/nvcc ]; then
    python3 -m venv build/nvcc.part
    build/nvcc.part/bin/pip --quiet install 'nvidia-cuda-nvcc==13.0.*' 'nvidia-nvvm==13.0.*' 'nvidia-cuda-crt==13.0.*' \
      'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-cccl==13.0.*'
    mv build/nvcc.part build/nvcc
  fi
  CUDACXX=$(echo "$PWD"/build/nvcc/lib/python3*/site-packages/nvidia/cu13/bin/nvcc)
  export CUDACXX
fi

generator=()
if [ ! -f build/ptx/CMakeCache.txt ] && command -v ninja >/dev/null; then generator=(-G Ninja); fi
# shellcheck disable=SC2086  # several arguments
cmake --preset ptx "${generator[@]}" ${CMAKE_ARGS:-}
cmake --build --preset ptx -j "$jobs"
ctest --preset ptx -j "$jobs"
