//! placeholder

pub mod gemm;
pub mod isa;
pub mod pool;
