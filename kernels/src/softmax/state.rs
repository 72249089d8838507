//! The state (m, l) of a softmax over a set of elements: `l = sum 2^(x - m)` with a whole reference m.
//!
//! Merging: `m = max(m1, m2)`, `l = l1 2^(m1 - m) + l2 2^(m2 - m)`. One of the two scales is 1 and the other an exact power of
//! two, so a merge is one rounded addition: commutative to the bit, neutral with [`State::EMPTY`] to the bit, and associative
//! as far as additions are: to the bit where the sums are exact, otherwise to their rounding.

use super::row::Running;
use super::{Context, LOWEST, row};
use crate::cpu::simd::{Kernel, Simd, run};

/// Reference and sum of a set of elements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct State {
    /// A whole number, the floor of the largest element; [`LOWEST`] over no elements.
    pub m: f32,
    /// `sum 2^(x - m)`; zero over no elements.
    pub l: f32,
}

impl State {
    /// The state over no elements.
    pub const EMPTY: Self = Self { m: LOWEST, l: 0.0 };

    /// The state of some elements, in one pass of the calling thread.
    pub fn of(context: Context<'_>, x: &[f32]) -> Self {
        let mut state = Self::EMPTY;
        run(context.isa, Reduce { x, state: &mut state });
        state
    }

    /// The state of the elements of both.
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        let m = if self.m > other.m { self.m } else { other.m };
        Self { m, l: self.l * power_of_two(self.m - m) + other.l * power_of_two(other.m - m) }
    }

    /// Merges neighbours, then neighbours of those, until one is left: the order depends on their number alone.
    pub fn merge_tree(states: &mut [Self]) -> Self {
        let mut stride = 1;
        while stride < states.len() {
            for left in (0..states.len() - stride).step_by(2 * stride) {
                states[left] = states[left].merge(states[left + stride]);
            }
            stride *= 2;
        }
        states.first().copied().unwrap_or(Self::EMPTY)
    }

    /// What weights are divided by: l, and 1 where all elements are masked, so that their weights stay zero.
    pub(super) fn divisor(self) -> f32 {
        if self.l == 0.0 { 1.0 } else { self.l }
    }
}

/// `2^n` of a whole `n <= 0`; zero from `2^-127` down.
pub(super) fn power_of_two(n: f32) -> f32 {
    f32::from_bits(((n.clamp(-127.0, 0.0) as i32 + 127) as u32) << 23)
}

struct Reduce<'a> {
    x: &'a [f32],
    state: &'a mut State,
}

impl Kernel for Reduce<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        *self.state = reduce(s, self.x);
    }
}

/// The state of some elements: a state per lane, corrected once per block, then the lanes merged as a tree.
#[inline(always)]
pub(super) fn reduce<S: Simd>(s: S, x: &[f32]) -> State {
    let mut running = Running::empty(s);
    for block in x.chunks(row::BLOCK) {
        running.take_in(s, block);
    }
    running.finish(s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::isa::Isa;
    use crate::cpu::pool::Pool;
    use proptest::prelude::*;

    /// Sums with few bits, so that adding them after any shift by at most 8 places is exact.
    fn exact_state() -> impl Strategy<Value = State> {
        (-4..=4, 1..256_u32).prop_map(|(m, l)| State { m: m as f32, l: l as f32 / 256.0 })
    }

    fn any_state() -> impl Strategy<Value = State> {
        (-40..=40, 0.5_f32..1e6).prop_map(|(m, l)| State { m: m as f32, l })
    }

    fn log2(state: State) -> f64 {
        f64::from(state.m) + f64::from(state.l).log2()
    }

    proptest! {
        #[test]
        fn merging_commutes_to_the_bit(a in any_state(), b in any_state()) {
            prop_assert_eq!(a.merge(b), b.merge(a));
        }

        #[test]
        fn merging_is_associative_to_the_bit_where_sums_are_exact(a in exact_state(), b in exact_state(), c in exact_state()) {
            prop_assert_eq!(a.merge(b).merge(c), a.merge(b.merge(c)));
        }

        #[test]
        fn merging_is_associative_up_to_two_roundings(a in any_state(), b in any_state(), c in any_state()) {
            let (left, right) = (a.merge(b).merge(c), a.merge(b.merge(c)));
            prop_assert_eq!(left.m, right.m);
            prop_assert!((left.l - right.l).abs() <= left.l * 2.0 * f32::EPSILON);
        }

        #[test]
        fn the_empty_state_is_neutral_to_the_bit(a in any_state()) {
            prop_assert_eq!(a.merge(State::EMPTY), a);
            prop_assert_eq!(State::EMPTY.merge(a), a);
        }

        #[test]
        fn a_higher_reference_changes_no_bit_of_the_merged_sum(a in any_state(), b in any_state(), raise in 0..40_i32) {
            let raised = State { m: a.m + raise as f32, l: a.l * power_of_two(-(raise as f32)) };
            let (plain, raised) = (a.merge(b), raised.merge(b));
            prop_assert_eq!(plain.l * power_of_two(plain.m - raised.m), raised.l);
        }

        #[test]
        fn the_state_of_a_row_is_the_merged_state_of_its_parts(x in prop::collection::vec(-60.0_f32..60.0, 1..600), cut in 0.0..1.0) {
            let cut = (cut * x.len() as f64) as usize;
            let pool = Pool::new(1);
            for isa in Isa::available() {
                let of = |x| State::of(Context::new(isa, &pool), x);
                let (whole, parts) = (of(&x), of(&x[..cut]).merge(of(&x[cut..])));
                prop_assert_eq!(whole.m, parts.m);
                prop_assert!((log2(whole) - log2(parts)).abs() < 1e-5);
            }
        }
    }

    #[test]
    fn the_tree_merges_every_state_once() {
        for count in 0..40_u32 {
            let mut states: Vec<State> = (0..count).map(|i| State { m: 0.0, l: i as f32 + 1.0 }).collect();
            assert_eq!(State::merge_tree(&mut states).l, (count * (count + 1) / 2) as f32);
        }
    }

    #[test]
    fn a_state_far_below_another_vanishes() {
        let (high, low) = (State { m: 151.0, l: 1.5 }, State { m: -151.0, l: 1e6 });
        assert_eq!(high.merge(low), high);
        assert_eq!(low.merge(high), high);
    }
}
