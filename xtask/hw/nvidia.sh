#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

# Proves and measures a card, with nothing but the files beside this script: no network, no compiler, no Python.
set -u
usage="usage: sh run.sh correctness|soak|timing [URI] [LIBRARY]

  correctness  IREE's conformance suite, by events, by words, and with eight streams; models with this driver and with
               IREE's own, against what IREE's local-sync computed
  soak         random programs, judged by plain bytes
  timing       what CUDA's own functions cost; then calls of models, with both drivers in turns

The card is nvidia://0, or the URI's; IREE's driver and CUDA's own costs are of the first card. LIBRARY is the file of
NVIDIA's driver library, if the system does not know libcuda.so.1. Variables: SOAK, seconds of each soak (30); CALLS, of
each model (200); LIMIT, seconds of each suite (150)."
run=${1:-}
case $run in correctness | soak | timing) ;; *) echo "$usage" >&2 && exit 2 ;; esac
fail() {
  echo "run.sh: $1" >&2
  exit 1
}
device=${2:-nvidia://0}
case $device in
  nvidia://*waits=* | nvidia://*streams=*) fail "$device: waits and streams are set here" ;;
  nvidia://*\?*) mark='&' ;;
  nvidia://*) mark='?' ;;
  *) fail "$device: a card is named as nvidia://0" ;;
esac
cuda=${3:-$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p | awk '/libcuda\.so\.1/ { print $NF; exit }')}
[ -e "$cuda" ] || fail "there is no libcuda.so.1: install NVIDIA's driver, or name its library as the third argument"
cuda=$(realpath "$cuda")
cd "$(dirname "$0")" || exit 1
for program in hal_cts hal_latency iree-run-module programs raw_cuda; do
  [ -x "$program" ] || fail "$program may not be executed: chmod +x \"$PWD/$program\""
done
scratch=$(mktemp -d) || fail "there is no folder for temporary files: TMPDIR is ${TMPDIR:-/tmp}"
child=
# The programs run behind the shell, so that it can end them.
# shellcheck disable=SC2086 # no child, no word
trap 'kill $child 2> /dev/null; wait; rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM HUP PIPE
# Under the name that IREE's driver opens, and the one that ours does.
ln -s "$cuda" "$scratch/libcuda.so"
ln -s "$cuda" "$scratch/libcuda.so.1"
export LD_LIBRARY_PATH="$scratch${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" CUDA_CACHE_PATH="$scratch/jit"

# Runs a program for so many seconds at most. Its output is in a file.
limited() {
  limit=$1
  shift
  timeout -k 5 "$limit" "$@" > "$scratch/out" 2> "$scratch/said" &
  child=$!
  wait "$child"
  status=$?
  child=
  case $status in 124 | 137) echo "timed out after $limit s: $1" | tee -a "$scratch/said" ;; esac
  return "$status"
}

said() {
  cut -c 1-300 "$scratch/out" "$scratch/said" | grep -v '^\[       OK\|^\[ RUN\|^$' | tail -n "${1:-20}"
}

failed=0
suite() {
  echo "suite: $1"
  path=${device#nvidia://}
  HAL_CTS_NAME=nvidia HAL_CTS_DEVICE="$device$mark$1" HAL_CTS_TESTDATA="$PWD/testdata" \
    HAL_CTS_FORMATS="$(cat formats)" TEST_TMPDIR="$scratch" HAL_NVIDIA_DEFAULT="${path%%\?*}" \
    limited "${LIMIT:-150}" ./hal_cts
  if [ $? -eq 0 ]; then
    grep '^\[  PASSED' "$scratch/out"
  else
    failed=1
    said 60
    echo "the last test that began: $(grep '^\[ RUN' "$scratch/out" | tail -n 1)"
  fi
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
  limited 120 "./$2" --device="$3" --module="models/$1.vmfb" --function=main $(inputs "$1") \
    --expected_output="@models/$1.npy"
  status=$?
  if [ $status -eq 0 ]; then
    echo "model: $1, $3: as local-sync"
  elif grep -q '^\[FAILED\]' "$scratch/out"; then
    echo "model: $1, $3: DIFFERS from local-sync"
  else
    echo "model: $1, $3: FAILED"
  fi
  [ $status -eq 0 ] || said
  return $status
}

soak() {
  echo "soak: $1, $3"
  HAL_TESTDATA="$PWD/testdata" limited $((seconds * 2 + 120)) ./programs "$1" --kind "$2" \
    --device "$device$mark$3" --seconds "$seconds" || failed=1
  said
}

# The median of the numbers in its input, in microseconds.
median() {
  sort -n | awk '{ all[NR] = $1 } END { if (NR) printf "%.2f", all[int((NR + 1) / 2)] / 1000; else printf "-" }'
}

ours() {
  # shellcheck disable=SC2046 # each line is a word
  limited 120 ./hal_latency --device="$device" --module="models/$1.vmfb" --function=main --calls="$calls" \
    --warm_up="$warm" $(inputs "$1") || said >&2
  awk '/^latencies/ { for (i = 2; i <= NF; ++i) print $i }' "$scratch/out" >> "$scratch/$1.ours"
}

peer() {
  # shellcheck disable=SC2046 # each line is a word
  limited 120 ./peer-iree-benchmark-module --device=cuda --module="models/$1.vmfb" --function=main \
    --benchmark_min_time="${calls}x" --benchmark_repetitions=5 --benchmark_format=csv $(inputs "$1") || said >&2
  awk -F, 'BEGIN { in_ns["ns"] = 1; in_ns["us"] = 1e3; in_ns["ms"] = 1e6; in_ns["s"] = 1e9 }
    /real_time"/ && $5 in in_ns { print $3 * in_ns[$5] }' "$scratch/out" >> "$scratch/$1.peer"
}

# IREE's program gives means of so many calls, five times; ours each call. Both have inputs on the card before. Raw are
# as many launches of an empty kernel, waited for. A driver that fails is not asked again.
compare() {
  for turn in 1 2 3; do
    [ "$turn" -gt 1 ] && [ ! -s "$scratch/$1.peer" ] || peer "$1"
    [ "$turn" -gt 1 ] && [ ! -s "$scratch/$1.ours" ] || ours "$1"
  done
  its=$(median < "$scratch/$1.peer")
  our=$(median < "$scratch/$1.ours")
  case $its$our in *-*) failed=1 ;; esac
  raw=$(awk -v count="$(cat "models/$1.dispatches")" '/^launches, a word/ && $4 == count { print $5; exit }' "$scratch/raw")
  awk -v name="$1" -v raw="${raw:--}" -v its="$its" -v our="$our" 'BEGIN {
    printf "%-16s%12s%12s%12s%12s\n", name, raw, its, our, (its > 0 && our > 0) ? sprintf("%.2f", our / its) : "-"
  }'
}

echo "$(date -u +%F), commit $(cat commit), $device"
if command -v nvidia-smi > /dev/null; then
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
fi
agrees elementwise iree-run-module "$device" || fail "a small model does not run: the rest is not tried"

case $run in
  correctness)
    suite waits=events
    suite waits=epochs
    suite 'waits=epochs&streams=8'
    for model in $(models); do
      agrees "$model" iree-run-module "$device" || failed=1
      # What IREE's driver does is to be seen beside it, and no failure of ours.
      agrees "$model" peer-iree-run-module cuda || :
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
    limited 120 ./raw_cuda "$cuda" 0 "$calls" $(cat models/*.dispatches) || failed=1
    cp "$scratch/out" "$scratch/raw"
    cat "$scratch/raw" "$scratch/said"
    printf '\n%-16s%12s%12s%12s%12s\n' "a call, in us" "raw CUDA" "IREE" "ours" "ours/IREE"
    for model in $(models); do compare "$model"; done
    ;;
esac
[ $failed -eq 0 ] && echo "$run: passed" || echo "$run: FAILED"
exit $failed
