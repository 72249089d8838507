//! What came of the requests of a level, kept as figures.

use super::client::Answer;
use super::events::Usage;
use super::latency::Latency;
use super::limits::Took;
use super::{Failure, Limits};
use crate::quantile;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The finest that a course of time is told in.
const FINEST: Duration = Duration::from_millis(100);
/// The most pieces it is told in.
const MOST_PIECES: usize = 20;

/// A request that is over.
pub(super) struct Finished {
    /// When it was due; of a closed loop, when it was sent.
    pub(super) due: Instant,
    pub(super) sent: Instant,
    pub(super) end: Instant,
    /// Most tokens that it allowed.
    pub(super) max_tokens: Option<u64>,
    pub(super) outcome: Result<Answer, Failure>,
}

/// What a level has measured so far.
pub struct Collected {
    limits: Limits,
    begin: Instant,
    /// Requests that were sent.
    pub(super) num_sent: u64,
    num_kept: u64,
    /// By kind: how many, and the first in words.
    errors: BTreeMap<String, (u64, String)>,
    ttft: Latency,
    itl: Latency,
    tpot: Latency,
    e2e: Latency,
    lateness: Latency,
    /// Tokens per second of each answer behind its first text.
    decode_rates: Vec<f64>,
    usage: Usage,
    /// Answers that nobody counted the tokens of; events were taken for tokens.
    num_uncounted: u64,
    num_texts: u64,
    tokens: u64,
    max_tokens: u64,
    /// Tokens in each [`FINEST`] piece of time.
    course: Vec<f64>,
    /// When requests were under way, seconds from the beginning.
    under_way: Vec<(f64, f64)>,
    last_end: Duration,
}

impl Default for Collected {
    fn default() -> Collected {
        Collected::new(Limits::default())
    }
}

impl Collected {
    /// Nothing yet; the limits are those of goodput.
    pub fn new(limits: Limits) -> Collected {
        Collected {
            limits,
            begin: Instant::now(),
            num_sent: 0,
            num_kept: 0,
            errors: BTreeMap::new(),
            ttft: Latency::new(),
            itl: Latency::new(),
            tpot: Latency::new(),
            e2e: Latency::new(),
            lateness: Latency::new(),
            decode_rates: Vec::new(),
            usage: Usage::default(),
            num_uncounted: 0,
            num_texts: 0,
            tokens: 0,
            max_tokens: 0,
            course: Vec::new(),
            under_way: Vec::new(),
            last_end: Duration::ZERO,
        }
    }

    /// From now on time runs.
    pub(super) fn begin(&mut self) -> Instant {
        self.begin = Instant::now();
        self.begin
    }

    /// Requests with an answer.
    pub fn num_succeeded(&self) -> u64 {
        self.decode_rates.len() as u64
    }

    /// Requests without one.
    pub fn num_failed(&self) -> u64 {
        self.errors.values().map(|(number, _)| number).sum()
    }

    /// Failures by kind, each with the words of its first.
    pub fn errors(&self) -> impl Iterator<Item = (&str, u64, &str)> {
        self.errors.iter().map(|(kind, (number, words))| (kind.as_str(), *number, words.as_str()))
    }

    /// Requests that were sent and have not ended.
    pub fn num_under_way(&self) -> u64 {
        self.num_sent - self.num_succeeded() - self.num_failed()
    }

    /// Tokens per second so far.
    pub(super) fn rate(&self) -> f64 {
        self.tokens as f64 / self.last_end.as_secs_f64().max(1e-9)
    }

    pub(super) fn add(&mut self, finished: Finished) {
        let Finished { due, sent, end, max_tokens, outcome } = finished;
        self.lateness.record(sent - due);
        let answer = match outcome {
            Ok(answer) => answer,
            Err(failure) => {
                self.last_end = self.last_end.max(end - self.begin);
                let counted = self.errors.entry(failure.kind()).or_insert_with(|| (0, failure.to_string()));
                counted.0 += 1;
                return;
            }
        };
        let since = |at: Instant| at.saturating_duration_since(due);
        let end = answer.end;
        self.last_end = self.last_end.max(end - self.begin);
        self.under_way.push(((sent - self.begin).as_secs_f64(), (end - self.begin).as_secs_f64()));

        let num_texts = answer.texts.len() as u64;
        let tokens = answer.usage.completion.unwrap_or(num_texts);
        self.num_uncounted += u64::from(answer.usage.completion.is_none());
        self.num_texts += num_texts;
        self.tokens += tokens;
        self.max_tokens += max_tokens.unwrap_or(tokens);
        let add = |sum: &mut Option<u64>, more: Option<u64>| *sum = more.map(|more| sum.unwrap_or(0) + more).or(*sum);
        add(&mut self.usage.prompt, answer.usage.prompt);
        add(&mut self.usage.cached, answer.usage.cached);

        let (first, last) = (answer.texts.first().copied(), answer.texts.last().copied());
        let gaps = || answer.texts.windows(2).map(|pair| pair[1] - pair[0]);
        let took = Took {
            ttft: first.map(since),
            longest_itl: gaps().max(),
            tpot: first.filter(|_| tokens > 1).map(|first| (end - first).div_f64((tokens - 1) as f64)),
            e2e: since(end),
        };
        self.num_kept += u64::from(self.limits.are_kept(took));
        took.ttft.into_iter().for_each(|latency| self.ttft.record(latency));
        gaps().for_each(|gap| self.itl.record(gap));
        took.tpot.into_iter().for_each(|latency| self.tpot.record(latency));
        self.e2e.record(took.e2e);

        let seconds = first.zip(last).map_or(0.0, |(first, last)| (last - first).as_secs_f64());
        self.decode_rates.push(if tokens > 1 && seconds > 0.0 { (tokens - 1) as f64 / seconds } else { f64::NAN });
        for text in &answer.texts {
            let piece = ((*text - self.begin).as_secs_f64() / FINEST.as_secs_f64()) as usize;
            if self.course.len() <= piece {
                self.course.resize(piece + 1, 0.0);
            }
            // Where an event has several tokens, or a token no event, they share.
            self.course[piece] += tokens as f64 / num_texts as f64;
        }
    }

    /// The figures by name. Of rates the time is that from the beginning to the end of the last request.
    pub(super) fn figures(&self) -> Map<String, Value> {
        let wall = self.last_end.as_secs_f64();
        let requests = self.num_succeeded();
        let per_second = |number: u64| (wall > 0.0).then(|| rounded(number as f64 / wall));
        let mean = |number: Option<u64>| number.filter(|_| requests > 0).map(|n| rounded(n as f64 / requests as f64));
        let rates: Vec<f64> = self.decode_rates.iter().copied().filter(|rate| rate.is_finite()).collect();
        let decode_rate = (!rates.is_empty()).then(|| rounded(quantile(&rates, 0.5)));
        let errors = self.errors.iter().map(|(kind, (number, _))| (kind.clone(), Value::from(*number)));
        let named: [(&str, Value); 25] = [
            ("requests", requests.into()),
            ("errors", self.num_failed().into()),
            ("cut_off", self.num_under_way().into()),
            ("errors_by_kind", Map::from_iter(errors).into()),
            ("wall_s", ((wall * 1e6).round() / 1e6).into()),
            ("req_s", per_second(requests).into()),
            ("goodput_req_s", per_second(self.num_kept).filter(|_| !self.limits.is_empty()).into()),
            ("good", Some(self.num_kept).filter(|_| !self.limits.is_empty()).into()),
            ("tok_s", per_second(self.tokens).into()),
            ("prompt_tok_s", self.usage.prompt.and_then(per_second).into()),
            ("total_tok_s", self.usage.prompt.and_then(|prompt| per_second(prompt + self.tokens)).into()),
            ("prompt_tokens", self.usage.prompt.into()),
            ("cached_tokens", self.usage.cached.into()),
            ("completion_tokens", self.tokens.into()),
            ("prompt_tokens_mean", mean(self.usage.prompt).into()),
            ("completion_tokens_mean", mean(Some(self.tokens)).into()),
            ("max_tokens_mean", mean(Some(self.max_tokens)).into()),
            ("chunks_per_token", (self.tokens > 0).then(|| rounded(self.num_texts as f64 / self.tokens as f64)).into()),
            ("decode_tok_s_per_request_p50", decode_rate.into()),
            ("ttft_ms", self.ttft.to_json()),
            ("itl_ms", self.itl.to_json()),
            ("tpot_ms", self.tpot.to_json()),
            ("e2e_ms", self.e2e.to_json()),
            ("lateness_ms", self.lateness.to_json()),
            ("timeline", self.timeline(wall)),
        ];
        named.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// The course of time in at most [`MOST_PIECES`] pieces: tokens per second, and requests under way on average. Both are of the
    /// requests that have an answer.
    fn timeline(&self, wall: f64) -> Value {
        let steps =
            [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 36000.0];
        let fits = |step: &f64| wall / step <= MOST_PIECES as f64;
        let step = steps.into_iter().find(fits).unwrap_or(wall / MOST_PIECES as f64);
        let pieces = (wall / step).ceil() as usize;
        let finest = (step / FINEST.as_secs_f64()).round().max(1.0) as usize;
        let tokens = (0..pieces).map(|piece| {
            let of_piece: f64 = self.course.iter().skip(piece * finest).take(finest).sum();
            rounded(of_piece / step)
        });
        let requests = (0..pieces).map(|piece| {
            let (from, to) = (piece as f64 * step, (piece + 1) as f64 * step);
            let within = |(begin, end): &(f64, f64)| (end.min(to) - begin.max(from)).max(0.0);
            rounded(self.under_way.iter().map(within).sum::<f64>() / step)
        });
        json!({ "step_s": step, "tok_s": tokens.collect::<Vec<_>>(), "under_way": requests.collect::<Vec<_>>() })
    }

    /// What a reader must know beside the figures.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = self
            .errors()
            .map(|(kind, number, words)| format!("{number} failed ({kind}), the first by: {words}"))
            .collect();
        if self.num_uncounted > 0 {
            notes.push(format!(
                "of {} answers the server did not count the tokens: events with text were taken for tokens",
                self.num_uncounted
            ));
        }
        if (self.tokens as f64) < 0.98 * self.max_tokens as f64 {
            notes.push(format!(
                "answers had {} tokens of the {} that were asked for: the model ended them, unless --ignore-eos keeps it from \
                 that and the server takes it",
                self.tokens, self.max_tokens
            ));
        }
        notes
    }
}

/// To a thousandth.
fn rounded(figure: f64) -> f64 {
    (figure * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    /// An answer with texts at these milliseconds behind the beginning, over 5 ms later, to a request that was due and sent then.
    fn finished(begin: Instant, (due, sent): (u64, u64), texts: &[u64], tokens: Option<u64>) -> Finished {
        let at = |ms| begin + MS(ms);
        let end = at(texts.last().copied().unwrap_or(sent) + 5);
        let texts = texts.iter().copied().map(at).collect();
        let usage = Usage { prompt: Some(10), completion: tokens, cached: None };
        let outcome = Ok(Answer { texts, end, usage });
        Finished { due: at(due), sent: at(sent), end, max_tokens: Some(3), outcome }
    }

    fn near(value: &Value, expected: f64) {
        let value = value.as_f64().unwrap();
        assert!((value - expected).abs() <= 1e-3 * expected, "{value} and not {expected}");
    }

    #[test]
    fn latencies_are_those_of_their_definitions() {
        let mut collected = Collected::new("ttft=100ms".parse().unwrap());
        let begin = collected.begin();
        collected.num_sent = 3;
        collected.add(finished(begin, (0, 10), &[60, 80, 95], Some(3)));
        let figures = collected.figures();
        near(&figures["ttft_ms"]["p50"], 60.0);
        near(&figures["itl_ms"]["mean"], 17.5);
        near(&figures["itl_ms"]["max"], 20.0);
        near(&figures["e2e_ms"]["p50"], 100.0);
        near(&figures["tpot_ms"]["p50"], 20.0);
        near(&figures["lateness_ms"]["p50"], 10.0);
        near(&figures["decode_tok_s_per_request_p50"], 2.0 / 0.035);
        near(&figures["tok_s"], 30.0);
        near(&figures["total_tok_s"], 130.0);
        assert_eq!((&figures["good"], &figures["goodput_req_s"]), (&1.into(), &10.0.into()));
        assert_eq!((&figures["cut_off"], &figures["chunks_per_token"]), (&2.into(), &1.0.into()));

        collected.add(finished(begin, (100, 100), &[300], Some(1)));
        let figures = collected.figures();
        assert_eq!((&figures["good"], &figures["requests"]), (&1.into(), &2.into()), "200 ms are too late");
        near(&figures["tpot_ms"]["max"], 20.0);
        near(&figures["wall_s"], 0.305);
        near(&figures["goodput_req_s"], 1.0 / 0.305);
    }

    #[test]
    fn failures_are_counted_by_kind_and_are_in_no_latency() {
        let mut collected = Collected::default();
        let begin = collected.begin();
        collected.num_sent = 3;
        for failure in [Failure::Timeout, Failure::Broken("it ended early".into()), Failure::Timeout] {
            let (due, end) = (begin, begin + MS(50));
            collected.add(Finished { due, sent: due, end, max_tokens: None, outcome: Err(failure) });
        }
        let figures = collected.figures();
        assert_eq!(figures["errors_by_kind"], json!({ "broken stream": 1, "timeout": 2 }));
        assert_eq!((&figures["requests"], &figures["errors"]), (&0.into(), &3.into()));
        assert!(figures["ttft_ms"]["p50"].is_null() && figures["e2e_ms"]["max"].is_null(), "{figures:?}");
        assert!(collected.notes()[1].contains("2 failed (timeout)"), "{:?}", collected.notes());
    }

    #[test]
    fn where_nobody_counts_tokens_events_are_and_that_is_said() {
        let mut collected = Collected::default();
        let begin = collected.begin();
        collected.num_sent = 1;
        collected.add(finished(begin, (0, 0), &[10, 20], None));
        assert_eq!(collected.figures()["completion_tokens"], 2);
        let notes = collected.notes();
        assert!(notes[0].contains("events with text") && notes[1].contains("2 tokens of the 3"), "{notes:?}");
    }

    #[test]
    fn the_course_of_time_has_all_tokens_and_all_requests() {
        let mut collected = Collected::default();
        let begin = collected.begin();
        collected.num_sent = 2;
        // Two requests over the same two seconds, 30 tokens at their ends and middles.
        for _ in 0..2 {
            collected.add(finished(begin, (0, 0), &[1000, 1995], Some(30)));
        }
        let timeline = &collected.figures()["timeline"];
        let sum = |name: &str| timeline[name].as_array().unwrap().iter().map(|y| y.as_f64().unwrap()).sum::<f64>();
        let step = timeline["step_s"].as_f64().unwrap();
        assert_eq!(step, 0.1);
        assert!((sum("tok_s") * step - 60.0).abs() < 0.1 && (sum("under_way") * step - 4.0).abs() < 0.01, "{timeline}");
    }

    #[test]
    fn a_long_course_is_told_in_few_pieces() {
        let mut collected = Collected::default();
        let begin = collected.begin();
        collected.num_sent = 1;
        collected.add(finished(begin, (0, 0), &[3_000_000], Some(1)));
        let timeline = &collected.figures()["timeline"];
        assert!(timeline["tok_s"].as_array().unwrap().len() <= MOST_PIECES, "{timeline}");
    }
}
