#!/usr/bin/env bash
# A very small replay under memcheck: two requests through one layer, every row held against the reference. Reads of
# uninitialised memory, stray accesses and definite leaks fail it. Usage: scripts/valgrind.sh PROGRAM
set -euo pipefail
trace=$(mktemp)
trap 'rm -f "$trace"' EXIT
cat >"$trace" <<'TRACE'
{"timestamp": 0, "input_length": 5, "output_length": 2, "hash_ids": [0]}
{"timestamp": 1, "input_length": 3, "output_length": 3, "hash_ids": [1]}
TRACE
# Valgrind emulates a processor with AVX2, and both the library and oneDNN ask the processor. oneDNN's AVX2 kernels read
# past their own packed buffers, harmlessly; those for SSE4.1 do not.
export ONEDNN_MAX_CPU_ISA=SSE41 DNNL_MAX_CPU_ISA=SSE41 OMP_WAIT_POLICY=passive
valgrind --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite --num-callers=20 \
  "$1" replay "$trace" --layers 2 --verify 1 --threads 2
