#!/usr/bin/env bash
# The tests of the kernels on emulated 64-bit Arm processors, one with dot products of bytes and one without, with fewer
# sizes than on a real one (TAPER_TEST_QUICK). For Debian on x86-64: its rustc-web has a standard library for Arm beside it.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s (%ss)\n' "$*" "$SECONDS"; }

step "tools"
packages=(rustc-web libstd-rust-web-dev:arm64 gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user)
if ! dpkg -s "${packages[@]}" >/dev/null 2>&1; then
    dpkg --add-architecture arm64
    apt-get update -qq
    apt-get install -y -qq "${packages[@]}"
fi

# Programs run with Debian's own libc for Arm, a dependency of the standard library; the cross compiler's is another build.
step "build"
target=aarch64-unknown-linux-gnu
export RUSTC=/usr/bin/rustc CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
cargo=(cargo test --release --locked --target $target --target-dir target/aarch64 -p taper-kernels --lib --test conformance)
"${cargo[@]}" --no-run

for processor in neoverse-n1 cortex-a53; do
    step "tests on $processor"
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -cpu $processor" TAPER_TEST_QUICK=1 "${cargo[@]}" "$@"
done
step "done"
