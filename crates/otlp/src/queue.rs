//! Requests on their way from the server to the thread that sends. Whoever pushes waits for nobody: where there is no room, the
//! request is counted and dropped.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use taper_server::RequestReport;

/// Requests that may wait.
pub(crate) const CAPACITY: usize = 4096;
/// Requests that are sent at once, and how long the first of them waits for others: about what OpenTelemetry's own processors do.
const MAX_BATCH: usize = 256;
const LINGER: Duration = Duration::from_secs(1);

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<RequestReport>,
    num_dropped: usize,
    is_closed: bool,
}

/// What is to be sent.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) reports: Vec<RequestReport>,
    /// Requests that there was no room for since the last batch.
    pub(crate) num_dropped: usize,
}

impl Queue {
    /// Puts a request into the queue, or counts it where that is full.
    pub(crate) fn push(&self, report: RequestReport) {
        let mut state = self.state();
        if state.waiting.len() == CAPACITY {
            state.num_dropped += 1;
            return;
        }
        state.waiting.push_back(report);
        let is_worth_waking = state.waiting.len() == 1 || state.waiting.len() == MAX_BATCH;
        drop(state);
        if is_worth_waking {
            self.changed.notify_one();
        }
    }

    /// Lets [`Queue::next`] return what is left, and then nothing.
    pub(crate) fn close(&self) {
        self.state().is_closed = true;
        self.changed.notify_all();
    }

    /// Waits for the next batch; `None` when the queue is closed and empty.
    pub(crate) fn next(&self) -> Option<Batch> {
        let state = self.state();
        let state = self.changed.wait_while(state, |state| state.waiting.is_empty() && !state.is_closed);
        let state = state.unwrap_or_else(PoisonError::into_inner);
        let is_small = |state: &mut State| state.waiting.len() < MAX_BATCH && !state.is_closed;
        let (mut state, _) =
            self.changed.wait_timeout_while(state, LINGER, is_small).unwrap_or_else(PoisonError::into_inner);
        if state.waiting.is_empty() {
            return None;
        }
        let num = state.waiting.len().min(MAX_BATCH);
        let reports = state.waiting.drain(..num).collect();
        Some(Batch { reports, num_dropped: std::mem::take(&mut state.num_dropped) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spans::tests::report;
    use std::sync::Arc;

    #[test]
    fn what_finds_no_room_is_counted_and_the_rest_comes_in_order() {
        let queue = Queue::default();
        for id in 0..CAPACITY + 3 {
            queue.push(RequestReport { id: id.to_string(), ..report() });
        }
        queue.close();
        let mut ids = Vec::new();
        let mut num_dropped = 0;
        while let Some(batch) = queue.next() {
            assert!(batch.reports.len() <= MAX_BATCH);
            num_dropped += batch.num_dropped;
            ids.extend(batch.reports.into_iter().map(|report| report.id));
        }
        assert_eq!(num_dropped, 3);
        assert_eq!(ids, (0..CAPACITY).map(|id| id.to_string()).collect::<Vec<_>>());
    }

    #[test]
    fn a_request_and_the_end_wake_the_thread_that_waits() {
        let queue = Arc::new(Queue::default());
        let of_thread = Arc::clone(&queue);
        let thread = std::thread::spawn(move || {
            let first = of_thread.next().map(|batch| batch.reports.len());
            (first, of_thread.next().is_none())
        });
        queue.push(report());
        queue.close();
        assert_eq!(thread.join().unwrap(), (Some(1), true));
    }
}
