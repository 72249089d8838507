//! skeleton (being filled in)
#![allow(dead_code, unused_variables, missing_docs)]
use super::isa::Table;
use super::pool::Pool;
use crate::{Error, MatrixData};
#[derive(Debug)]
pub(crate) struct Kernels {}
impl Kernels {
    pub(crate) const PORTABLE: Kernels = Kernels {};
    pub(crate) const AVX2: Kernels = Kernels {};
    pub(crate) const AVX512: Kernels = Kernels {};
}
#[derive(Debug)]
pub struct PackedMatrix {}
impl PackedMatrix {
    pub fn pack(parts: &[MatrixData<'_>], pool: &Pool) -> Result<PackedMatrix, Error> {
        unimplemented!()
    }
    pub fn rows(&self) -> usize {
        unimplemented!()
    }
    pub fn cols(&self) -> usize {
        unimplemented!()
    }
    pub fn bytes(&self) -> usize {
        unimplemented!()
    }
    pub fn embed_row(&self, row: usize, out: &mut [f32]) {
        unimplemented!()
    }
}
#[derive(Debug, Default)]
pub struct GemmScratch {}
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    pub table: &'static Table,
    pub pool: &'a Pool,
}
pub fn gemm(
    context: Context<'_>,
    rows: usize,
    x: &[f32],
    matrix: &PackedMatrix,
    bias: Option<&[f32]>,
    out: &mut [f32],
    scratch: &mut GemmScratch,
) {
    unimplemented!()
}
