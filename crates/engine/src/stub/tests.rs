//! The stub notices blocks that a real model would silently take for its own.

use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Counts upwards; blocks of four.
fn runner() -> StubRunner {
    let limits = RunnerLimits { context_len: 16, num_blocks: 8, block_size: 4, ..stub_limits(100) };
    StubRunner::new(limits, |tokens| tokens[tokens.len() - 1] + 1)
}

/// Computes `tokens` from position `start` on.
fn run(runner: &mut StubRunner, tokens: &[u32], start: usize, block_table: &[u32]) {
    let slice = SequenceSlice { tokens, start, block_table, logits: LogitRows::Last };
    runner.run(&[slice], &mut LogitsBuffer::new(100)).unwrap();
}

/// What it says when it panics.
fn refused(runner: &mut StubRunner, tokens: &[u32], start: usize, block_table: &[u32]) -> String {
    let panicked = catch_unwind(AssertUnwindSafe(|| run(runner, tokens, start, block_table))).unwrap_err();
    panicked.downcast_ref::<String>().unwrap().clone()
}

#[test]
fn moved_blocks_serve_the_past_they_were_computed_after_and_no_other() {
    let mut runner = runner();
    run(&mut runner, &[1, 2, 3, 4, 5, 6, 7, 8, 9], 0, &[0, 1, 2]);
    runner.copy_block(1, 5).unwrap();
    run(&mut runner, &[10], 8, &[0, 5, 3]);
    let mut bytes = Vec::new();
    runner.export_block(1, &mut bytes).unwrap();
    assert_eq!(bytes.len(), runner.block_bytes());
    runner.import_block(6, &bytes).unwrap();
    run(&mut runner, &[11], 8, &[0, 6, 3]);
    assert!(runner.import_block(6, &bytes[1..]).is_err());

    run(&mut runner, &[9, 9, 9, 9], 0, &[4]);
    let why = refused(&mut runner, &[12], 8, &[4, 1, 3]);
    assert!(why.contains("position 4 was computed after other tokens"), "{why}");
    let why = refused(&mut runner, &[12], 8, &[0, 7, 3]);
    assert!(why.contains("position 4 was never computed"), "{why}");
}

#[test]
fn a_block_that_two_sequences_write_is_noticed() {
    let mut runner = runner();
    run(&mut runner, &[1, 2, 3], 0, &[0]);
    let slice =
        |token: &'static [u32]| SequenceSlice { tokens: token, start: 3, block_table: &[0], logits: LogitRows::Last };
    let step = [slice(&[4]), slice(&[5])];
    let both = AssertUnwindSafe(|| runner.run(&step, &mut LogitsBuffer::new(100)));
    assert!(catch_unwind(both).is_err());
}
