//! What is counted of requests before any model: how they were answered, why they were refused, how long they took, and how many
//! connections are open. Unlike the engines' numbers these are there from the start, and stay when models go.
//!
//! Labels come from short lists whatever clients send: a route is the pattern of its row, and every path without one is `other`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::{MatchedPath, Request};
use axum::http::Method;

/// Bounds in seconds for a whole request, from its headers to the last byte of its answer.
const BOUNDS_S: [f64; 16] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0];

/// The status of a request whose client left before there was an answer, as nginx has it.
const CLIENT_LEFT: u16 = 499;

/// The route of paths without one, and the method of unusual ones.
const OTHER: &str = "other";

/// Reasons that are there before anybody was refused, so that their rates begin with the first: those that whoever runs a server acts
/// upon.
const REASONS: [&str; 11] = [
    "busy",
    "internal_error",
    "invalid_api_key",
    "model_failed",
    "model_loading",
    "model_not_loaded",
    "queue_full",
    "rate_limit_exceeded",
    "request_timeout",
    "request_too_large",
    "server_draining",
];

/// Which requests are counted together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Endpoint {
    pub(crate) route: Arc<str>,
    pub(crate) method: &'static str,
}

impl Endpoint {
    /// Of a request that the router has seen.
    pub(crate) fn of(request: &Request) -> Self {
        let path = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
        let route = match path {
            None => OTHER.into(),
            // The page's files are many, and of one kind.
            Some(path) if path.starts_with("/web/") => "/web/{file}".into(),
            Some(path) => path.replace("{*", "{").into(),
        };
        Self { route, method: method(request.method()) }
    }
}

/// What a method is counted as.
fn method(method: &Method) -> &'static str {
    let known = ["GET", "POST", "OPTIONS", "HEAD", "PUT", "DELETE", "PATCH"];
    known.into_iter().find(|known| *known == method.as_str()).unwrap_or(OTHER)
}

/// How long requests took.
#[derive(Debug, Clone, Default)]
pub(crate) struct Durations {
    /// One more than bounds: the last counts what is above all of them.
    counts: [u64; BOUNDS_S.len() + 1],
    sum_s: f64,
}

impl Durations {
    fn observe(&mut self, seconds: f64) {
        self.counts[BOUNDS_S.partition_point(|&bound| bound < seconds)] += 1;
        self.sum_s += seconds;
    }

    /// Upper bounds, ending with infinity, each with how many lie between it and the bound before.
    pub(crate) fn buckets(&self) -> Vec<(f64, u64)> {
        BOUNDS_S.into_iter().chain([f64::INFINITY]).zip(self.counts).collect()
    }

    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub(crate) fn sum_s(&self) -> f64 {
        self.sum_s
    }
}

/// Counts by label.
#[derive(Debug)]
pub(crate) struct Counts {
    /// By endpoint and status.
    pub(crate) answered: BTreeMap<(Endpoint, u16), u64>,
    /// By the code of the error.
    pub(crate) refused: BTreeMap<&'static str, u64>,
    /// By route.
    pub(crate) durations: BTreeMap<Arc<str>, Durations>,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct HttpMetrics {
    /// Those within the limit, and the few beyond it.
    connections: [AtomicUsize; 2],
    counts: Mutex<Counts>,
}

/// A connection, while it is open.
#[derive(Debug)]
pub(crate) struct Connection {
    metrics: Arc<HttpMetrics>,
    is_crowded: bool,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.metrics.connections[usize::from(self.is_crowded)].fetch_sub(1, Ordering::Relaxed);
    }
}

impl HttpMetrics {
    pub(crate) fn new() -> Arc<Self> {
        // What is read by scraping is there when it is read for the first time.
        let scrape = Endpoint { route: "/metrics".into(), method: "GET" };
        let durations = BTreeMap::from([(Arc::clone(&scrape.route), Durations::default())]);
        let answered = BTreeMap::from([((scrape, 200), 0)]);
        let refused = REASONS.into_iter().map(|reason| (reason, 0)).collect();
        let counts = Mutex::new(Counts { answered, refused, durations });
        Arc::new(Self { connections: Default::default(), counts })
    }

    /// Counts a connection until the guard is dropped.
    pub(crate) fn connect(self: &Arc<Self>, is_crowded: bool) -> Connection {
        self.connections[usize::from(is_crowded)].fetch_add(1, Ordering::Relaxed);
        Connection { metrics: Arc::clone(self), is_crowded }
    }

    /// Notes that a request is over, after so long; without a status its client has left.
    pub(crate) fn note_over(&self, endpoint: &Endpoint, status: Option<u16>, took: Duration) {
        let mut counts = self.counts();
        *counts.answered.entry((endpoint.clone(), status.unwrap_or(CLIENT_LEFT))).or_default() += 1;
        counts.durations.entry(Arc::clone(&endpoint.route)).or_default().observe(took.as_secs_f64());
    }

    /// Notes that a request was answered by an error of this code.
    pub(crate) fn note_refused(&self, reason: &'static str) {
        *self.counts().refused.entry(reason).or_default() += 1;
    }

    /// Open connections: those within the limit, and those beyond it.
    pub(crate) fn num_connections(&self) -> [usize; 2] {
        [0, 1].map(|kind: usize| self.connections[kind].load(Ordering::Relaxed))
    }

    /// What was counted so far.
    pub(crate) fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_falls_below_the_first_bound_that_it_does_not_exceed() {
        let mut durations = Durations::default();
        for seconds in [0.0, 0.005, 0.0051, 600.0, 601.0] {
            durations.observe(seconds);
        }
        let filled: Vec<(f64, u64)> = durations.buckets().into_iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(filled, [(0.005, 2), (0.01, 1), (600.0, 1), (f64::INFINITY, 1)]);
        assert!(durations.count() == 5 && (durations.sum_s() - 1201.0101).abs() < 1e-9, "{durations:?}");
    }

    #[test]
    fn bounds_rise_and_reasons_are_sorted() {
        assert!(BOUNDS_S.is_sorted_by(|a, b| a < b));
        assert!(REASONS.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn connections_are_counted_while_they_are_open() {
        let metrics = HttpMetrics::new();
        let (one, two, crowded) = (metrics.connect(false), metrics.connect(false), metrics.connect(true));
        assert_eq!(metrics.num_connections(), [2, 1]);
        drop((one, crowded));
        assert_eq!(metrics.num_connections(), [1, 0]);
        drop(two);
        assert_eq!(metrics.num_connections(), [0, 0]);
    }

    #[test]
    fn unusual_methods_are_one() {
        for (text, expected) in [("GET", "GET"), ("DELETE", "DELETE"), ("BREW", OTHER), ("get", OTHER)] {
            assert_eq!(method(&Method::from_bytes(text.as_bytes()).unwrap()), expected);
        }
    }
}
