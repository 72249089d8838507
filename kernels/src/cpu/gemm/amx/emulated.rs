//! Tile registers as arrays, for tests of the kernel on machines without them. What the processor would refuse panics.

use super::tiles::{Configuration, NUM_TILES, ROW_BYTES, TILE_ROWS, Tiles};

/// Eight registers in memory.
pub(crate) struct Emulated {
    configuration: Configuration,
    tiles: [[[u8; ROW_BYTES]; TILE_ROWS]; NUM_TILES],
}

impl Emulated {
    fn shape(&self, tile: usize) -> (usize, usize) {
        let shape = self.configuration.shape(tile);
        assert!(shape.0 > 0, "tile {tile} has no shape");
        shape
    }
}

impl Tiles for Emulated {
    unsafe fn configured(configuration: &Configuration) -> Self {
        // Not zeros: nothing may be assumed of what registers hold.
        Self { configuration: *configuration, tiles: [[[0xA5; ROW_BYTES]; TILE_ROWS]; NUM_TILES] }
    }

    unsafe fn load<const TILE: usize>(&mut self, from: *const u8, stride: usize) {
        let (rows, bytes) = self.shape(TILE);
        self.tiles[TILE] = [[0; ROW_BYTES]; TILE_ROWS];
        for (row, to) in self.tiles[TILE][..rows].iter_mut().enumerate() {
            // SAFETY: so many rows are there, the caller's obligation.
            let from = unsafe { std::slice::from_raw_parts(from.add(row * stride), bytes) };
            to[..bytes].copy_from_slice(from);
        }
    }

    unsafe fn zero<const TILE: usize>(&mut self) {
        self.shape(TILE);
        self.tiles[TILE] = [[0; ROW_BYTES]; TILE_ROWS];
    }

    unsafe fn multiply<const SUMS: usize, const LEFT: usize, const RIGHT: usize>(&mut self) {
        let [sums, left, right] = [SUMS, LEFT, RIGHT].map(|tile| self.shape(tile));
        assert!(SUMS != LEFT && SUMS != RIGHT && LEFT != RIGHT, "a product takes three tiles");
        assert!(sums == (left.0, right.1) && left.1 == 4 * right.0, "{sums:?} is not {left:?} times {right:?}");
        let (num_rows, groups) = (sums.0, right.0);
        let (left, right) = (self.tiles[LEFT], self.tiles[RIGHT]);
        for (sums, left) in self.tiles[SUMS][..num_rows].iter_mut().zip(&left) {
            for (left, right) in left.as_chunks::<4>().0[..groups].iter().zip(&right) {
                for (sum, right) in sums.as_chunks_mut::<4>().0.iter_mut().zip(right.as_chunks::<4>().0) {
                    let four: i32 = (0..4).map(|k| i32::from(left[k].cast_signed()) * i32::from(right[k])).sum();
                    *sum = (i32::from_le_bytes(*sum) + four).to_le_bytes();
                }
            }
        }
    }

    unsafe fn store<const TILE: usize>(&mut self, to: *mut u8, stride: usize) {
        let (rows, bytes) = self.shape(TILE);
        for (row, from) in self.tiles[TILE][..rows].iter().enumerate() {
            // SAFETY: so many rows may be written, the caller's obligation.
            unsafe { to.add(row * stride).copy_from_nonoverlapping(from.as_ptr(), bytes) };
        }
    }
}
