#!/usr/bin/env bash
# Checks and measures a bundle (scripts/bundle.sh) on an H200. Usage, in the bundle's folder:
#   ./run.sh [--check] [--sanitize] [--bench] [--layer] GOLDEN_DIR OUT_DIR [TRACE]
# No flag: all four. --layer: golden cases of whole layers, the layer's tests (two GPUs where there are two), 100 requests
# of TRACE at full length, decode steps. Records go to OUT_DIR, one JSON a part; the tables come last. Exit 1 if something
# failed.
set -uo pipefail
here=$(dirname "$(readlink -f "$0")")
parts=()
while [[ ${1:-} == --* ]]; do parts+=("${1#--}"); shift; done
[[ ${#parts[@]} -gt 0 ]] || parts=(check sanitize bench layer)
golden=$(readlink -f "${1:?GOLDEN_DIR}")
mkdir -p "${2:?OUT_DIR}" && out=$(readlink -f "$2")
commit=$(cat "$here/COMMIT")
trace=${3:+$(readlink -f "$3")}
failures=()
# NCCL as a Python package brings it, unless the loader finds one.
nccl=$(python3 -c 'import nvidia.nccl as n; print(n.__path__[0] + "/lib/libnccl.so.2")' 2>/dev/null) &&
  export MEGAMLA_NCCL=${MEGAMLA_NCCL:-$nccl}

# cuBLASLt, likewise: the peer of block_scaled_linear.
cublaslt=$(python3 -c 'import glob, nvidia
print(sorted(f for p in nvidia.__path__ for f in glob.glob(p + "/*/lib/libcublasLt.so.*"))[-1])' 2>/dev/null) &&
  export MEGAMLA_CUBLASLT=${MEGAMLA_CUBLASLT:-$cublaslt}

wanted() { [[ " ${parts[*]} " == *" $1 "* ]]; }
# step NAME COMMAND...: the output goes to OUT_DIR/NAME.txt.
step() {
  local name=$1 begin=$SECONDS
  shift
  if "$@" >"$out/$name.txt" 2>"$out/$name.log"; then
    echo "ok      $name ($((SECONDS - begin)) s)"
  else
    echo "FAILED  $name ($((SECONDS - begin)) s): $(tail -n 1 "$out/$name.log")"
    failures+=("$name")
  fi
}
layer_tests='layer_test|layer_graph_test|tensor_parallel_test|replay_test'
gpu_tests() { find "$here" -maxdepth 1 -name '*_test' | sort | grep -Ev "/($layer_tests)$"; }
bench() {
  local name=$1
  shift
  step "$name" "$here/megamla" bench "$@" --device cuda --commit "$commit" --json "$out/$name.json"
}

step doctor "$here/megamla" doctor --json "$out/doctor.json"
if wanted check; then
  step check "$here/megamla" check --device cuda --json "$out/check.json" "$golden"
  for test in $(gpu_tests); do step "$(basename "$test")" "$test"; done
fi

if wanted sanitize; then
  if command -v compute-sanitizer >/dev/null; then
    # Small cases: a sanitizer slows kernels down a hundredfold.
    mapfile -t small < <(find "$golden" -name '*.safetensors' -size -2048k -not -name 'layer__*' | sort)
    for tool in memcheck racecheck; do
      step "sanitizer_$tool" compute-sanitizer --tool "$tool" --target-processes all --error-exitcode 9 \
        "$here/megamla" check --device cuda "${small[@]}"
    done
  else
    echo "skipped sanitize: no compute-sanitizer on PATH"
  fi
fi

if wanted bench; then
  tokens=1,3,8,17,32,48,64,100,128,133,200,256,512,1024
  bench decode_fp8_528_nvfp4_288 decode_attention --heads 64,32,16,8 --topk 512 --tokens $tokens
  bench decode_fp8_584 decode_attention --heads 64,8 --topk 512 --tokens $tokens \
    --window-format fp8_584 --topk-format fp8_584
  bench decode_fp8_584_1024 decode_attention --heads 128 --topk 1024 --tokens $tokens \
    --window-format fp8_584 --topk-format fp8_584
  bench decode_odd_widths decode_attention --heads 64,8 --topk 133,500,1024 --tokens 1,32,128
  bench prefill prefill_attention --path gathered,paged --heads 64,32,16,8 --topk 512 --tokens 4096
  bench prefill_gathered_128 prefill_attention --heads 128 --topk 1024 --tokens 4096
  bench linear block_scaled_linear --case wo_a,wo_b,wq_b,wq_a_wkv,compressor --tokens 1,16,128,512,4096 --peer
  bench kv kv_insert kv_gather --tokens 128,4096,65536
  bench index topk_to_slots combine_topk_swa swa_metadata --tokens 1,128,4096,65536
fi

if wanted layer; then
  mapfile -t layers < <(find "$golden" -name 'layer__*.safetensors' | sort)
  [[ ${#layers[@]} -eq 0 ]] ||
    step layer_golden "$here/megamla" check --device cuda --json "$out/layer_golden.json" "${layers[@]}"
  for test in ${layer_tests//|/ }; do
    # Only what runs on a GPU.
    [[ ! -x $here/$test ]] || step "$test" "$here/$test" --gtest_filter='*/cuda:TensorParallel.*'
  done
  bench layer_step layer_step --heads 64,8 --tokens 1,32,128
  if [[ -n $trace ]]; then
    step replay "$here/megamla" replay "$trace" --requests 100 --layers 2,20 --verify 0.0005 --device cuda \
      --json "$out/replay.json"
  fi
fi

echo
for table in "$out"/*.txt; do
  name=$(basename "$table" .txt)
  case $name in
    doctor|sanitizer_*|*_test) continue ;;
    check|layer_golden) echo "$name: $(tail -n 1 "$table")" ;;
    *) echo "$name:"; cat "$table" ;;
  esac
done
echo "${#failures[@]} failed: ${failures[*]-}"
[[ ${#failures[@]} -eq 0 ]]
