//! How much of a prompt may ride along while others wait for their next tokens.
//!
//! A step in which sequences decode takes `decode_s`; every prompt token in it adds about `token_s`. The pace keeps moving
//! averages of both from the steps that were run, and answers how many prompt tokens keep a step within a target time. Steps
//! without prompts teach `decode_s`; where many prompts come, no step is without, and until one is, every sequence that has
//! begun to decode since adds `token_s`: a row is a row.
//! Pure: it is told durations and reads no clock. It decides how soon tokens come and never which.

use crate::StepLimits;
use std::time::Duration;

/// What a step may take while sequences decode: the longer of both times, and whatever the least number of prompt tokens
/// takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ItlTarget {
    /// A time.
    pub at_least: Duration,
    /// Times what the step would take without prompt tokens.
    pub times_decode: f64,
    /// Prompt tokens that a step always has room for, so that prompts end.
    pub least_tokens: usize,
}

impl Default for ItlTarget {
    /// Smooth reading (20 tokens a second at the least) or three times the undisturbed latency.
    fn default() -> Self {
        ItlTarget { at_least: Duration::from_millis(50), times_decode: 3.0, least_tokens: 64 }
    }
}

/// Share of the newest duration in the averages: about the last six steps count.
const NEWEST: f64 = 0.3;

/// See the module's documentation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pace {
    target: ItlTarget,
    decode_s: Option<f64>,
    /// How many decoded in the latest step without prompts.
    num_decoding: usize,
    token_s: Option<f64>,
}

impl Pace {
    /// Nothing measured yet.
    pub(crate) fn new(target: ItlTarget) -> Self {
        Pace { target, ..Pace::default() }
    }

    /// Takes in a step that took `seconds`.
    pub(crate) fn observe(&mut self, num_decoding: usize, prompt_tokens: usize, seconds: f64) {
        if prompt_tokens == 0 {
            let before = self.decode_s(num_decoding);
            self.decode_s = Some(average(before, seconds));
            self.num_decoding = num_decoding;
            return;
        }
        let decode_s = if num_decoding > 0 { self.decode_s(num_decoding).unwrap_or(0.0) } else { 0.0 };
        self.token_s = Some(average(self.token_s, (seconds - decode_s).max(0.0) / prompt_tokens as f64));
    }

    /// Time of a step in which so many decode and no prompt is computed.
    fn decode_s(&self, num_decoding: usize) -> Option<f64> {
        let num_new = num_decoding.saturating_sub(self.num_decoding);
        self.decode_s.map(|seconds| seconds + num_new as f64 * self.token_s.unwrap_or(0.0))
    }

    /// Bounds of the next step, if so many sequences decode in it. The target is there for a long prompt to get on; short ones,
    /// which get on as well in a few smaller parts, should use a quarter of what it adds to an undisturbed step.
    pub(crate) fn limits(&self, num_decoding: usize) -> StepLimits {
        let least = self.target.least_tokens.max(1);
        let (Some(decode_s), Some(token_s)) = (self.decode_s(num_decoding), self.token_s) else {
            return StepLimits { prompt_tokens: least, short_prompts: least };
        };
        // The cast saturates, for a time per token of 0 as well.
        let fitting = |target_s: f64| ((target_s - decode_s) / token_s).round() as usize;
        let undisturbed_s = self.target.times_decode * decode_s;
        let at_least_s = self.target.at_least.as_secs_f64();
        let prompt_tokens = least.max(fitting(at_least_s.max(undisturbed_s)));
        // By the clock alone where the target is but a time.
        let target_s = if undisturbed_s > 0.0 { undisturbed_s } else { at_least_s };
        let short_prompts = fitting(decode_s + (target_s - decode_s) / 4.0);
        StepLimits { prompt_tokens, short_prompts: short_prompts.clamp(1, prompt_tokens) }
    }

    /// Prompt tokens of the next step, if so many sequences decode in it.
    pub(crate) fn prompt_tokens(&self, num_decoding: usize) -> usize {
        self.limits(num_decoding).prompt_tokens
    }
}

fn average(mean: Option<f64>, newest: f64) -> f64 {
    mean.map_or(newest, |mean| mean + NEWEST * (newest - mean))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(at_least_ms: u64, times_decode: f64, least_tokens: usize) -> Pace {
        Pace::new(ItlTarget { at_least: Duration::from_millis(at_least_ms), times_decode, least_tokens })
    }

    #[test]
    fn until_both_costs_are_known_the_least_is_given() {
        let mut pace = pace(50, 3.0, 64);
        assert_eq!(pace.prompt_tokens(1), 64);
        pace.observe(1, 0, 0.010);
        assert_eq!(pace.prompt_tokens(1), 64);
    }

    #[test]
    fn what_is_left_of_the_target_goes_to_the_prompt() {
        let mut pace = pace(50, 3.0, 16);
        pace.observe(2, 0, 0.010);
        pace.observe(0, 1000, 0.500);
        assert_eq!(pace.prompt_tokens(2), 80, "40 ms are left of 50, at half a millisecond each");
        for _ in 0..50 {
            pace.observe(2, 0, 0.030);
        }
        assert_eq!(pace.prompt_tokens(2), 120, "three times 30 ms, less 30");
    }

    #[test]
    fn short_prompts_use_a_quarter_of_what_the_target_adds() {
        let mut pace = pace(50, 3.0, 64);
        assert_eq!(pace.limits(2), StepLimits { prompt_tokens: 64, short_prompts: 64 });
        pace.observe(2, 0, 0.010);
        pace.observe(0, 1000, 0.500);
        assert_eq!(pace.limits(2), StepLimits { prompt_tokens: 80, short_prompts: 10 }, "5 ms of 20");
        let mut smooth = self::pace(0, 2.0, 4);
        smooth.observe(2, 0, 0.010);
        smooth.observe(0, 1, 1.0);
        assert_eq!(smooth.limits(2), StepLimits { prompt_tokens: 4, short_prompts: 1 });
        let mut by_the_clock = self::pace(100, 0.0, 4);
        by_the_clock.observe(2, 0, 0.020);
        by_the_clock.observe(0, 1000, 0.500);
        assert_eq!(by_the_clock.limits(2), StepLimits { prompt_tokens: 160, short_prompts: 40 }, "20 ms of 80");
    }

    #[test]
    fn a_mixed_step_teaches_the_cost_of_a_prompt_token() {
        let mut pace = pace(50, 3.0, 16);
        pace.observe(1, 0, 0.010);
        for _ in 0..50 {
            pace.observe(1, 100, 0.110);
        }
        assert_eq!(pace.prompt_tokens(1), 40);
    }

    #[test]
    fn those_who_begin_to_decode_beside_prompts_are_counted_before_a_step_is_without() {
        let mut pace = pace(0, 3.0, 4);
        pace.observe(1, 0, 0.010);
        for num_decoding in 1..=11 {
            pace.observe(num_decoding, 20, 0.010 + (20 + num_decoding - 1) as f64 * 0.001);
        }
        assert_eq!(pace.prompt_tokens(11), 40, "three times 20 ms, less 20");
        pace.observe(11, 0, 0.020);
        assert_eq!((pace.prompt_tokens(11), pace.prompt_tokens(12)), (40, 42));
    }

    #[test]
    fn a_prompt_that_costs_nothing_and_one_that_costs_too_much_have_bounds() {
        let mut free = pace(50, 3.0, 16);
        free.observe(1, 0, 0.010);
        free.observe(1, 100, 0.010);
        assert_eq!(free.prompt_tokens(1), usize::MAX);
        let mut dear = pace(50, 3.0, 16);
        dear.observe(1, 0, 0.010);
        dear.observe(0, 1, 1.0);
        assert_eq!(dear.prompt_tokens(1), 16);
    }

    /// A machine on which a step takes 20 ms and 1 ms per prompt token, 2 ms beyond 4000 tokens of context.
    #[test]
    fn steps_stay_near_the_target_while_costs_change() {
        let mut pace = pace(0, 4.0, 16);
        pace.observe(1, 0, 0.020);
        let mut done = 0;
        let mut slow = 0;
        while done < 8000 {
            let tokens = pace.prompt_tokens(1).min(512);
            let seconds = 0.020 + tokens as f64 * if done < 4000 { 0.001 } else { 0.002 };
            slow += usize::from(seconds > 0.090);
            pace.observe(1, tokens, seconds);
            done += tokens;
        }
        assert!(slow <= 8, "{slow} steps were too long while the pace found the new cost");
    }
}
