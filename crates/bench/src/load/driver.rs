//! The loops that send requests when it is their time, and collect what becomes of them.

use super::client::{ask, ask_whole};
use super::collected::{Collected, Finished};
use super::connections::Connections;
use super::schedule::{Due, Growth, Ramp};
use super::{Failure, Load};
use rand_xoshiro::Xoshiro256PlusPlus;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// How often progress is told at least.
const TICK: Duration = Duration::from_millis(500);

/// When a level ends: no request is sent any more, and those under way finish.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stop {
    /// After so many requests.
    pub requests: Option<u64>,
    /// After so long.
    pub duration: Option<Duration>,
}

/// One load, as long as it lasts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Level {
    /// The load.
    pub load: Load,
    /// Its end.
    pub stop: Stop,
    /// Requests before it, at the same load, that are not counted.
    pub warmup: u64,
}

/// How far a level is.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// Its load.
    pub load: Load,
    /// Whether these are the requests before it.
    pub is_warmup: bool,
    /// Requests with an answer.
    pub succeeded: u64,
    /// Requests without one.
    pub failed: u64,
    /// Requests that are under way.
    pub under_way: u64,
    /// Requests in all, where their number was given.
    pub of: Option<u64>,
    /// Since the beginning.
    pub elapsed: Duration,
    /// Tokens per second of answers that ended.
    pub rate: f64,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}: {}", self.load, if self.is_warmup { ", warming up" } else { "" }, self.succeeded)?;
        if let Some(of) = self.of {
            write!(f, " of {of}")?;
        }
        write!(f, " done, {} under way", self.under_way)?;
        if self.failed > 0 {
            write!(f, ", {} failed", self.failed)?;
        }
        write!(f, ", {:.0} s, {:.1} tokens/s", self.elapsed.as_secs_f64(), self.rate)
    }
}

/// A request that is ready to be sent.
pub(super) struct Prepared {
    pub(super) body: String,
    pub(super) max_tokens: Option<u64>,
}

/// Who is asked, and for how long.
#[derive(Clone)]
pub(super) struct Asked {
    pub(super) server: Arc<Connections>,
    pub(super) path: Arc<str>,
    /// Whether answers come as they are made.
    pub(super) is_streamed: bool,
    pub(super) timeout: Duration,
}

impl Asked {
    /// An answer, unless it takes too long.
    pub(super) async fn ask(&self, body: String) -> Result<super::client::Answer, Failure> {
        let answer = async {
            if self.is_streamed {
                ask(&self.server, &self.path, body).await
            } else {
                ask_whole(&self.server, &self.path, body).await
            }
        };
        timeout(self.timeout, answer).await.unwrap_or(Err(Failure::Timeout))
    }

    async fn finish(self, request: Prepared, due: Option<Instant>) -> Finished {
        let sent = Instant::now();
        let outcome = self.ask(request.body).await;
        let (due, end) = (due.unwrap_or(sent), Instant::now());
        Finished { due, sent, end, max_tokens: request.max_tokens, outcome }
    }
}

/// Sends requests as the load says, until its end. Dropped before, it breaks off those under way, and what was collected stays.
pub(super) async fn drive(
    asked: &Asked,
    level: &Level,
    rng: Xoshiro256PlusPlus,
    prepare: &dyn Fn(u64) -> Prepared,
    collected: &mut Collected,
    observe: &mut dyn FnMut(&Collected, Duration),
) {
    let mut due = match level.load {
        Load::Open { rate, from, arrivals, .. } => {
            let growth = match (level.stop.requests, level.stop.duration) {
                (None, Some(duration)) => Growth::Seconds(duration.as_secs_f64()),
                (requests, _) => Growth::Requests(requests.unwrap_or(1)),
            };
            Some(Due::new(arrivals, rate, from.map(|from| Ramp { from, growth }), rng))
        }
        Load::Closed { .. } => None,
    };
    let mut next = prepare(0);
    let mut requests = JoinSet::new();
    // Users who wait after a failure: until when.
    let mut waiting: Vec<Duration> = Vec::new();
    let mut ticked = Instant::now();
    let begin = collected.begin();
    let mut next_due = due.as_mut().map(Due::next);
    loop {
        let now = begin.elapsed();
        waiting.retain(|until| *until > now);
        // When the next request may be sent; `None`: not before one has ended.
        let at = match level.load {
            Load::Closed { concurrency } if requests.len() + waiting.len() < concurrency => Some(now),
            Load::Closed { .. } => waiting.iter().min().copied(),
            Load::Open { max_concurrency: Some(most), .. } if requests.len() >= most => None,
            Load::Open { .. } => next_due,
        };
        let is_over = level.stop.requests.is_some_and(|most| collected.num_sent >= most)
            // Those that are due before the end are sent, however late.
            || level.stop.duration.is_some_and(|most| next_due.or(at).unwrap_or(now) >= most);
        let at = at.filter(|_| !is_over);
        if at.is_some_and(|at| at <= now) {
            requests.spawn(asked.clone().finish(next, next_due.map(|due| begin + due)));
            collected.num_sent += 1;
            // Made before it is due, so that making it delays nobody.
            next = prepare(collected.num_sent);
            next_due = due.as_mut().map(Due::next);
            continue;
        }
        if requests.is_empty() && at.is_none() {
            return;
        }
        let wait = at.map_or(TICK, |at| (at - now).min(TICK));
        tokio::select! {
            biased;
            Some(finished) = requests.join_next() => {
                let finished = finished.expect("a request that fails says so");
                if let (Load::Closed { .. }, Err(failure)) = (level.load, &finished.outcome) {
                    waiting.push(begin.elapsed() + failure.pause());
                }
                collected.add(finished);
            }
            () = sleep(wait) => {}
        }
        if ticked.elapsed() >= TICK {
            ticked = Instant::now();
            observe(collected, begin.elapsed());
        }
    }
}
