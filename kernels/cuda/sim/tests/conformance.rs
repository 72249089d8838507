//! The suite that every backend must pass, on the simulator: once whole, and thinned in each of the other schedules.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../../tests/conformance/attention.rs"]
mod attention;
#[path = "../../../tests/conformance/bits.rs"]
mod bits;
#[path = "../../../tests/conformance/blocks.rs"]
mod blocks;
#[path = "../../../tests/conformance/fixture.rs"]
mod fixture;
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
fn operations_in_schedule_0() {
    operations::suite(&cuda(0));
}

#[test]
fn attention_in_schedule_0() {
    attention::suite(&cuda(0));
}
