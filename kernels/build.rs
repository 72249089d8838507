//! Compiles `cuda/*.cu` into the image that `src/cuda/fatbin.rs` embeds. The rules are in `build/`, where tests reach them.

#[path = "build/mod.rs"]
mod build;

use std::env;

fn main() {
    let settings = build::Settings::from_variables(|name| env::var_os(name));
    match settings.and_then(|settings| build::run(&settings)) {
        Ok(outcome) => {
            for path in outcome.inputs {
                println!("cargo::rerun-if-changed={}", path.display());
            }
            for name in outcome.variables {
                println!("cargo::rerun-if-env-changed={name}");
            }
            for warning in outcome.warnings {
                println!("cargo::warning={warning}");
            }
        }
        Err(message) => {
            // It ends the build.
            for line in message.lines() {
                println!("cargo::error={line}");
            }
        }
    }
}
