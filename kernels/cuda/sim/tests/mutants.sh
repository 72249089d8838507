#!/bin/sh
# Spoils one synchronisation of the softmax kernels at a time and expects the tests to notice.
# Usage: mutants.sh FOLDER, from the simulator's folder; writes there only.
set -eu
out=$1
rm -rf "$out"
mkdir -p "$out/cuda"
cp -r ../*.cuh ../*.cu "$out/cuda"
mkdir "$out/cuda/sim"
cp -r ./*.h machine.cpp Makefile tests "$out/cuda/sim"

survivors=0
# File, what is replaced where it first occurs, and by what.
while IFS='|' read -r file text other; do
  line=$(grep -n -F "$text" "../$file" | head -1 | cut -d: -f1)
  [ -n "$line" ] || { echo "no line of $file contains: $text"; exit 1; }
  awk -v line="$line" -v text="$text" -v other="$other" \
    'NR == line { at = index($0, text); $0 = substr($0, 1, at - 1) other substr($0, at + length(text)) } { print }' \
    "../$file" > "$out/cuda/$file"
  if cmp -s "../$file" "$out/cuda/$file"; then echo "line $line of $file is unchanged"; exit 1; fi
  make -s -C "$out/cuda/sim" BUILD=build build/softmax_test
  if "$out/cuda/sim/build/softmax_test" quick > "$out/log" 2>&1; then
    echo "SURVIVED $file:$line with \"$other\" for: $text"
    survivors=1
  else
    echo "found    $file:$line with \"$other\" for: $text"
  fi
  cp "../$file" "$out/cuda/$file"
done <<LINES
softmax_common.cuh|__syncthreads();|
softmax.cu|__syncthreads();|
softmax.cu|__threadfence();  // the state before the ticket|
softmax.cu|ptx::add_release(arrived, 1);|atomicAdd(arrived, 1);
softmax.cu|atomicExch(arrived, 0u);|;
softmax.cu|if (lane == 0) sum_of_warps[warp] = sum;|sum_of_warps[lane] = sum;
LINES
exit $survivors
