//! Compiles `cuda/*.cu` into the image that `src/cuda/fatbin.rs` embeds. The rules are in `build/`, where tests reach them.

#[path = "build/mod.rs"]
mod build;

use std::env;
use std::process::ExitCode;

fn main() -> ExitCode {
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
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}
