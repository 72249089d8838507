//! Kernels by name through the C interface: results in every schedule, and every way in which a launch is refused or fails.

use std::ffi::{CStr, c_void};

use taper_cuda_sim::{Fault, Launch, Schedule, run, signature};

const ONE_BLOCK: Launch = Launch { grid: [1, 1, 1], block: [128, 1, 1], dynamic_shared: 0, cooperative: false };

/// `softmax_block(x, out, cols)` of rows of `cols`.
fn softmax(launch: &Launch, schedule: Schedule, seed: u32, x: &[f32], cols: usize) -> Result<Vec<f32>, Fault> {
    let mut out = vec![f32::NAN; x.len()];
    let (mut from, mut to, mut cols) = (x.as_ptr(), out.as_mut_ptr(), cols as i32);
    let mut arguments = [(&raw mut from).cast(), (&raw mut to).cast(), (&raw mut cols).cast()];
    // SAFETY: a pointer to rows of `cols`, one to as much to write, and an int, as the kernel takes them.
    unsafe { run(c"softmax_block", launch, schedule, seed, &mut arguments) }?;
    Ok(out)
}

fn scores(rows: usize, cols: usize) -> Vec<f32> {
    (0..rows * cols).map(|i| (i * 7919 % 1009) as f32 / 50.0 - 10.0).collect()
}

/// `2^x / sum 2^x` of one row, in float64.
fn reference(row: &[f32]) -> Vec<f64> {
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f64> = row.iter().map(|x| f64::from(x - largest).exp2()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|p| p / sum).collect()
}

/// What comes of a launch without arguments' memory: nothing may run.
fn refused(kernel: &CStr, launch: &Launch, schedule: Schedule, num_arguments: usize) -> String {
    let mut arguments = vec![std::ptr::null_mut::<c_void>(); num_arguments];
    // SAFETY: the launch is refused before an argument is read.
    let refused = unsafe { run(kernel, launch, schedule, 1, &mut arguments) };
    refused.expect_err("a refusal").to_string()
}

#[test]
fn softmax_is_right_and_has_the_same_bits_in_every_schedule() {
    let (rows, cols) = (3, 300);
    let x = scores(rows, cols);
    let launch = Launch { grid: [rows as u32, 1, 1], ..ONE_BLOCK };
    let first = softmax(&launch, Schedule(0), 1, &x, cols).unwrap();
    for (x, out) in x.chunks(cols).zip(first.chunks(cols)) {
        for (expected, p) in reference(x).iter().zip(out) {
            assert!((f64::from(*p) - expected).abs() <= 1e-5 * expected, "{p} instead of {expected}");
        }
    }
    for schedule in Schedule::all() {
        for seed in [1, 2] {
            let again = softmax(&launch, schedule, seed, &x, cols).unwrap();
            assert!(again.iter().zip(&first).all(|(a, b)| a.to_bits() == b.to_bits()), "{schedule:?}, seed {seed}");
        }
    }
}

#[test]
fn grids_of_several_host_threads_do_not_meet() {
    let x = scores(4, 500);
    let launch = Launch { grid: [4, 1, 1], ..ONE_BLOCK };
    let expected = softmax(&launch, Schedule(0), 1, &x, 500).unwrap();
    std::thread::scope(|scope| {
        for schedule in Schedule::all() {
            let (x, launch, expected) = (&x, &launch, &expected);
            scope.spawn(move || assert_eq!(&softmax(launch, schedule, 3, x, 500).unwrap(), expected, "{schedule:?}"));
        }
    });
}

#[test]
fn a_kernel_says_which_arguments_it_takes() {
    assert_eq!(signature(c"softmax_block"), Some("ppi"));
    assert_eq!(signature(c"softmax_reduce"), Some("piippp"));
    assert_eq!(signature(c"absent"), None);
}

#[test]
fn an_unknown_kernel_is_named() {
    assert_eq!(refused(c"absent", &ONE_BLOCK, Schedule(0), 1), "there is no kernel absent");
}

#[test]
fn arguments_that_are_too_few_are_refused() {
    let said = refused(c"softmax_block", &ONE_BLOCK, Schedule(0), 2);
    assert_eq!(said, r#"softmax_block takes the arguments "ppi", not 2"#);
}

#[test]
fn launches_that_cuda_refuses_are_refused() {
    let launches = [
        Launch { block: [1025, 1, 1], ..ONE_BLOCK },
        Launch { block: [1, 1, 65], ..ONE_BLOCK },
        Launch { grid: [0, 1, 1], ..ONE_BLOCK },
        Launch { grid: [1, 65536, 1], ..ONE_BLOCK },
        Launch { dynamic_shared: 228 << 10, ..ONE_BLOCK },
    ];
    for launch in launches {
        let said = refused(c"softmax_block", &launch, Schedule(0), 3);
        assert!(said.starts_with("softmax_block: ") && said.ends_with("is refused by CUDA"), "{said}");
    }
}

#[test]
fn a_schedule_that_is_not_there_is_refused() {
    assert_eq!(
        refused(c"softmax_block", &ONE_BLOCK, Schedule(Schedule::COUNT), 3),
        "there is no schedule of this number"
    );
}

/// Two blocks that wait for each other, launched as if they did not: the first never sees the second arrive.
#[test]
fn a_grid_that_makes_no_progress_is_a_fault_with_the_place_in_the_source() {
    let (x, mut out, mut states, mut counters) = ([0.0_f32; 8], [0.0_f32; 8], [0.0_f32; 4], [0_u32; 2]);
    let (mut from, mut to, mut cols, mut chunk_len) = (x.as_ptr(), out.as_mut_ptr(), 8_i32, 4_i32);
    let (mut states, mut counters) = (states.as_mut_ptr(), counters.as_mut_ptr());
    let mut arguments = [
        (&raw mut from).cast(),
        (&raw mut to).cast(),
        (&raw mut cols).cast(),
        (&raw mut chunk_len).cast(),
        (&raw mut states).cast(),
        (&raw mut counters).cast(),
    ];
    let launch = Launch { grid: [2, 1, 1], block: [256, 1, 1], ..ONE_BLOCK };
    // SAFETY: one row of 8 in two chunks of 4, a state (two floats) for each, and two counters.
    let fault = unsafe { run(c"softmax_cooperative", &launch, Schedule(0), 1, &mut arguments) }.unwrap_err();
    let said = fault.to_string();
    assert!(said.starts_with("softmax_cooperative: no progress"), "{said}");
    assert!(said.contains("load_acquire (softmax.cu:"), "{said}");

    let launch = Launch { cooperative: true, ..launch };
    // SAFETY: the same memory; `counters` are set back first, for the fault left them as they were.
    unsafe {
        std::slice::from_raw_parts_mut(counters, 2).fill(0);
        run(c"softmax_cooperative", &launch, Schedule(0), 1, &mut arguments)
    }
    .unwrap();
    assert_eq!(out, [0.125; 8]);
}
