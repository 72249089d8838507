#!/usr/bin/env bash
# The tests of the kernels, and the program, on an emulated x86-64 processor that has neither AVX nor FMA: portable code is
# chosen, and nothing else is executed. Cases are fewer than on a real processor (TAPER_TEST_QUICK).
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s (%ss)\n' "$*" "$SECONDS"; }

step "tools"
command -v qemu-x86_64 >/dev/null || { apt-get update -qq && apt-get install -y -qq qemu-user; }
emulator="qemu-x86_64 -cpu Nehalem"

step "build"
# Of the whole workspace, as its own tests are: after them there is nothing to build.
built=$(cargo test --workspace --release --locked --no-run 2>&1 | tee >(cat >&2))
tests=$(grep -oE '[^ (]*/deps/(taper_kernels|conformance)-[0-9a-f]+' <<<"$built")
[ "$(wc -l <<<"$tests")" = 2 ] || { echo "expected two programs: $tests" >&2; exit 1; }

# Left out: the self test and sums of a million elements, of which the emulator makes minutes, and the third number of threads.
step "tests"
for program in $tests; do
    TAPER_TEST_QUICK=1 $emulator "$program" \
        --skip every_instruction_set_and_the_reference_pass --skip long_sums_stay_accurate --skip with_2_threads
done

step "program"
$emulator target/release/taper doctor --bandwidth-mib 0 --json | grep -o '"isa":"portable","isas_available":\["portable"\]'
step "done"
