//! The suite that every backend must pass, on the simulator: once whole, and thinned in each of the other schedules.

#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "a test fails by panicking; the suite has parts for processors alone"
)]

#[path = "../../../tests/conformance/attention.rs"]
mod attention;
#[path = "../../../tests/conformance/bits.rs"]
mod bits;
#[path = "../../../tests/conformance/blocks.rs"]
mod blocks;
#[path = "../../../tests/conformance/fixture.rs"]
mod fixture;
#[path = "../../../tests/conformance/fused.rs"]
mod fused;
#[path = "../../../tests/conformance/observe.rs"]
mod observe;
#[path = "../../../tests/conformance/operations.rs"]
mod operations;
#[path = "../../../tests/conformance/softmax.rs"]
mod softmax;

use std::sync::Arc;
use taper_cuda_sim::{Schedule, Sim};
use taper_kernels::cuda::Cuda;

fn cuda(schedule: u32) -> Cuda<Sim> {
    Cuda::new(Arc::new(Sim::new(Schedule(schedule)))).unwrap()
}

#[test]
fn operations() {
    operations::suite(&cuda(0));
}

#[test]
fn attention_and_its_baseline() {
    attention::suite(&cuda(1));
}

#[test]
fn references_of_the_softmax() {
    softmax::suite(&cuda(2));
}

#[test]
fn statistics_of_scores() {
    observe::suite(&cuda(3));
}

#[test]
fn bits_of_rows_alone_and_in_company() {
    bits::suite(&cuda(6));
}

#[test]
fn operations_that_are_joined() {
    fused::suite(&cuda(4));
}

#[test]
fn blocks_of_the_cache() {
    blocks::suite(&cuda(7));
}
