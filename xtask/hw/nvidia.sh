#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

# Proves and measures a card, with nothing but the programs beside this script: no network, no compiler, no Python.
#
#   sh run.sh correctness|timing [URI] [IREE'S LIBRARY]
#
# correctness: IREE's conformance suite, by events, by words, and with eight streams. timing: what CUDA's own functions
# cost; then calls of models, with IREE's own driver and with ours, in turns. IREE's driver opens libcuda.so; on a card
# that is libcuda.so.1 as the system finds it.
set -u
here=$(cd "$(dirname "$0")" && pwd)
run=${1:?correctness or timing}
device=${2:-nvidia://0}
case $device in *\?*) mark='&' ;; *) mark='?' ;; esac
cuda=${3:-$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p | awk '/libcuda\.so\.1/ { print $NF; exit }')}
if [ ! -e "$cuda" ]; then
  echo "there is no libcuda.so.1: install NVIDIA's driver, or name its library as the third argument" >&2
  exit 1
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
ln -s "$cuda" "$scratch/libcuda.so"
export CUDA_CACHE_PATH="$scratch/jit"

echo "$(date -u +%F), commit $(cat "$here/commit"), $device"
if command -v nvidia-smi > /dev/null; then
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
fi

failed=0
suite() {
  echo "suite: $1"
  HAL_CTS_NAME=nvidia HAL_CTS_DEVICE="$device$mark$1" HAL_CTS_TESTDATA="$here/testdata" \
    HAL_CTS_FORMATS="$(cat "$here/formats")" TEST_TMPDIR="$scratch" HAL_NVIDIA_DEFAULT="${device#nvidia://}" \
    timeout -k 5 "${LIMIT:-600}" "$here/hal_cts" --gtest_brief=1 || failed=1
}

# The median of the numbers in its input, in microseconds.
median() {
  sort -n | awk '{ all[NR] = $1 } END { if (NR) printf "%.2f", all[int((NR + 1) / 2)] / 1000; else printf "-" }'
}

ours() {
  timeout -k 5 120 "$here/hal_latency" --device="$device" --module="$1" --function=main --calls="$calls" \
    --warm_up="$warm" $2 2> "$scratch/said" | awk '/^latencies/ { for (i = 2; i <= NF; ++i) print $i }'
}

peer() {
  LD_LIBRARY_PATH="$scratch" timeout -k 5 120 "$here/iree-benchmark-module" --device=cuda --module="$1" \
    --function=main --benchmark_min_time="${calls}x" --benchmark_repetitions=5 --benchmark_format=csv \
    $2 2> "$scratch/said" |
    awk -F, 'BEGIN { in_ns["ns"] = 1; in_ns["us"] = 1e3; in_ns["ms"] = 1e6; in_ns["s"] = 1e9 }
      /real_time"/ && $5 in in_ns { print $3 * in_ns[$5] }'
}

# IREE's program gives means of so many calls, five times; ours each call. Both have inputs on the card before.
model() {
  name=$1
  inputs=$(sed 's/^/--input=/' "$here/models/$name.inputs")
  for turn in 1 2 3; do
    peer "$here/models/$name.vmfb" "$inputs" >> "$scratch/$name.peer"
    ours "$here/models/$name.vmfb" "$inputs" >> "$scratch/$name.ours"
  done
  its=$(median < "$scratch/$name.peer")
  our=$(median < "$scratch/$name.ours")
  case $its$our in *-*) failed=1 && cat "$scratch/said" >&2 ;; esac
  awk -v name="$name" -v its="$its" -v our="$our" \
    'BEGIN { printf "%-16s%12s%12s%12s\n", name, its, our, (its > 0 && our > 0) ? sprintf("%.2f", our / its) : "-" }'
}

case $run in
  correctness)
    suite waits=events
    suite waits=epochs
    suite 'waits=epochs&streams=8'
    ;;
  timing)
    calls=${CALLS:-200}
    warm=$((calls / 10 + 5))
    "$here/raw_cuda" "$cuda" 0 "$calls" || failed=1
    printf '\n%-16s%12s%12s%12s\n' "a call, in us" "IREE" "ours" "ours/IREE"
    for inputs in "$here"/models/*.inputs; do
      model "$(basename "$inputs" .inputs)"
    done
    ;;
  *)
    echo "correctness or timing, not $run" >&2
    exit 1
    ;;
esac
exit $failed
