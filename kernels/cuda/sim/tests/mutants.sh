#!/bin/sh
# Spoils one line of the softmax kernels or of the flat GEMM at a time, most of it synchronisation, and expects it to be noticed:
# by the tests' results, or by the check for races.
# Usage: mutants.sh FOLDER [TEST], from the simulator's folder; writes there only. With TEST, only lines that it is to notice.
set -eu
mkdir -p "$1"
out=$(cd "$1" && pwd)
rm -rf "$out/cuda"
mkdir -p "$out/cuda/sim"
cp -r ../*.cuh ../*.cu "$out/cuda"
cp -r ./*.h ./*.cpp Makefile tests "$out/cuda/sim"

survivors=0
# Who must notice, in which test, file, what is replaced where it first occurs, and by what.
while IFS='|' read -r judge name file text other; do
  [ "${2:-$name}" = "$name" ] || continue
  line=$(grep -n -F "$text" "../$file" | head -1 | cut -d: -f1)
  [ -n "$line" ] || { echo "no line of $file contains: $text"; exit 1; }
  awk -v line="$line" -v text="$text" -v other="$other" \
    'NR == line { at = index($0, text); $0 = substr($0, 1, at - 1) other substr($0, at + length(text)) } { print }' \
    "../$file" > "$out/cuda/$file"
  if cmp -s "../$file" "$out/cuda/$file"; then echo "line $line of $file is unchanged"; exit 1; fi
  if [ "$judge" = races ]; then
    make -s -C "$out/cuda/sim" BUILD="$out/build" races GOAL=build RACED="$name"
    test="$out/build/races/$name"
  else
    make -s -C "$out/cuda/sim" BUILD="$out/build" build TESTS="$name"
    test="$out/build/$name"
  fi
  if "$test" quick > "$out/log" 2>&1 || { [ "$judge" = races ] && ! grep -q "race at " "$out/log"; }; then
    echo "SURVIVED ($judge) $file:$line with \"$other\" for: $text"
    survivors=1
  else
    echo "found (by $judge) $file:$line with \"$other\" for: $text"
  fi
  cp "../$file" "$out/cuda/$file"
done <<LINES
tests|softmax_test|softmax_common.cuh|__syncthreads();|
tests|softmax_test|softmax.cu|__syncthreads();|
tests|softmax_test|softmax.cu|__threadfence();  // the state before the ticket|
tests|softmax_test|softmax.cu|ptx::add_release(arrived, 1);|atomicAdd(arrived, 1);
tests|softmax_test|softmax.cu|atomicExch(arrived, 0u);|(void)0;
tests|softmax_test|softmax.cu|if (lane == 0) sum_of_warps[warp] = sum;|sum_of_warps[lane] = sum;
races|softmax_test|softmax_common.cuh|__syncthreads();|
races|softmax_test|softmax.cu|__syncthreads();|
races|softmax_test|softmax.cu|__threadfence();  // the state before the ticket|
races|softmax_test|softmax.cu|__threadfence();  // the tickets before the states of others|
races|softmax_test|softmax.cu|__syncwarp();|
races|softmax_test|softmax.cu|ptx::add_release(arrived, 1);|atomicAdd(arrived, 1);
races|softmax_test|softmax.cu|if (lane == 0) sum_of_warps[warp] = sum;|sum_of_warps[warp] = sum;
races|gemm_mma_test|gemm_mma.cu|__syncthreads();  // who reads the piece before|
races|gemm_mma_test|gemm_mma.cu|(turn * GROUPS + group) % 2|0
LINES
exit $survivors
