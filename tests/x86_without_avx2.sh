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
cargo=(cargo test --release --locked -p taper-kernels --lib --test conformance)
"${cargo[@]}" --no-run
cargo build --release --locked --bin taper

# Left out: the self test and sums of a million elements, of which the emulator makes minutes, and the third number of threads.
step "tests"
CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER=$emulator TAPER_TEST_QUICK=1 "${cargo[@]}" -- \
    --skip every_instruction_set_and_the_reference_pass --skip long_sums_stay_accurate --skip with_2_threads

step "program"
$emulator target/release/taper doctor --bandwidth-mib 0 --json | grep -o '"isa":"portable","isas_available":\["portable"\]'
step "done"
