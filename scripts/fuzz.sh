#!/usr/bin/env bash
# Runs the fuzz targets, two at a time, each for FUZZ_SECONDS (default 60) from the seeds in tests/fuzz/corpus/.
# Usage: scripts/fuzz.sh [TARGET...]    default: all. New inputs stay in build/fuzz/corpus/, finds in build/fuzz/finds/.
# FUZZ_SEED: the number that the mutations come from (default: another one each time).
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${FUZZ_SECONDS:-60}
seed=${FUZZ_SEED:-0}  # 0: libFuzzer takes the time
programs=build/fuzz/tests/fuzz

# Waiting OpenMP threads sleep: calls are small and many.
export OMP_WAIT_POLICY=passive UBSAN_OPTIONS=print_stacktrace=1 ASAN_OPTIONS=allocator_may_return_null=1

fuzz() {
  local target=$1 seeds=tests/fuzz/corpus/$1 corpus=build/fuzz/corpus/$1 log=build/fuzz/$1.log
  mkdir -p "$corpus" build/fuzz/finds
  if nice "$programs/fuzz_$target" -seed="$seed" -max_total_time="$seconds" -timeout=120 -rss_limit_mb=4096 \
    -max_len=16384 -print_final_stats=1 -artifact_prefix="build/fuzz/finds/$target-" "$corpus" "$seeds" >"$log" 2>&1; then
    echo "fuzz $target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") runs in $seconds s, nothing found"
  else
    tail -n 60 "$log"
    echo "fuzz $target: FOUND, see $log and build/fuzz/finds/" >&2
    return 1
  fi
}
export -f fuzz
export seconds seed programs

if [ $# -eq 0 ]; then
  for folder in tests/fuzz/corpus/*/; do set -- "$@" "$(basename "$folder")"; done
fi
printf '%s\n' "$@" | xargs -P 2 -I '{}' bash -euc 'fuzz "{}"'
