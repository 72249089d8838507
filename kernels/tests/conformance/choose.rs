//! Tokens drawn from rows of logits: every backend that draws gives the reference's token.

use crate::fixture::upload;
use taper_kernels::{Backend, Draw, Reference};
use taper_testkit::rng::SplitMix;
use taper_testkit::thin::thinned;

pub(crate) fn suite<B: Backend>(backend: &B) {
    draws_give_the_same_tokens(backend);
    the_ends_of_what_can_be_asked_for_give_the_same_tokens(backend);
    a_large_vocabulary_gives_the_same_tokens(backend);
    rows_that_are_no_distributions_give_none(backend);
}

fn choose<B: Backend>(backend: &B, cols: usize, logits: &[f32], draws: &[(usize, Draw)]) -> Option<Vec<Option<u32>>> {
    let mut tokens = vec![Some(9); 3];
    let drawn = backend.choose(&upload(backend, cols, logits), draws, &mut tokens);
    let is_greedy = draws.iter().all(|(_, draw)| draw.temperature == 0.0);
    assert_eq!(
        drawn,
        is_greedy || backend.info().name != "cpu",
        "other draws from logits on the host are their owner's"
    );
    drawn.then_some(tokens)
}

fn draws_give_the_same_tokens<B: Backend>(backend: &B) {
    let mut rng = SplitMix::new(70);
    // Spread logits, flat ones, of which none is much heavier than another, and many that are equal.
    for (cols, kind) in thinned([(49, 0), (5000, 0), (5000, 1), (2048, 2)], 3) {
        let logits: Vec<f32> = match kind {
            0 => rng.normals(3 * cols, 4.0),
            1 => rng.normals(3 * cols, 0.1),
            _ => (0..3 * cols).map(|_| (rng.next_f32() * 6.0).floor() * 0.5).collect(),
        };
        let mut draws = Vec::new();
        for temperature in [0.0, 0.7, 1.5] {
            for (min_p, top_k, top_p) in thinned(
                [(0.0, 0, 1.0), (0.1, 0, 1.0), (0.0, 50, 1.0), (0.0, 0, 0.9), (0.05, 7, 0.5), (0.0, 1500, 0.99)],
                5,
            ) {
                let unit = u64::from(rng.next_f32().to_bits()) << 40 | u64::from(rng.next_f32().to_bits());
                draws.push((draws.len() % 3, Draw { temperature, min_p, top_k, top_p, unit }));
            }
        }
        let greedy: Vec<_> = draws.iter().copied().filter(|(_, draw)| draw.temperature == 0.0).collect();
        for draws in [draws, greedy] {
            if let Some(tokens) = choose(backend, cols, &logits, &draws) {
                assert_eq!(
                    Some(tokens),
                    choose(&Reference::new(), cols, &logits, &draws),
                    "{cols} tokens, kind {kind}"
                );
            }
        }
    }
    assert!(choose(backend, 4, &[0.0; 8], &[]).is_none_or(|tokens| tokens.is_empty()), "nothing is asked for");
}

fn the_ends_of_what_can_be_asked_for_give_the_same_tokens<B: Backend>(backend: &B) {
    const COLS: usize = 301;
    const PLAIN: Draw = Draw { temperature: 1.0, min_p: 0.0, top_k: 0, top_p: 1.0, unit: 0 };
    let logits = SplitMix::new(71).normals(COLS, 2.0);
    let kinds = [
        Draw { top_k: 1, ..PLAIN },
        Draw { top_k: COLS as u32, ..PLAIN },
        Draw { top_k: u32::MAX, ..PLAIN },
        Draw { min_p: 1.0, ..PLAIN },
        Draw { top_p: 0.0, ..PLAIN },
        Draw { top_p: f32::MIN_POSITIVE, ..PLAIN },
        Draw { top_p: 0.999_999_94, ..PLAIN },
        Draw { temperature: 1e-38, ..PLAIN },
        Draw { temperature: 1e30, ..PLAIN },
        Draw { temperature: 1e30, min_p: 1.0, top_k: 7, top_p: 0.5, ..PLAIN },
    ];
    let units = [0, 1, u64::MAX / 3, u64::MAX];
    let draws: Vec<(usize, Draw)> =
        kinds.into_iter().flat_map(|kind| units.map(|unit| (0, Draw { unit, ..kind }))).collect();
    if let Some(tokens) = choose(backend, COLS, &logits, &draws) {
        let expected = choose(&Reference::new(), COLS, &logits, &draws).unwrap();
        for ((draw, token), expected) in draws.iter().zip(tokens).zip(expected) {
            assert_eq!(token, expected, "{draw:?}");
        }
    }
}

fn a_large_vocabulary_gives_the_same_tokens<B: Backend>(backend: &B) {
    const COLS: usize = 128_256;
    let logits = SplitMix::new(72).normals(COLS, 2.0);
    let draw = Draw { temperature: 0.8, min_p: 0.0, top_k: 4000, top_p: 0.9, unit: u64::MAX / 7 * 5 };
    let plain = Draw { top_k: 0, top_p: 1.0, ..draw };
    let draws: Vec<(usize, Draw)> = thinned([(0, draw), (0, plain)], 2).collect();
    if let Some(tokens) = choose(backend, COLS, &logits, &draws) {
        assert_eq!(Some(tokens), choose(&Reference::new(), COLS, &logits, &draws));
    }
}

fn rows_that_are_no_distributions_give_none<B: Backend>(backend: &B) {
    const CASES: [([f32; 3], Option<u32>); 6] = [
        ([0.0, f32::NAN, 1.0], None),
        ([f32::NEG_INFINITY; 3], None),
        ([0.0, f32::INFINITY, f32::NEG_INFINITY], None),
        ([f32::NEG_INFINITY, f32::NEG_INFINITY, -7.0], Some(2)),
        ([-3e38, 3e38, 0.0], Some(1)),
        ([-0.0, 0.0, -0.0], Some(0)),
    ];
    let logits: Vec<f32> = CASES.iter().flat_map(|case| case.0).collect();
    for temperature in [0.0, 1.0] {
        let draw = Draw { temperature, min_p: 0.0, top_k: 0, top_p: 0.3, unit: u64::MAX };
        let draws: Vec<(usize, Draw)> = (0..CASES.len()).map(|row| (row, draw)).collect();
        if let Some(tokens) = choose(backend, 3, &logits, &draws) {
            assert_eq!(tokens, CASES.map(|case| case.1), "temperature {temperature}");
        }
    }
}
