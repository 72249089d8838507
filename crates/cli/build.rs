//! Puts the commit that is built into the binary, for benchmark rows and the fingerprint of answers; and has the linker keep one
//! of the functions that are the same, where it can.

use std::path::Path;
use std::process::Command;

fn main() {
    let git = |args: &[&str]| printed(Command::new("git").args(args));
    // Not a clone, or no git: a source archive builds as well.
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".to_string());
    println!("cargo::rustc-env=TAPER_COMMIT={commit}");
    println!("cargo::rerun-if-changed=build.rs");
    // The log of HEAD grows with every commit, checkout and reset; HEAD itself stays when its branch moves.
    for file in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", file]).filter(|path| Path::new(path).exists()) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    if links_with_lld() {
        // Functions that are instructions alike become one: Rust promises no function an address of its own.
        println!("cargo::rustc-link-arg-bin=taper=-Wl,--icf=all");
    }
}

/// Whether the linker is the one that comes with the toolchain, as it is on x86-64 Linux unless somebody chose another: the flag is
/// unknown to GNU's. Toolchains of distributions may come without it.
fn links_with_lld() -> bool {
    const TARGET: &str = "x86_64-unknown-linux-gnu";
    let variable = |name| std::env::var(name).unwrap_or_default();
    println!("cargo::rerun-if-env-changed=RUSTC_LINKER");
    let is_default = variable("RUSTC_LINKER").is_empty() && !variable("CARGO_ENCODED_RUSTFLAGS").contains("link");
    let sysroot = || printed(Command::new(variable("RUSTC")).args(["--print", "sysroot"]));
    let has_lld = |root: String| Path::new(&root).join("lib/rustlib").join(TARGET).join("bin/gcc-ld/ld.lld").exists();
    variable("TARGET") == TARGET && variable("HOST") == TARGET && is_default && sysroot().is_some_and(has_lld)
}

/// What a command printed, if it succeeded and printed anything.
fn printed(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok().map(|text| text.trim().to_string()).filter(|text| !text.is_empty())
}
