//! Puts the commit that is built into the binary, for benchmark rows and the fingerprint of answers.

use std::process::Command;

fn main() {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok().filter(|output| output.status.success())?;
        String::from_utf8(output.stdout).ok().map(|text| text.trim().to_string()).filter(|text| !text.is_empty())
    };
    // Not a clone, or no git: a source archive builds as well.
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".to_string());
    println!("cargo::rustc-env=TAPER_COMMIT={commit}");
    println!("cargo::rerun-if-changed=build.rs");
    // The log of HEAD grows with every commit, checkout and reset; HEAD itself stays when its branch moves.
    for file in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", file]).filter(|path| std::path::Path::new(path).exists()) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
}
