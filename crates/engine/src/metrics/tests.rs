use super::*;
use std::time::Duration;

/// A choice with a prompt of seven tokens.
fn finished(clock: ChoiceClock, submitted: Instant, started: Option<Instant>) -> FinishedChoice {
    FinishedChoice {
        reason: FinishReason::Length,
        clock,
        prompt_tokens: 7,
        computed_tokens: 0,
        num_preemptions: 0,
        submitted,
        started,
    }
}

/// The buckets that hold something.
fn filled(histogram: &Histogram) -> Vec<(f64, u64)> {
    histogram.buckets().into_iter().filter(|&(_, count)| count > 0).collect()
}

#[test]
fn a_value_falls_below_the_first_bound_that_it_does_not_exceed() {
    let histogram = Histogram::new([1.0, 2.0, 5.0]);
    for value in [0.0, 1.0, 1.5, 2.0, 5.1, 1e9] {
        histogram.observe(value);
    }
    assert_eq!(histogram.buckets(), [(1.0, 2), (2.0, 2), (5.0, 0), (f64::INFINITY, 2)]);
    assert_eq!((histogram.count(), histogram.sum()), (6, 9.6 + 1e9));
}

#[test]
fn bounds_rise() {
    for bounds in
        [&FIRST_TOKEN_S[..], &TOKEN_S, &REQUEST_S, &STEP_TOKENS, &NUM_CHOICES, &PREEMPTIONS, &token_bounds(131_072)]
    {
        assert!(bounds.is_sorted_by(|a, b| a < b), "{bounds:?}");
    }
}

#[test]
fn bounds_for_tokens_go_as_far_as_the_context() {
    assert_eq!(token_bounds(512), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0]);
    assert_eq!(token_bounds(10).last(), Some(&10.0));
    assert_eq!(token_bounds(9).last(), Some(&5.0));
}

#[test]
fn each_phase_of_a_choice_has_its_seconds() {
    let metrics = EngineMetrics::new(512);
    let submitted = Instant::now();
    let after = |ms| submitted + Duration::from_millis(ms);
    let mut clock = ChoiceClock::default();
    // Queued for 2 s, first token 1 s later, then three tokens in steps of 40 ms and 500 ms, the last step with two of them.
    for ms in [3000, 3040, 3540, 3540] {
        metrics.note_token(&mut clock, submitted, after(ms));
    }
    let started = Some(after(2000));
    let choice = FinishedChoice { computed_tokens: 3, num_preemptions: 2, ..finished(clock, submitted, started) };
    metrics.note_finished(choice, after(3600));
    assert_eq!(filled(&metrics.time_to_first_token_s), [(5.0, 1)]);
    assert_eq!(filled(&metrics.inter_token_latency_s), [(0.05, 1), (0.5, 1)]);
    for (histogram, seconds) in [
        (&metrics.time_to_first_token_s, 3.0),
        (&metrics.inter_token_latency_s, 0.54),
        (&metrics.queue_time_s, 2.0),
        (&metrics.inference_time_s, 1.54),
        (&metrics.prefill_time_s, 1.0),
        (&metrics.decode_time_s, 0.54),
        (&metrics.time_per_output_token_s, 0.18),
        (&metrics.e2e_latency_s, 3.6),
    ] {
        assert!((histogram.sum() - seconds).abs() < 1e-9, "{histogram:?} has not {seconds} s");
    }
    assert_eq!((metrics.prompt_tokens.sum(), metrics.generation_tokens.sum(), metrics.num_generated()), (7.0, 4.0, 4));
    assert_eq!(
        (filled(&metrics.computed_prompt_tokens), filled(&metrics.preemptions)),
        (vec![(5.0, 1)], vec![(2.0, 1)])
    );
    assert_eq!(EndReason::ALL.map(|reason| metrics.num_ended(reason)), [0, 1, 0, 0]);
}

#[test]
fn a_choice_that_was_cut_before_it_began_has_no_token_and_no_time_per_token() {
    let metrics = EngineMetrics::new(512);
    let (submitted, clock) = (Instant::now(), ChoiceClock::default());
    let choice = finished(clock, submitted, None);
    metrics.note_finished(choice, submitted + Duration::from_secs(1));
    assert_eq!(
        (metrics.queue_time_s.sum(), metrics.inference_time_s.sum(), metrics.generation_tokens.sum()),
        (1.0, 0.0, 0.0)
    );
    assert_eq!((metrics.time_to_first_token_s.count(), metrics.time_per_output_token_s.count()), (0, 0));
}

#[test]
fn right_guesses_are_counted_by_their_place() {
    let metrics = EngineMetrics::new(512);
    for num_right in [0, 3, 1, MAX_GUESSES] {
        metrics.note_right_guesses(num_right);
    }
    let by_place: Vec<u64> = metrics.num_right_by_place().collect();
    assert_eq!((&by_place[..4], by_place.len()), (&[3, 2, 2, 1][..], MAX_GUESSES));
}

#[test]
fn refusals_are_counted_by_the_limit() {
    let metrics = EngineMetrics::new(512);
    for limit in [QueueLimit::Tokens, QueueLimit::Requests, QueueLimit::Tokens] {
        metrics.note_refused(limit);
    }
    assert_eq!(QueueLimit::ALL.map(|limit| metrics.num_refused(limit)), [1, 2]);
}
