//! One suite for every backend: the reference, and the CPU backend on each instruction set of this machine with one, two
//! and three threads. Values are compared with float64 or with the reference, within stated tolerances; where the
//! determinism contract speaks of bits, bits are compared.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking and says what it left out")]

mod attention;
mod bits;
mod blocks;
mod choose;
mod fixture;
mod fused;
mod observe;
mod operations;
mod softmax;

use taper_kernels::cpu::isa::Isa;
use taper_kernels::{Activations, Backend, Cpu, CpuConfig, Reference};

/// What every backend must pass.
fn suite<B: Backend>(backend: &B) {
    operations::suite(backend);
    attention::suite(backend);
    softmax::suite(backend);
    observe::suite(backend);
    bits::suite(backend);
    blocks::suite(backend);
    fused::suite(backend);
    choose::suite(backend);
}

/// The CPU backend, or a line that says why it is not tested here.
fn cpu(isa: &str, threads: usize) -> Option<Cpu> {
    match Cpu::new(CpuConfig { threads: Some(threads), isa: Some(isa.into()) }) {
        Ok(cpu) => {
            let info = cpu.info();
            assert_eq!((info.name, info.isa, info.threads), ("cpu", isa, threads));
            Some(cpu)
        }
        Err(error) => {
            assert!(!Isa::available().iter().any(|available| available.name() == isa), "{isa} is here, but: {error}");
            println!("NOT RUN: {isa} with {threads} threads: {error}");
            None
        }
    }
}

macro_rules! instances {
    ($($name:ident: $isa:literal, $threads:literal;)*) => {
        $(#[test]
        fn $name() {
            if let Some(cpu) = cpu($isa, $threads) {
                suite(&cpu);
            }
        })*

        /// Instances of the table above.
        const INSTANCES: &[(&str, usize)] = &[$(($isa, $threads)),*];
    };
}

instances! {
    cpu_portable_with_1_thread: "portable", 1;
    cpu_portable_with_2_threads: "portable", 2;
    cpu_portable_with_3_threads: "portable", 3;
    cpu_neon_with_1_thread: "neon", 1;
    cpu_neon_with_2_threads: "neon", 2;
    cpu_neon_with_3_threads: "neon", 3;
    cpu_neon_dot_with_1_thread: "neon-dot", 1;
    cpu_neon_dot_with_2_threads: "neon-dot", 2;
    cpu_neon_dot_with_3_threads: "neon-dot", 3;
    cpu_avx2_with_1_thread: "avx2", 1;
    cpu_avx2_with_2_threads: "avx2", 2;
    cpu_avx2_with_3_threads: "avx2", 3;
    cpu_avx512_with_1_thread: "avx512", 1;
    cpu_avx512_with_2_threads: "avx512", 2;
    cpu_avx512_with_3_threads: "avx512", 3;
    cpu_avx512_bf16_with_1_thread: "avx512bf16", 1;
    cpu_avx512_bf16_with_2_threads: "avx512bf16", 2;
    cpu_avx512_bf16_with_3_threads: "avx512bf16", 3;
    cpu_amx_with_1_thread: "amx", 1;
    cpu_amx_with_2_threads: "amx", 2;
    cpu_amx_with_3_threads: "amx", 3;
    cpu_amx_emulated_with_1_thread: "amx-emulated", 1;
    cpu_amx_emulated_with_2_threads: "amx-emulated", 2;
    cpu_amx_emulated_with_3_threads: "amx-emulated", 3;
}

#[test]
fn reference() {
    suite(&Reference::new());
}

#[test]
fn cpu_with_mixed_activations() {
    suite(&Cpu::new(CpuConfig::default()).unwrap().with_activations(Activations::Mixed));
}

#[test]
fn every_instruction_set_of_this_machine_is_an_instance() {
    for isa in Isa::available() {
        for threads in [1, 2, 3] {
            assert!(INSTANCES.contains(&(isa.name(), threads)), "{} is not tested", isa.name());
        }
    }
}

#[test]
fn instruction_sets_and_threads_do_not_change_a_bit() {
    let instances: Vec<Cpu> = INSTANCES.iter().filter_map(|&(isa, threads)| cpu(isa, threads)).collect();
    assert!(instances.len() >= 3, "portable runs everywhere");
    let expected = bits::of_every_operation(&instances[0]);
    for cpu in &instances[1..] {
        for ((name, actual), (_, expected)) in bits::of_every_operation(cpu).iter().zip(&expected) {
            let info = cpu.info();
            assert!(actual == expected, "{name} differs on {} with {} threads", info.isa, info.threads);
        }
    }
}

#[test]
fn attention_merged_in_rounds_has_the_bits_of_attention_in_one() {
    for isa in Isa::available() {
        let with = |threads| bits::of_attention_in_rounds(&cpu(isa.name(), threads).unwrap());
        let one = with(1);
        for threads in [2, 3] {
            assert!(with(threads) == one, "{} with {threads} threads", isa.name());
        }
    }
}
