//! Gives the binary the commit it was built from, for benchmark rows.

use std::process::Command;

fn main() {
    let commit = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output().ok();
    let commit =
        commit.filter(|output| output.status.success()).and_then(|output| String::from_utf8(output.stdout).ok());
    let commit = commit.unwrap_or_else(|| "unknown".to_string());
    // Only the head's log moves with every commit; watching it costs no rebuild between commits.
    println!("cargo::rerun-if-changed=../../.git/logs/HEAD");
    println!("cargo::rustc-env=TAPER_COMMIT={}", commit.trim());
}
