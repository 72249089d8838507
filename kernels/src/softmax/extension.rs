//! Extension: a finished softmax of n elements, with its state (m1, l1), takes in new elements.
//!
//! With (m2, l2) the state of all elements, old outputs are multiplied by `(l1 / l2) 2^(m1 - m2)` and new ones are
//! `2^(x - m2) / l2`. The old scores are not needed. Each extension rounds the old outputs about twice more.

use super::Context;
use super::row::{normalise, scale};
use super::state::{State, power_of_two, reduce};
use crate::cpu::simd::{Kernel, Simd, run};

/// Extends a softmax: `out` begins with the finished softmax whose state is `state`, and its last `new.len()` elements
/// become those of `new`. Returns the state of all. From [`State::EMPTY`] it is the softmax of `new`.
///
/// # Panics
/// When `out` is shorter than `new`.
pub fn extend(context: Context<'_>, state: State, new: &[f32], out: &mut [f32]) -> State {
    assert!(new.len() <= out.len(), "the outputs of {} new elements do not fit into {}", new.len(), out.len());
    let mut extended = state;
    run(context.isa, Extend { state: &mut extended, new, out });
    extended
}

struct Extend<'a> {
    state: &'a mut State,
    new: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Extend<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let old = *self.state;
        let all = old.merge(reduce(s, self.new));
        let (old_out, new_out) = self.out.split_at_mut(self.out.len() - self.new.len());
        scale(s, old_out, shrink(old, all));
        normalise(s, all, self.new, new_out);
        *self.state = all;
    }
}

/// `(l1 / l2) 2^(m1 - m2)`: what outputs under the old state are multiplied by under the new.
#[inline(always)]
pub(super) fn shrink(old: State, new: State) -> f32 {
    old.l * power_of_two(old.m - new.m) / new.divisor()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::isa::Isa;
    use crate::cpu::pool::Pool;
    use crate::softmax::tests::{assert_close, softmax_f64};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_softmax_extended_piece_by_piece_is_the_softmax_of_all(
            x in prop::collection::vec(-80.0_f32..80.0, 1..700),
            piece in 1..300_usize,
        ) {
            let pool = Pool::new(1);
            for isa in Isa::available() {
                let (mut state, mut out) = (State::EMPTY, vec![f32::NAN; x.len()]);
                for (index, new) in x.chunks(piece).enumerate() {
                    let end = index * piece + new.len();
                    state = extend(Context::new(isa, &pool), state, new, &mut out[..end]);
                    assert_close(&out[..end], &softmax_f64(&x[..end]), 1e-5, "extended");
                }
            }
        }
    }

    #[test]
    fn extending_by_nothing_and_from_masked_elements_is_right() {
        let pool = Pool::new(1);
        let context = Context::new(Isa::best(), &pool);
        let mut out = [f32::NAN; 3];
        let state = extend(context, State::EMPTY, &[f32::NEG_INFINITY], &mut out[..1]);
        assert_eq!((state, out[0]), (State::EMPTY, 0.0));
        let state = extend(context, state, &[5.0, 5.0], &mut out);
        assert_eq!(out, [0.0, 0.5, 0.5]);
        assert_eq!(extend(context, state, &[], &mut out), state);
        assert_eq!(out, [0.0, 0.5, 0.5]);
    }
}
