//! The tile registers of the processor. Rust has no stable functions for them, so each instruction is written out. A
//! register that an instruction writes is declared as changed, all others as untouched; the compiler itself uses none.

use super::tiles::{Configuration, Tiles};
use std::arch::asm;

/// AMX with int8, after the system has given its permission.
pub(crate) struct Amx;

/// One instruction with the number of a register put in, which only a literal can be.
macro_rules! with_tile {
    ($tile:expr, $($asm:tt)*) => {
        match $tile {
            0 => with_tile!(@ "tmm0", $($asm)*),
            1 => with_tile!(@ "tmm1", $($asm)*),
            2 => with_tile!(@ "tmm2", $($asm)*),
            3 => with_tile!(@ "tmm3", $($asm)*),
            4 => with_tile!(@ "tmm4", $($asm)*),
            5 => with_tile!(@ "tmm5", $($asm)*),
            6 => with_tile!(@ "tmm6", $($asm)*),
            _ => with_tile!(@ "tmm7", $($asm)*),
        }
    };
    (@ $name:tt, $before:literal $(, $after:literal, $($operands:tt)*)?) => {
        asm!(concat!($before, $name $(, $after)?), $($($operands)*,)? out($name) _, options(nostack, preserves_flags))
    };
}

impl Tiles for Amx {
    /// Asks for the shapes in force and loads others only where these differ: loading takes about 0.1 us, and the next task
    /// of a thread mostly has the same. They are asked for rather than remembered, because any function may change them.
    #[inline(always)]
    unsafe fn configured(configuration: &Configuration) -> Self {
        let mut now = Configuration::NONE;
        // SAFETY: the processor has tiles (the caller's obligation). One instruction writes 64 bytes, the size of `now`, and
        // the other reads as many; `Configuration` only makes shapes that exist.
        unsafe {
            asm!("sttilecfg [{}]", in(reg) &raw mut now, options(nostack, preserves_flags));
            if now != *configuration {
                asm!(
                    "ldtilecfg [{}]",
                    in(reg) &raw const *configuration,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack, preserves_flags)
                );
            }
        }
        Self
    }

    #[inline(always)]
    unsafe fn load<const TILE: usize>(&mut self, from: *const u8, stride: usize) {
        // SAFETY: the caller's obligation.
        unsafe { with_tile!(TILE, "tileloadd ", ", [{from} + {stride}]", from = in(reg) from, stride = in(reg) stride) }
    }

    #[inline(always)]
    unsafe fn zero<const TILE: usize>(&mut self) {
        // SAFETY: the caller's obligation.
        unsafe { with_tile!(TILE, "tilezero ") }
    }

    #[inline(always)]
    unsafe fn multiply<const SUMS: usize, const LEFT: usize, const RIGHT: usize>(&mut self) {
        // SAFETY: the caller's obligation.
        unsafe { with_tile!(SUMS, "tdpbsud ", ", tmm{left}, tmm{right}", left = const LEFT, right = const RIGHT) }
    }

    #[inline(always)]
    unsafe fn store<const TILE: usize>(&mut self, to: *mut u8, stride: usize) {
        // SAFETY: the caller's obligation.
        unsafe {
            asm!(
                "tilestored [{to} + {stride}], tmm{tile}",
                to = in(reg) to, stride = in(reg) stride, tile = const TILE,
                options(nostack, preserves_flags)
            );
        }
    }
}
