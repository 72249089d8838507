//! Reading memory as fast as a thread can: the ceiling that every kernel that streams weights or keys is held against.
//!
//! A core waits for memory; it waits for several lines at once when several distant places are read in turn, because the
//! prefetcher follows each of them. So the fastest read is a few streams walked together, and how many is for the
//! benchmark to find out.

use super::isa::Isa;
use super::simd::{Kernel, LANES, Simd, run};

/// Lines that are asked for ahead of each stream: 1 KiB, a quarter of a page.
const AHEAD: usize = 16;

/// The sum of `data`, read in cache lines of sixteen elements; what does not fill one is left out. The lines are cut into
/// `streams` (1, 4, 8 or 16) consecutive pieces that are walked together.
///
/// # Panics
/// For another number of streams, and for an instruction set that this machine does not have.
pub fn read(isa: Isa, data: &[f32], streams: usize) -> f32 {
    assert!(isa.is_available(), "{} is not available on this machine", isa.name());
    let lines = data.as_chunks::<LANES>().0;
    let mut sum = 0.0;
    match streams {
        1 => run(isa, Read::<1> { lines, sum: &mut sum }),
        4 => run(isa, Read::<4> { lines, sum: &mut sum }),
        8 => run(isa, Read::<8> { lines, sum: &mut sum }),
        16 => run(isa, Read::<16> { lines, sum: &mut sum }),
        _ => panic!("{streams} streams are not compiled; 1, 4, 8 and 16 are"),
    }
    sum
}

struct Read<'a, const STREAMS: usize> {
    lines: &'a [[f32; LANES]],
    sum: &'a mut f32,
}

impl<const STREAMS: usize> Kernel for Read<'_, STREAMS> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let len = self.lines.len() / STREAMS;
        let streams: [&[[f32; LANES]]; STREAMS] = std::array::from_fn(|stream| &self.lines[stream * len..][..len]);
        // Four sums: additions of one chain wait for each other, and more would not fit AVX2's registers.
        let mut sums = [s.splat(0.0); 4];
        for at in 0..len {
            for (index, stream) in streams.iter().enumerate() {
                s.prefetch(stream, (at + AHEAD) * size_of::<[f32; LANES]>());
                sums[index % 4] = s.add(sums[index % 4], s.load(&stream[at]));
            }
        }
        for line in &self.lines[STREAMS * len..] {
            sums[0] = s.add(sums[0], s.load(line));
        }
        *self.sum = s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_read_once_whatever_the_streams() {
        for lines in [0, 1, 7, 16, 17, 100] {
            let data: Vec<f32> = (0..lines * LANES + 3).map(|i| (i % 7) as f32).collect();
            let expected: f32 = data[..lines * LANES].iter().sum();
            for isa in Isa::available() {
                for streams in [1, 4, 8, 16] {
                    assert_eq!(read(isa, &data, streams), expected, "{lines} lines, {streams} streams, {}", isa.name());
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "is not available on this machine")]
    fn an_instruction_set_that_the_machine_lacks_is_refused() {
        let foreign = if cfg!(target_arch = "x86_64") { Isa::Neon } else { Isa::Avx2 };
        read(foreign, &[], 1);
    }

    #[test]
    #[should_panic(expected = "3 streams")]
    fn another_number_of_streams_is_refused() {
        read(Isa::Portable, &[], 3);
    }
}
