#!/usr/bin/env bash
# Checks and measures a bundle (scripts/bundle.sh) on an H200. Usage, in the bundle's folder:
#   ./run.sh [PART...] [--seconds N] [--jobs N] GOLDEN_DIR OUT_DIR [TRACE]
# Parts, all but --trace and --tp if none is named:
#   --check     golden cases, and what the bundle's tests have for a GPU; test programs run side by side
#   --sanitize  small cases of every kernel under compute-sanitizer's memcheck and racecheck, side by side
#   --bench     every op, one after the other, on a GPU that does nothing else
#   --trace     where the clocks of decode_attention go, by the bundle's decode_trace programs
#   --layer     whole layers: golden cases, decode steps, 100 requests of TRACE at full length
#   --tp        two ranks on two GPUs, summed by NCCL
# Every step has a time limit of its own, and none runs beyond --seconds of the whole. A step that fails, hangs or finds
# nothing to run loses nothing but itself: the others go on. OUT_DIR gets each step's output, the records (one JSON a
# step) and table.tsv; the tables come last. Exit 1 if a step failed or was left out.
set -uo pipefail
here=$(dirname "$(readlink -f "$0")")
parts=() seconds=86400 jobs=$((($(nproc) + 2) / 3))
while [[ ${1:-} == --* ]]; do
  case $1 in
    --check|--sanitize|--bench|--trace|--layer|--tp) parts+=("${1#--}") ;;
    --seconds) seconds=${2:?--seconds: expected a number} && shift ;;
    --jobs) jobs=${2:?--jobs: expected a number} && shift ;;
    *) echo "run.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift
done
[[ ${#parts[@]} -gt 0 ]] || parts=(check sanitize bench layer)
golden=$(readlink -f "${1:?GOLDEN_DIR}")
mkdir -p "${2:?OUT_DIR}" && out=$(readlink -f "$2")
trace=${3:+$(readlink -f "$3")}
commit=$(cat "$here/COMMIT")
export MEGAMLA_SWEEP_ROUNDS=${MEGAMLA_SWEEP_ROUNDS:-150}  # random shapes of the tests' sweeps
rm -f "$out/table.tsv"
# NCCL as a Python package brings it, unless the loader finds one.
nccl=$(python3 -c 'import nvidia.nccl as n; print(n.__path__[0] + "/lib/libnccl.so.2")' 2>/dev/null) &&
  export MEGAMLA_NCCL=${MEGAMLA_NCCL:-$nccl}
# cuBLASLt, likewise: the peer of block_scaled_linear.
cublaslt=$(python3 -c 'import glob, nvidia
print(sorted(f for p in nvidia.__path__ for f in glob.glob(p + "/*/lib/libcublasLt.so.*"))[-1])' 2>/dev/null) &&
  export MEGAMLA_CUBLASLT=${MEGAMLA_CUBLASLT:-$cublaslt}

wanted() { [[ " ${parts[*]} " == *" $1 "* ]]; }

# verdict NAME STATUS: what is to be said of a step that ended.
verdict() {
  local text=$out/$1.txt log=$out/$1.log ran skipped
  case $2 in
    124|137) echo "FAILED: took too long"; return ;;
    0) ;;
    *) echo "FAILED ($2): $(cat "$log" "$text" | grep -v '^bench: ' | tail -n 1 | cut -c 1-200)"; return ;;
  esac
  ran=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) tests\{0,1\}\.$/\1/p' "$text" | tail -n 1)
  skipped=$(sed -n 's/^\[  SKIPPED \] \([0-9]*\) tests\{0,1\},.*/\1/p' "$text" | tail -n 1)
  if [[ -n $ran && $ran == 0 ]]; then
    echo "FAILED: nothing ran, ${skipped:-0} skipped: $(grep -m 1 -A 1 'Skipped$' "$text" | tail -n 1 | cut -c 1-200)"
  elif [[ -n $ran ]]; then
    echo "ok: $ran passed, ${skipped:-0} skipped"
  else
    echo "ok: $(grep -hE '^[0-9]+ passed, |^=+ (ERROR|RACECHECK) SUMMARY' "$text" "$log" | sed 's/^=* *//' | paste -sd ' ')"
  fi
}

# step NAME LIMIT COMMAND...: the output goes to OUT_DIR/NAME.txt and .log.
step() {
  local name=$1 limit=$2 begin=$SECONDS status
  shift 2
  limit=$((seconds - begin < limit ? seconds - begin : limit))
  if [[ $limit -lt 5 ]]; then
    status="FAILED: no time left"
  else
    timeout --kill-after=5 "$limit" "$@" >"$out/$name.txt" 2>"$out/$name.log"
    status=$(verdict "$name" $?)
  fi
  printf '%s\t%s\t%s\n' "$name" "$((SECONDS - begin))" "$status" >>"$out/table.tsv"
  printf '%-34s %4d s  %s\n' "$name" "$((SECONDS - begin))" "$status"
}
# The same, side by side with what is running; `wait` before anything is timed.
beside() {
  while [[ $(jobs -rp | wc -l) -ge $jobs ]]; do wait -n; done
  OMP_WAIT_POLICY=passive OMP_NUM_THREADS=4 step "$@" &
}
bench() {
  local name=$1 limit=$2
  shift 2
  step "$name" "$limit" "$here/megamla" bench "$@" --device cuda --commit "$commit" --json "$out/$name.json"
}
# Of tests that run on every implementation and device, those on a GPU; tests/program's cuda_*_test are all of them.
gpu_filter='*/cuda*:Cuda*'
has_gpu_tests() { [[ $("$1" --gtest_list_tests --gtest_filter="$gpu_filter" | wc -l) -gt 1 ]]; }

step doctor 60 "$here/megamla" doctor --json "$out/doctor.json"
if wanted check; then
  begin=$SECONDS
  beside check 240 "$here/megamla" check --device cuda --json "$out/check.json" "$golden"
  for test in "$here"/*_test; do
    name=$(basename "$test")
    if [[ $name == tensor_parallel_test ]] || ! has_gpu_tests "$test"; then continue; fi
    beside "$name" 300 "$test" --gtest_filter="$gpu_filter"
  done
  wait
  echo "check: $((SECONDS - begin)) s"
fi

if wanted sanitize; then
  begin=$SECONDS
  if command -v compute-sanitizer >/dev/null; then
    # racecheck of CUDA 13.0 ends with an internal error where a block's st.async goes to another block's shared memory:
    # where clusters share rows of decode_attention, memcheck and the PTX interpreter's own search for races must do.
    sanitizer() {  # NAME COMMAND...
      local name=$1 tool filter
      shift
      for tool in memcheck racecheck; do
        filter=()
        [[ $tool != racecheck || $name != layer_graph_test ]] || filter=(--kernel-name-exclude kns=decode_attention_kernel)
        beside "${tool}_$name" 400 compute-sanitizer --tool "$tool" --target-processes all --error-exitcode 9 \
          "${filter[@]}" "$@"
      done
    }
    for format in nvfp4_288 fp8_584; do  # rows that each have a block of their own
      window=fp8_528
      [[ $format != fp8_584 ]] || window=fp8_584
      beside "racecheck_decode_rows_$format" 400 compute-sanitizer --tool racecheck --error-exitcode 9 \
        --kernel-name kns=decode_attention_kernel --launch-count 1 "$here/megamla" bench decode_attention --device cuda \
        --heads 64 --topk 512 --tokens 132 --window-format $window --topk-format $format --repeats 5
    done
    # Small cases, a process for each kind of op: a sanitizer slows kernels down a hundredfold.
    for kind in decode prefill o_proj insert gather compress; do
      mapfile -t cases < <(find "$golden" -name "*${kind}_*.safetensors" -size -1400k -not -name 'layer__*' | sort)
      [[ ${#cases[@]} -eq 0 ]] || sanitizer "$kind" "$here/megamla" check --device cuda "${cases[@]}"
    done
    mapfile -t cases < <(find "$golden" -name '*.safetensors' -size -1400k -not -name 'layer__*' |
      grep -Ev '/[a-z_]*(decode|prefill|o_proj|insert|gather|compress)_' | sort)
    [[ ${#cases[@]} -eq 0 ]] || sanitizer others "$here/megamla" check --device cuda "${cases[@]}"
    for test in layer_graph_test cuda_small_ops_test; do
      [[ ! -x $here/$test ]] || sanitizer "$test" "$here/$test" --gtest_filter="$gpu_filter"
    done
    [[ ! -x $here/cuda_linear_test ]] ||
      sanitizer cuda_linear_test "$here/cuda_linear_test" --gtest_filter='*.NanStaysInItsRow:*.LargeAndSmallScales'
    wait
    echo "sanitize: $((SECONDS - begin)) s"
  else
    echo "skipped sanitize: no compute-sanitizer on PATH"
  fi
fi

if wanted bench; then
  tokens=1,3,8,17,32,48,64,67,100,128,133,200,256,512,1024
  bench decode_fp8_528_nvfp4_288 120 decode_attention --heads 64,32,16,8 --topk 512 --tokens $tokens
  bench decode_fp8_584 90 decode_attention --heads 64,8 --topk 512 --tokens $tokens \
    --window-format fp8_584 --topk-format fp8_584
  bench decode_fp8_584_1024 90 decode_attention --heads 128 --topk 1024 --tokens $tokens \
    --window-format fp8_584 --topk-format fp8_584
  bench prefill 120 prefill_attention --path gathered,paged --heads 64,32,16,8 --topk 512 --tokens 4096
  bench prefill_gathered_128 60 prefill_attention --heads 128 --topk 1024 --tokens 4096
  bench linear 120 block_scaled_linear --case wo_a,wo_b,wq_b,wq_a_wkv,compressor --tokens 1,16,128,512,4096 --peer
  bench kv 60 kv_insert kv_gather --tokens 128,4096,65536
  bench index 60 topk_to_slots combine_topk_swa swa_metadata --tokens 1,128,4096,65536
  # Modes of their own: K that nothing divides, the other second cache, steps at waves, lengths, batch-invariant rows.
  bench decode_odd_widths 60 decode_attention --heads 64,8 --topk 133,500,1024 --tokens 1,32,128
  bench decode_fp8_528_fp8_528 60 decode_attention --heads 64,16,8 --topk-format fp8_528 --tokens 1,8,32,64,128,512,1024
  bench decode_waves 60 decode_attention --heads 64 --tokens 66,67,84,132,133,198,199,264,265
  bench decode_waves_128 60 decode_attention --heads 128 --topk 1024 --tokens 21,22,33,34,66,67,99,100 \
    --window-format fp8_584 --topk-format fp8_584
  bench decode_full_lengths 60 decode_attention --heads 64,16,8 --tokens 32,64,128,200,256,1024 --lengths full
  bench decode_random_lengths 60 decode_attention --heads 64,16,8 --tokens 32,64,128,200,256,1024 --lengths random
  bench decode_batch_invariant 60 decode_attention --heads 64,32,16,8 --tokens 1,8,32,64,128,256,1024 --batch-invariant
fi

if wanted trace; then
  for program in "$here"/decode_trace*; do
    [[ -x $program ]] || continue
    name=$(basename "$program")
    step "${name}_nvfp4" 60 "$program" 1,8,64,128,133,1024 64 512 nvfp4
    step "${name}_fp8_584" 60 "$program" 1,128,1024 64 512 fp8_584
  done
fi

if wanted layer; then
  mapfile -t layers < <(find "$golden" -name 'layer__*.safetensors' | sort)
  [[ ${#layers[@]} -eq 0 ]] ||
    step layer_golden 180 "$here/megamla" check --device cuda --json "$out/layer_golden.json" "${layers[@]}"
  bench layer_step 180 layer_step --heads 64,8 --tokens 1,32,128
  if [[ -n $trace ]]; then
    step replay 400 "$here/megamla" replay "$trace" --requests 100 --layers 2,20 --verify 0.0005 --device cuda \
      --json "$out/replay.json"
  fi
fi

if wanted tp; then
  step tensor_parallel_test 120 "$here/tensor_parallel_test" --gtest_filter='*TwoGpus*'
fi

echo
for table in "$out"/*.txt; do
  name=$(basename "$table" .txt)
  case $name in
    doctor|memcheck_*|racecheck_*|*_test) continue ;;
    check|layer_golden) echo "$name: $(tail -n 1 "$table")" ;;
    *) echo "$name:"; cat "$table" ;;
  esac
done
grep FAILED "$out/table.tsv" || true
echo "$(grep -c FAILED "$out/table.tsv") of $(wc -l <"$out/table.tsv") steps failed, $SECONDS s"
! grep -q FAILED "$out/table.tsv"
