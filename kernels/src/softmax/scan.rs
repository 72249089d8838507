//! Inclusive prefix scan of (m, l): the state of `x[..=i]` for every i, which is the normaliser of every causal row at once.
//!
//! Merging is associative, so a prefix needs no serial chain: within a block of 128 elements each state is merged with the
//! one 1, 2, 4, ... 64 places before it, then with the state of all blocks before. Chunks are reduced on all threads first,
//! their states are scanned, and every chunk then scans itself from the state before it.

use super::parallel::{CHUNK, chunk_states};
use super::row::{load, load_scores, store};
use super::{Context, LOWEST, State};
use crate::cpu::rows::Disjoint;
use crate::cpu::simd::{Kernel, LANES, Simd, run};
use crate::cpu::vector_math::exp2_from;

/// Elements of a block.
const BLOCK: usize = 128;

/// Writes the state of `x[..=i]` to `(m[i], l[i])`.
///
/// # Panics
/// When the three are not equally long.
pub fn scan(context: Context<'_>, x: &[f32], m: &mut [f32], l: &mut [f32]) {
    assert_eq!((x.len(), x.len()), (m.len(), l.len()), "one state per element");
    // Nothing follows the last chunk, so its own state is not asked for.
    let last = x.len().saturating_sub(1) / CHUNK * CHUNK;
    let mut before = chunk_states(context, &x[..last]);
    before.push(State::EMPTY);
    let mut running = State::EMPTY;
    for state in &mut before {
        let chunk = std::mem::replace(state, running);
        running = running.merge(chunk);
    }
    let (m, l) = (Disjoint::new(m), Disjoint::new(l));
    context.pool.run(before.len(), |chunk| {
        let range = chunk * CHUNK..x.len().min((chunk + 1) * CHUNK);
        // SAFETY: chunks do not overlap, and the pool gives each index to one call.
        let (m, l) = unsafe { (m.part(range.clone()), l.part(range.clone())) };
        run(context.isa, Scan { before: before[chunk], x: &x[range], m, l });
    });
}

struct Scan<'a> {
    before: State,
    x: &'a [f32],
    m: &'a mut [f32],
    l: &'a mut [f32],
}

impl Kernel for Scan<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut before = self.before;
        let mut block = Block::new();
        for ((x, m), l) in self.x.chunks(BLOCK).zip(self.m.chunks_mut(BLOCK)).zip(self.l.chunks_mut(BLOCK)) {
            block.scan(s, x);
            before = block.finish(s, before, m, l);
        }
    }
}

/// States of a block behind as many empty states as the longest step reaches back.
struct Block {
    m: [f32; BLOCK / 2 + BLOCK],
    l: [f32; BLOCK / 2 + BLOCK],
}

impl Block {
    #[inline(always)]
    fn new() -> Self {
        Self { m: [LOWEST; BLOCK / 2 + BLOCK], l: [0.0; BLOCK / 2 + BLOCK] }
    }

    /// Scans up to [`BLOCK`] elements; states behind them are not used.
    #[inline(always)]
    fn scan<S: Simd>(&mut self, s: S, x: &[f32]) {
        for (index, x) in x.chunks(LANES).enumerate() {
            let x = load_scores(s, x);
            let m = s.max(s.floor(x), s.splat(LOWEST));
            self.write(s, index, (m, exp2_from(s, x, m)));
        }
        let mut step = 1;
        while step < x.len() {
            // From the back, so that a vector still finds the states before it as the last step left them.
            for index in (0..x.len().div_ceil(LANES)).rev() {
                let merged = merge(s, self.read(s, index, step), self.read(s, index, 0));
                self.write(s, index, merged);
            }
            step *= 2;
        }
    }

    /// Merges the state before the block into all of its states; returns the last one.
    #[inline(always)]
    fn finish<S: Simd>(&self, s: S, before: State, m: &mut [f32], l: &mut [f32]) -> State {
        let before = (s.splat(before.m), s.splat(before.l));
        for (index, (m, l)) in m.chunks_mut(LANES).zip(l.chunks_mut(LANES)).enumerate() {
            let state = merge(s, before, self.read(s, index, 0));
            store(s, state.0, m);
            store(s, state.1, l);
        }
        State { m: m[m.len() - 1], l: l[l.len() - 1] }
    }

    /// The sixteen states that begin `back` places before vector `index`.
    #[inline(always)]
    fn read<S: Simd>(&self, s: S, index: usize, back: usize) -> (S::F, S::F) {
        let at = BLOCK / 2 + index * LANES - back;
        let read = |from: &[f32]| load(s, &from[at..at + LANES]);
        (read(&self.m), read(&self.l))
    }

    #[inline(always)]
    fn write<S: Simd>(&mut self, s: S, index: usize, state: (S::F, S::F)) {
        let at = BLOCK / 2 + index * LANES;
        store(s, state.0, &mut self.m[at..at + LANES]);
        store(s, state.1, &mut self.l[at..at + LANES]);
    }
}

/// [`State::merge`] of sixteen pairs, to the same bits.
#[inline(always)]
fn merge<S: Simd>(s: S, a: (S::F, S::F), b: (S::F, S::F)) -> (S::F, S::F) {
    let m = s.max(a.0, b.0);
    let mine = s.mul(a.1, s.power_of_two(s.sub(a.0, m)));
    (m, s.fma(b.1, s.power_of_two(s.sub(b.0, m)), mine))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::isa::Isa;
    use crate::cpu::pool::Pool;
    use crate::softmax::tests::adversarial_rows;
    use proptest::prelude::*;

    fn scan_of(isa: Isa, threads: usize, x: &[f32]) -> Vec<State> {
        let (mut m, mut l) = (vec![f32::NAN; x.len()], vec![f32::NAN; x.len()]);
        scan(Context::new(isa, &Pool::new(threads)), x, &mut m, &mut l);
        m.into_iter().zip(l).map(|(m, l)| State { m, l }).collect()
    }

    /// Against the running sum in float64, kept relative to the running maximum.
    fn check(name: &str, x: &[f32], states: &[State]) {
        let (mut max, mut sum) = (f64::NEG_INFINITY, 0.0_f64);
        for (i, (&x, state)) in x.iter().zip(states).enumerate() {
            if x >= LOWEST {
                let larger = max.max(f64::from(x));
                sum = sum * (max - larger).exp2() + (f64::from(x) - larger).exp2();
                max = larger;
            }
            if sum == 0.0 {
                assert_eq!(*state, State::EMPTY, "{name} at {i}");
            } else {
                assert_eq!(f64::from(state.m), max.floor(), "{name} at {i}");
                let expected = sum * (max - max.floor()).exp2();
                assert!((f64::from(state.l) / expected - 1.0).abs() < 3e-6, "{name} at {i}: {state:?} {expected}");
            }
        }
    }

    #[test]
    fn every_prefix_of_hard_rows_has_its_state() {
        for len in [1, 2, 15, 16, 17, 127, 128, 129, 255, 257, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 77] {
            for (name, x) in adversarial_rows(len) {
                check(name, &x, &scan_of(Isa::best(), 2, &x));
            }
        }
    }

    #[test]
    fn bits_depend_neither_on_the_instruction_set_nor_on_threads() {
        for len in [1, 100, CHUNK + 5, 5 * CHUNK + 1] {
            for (name, x) in adversarial_rows(len) {
                let expected = scan_of(Isa::Portable, 1, &x);
                for isa in Isa::available() {
                    for threads in [1, 3] {
                        assert_eq!(scan_of(isa, threads, &x), expected, "{name}, {}, {threads}", isa.name());
                    }
                }
            }
        }
    }

    #[test]
    fn not_a_number_spoils_the_prefixes_that_hold_it_and_no_others() {
        let mut x = vec![1.0; 2 * CHUNK];
        x[CHUNK + 200] = f32::NAN;
        let states = scan_of(Isa::best(), 2, &x);
        check("before", &x[..CHUNK + 200], &states[..CHUNK + 200]);
        assert!(states[CHUNK + 200..].iter().all(|state| state.l.is_nan()));
    }

    proptest! {
        #[test]
        fn every_prefix_of_any_row_has_its_state(x in prop::collection::vec(-151.0_f32..151.0, 1..400)) {
            check("random", &x, &scan_of(Isa::best(), 1, &x));
        }
    }
}
