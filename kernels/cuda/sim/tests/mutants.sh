#!/bin/sh
# Spoils one synchronisation of the softmax kernels at a time and expects it to be noticed: by the tests' results, or by the check
# for races.
# Usage: mutants.sh FOLDER, from the simulator's folder; writes there only.
set -eu
mkdir -p "$1"
out=$(cd "$1" && pwd)
rm -rf "$out/cuda"
mkdir -p "$out/cuda/sim"
cp -r ../*.cuh ../softmax.cu "$out/cuda"
cp -r ./*.h ./*.cpp Makefile tests "$out/cuda/sim"

survivors=0
# Who must notice, file, what is replaced where it first occurs, and by what.
while IFS='|' read -r judge file text other; do
  line=$(grep -n -F "$text" "../$file" | head -1 | cut -d: -f1)
  [ -n "$line" ] || { echo "no line of $file contains: $text"; exit 1; }
  awk -v line="$line" -v text="$text" -v other="$other" \
    'NR == line { at = index($0, text); $0 = substr($0, 1, at - 1) other substr($0, at + length(text)) } { print }' \
    "../$file" > "$out/cuda/$file"
  if cmp -s "../$file" "$out/cuda/$file"; then echo "line $line of $file is unchanged"; exit 1; fi
  if [ "$judge" = races ]; then
    make -s -C "$out/cuda/sim" BUILD="$out/build" races GOAL=build RACED=softmax_test
    test="$out/build/races/softmax_test"
  else
    make -s -C "$out/cuda/sim" BUILD="$out/build" build TESTS=softmax_test
    test="$out/build/softmax_test"
  fi
  if "$test" quick > "$out/log" 2>&1 || { [ "$judge" = races ] && ! grep -q "race at " "$out/log"; }; then
    echo "SURVIVED ($judge) $file:$line with \"$other\" for: $text"
    survivors=1
  else
    echo "found (by $judge) $file:$line with \"$other\" for: $text"
  fi
  cp "../$file" "$out/cuda/$file"
done <<LINES
tests|softmax_common.cuh|__syncthreads();|
tests|softmax.cu|__syncthreads();|
tests|softmax.cu|__threadfence();  // the state before the ticket|
tests|softmax.cu|ptx::add_release(arrived, 1);|atomicAdd(arrived, 1);
tests|softmax.cu|atomicExch(arrived, 0u);|(void)0;
tests|softmax.cu|if (lane == 0) sum_of_warps[warp] = sum;|sum_of_warps[lane] = sum;
races|softmax_common.cuh|__syncthreads();|
races|softmax.cu|__syncthreads();|
races|softmax.cu|__threadfence();  // the state before the ticket|
races|softmax.cu|__threadfence();  // the tickets before the states of others|
races|softmax.cu|__syncwarp();|
races|softmax.cu|ptx::add_release(arrived, 1);|atomicAdd(arrived, 1);
races|softmax.cu|if (lane == 0) sum_of_warps[warp] = sum;|sum_of_warps[warp] = sum;
LINES
exit $survivors
