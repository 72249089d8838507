//! The largest of a row, for whoever takes the most probable token.

/// What [`largest`] finds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Largest {
    /// The place of the largest number, the first among equals; 0 in a row without one that is greater than negative infinity.
    pub index: usize,
    /// That number.
    pub value: f32,
    /// Whether there is one that is no number.
    pub has_nan: bool,
}

impl Largest {
    /// What is found in a row whose first `place` numbers are what this was found in, and whose others what `next` was.
    pub(crate) fn then(self, place: usize, next: Largest) -> Largest {
        let has_nan = self.has_nan || next.has_nan;
        if next.value > self.value {
            Largest { index: place + next.index, has_nan, ..next }
        } else {
            Largest { has_nan, ..self }
        }
    }
}

/// The largest number of a row.
pub fn largest(row: &[f32]) -> Largest {
    // The place is looked for in one block only, which is in the cache by then.
    const BLOCK: usize = 1024;
    let (mut value, mut first, mut has_nan) = (f32::NEG_INFINITY, 0, false);
    for (number, block) in row.chunks(BLOCK).enumerate() {
        let (block_max, block_has_nan) = max_and_nan(block);
        has_nan |= block_has_nan;
        if block_max > value {
            (value, first) = (block_max, number * BLOCK);
        }
    }
    let index = first + row[first..].iter().position(|&x| x == value).unwrap_or_default();
    Largest { index, value, has_nan }
}

/// The largest that is a number, and whether there is what is none.
fn max_and_nan(block: &[f32]) -> (f32, bool) {
    // Lanes, because the compiler makes SIMD of them and not of one running maximum.
    const LANES: usize = 16;
    let (mut maxima, mut nans) = ([f32::NEG_INFINITY; LANES], [0_u32; LANES]);
    let (chunks, tail) = block.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            maxima[lane] = if chunk[lane] > maxima[lane] { chunk[lane] } else { maxima[lane] };
            nans[lane] |= u32::from(chunk[lane].is_nan());
        }
    }
    let max = maxima.iter().chain(tail).copied().fold(f32::NEG_INFINITY, f32::max);
    (max, nans.iter().any(|&nan| nan != 0) || tail.iter().any(|x| x.is_nan()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_the_largest_is_found_wherever_it_stands() {
        for len in [1, 15, 16, 17, 1023, 1024, 1025, 5000] {
            for place in [0, len / 2, len - 1] {
                let mut row = vec![-1.0; len];
                row[place] = 2.0;
                row[len - 1] = 2.0;
                assert_eq!(largest(&row), Largest { index: place, value: 2.0, has_nan: false }, "{len}");
            }
        }
    }

    #[test]
    fn a_row_in_parts_has_the_same_as_the_whole() {
        let mut row: Vec<f32> = (0..50).map(|i| (i * 7 % 13) as f32).collect();
        for has_nan in [false, true] {
            if has_nan {
                row[40] = f32::NAN;
            }
            for place in 0..=row.len() {
                let parts = largest(&row[..place]).then(place, largest(&row[place..]));
                assert_eq!(parts, largest(&row), "{place}");
            }
        }
        let lowest = [f32::NEG_INFINITY; 4];
        assert_eq!(largest(&lowest[..2]).then(2, largest(&lowest[2..])), largest(&lowest));
    }

    #[test]
    fn what_is_no_number_is_told_and_never_the_largest() {
        for place in [0, 16, 1500] {
            let mut row = vec![0.0; 1501];
            row[3] = 1.0;
            row[place] = f32::NAN;
            assert_eq!(largest(&row), Largest { index: 3, value: 1.0, has_nan: true });
        }
        let nothing = Largest { index: 0, value: f32::NEG_INFINITY, has_nan: false };
        assert_eq!(largest(&[]), nothing);
        assert_eq!(largest(&[f32::NEG_INFINITY; 40]), nothing);
        assert!(largest(&[f32::NAN]).has_nan);
    }
}
