//! Tile registers: what the kernel asks of AMX, so that it can also run on plain arrays.
//!
//! There are eight, of up to sixteen rows of 64 bytes. A product takes sums of 32 bits `[M][16]`, signed bytes `[M][K]` and
//! unsigned bytes `[K / 4][16][4]`, just as a panel has them, and adds `sums[m][n] += sum over k of left[m][k] right[k / 4][n][k % 4]`.

/// Tile registers.
pub(crate) const NUM_TILES: usize = 8;
/// Rows of a full register.
pub(crate) const TILE_ROWS: usize = 16;
/// Bytes of a full row.
pub(crate) const ROW_BYTES: usize = 64;

/// Shapes of the registers, in the layout that `ldtilecfg` reads. Those of no rows may not be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(64))]
pub(crate) struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Configuration {
    /// What a thread has that never configured its registers.
    pub(crate) const NONE: Self =
        Self { palette: 0, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };

    /// No shapes yet.
    pub(crate) const fn new() -> Self {
        Self { palette: 1, ..Self::NONE }
    }

    /// Gives register `tile` rows of bytes.
    ///
    /// # Panics
    /// When no register is as large, or the shape is empty.
    pub(crate) const fn with(mut self, tile: usize, rows: usize, row_bytes: usize) -> Self {
        assert!(tile < NUM_TILES && rows >= 1 && rows <= TILE_ROWS);
        assert!(row_bytes >= 4 && row_bytes <= ROW_BYTES && row_bytes.is_multiple_of(4));
        self.rows[tile] = rows as u8;
        self.row_bytes[tile] = row_bytes as u16;
        self
    }

    /// Rows and bytes of each in register `tile`.
    pub(crate) fn shape(&self, tile: usize) -> (usize, usize) {
        (usize::from(self.rows[tile]), usize::from(self.row_bytes[tile]))
    }
}

/// The registers of this thread. Between `configured` and the last use nothing else on the thread may use tiles: the compiler
/// and the system's library (which clears memory for the kernel) do not, the system saves them where it interrupts. By the
/// platform's rules any other function may change them, so nothing is kept from one kernel to the next.
pub(crate) trait Tiles: Sized {
    /// Registers of these shapes, which hold anything.
    ///
    /// # Safety
    /// The machine has what the implementation needs.
    unsafe fn configured(configuration: &Configuration) -> Self;

    /// Reads rows that are `stride` bytes apart.
    ///
    /// # Safety
    /// The register has a shape, and so many rows are there.
    unsafe fn load<const TILE: usize>(&mut self, from: *const u8, stride: usize);

    /// Makes every byte zero.
    ///
    /// # Safety
    /// The register has a shape.
    unsafe fn zero<const TILE: usize>(&mut self);

    /// Adds the products of signed bytes with unsigned ones.
    ///
    /// # Safety
    /// The three registers are different, and their shapes those of a product.
    unsafe fn multiply<const SUMS: usize, const LEFT: usize, const RIGHT: usize>(&mut self);

    /// Writes rows that are `stride` bytes apart.
    ///
    /// # Safety
    /// The register has a shape, and so many rows may be written.
    unsafe fn store<const TILE: usize>(&mut self, to: *mut u8, stride: usize);
}
