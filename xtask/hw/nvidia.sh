#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

# Proves and measures a card, with nothing but the files beside this script: no network, no compiler, no Python.
#
#   sh run.sh correctness|soak|timing [URI] [IREE'S LIBRARY]
#
# correctness: IREE's conformance suite, by events, by words, and with eight streams; models with ours and with IREE's own
# driver, against what IREE's local-sync computed. soak: random programs, judged by plain bytes. timing: what CUDA's own
# functions cost; then calls of models, with both drivers in turns. IREE's driver opens libcuda.so; on a card that is
# libcuda.so.1 as the system finds it.
set -u
run=${1:?correctness, soak or timing}
device=${2:-nvidia://0}
case $device in *\?*) mark='&' ;; *) mark='?' ;; esac
cuda=${3:-$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p | awk '/libcuda\.so\.1/ { print $NF; exit }')}
if [ ! -e "$cuda" ]; then
  echo "there is no libcuda.so.1: install NVIDIA's driver, or name its library as the third argument" >&2
  exit 1
fi
cuda=$(realpath "$cuda")
cd "$(dirname "$0")" || exit 1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
ln -s "$cuda" "$scratch/libcuda.so"
export CUDA_CACHE_PATH="$scratch/jit"

echo "$(date -u +%F), commit $(cat commit), $device"
if command -v nvidia-smi > /dev/null; then
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
fi

failed=0
suite() {
  echo "suite: $1"
  HAL_CTS_NAME=nvidia HAL_CTS_DEVICE="$device$mark$1" HAL_CTS_TESTDATA="$PWD/testdata" \
    HAL_CTS_FORMATS="$(cat formats)" TEST_TMPDIR="$scratch" HAL_NVIDIA_DEFAULT="${device#nvidia://}" \
    timeout -k 5 "${LIMIT:-600}" ./hal_cts --gtest_brief=1 || failed=1
}

models() {
  for inputs in models/*.inputs; do basename "$inputs" .inputs; done
}

inputs() {
  sed 's#^@#--input=@models/#' "models/$1.inputs"
}

# A model's results with a program, on a device.
agrees() {
  # shellcheck disable=SC2046 # each line is a word
  timeout -k 5 120 "./$2" --device="$3" --module="models/$1.vmfb" --function=main $(inputs "$1") \
    --expected_output="@models/$1.npy" > "$scratch/said" 2>&1
  status=$?
  echo "model: $1, $3: $([ $status = 0 ] && echo "as local-sync" || echo "DIFFERS")"
  [ $status = 0 ] || cut -c 1-300 "$scratch/said" | head -n 12
  return $status
}

soak() {
  echo "soak: $1, $3"
  HAL_TESTDATA="$PWD/testdata" timeout -k 5 $((seconds * 2 + 120)) ./programs "$1" --kind "$2" \
    --device "$device$mark$3" --seconds "$seconds" || failed=1
}

# The median of the numbers in its input, in microseconds.
median() {
  sort -n | awk '{ all[NR] = $1 } END { if (NR) printf "%.2f", all[int((NR + 1) / 2)] / 1000; else printf "-" }'
}

ours() {
  # shellcheck disable=SC2046 # each line is a word
  timeout -k 5 120 ./hal_latency --device="$device" --module="models/$1.vmfb" --function=main --calls="$calls" \
    --warm_up="$warm" $(inputs "$1") 2> "$scratch/said" |
    awk '/^latencies/ { for (i = 2; i <= NF; ++i) print $i }'
}

peer() {
  # shellcheck disable=SC2046 # each line is a word
  LD_LIBRARY_PATH="$scratch" timeout -k 5 120 ./peer-iree-benchmark-module --device=cuda \
    --module="models/$1.vmfb" --function=main --benchmark_min_time="${calls}x" --benchmark_repetitions=5 \
    --benchmark_format=csv $(inputs "$1") 2> "$scratch/said" |
    awk -F, 'BEGIN { in_ns["ns"] = 1; in_ns["us"] = 1e3; in_ns["ms"] = 1e6; in_ns["s"] = 1e9 }
      /real_time"/ && $5 in in_ns { print $3 * in_ns[$5] }'
}

# IREE's program gives means of so many calls, five times; ours each call. Both have inputs on the card before. Raw are
# as many launches of an empty kernel, waited for.
compare() {
  for turn in 1 2 3; do
    peer "$1" >> "$scratch/$1.peer"
    ours "$1" >> "$scratch/$1.ours"
  done
  its=$(median < "$scratch/$1.peer")
  our=$(median < "$scratch/$1.ours")
  case $its$our in *-*) failed=1 && cat "$scratch/said" >&2 ;; esac
  raw=$(awk -v count="$(cat "models/$1.dispatches")" '/^launches, a word/ && $4 == count { print $5; exit }' "$scratch/raw")
  awk -v name="$1" -v raw="$raw" -v its="$its" -v our="$our" 'BEGIN {
    printf "%-16s%12s%12s%12s%12s\n", name, raw, its, our, (its > 0 && our > 0) ? sprintf("%.2f", our / its) : "-"
  }'
}

case $run in
  correctness)
    suite waits=events
    suite waits=epochs
    suite 'waits=epochs&streams=8'
    for model in $(models); do
      agrees "$model" iree-run-module "$device" || failed=1
      # What IREE's driver does is to be seen beside it, and no failure of ours.
      LD_LIBRARY_PATH="$scratch" agrees "$model" peer-iree-run-module cuda || :
    done
    ;;
  soak)
    seconds=${SOAK:-30}
    soak programs_on_one_device single 'waits=events&streams=8'
    soak programs_on_one_device single 'waits=epochs&streams=8'
    soak programs_beyond_what_iree_promises beyond 'waits=events&streams=8'
    ;;
  timing)
    calls=${CALLS:-200}
    warm=$((calls / 10 + 5))
    # shellcheck disable=SC2046 # each is a number
    timeout -k 5 120 ./raw_cuda "$cuda" 0 "$calls" $(cat models/*.dispatches) > "$scratch/raw" || failed=1
    cat "$scratch/raw"
    printf '\n%-16s%12s%12s%12s%12s\n' "a call, in us" "raw CUDA" "IREE" "ours" "ours/IREE"
    for model in $(models); do compare "$model"; done
    ;;
  *)
    echo "correctness, soak or timing, not $run" >&2
    exit 1
    ;;
esac
exit $failed
