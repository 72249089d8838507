#!/usr/bin/env bash
# The tests of the kernels, and the program, on an emulated x86-64 processor that has neither AVX nor FMA: portable code is
# chosen, and nothing else is executed. Sizes are fewer than on a real processor (TAPER_TEST_QUICK).
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s (%ss)\n' "$*" "$SECONDS"; }

step "tools"
command -v qemu-x86_64 >/dev/null || { apt-get update -qq && apt-get install -y -qq qemu-user; }

step "build"
cargo test --release --locked -p taper-kernels --lib --test conformance --no-run
cargo build --release --locked --bin taper

step "tests"
emulator="qemu-x86_64 -cpu Nehalem"
CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER=$emulator TAPER_TEST_QUICK=1 \
    cargo test --release --locked -p taper-kernels --lib --test conformance "$@"

step "program"
$emulator target/release/taper doctor --bandwidth-mib 0 --json | grep -o '"isa":"portable"'
$emulator target/release/taper selftest --threads 2
step "done"
