#![forbid(unsafe_code)]
//! Traces of the server's requests, sent to an OpenTelemetry collector: OTLP over HTTP, as protobuf.
//!
//! [`Exporter::start`] begins a thread, [`Exporter::listener`] is what the server tells of its requests, and dropping the exporter
//! sends what is left. A request costs the server a place in a queue and no more: spans are made and sent on the thread
//! (`spans` says which), and when the queue is full, because the collector is slow or gone, requests are counted and
//! dropped. The log says so once a minute at most, and at the end.
//!
//! What OpenTelemetry's variables say of endpoint, headers, timeout, service and resource is heeded.

mod client;
mod losses;
mod queue;
mod settings;
mod spans;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::trace::SpanExporter as _;
use taper_server::RequestListener;

use client::LastError;
use losses::Losses;
use queue::{Batch, Queue};
pub use settings::{InvalidSetting, names_collector};
use spans::Spans;

/// How long the end of the program waits for the collector to take what is left.
pub const MAX_FLUSH: Duration = Duration::from_secs(2);

/// The thread that sends.
#[derive(Debug)]
pub struct Exporter {
    queue: Arc<Queue>,
    endpoint: String,
    /// Ends when the thread does.
    alive: Receiver<()>,
}

impl Exporter {
    /// Begins to send to the collector at `endpoint`, a URL to which `/v1/traces` is added where it does not end so; without one,
    /// where OpenTelemetry's variables say.
    ///
    /// # Errors
    /// When the endpoint is no URL of HTTP, a variable says what cannot be done, or there is no thread to be had.
    pub fn start(endpoint: Option<&str>) -> Result<Self, InvalidSetting> {
        let endpoint = settings::endpoint(endpoint)?;
        let (exporter, last_error) = settings::exporter(&endpoint)?;
        let queue = Arc::new(Queue::default());
        let (living, alive) = channel();
        let of_thread = Arc::clone(&queue);
        let work = move || {
            let _living = living;
            send(&of_thread, &exporter, &last_error);
        };
        let thread = std::thread::Builder::new().name("taper-otlp".to_owned()).spawn(work);
        thread.map_err(|error| InvalidSetting(format!("there is no thread to send traces: {error}")))?;
        Ok(Self { queue, endpoint, alive })
    }

    /// Where traces are sent.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// What the server tells of its requests.
    pub fn listener(&self) -> RequestListener {
        let queue = Arc::clone(&self.queue);
        RequestListener::new(move |report| queue.push(report))
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.queue.close();
        if self.alive.recv_timeout(MAX_FLUSH) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!(
                endpoint = self.endpoint,
                "the collector did not take the last traces in time; they are lost"
            );
        }
    }
}

/// Sends what comes into the queue until that is closed and empty.
fn send(queue: &Queue, exporter: &SpanExporter, last_error: &LastError) {
    let spans = Spans::default();
    let mut losses = Losses::default();
    while let Some(Batch { reports, num_dropped }) = queue.next() {
        let batch: Vec<_> = reports.iter().flat_map(|report| spans.of(report)).collect();
        let outcome = if batch.is_empty() { Ok(()) } else { futures_executor::block_on(exporter.export(batch)) };
        losses.add(num_dropped);
        if outcome.is_err() {
            losses.add(reports.len());
        }
        if let Some(requests) = losses.take_due(Instant::now()) {
            let error = outcome.err().map(|error| last_error.take().unwrap_or_else(|| error.to_string()));
            let error = error.unwrap_or_else(|| "it takes them more slowly than they come".to_owned());
            tracing::warn!(requests, error, "traces of requests are lost: the collector does not take them");
        }
    }
    if let Some(requests) = losses.rest() {
        tracing::warn!(requests, "traces of requests are lost: the collector did not take them");
    }
}
