//! What the tests of all kernels cannot see: how digits are laid into tiles, and what tiles are.

use super::emulated::Emulated;
use super::layout::{Arrangement, DIGIT_TILES, HALF_BYTES, SUM_TILES, WEIGHT_TILES};
use super::tiles::{Configuration, Tiles};

#[test]
fn a_configuration_is_what_the_instruction_reads() {
    let configuration = Configuration::new().with(0, 7, 32).with(6, 16, 64);
    // SAFETY: 64 bytes without padding.
    let bytes = unsafe { *(&raw const configuration).cast::<[u8; 64]>() };
    let mut expected = [0; 64];
    expected[0] = 1; // palette
    (expected[16], expected[28]) = (32, 64); // bytes of rows, 16 bits each
    (expected[48], expected[54]) = (7, 16); // rows
    assert_eq!(bytes, expected);
}

#[test]
fn up_to_eight_rows_have_both_digits_in_one_tile() {
    for rows in 1..=16 {
        let arrangement = Arrangement::of(rows);
        assert_eq!(arrangement.apart, rows > 8);
        for halves in [1, 2] {
            let configuration = arrangement.configuration(halves);
            let shape = |tile| configuration.shape(tile);
            for half in 0..2 {
                let weights = if half < halves { (8 / halves, 64) } else { (0, 0) };
                assert_eq!(shape(WEIGHT_TILES + half), weights);
                for digit in 0..2 {
                    let is_used = half < halves && (digit == 0 || arrangement.apart);
                    let digits = if is_used { (arrangement.rows, 32 / halves) } else { (0, 0) };
                    assert_eq!(shape(DIGIT_TILES + 2 * half + digit), digits);
                }
            }
            let last = if arrangement.apart { shape(SUM_TILES + 1) } else { shape(SUM_TILES) };
            assert_eq!(last, (arrangement.rows, 64));
        }
        let last = usize::from(arrangement.apart) * 64 + (arrangement.rows - 1) * arrangement.sum_stride();
        assert_eq!(last + 64, rows * 128, "sums of {rows} rows lie one after the other");
        assert!(last + 64 <= HALF_BYTES);
    }
}

#[test]
fn a_product_of_tiles_is_that_of_signed_with_unsigned_bytes() {
    let left: [i8; 8] = [1, -2, 3, -4, -128, 0, 127, 0];
    let right: [u8; 16] = [255, 255, 0, 1, 0, 1, 2, 3, 255, 9, 255, 9, 1, 0, 0, 0];
    let configuration = Configuration::new().with(0, 1, 8).with(1, 1, 8).with(2, 2, 8);
    let mut sums = [0_i32; 2];
    // SAFETY: emulated tiles need nothing; the slices are as long as the shapes say.
    unsafe {
        let mut tiles = Emulated::configured(&configuration);
        tiles.load::<1>(left.as_ptr().cast(), 8);
        tiles.load::<2>(right.as_ptr(), 8);
        tiles.zero::<0>();
        tiles.multiply::<0, 1, 2>();
        tiles.multiply::<0, 1, 2>();
        tiles.store::<0>(sums.as_mut_ptr().cast(), 8);
    }
    assert_eq!(sums, [2 * (255 - 510 - 4 - 128 * 255 + 127 * 255), 2 * (-2 + 6 - 12 - 128)]);
}

#[test]
#[should_panic(expected = "tile 3 has no shape")]
fn a_tile_without_a_shape_cannot_be_used() {
    // SAFETY: emulated tiles need nothing.
    unsafe { Emulated::configured(&Configuration::new().with(0, 1, 64)).zero::<3>() };
}

#[test]
#[should_panic(expected = "is not")]
fn shapes_that_do_not_fit_cannot_be_multiplied() {
    let configuration = Configuration::new().with(0, 2, 64).with(1, 2, 32).with(2, 4, 64);
    // SAFETY: emulated tiles need nothing.
    unsafe { Emulated::configured(&configuration).multiply::<0, 1, 2>() };
}
