//! Writes a tiny seeded model, so that other programs can be asked about it:
//! `cargo run --release -p taper-testkit --example tiny_gguf -- qwen3 Q8_0 OUT.gguf`.

use std::process::ExitCode;

use taper_testkit::tiny::{TinyModel, TinyType};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [architecture, weight_type, path] = args.as_slice() else {
        return usage("three arguments are needed");
    };
    let Some(&architecture) = ["llama", "qwen2", "qwen3"].iter().find(|name| *name == architecture) else {
        return usage("the architectures are llama, qwen2 and qwen3");
    };
    let Some(weight_type) = TinyType::ALL.into_iter().find(|dtype| format!("{dtype:?}") == *weight_type) else {
        return usage("the type is one of F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K");
    };
    // Wide enough for blocks of 256; Qwen 3 with heads that are not hidden / heads wide.
    let hidden = if weight_type.block_len() == 256 { 256 } else { 64 };
    let head_dim = if architecture == "qwen3" { hidden / 2 } else { hidden / 4 };
    let model = TinyModel { architecture, weight_type, hidden, ffn: 2 * hidden, head_dim, ..TinyModel::default() };
    match std::fs::write(path, model.to_gguf()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => usage(&format!("cannot write {path}: {error}")),
    }
}

#[allow(clippy::print_stderr)]
fn usage(problem: &str) -> ExitCode {
    eprintln!("{problem}\nusage: tiny_gguf ARCHITECTURE TYPE OUT.gguf");
    ExitCode::FAILURE
}
