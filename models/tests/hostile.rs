//! Five hundred damaged and lying files: a model either loads and takes a step, or is refused in words. Nothing panics, and
//! nothing takes memory that a file of a few kilobytes does not justify.

use std::panic::{AssertUnwindSafe, catch_unwind};
use taper_checkpoint::Checkpoint;
use taper_kernels::Reference;
use taper_models::{Error, Llama, LoadOptions, LogitRows, SequenceSlice};
use taper_testkit::hostile::hostile_file;

/// Loads with the context and the cache that a user gets who asks for nothing.
fn load(bytes: Vec<u8>) -> Result<Llama<Reference>, Error> {
    let options = LoadOptions { max_rows: 16, max_logit_rows: 4, ..LoadOptions::default() };
    Llama::load(Reference::new(), &Checkpoint::from_bytes("hostile.gguf", bytes)?, options, &mut |_| {})
}

/// Loads a file and takes one step; whether it could.
fn try_one(bytes: Vec<u8>) -> bool {
    match load(bytes) {
        Ok(mut model) => {
            let slice = SequenceSlice { tokens: &[0], start: 0, block_table: &[0], logits: LogitRows::Last };
            model.forward(&[slice]).is_ok()
        }
        Err(error) => {
            let message = error.to_string();
            assert!(!message.is_empty() && message.len() < 2000, "{message}");
            false
        }
    }
}

/// Most memory that this process ever had, in bytes; None where there is no /proc.
fn peak_memory() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<usize>().ok()? * 1024)
}

#[test]
fn hostile_files_are_refused_or_run_but_never_panic() {
    let before = peak_memory();
    let mut ran = 0;
    for seed in 0..500 {
        let file = hostile_file(seed);
        match catch_unwind(AssertUnwindSafe(|| try_one(file.bytes))) {
            Ok(worked) => ran += usize::from(worked),
            Err(_) => panic!("a panic: {}", file.story),
        }
    }
    // Flipped weights run; broken headers do not. Both kinds have to be in the sample for it to mean anything.
    assert!((25..475).contains(&ran), "{ran} of 500 ran");
    if let (Some(before), Some(after)) = (before, peak_memory()) {
        assert!(after - before < 256 << 20, "peak memory grew by {} MB", (after - before) >> 20);
    }
}
