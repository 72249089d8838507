#!/usr/bin/env bash
# The tests of the kernels on two emulated 64-bit Arm processors, with dot products of bytes and without, on fewer cases than
# on a real one (TAPER_TEST_QUICK). For Debian on x86-64: its rustc-web has a standard library for Arm beside it.
#
#     tests/aarch64.sh [--lib] [--test conformance]    # both unless told otherwise
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- --lib --test conformance

step() { printf '\n== %s (%ss)\n' "$*" "$SECONDS"; }

step "tools"
packages=(rustc-web libstd-rust-web-dev:arm64 gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user)
if ! dpkg -s "${packages[@]}" >/dev/null 2>&1; then
    dpkg --add-architecture arm64
    apt-get update -qq
    apt-get install -y -qq "${packages[@]}"
fi

step "build"
target=aarch64-unknown-linux-gnu
export RUSTC=/usr/bin/rustc CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
cargo=(cargo test --release --locked --target $target --target-dir target/aarch64 -p taper-kernels "$@")
"${cargo[@]}" --no-run

# Each processor has one core of this machine. On several, a load may overtake an earlier store of the same thread (qemu 7.2
# does not keep `stlr` before `ldar`), so that threads miss each other's signals. Programs run with Debian's own libc for
# Arm, which comes with the standard library; the cross compiler's is another build, and the two do not mix (no `-L`).
# Left out: the self test, which multiplies large matrices by plain loops, a third number of threads, and the whole suite on
# portable code, whose bits are compared with NEON's and which x86_without_avx2.sh runs.
on() {
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="taskset -c $(($2 % $(nproc))) qemu-aarch64 -cpu $1" TAPER_TEST_QUICK=1 \
        "${cargo[@]}" -- --skip every_instruction_set_and_the_reference_pass --skip with_2_threads \
        --skip cpu_portable >"target/aarch64/$1.log" 2>&1
}
step "tests on neoverse-n1 and on cortex-a53"
on neoverse-n1 0 & dot=$!
on cortex-a53 1 & plain=$!
failed=0
wait $dot || failed=1
wait $plain || failed=1
grep -E '^test result|NOT RUN|FAILED|panicked' target/aarch64/neoverse-n1.log target/aarch64/cortex-a53.log || failed=1
[ $failed = 0 ] || { tail -n 30 target/aarch64/neoverse-n1.log target/aarch64/cortex-a53.log >&2; exit 1; }
step "done"
