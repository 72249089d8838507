//! The suite that every backend must pass, on the simulator: its parts in a schedule each, or with TAPER_TEST_ALL_SCHEDULES=1 in all
//! eight. (The tests of the kernels themselves run all of them in all schedules: `make -C kernels/cuda/sim test`.)

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
#[path = "../../../tests/conformance/choose.rs"]
mod choose;
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
use taper_kernels::cuda::{Cuda, ProductChoice};
use taper_kernels::{Backend, MatrixData, WeightType};
use taper_testkit::rng::SplitMix;

fn cuda(schedule: u32) -> Cuda<Sim> {
    Cuda::new(Arc::new(Sim::new(Schedule(schedule)))).unwrap()
}

/// Runs a part of the suite in this schedule, or in all.
fn in_schedule(schedule: u32, part: impl Fn(&Cuda<Sim>)) {
    if std::env::var_os("TAPER_TEST_ALL_SCHEDULES").is_some() {
        (0..Schedule::COUNT).for_each(|number| part(&cuda(number)));
    } else {
        part(&cuda(schedule));
    }
}

#[test]
fn operations() {
    in_schedule(0, operations::suite);
}

#[test]
fn attention_and_its_baseline() {
    in_schedule(1, attention::suite);
}

#[test]
fn references_of_the_softmax() {
    in_schedule(2, softmax::suite);
}

#[test]
fn statistics_of_scores() {
    in_schedule(3, observe::suite);
}

#[test]
fn bits_of_rows_alone_and_in_company() {
    in_schedule(6, bits::suite);
}

#[test]
fn operations_that_are_joined() {
    in_schedule(4, fused::suite);
}

/// Products of 16 rows and more with bf16 weights go to warpgroups, whose order of sums is another one.
#[test]
fn products_by_warpgroups() {
    in_schedule(5, |backend| {
        let backend = backend.clone().with_exact_rows(false).unwrap();
        assert!(!backend.has_exact_rows(), "the simulator has warpgroups");
        operations::suite(&backend);
        fused::suite(&backend);
    });
}

/// Products of 16 rows and more go to the vendor's library, as far as it has them.
#[test]
fn products_by_the_library() {
    in_schedule(7, |backend| {
        let mut backend = backend.clone().with_library().unwrap();
        backend.force_choice(Some(ProductChoice::Library(0)));
        assert!(!backend.has_exact_rows());
        operations::suite_of_products(&backend);
        fused::suite(&backend);
        assert!(backend.device().num_products() > 0);
    });
}

#[test]
fn rows_have_other_bits_in_company_only_where_that_is_allowed() {
    // Outputs for two tiles, which this device has runs of k computed apart for; columns that fill no step.
    let (cols, outputs) = (1100, 150);
    let mut rng = SplitMix::new(7);
    let bytes = operations::weights(&mut rng, WeightType::BF16, outputs, cols);
    let x = rng.normals(40 * cols, 1.0);
    let products = |backend: &Cuda<Sim>, rows: usize| {
        let data = MatrixData { weight_type: WeightType::BF16, rows: outputs, cols, bytes: &bytes };
        let matrix = backend.matrix(&[data]).unwrap();
        let mut out = backend.buffer(rows, outputs).unwrap();
        backend.linear(rows, &fixture::upload(backend, cols, &x[..rows * cols]), &matrix, None, &mut out);
        fixture::download(backend, &out, rows, outputs)
    };
    let exact = cuda(1);
    let by_rows = exact.clone().with_exact_rows(false).unwrap();
    assert_ne!(exact.info().numerics_class, by_rows.info().numerics_class);
    let (expected, other) = (products(&exact, 40), products(&by_rows, 40));
    assert!(expected[..15 * outputs] == products(&exact, 15) && expected[..15 * outputs] == products(&by_rows, 15));
    assert!(expected != other && other[..16 * outputs] == products(&by_rows, 16), "40 rows and 16, 64 a block and 16");
    for (one, other) in expected.iter().zip(&other) {
        assert!((one - other).abs() < 1e-4 * cols as f32, "{one}, {other}");
    }
    let exact = by_rows.with_exact_rows(true).unwrap();
    assert!(exact.has_exact_rows() && products(&exact, 40) == expected);
}

#[test]
fn tokens_that_are_drawn() {
    in_schedule(5, choose::suite);
}

#[test]
fn blocks_of_the_cache() {
    in_schedule(7, blocks::suite);
}
