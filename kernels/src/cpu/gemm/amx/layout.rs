//! What is where: digits, weights and sums in tile registers, and sums in memory.

use super::tiles::{self, Configuration};
use crate::cpu::gemm::activations::DIGITS;
use crate::cpu::gemm::format::{BLOCK, PANEL_ROWS};
use std::mem::MaybeUninit;

/// The first of the registers of digits: `2 * half + digit`.
pub(super) const DIGIT_TILES: usize = 0;
/// The first of the registers of weights: one for each half.
pub(super) const WEIGHT_TILES: usize = 4;
/// The first of the registers of sums: one for each digit.
pub(super) const SUM_TILES: usize = 6;

/// Bytes of the sums of one digit of one row: sixteen int32.
pub(super) const SUM_BYTES: usize = 4 * PANEL_ROWS;
/// Bytes of the sums of a half (or of a whole block): `[row][high | low]`.
pub(super) const HALF_BYTES: usize = tiles::TILE_ROWS * 2 * SUM_BYTES;

/// How the digits of a tile of rows are put into registers, and their sums into memory as `[row][high | low]`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrangement {
    /// Rows of a register.
    pub(super) rows: usize,
    /// Whether each digit has a register of its own.
    pub(super) apart: bool,
}

impl Arrangement {
    /// For a tile of so many rows.
    pub(super) fn of(rows: usize) -> Self {
        let apart = 2 * rows > tiles::TILE_ROWS;
        Self { rows: if apart { rows } else { 2 * rows }, apart }
    }

    /// Bytes between rows of digits.
    pub(super) fn digit_stride(self) -> usize {
        if self.apart { DIGITS } else { BLOCK }
    }

    /// Bytes between rows of sums.
    pub(super) fn sum_stride(self) -> usize {
        if self.apart { 2 * SUM_BYTES } else { SUM_BYTES }
    }

    /// Shapes of the registers for blocks in `halves` (1 or 2) runs.
    pub(super) fn configuration(self, halves: usize) -> Configuration {
        let (run, mut configuration) = (BLOCK / halves, Configuration::new());
        for half in 0..halves {
            configuration = configuration.with(WEIGHT_TILES + half, run / 4, 4 * PANEL_ROWS);
            for digit in 0..1 + usize::from(self.apart) {
                configuration = configuration.with(DIGIT_TILES + 2 * half + digit, self.rows, run);
                configuration = configuration.with(SUM_TILES + digit, self.rows, SUM_BYTES);
            }
        }
        configuration
    }
}

/// Integers on their way from tiles to vectors: `[half][row][high | low][16 outputs]`.
#[repr(C, align(64))]
pub(super) struct Sums(MaybeUninit<[u8; 2 * HALF_BYTES]>);

impl Sums {
    /// Nothing yet.
    pub(super) fn uninit() -> Self {
        Self(MaybeUninit::uninit())
    }

    /// Where the sums of one digit of a half begin.
    pub(super) fn at(&mut self, half: usize, digit: usize) -> *mut u8 {
        self.0.as_mut_ptr().cast::<u8>().wrapping_add(half * HALF_BYTES + digit * SUM_BYTES)
    }

    /// Where the sums of a row of a half begin: those of the high digits, then those of the low ones.
    pub(super) fn row(&self, half: usize, row: usize) -> *const u8 {
        self.0.as_ptr().cast::<u8>().wrapping_add(half * HALF_BYTES + row * 2 * SUM_BYTES)
    }
}
