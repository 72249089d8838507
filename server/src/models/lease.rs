//! Requests that use a model, wait for it, or have it unloaded.

use std::sync::Arc;
use std::time::{Duration, Instant};

use taper_engine::{QueueLimit, SubmitError};
use tokio::sync::oneshot;

use super::{Inner, Models};
use crate::errors::ApiError;
use crate::state::Served;

/// How often those who wait look whether their patience has ended.
const LOOK: Duration = Duration::from_secs(1);
/// Seconds after which to ask again where too many wait.
const CROWD_RETRY_S: u64 = 5;

/// A model that may be used, or why not.
pub(crate) type Admission = Result<(Arc<Served>, Lease), ApiError>;

/// The right to use a model: it is not unloaded before this is dropped.
pub(crate) struct Lease {
    models: Models,
    index: usize,
}

impl Lease {
    /// The place of the model.
    pub(crate) fn index(&self) -> usize {
        self.index
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.models.lock().book.release(self.index);
        self.models.advance();
    }
}

/// A request that waits for a load.
pub(super) struct Waiter {
    number: u64,
    answer: oneshot::Sender<Admission>,
}

/// A request that waits until a model is unloaded.
pub(super) type Leaver = oneshot::Sender<Result<(), ApiError>>;

/// A request's wait; dropping it gives it up.
struct Waiting {
    models: Models,
    index: usize,
    number: u64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut inner = self.models.lock();
        let waiters = &mut inner.slots[self.index].waiters;
        let len = waiters.len();
        // Who was answered does not wait any more.
        waiters.retain(|waiter| waiter.number != self.number);
        if waiters.len() < len {
            inner.book.give_up(self.index);
        }
    }
}

enum Entered {
    Uses(Admission),
    Waits(oneshot::Receiver<Admission>, Waiting),
}

/// Answers to those who waited. They are sent where nobody holds the lock: the lease of one who is gone ends there.
#[must_use]
#[derive(Default)]
pub(super) struct Answers(Vec<(oneshot::Sender<Admission>, Admission)>);

impl Answers {
    pub(super) fn extend(&mut self, others: Answers) {
        self.0.extend(others.0);
    }

    pub(super) fn send(self) {
        for (sender, admission) in self.0 {
            // Who is gone need not hear it.
            let _ = sender.send(admission);
        }
    }
}

impl Models {
    /// The model in this place and the right to use it. Waits until it is loaded; dropping the future gives up the wait.
    pub(crate) async fn lease(&self, index: usize) -> Admission {
        let (mut answer, _waiting) = match self.enter(index)? {
            Entered::Uses(admission) => return admission,
            Entered::Waits(answer, waiting) => (answer, waiting),
        };
        self.advance();
        loop {
            match tokio::time::timeout(LOOK, &mut answer).await {
                Ok(Ok(admission)) => return admission,
                Ok(Err(_)) => return Err(ApiError::internal("nobody answered a request that waited for its model")),
                Err(_) => self.advance(),
            }
        }
    }

    /// Unloads the model in this place once the requests that use it have ended, and waits for that. New ones wait, and have it
    /// loaded again. What was asked for happens though nobody waits for it any more. False where it stays, because nobody could load
    /// it again.
    pub(crate) async fn unload(&self, index: usize) -> Result<bool, ApiError> {
        let gone = {
            let mut guard = self.lock();
            let inner = &mut *guard;
            if inner.is_closed {
                return Err(ApiError::draining());
            }
            if inner.loader.is_none() {
                return Ok(false);
            }
            inner.forget_crashed(index);
            if !inner.book.dismiss(index) {
                return Ok(true);
            }
            let (sender, gone) = oneshot::channel();
            inner.slots[index].leavers.push(sender);
            gone
        };
        self.advance();
        match gone.await {
            Ok(outcome) => outcome.map(|()| true),
            Err(_) => Err(ApiError::internal("nobody answered a request that waited for a model to be unloaded")),
        }
    }

    /// Unloads the model in this place if nobody uses it or waits for it, and it can be loaded again.
    pub(crate) fn unload_idle(&self, index: usize) {
        {
            let mut inner = self.lock();
            if inner.loader.is_some() {
                inner.book.dismiss_idle(index);
            }
        }
        self.advance();
    }

    /// Those who wait are refused, and nothing is loaded or unloaded any more.
    pub(crate) fn close(&self) {
        let mut inner = self.lock();
        inner.is_closed = true;
        let mut answers = Vec::new();
        for slot in &mut inner.slots {
            answers.push(Answers::refusing(&mut slot.waiters, &ApiError::draining()));
            slot.tell_leavers(&Err(ApiError::draining()));
        }
        drop(inner);
        answers.into_iter().for_each(Answers::send);
    }

    /// Begins to use a model, or to wait for it.
    fn enter(&self, index: usize) -> Result<Entered, ApiError> {
        let mut guard = self.lock();
        let inner = &mut *guard;
        if inner.is_closed {
            return Err(ApiError::draining());
        }
        inner.forget_crashed(index);
        inner.slots[index].check_failed()?;
        if inner.slots[index].waiters.len() >= inner.limits.max_waiting {
            let full = SubmitError::QueueFull { limit: QueueLimit::Requests, retry_after_s: CROWD_RETRY_S };
            return Err(ApiError::from_submit(full, "model"));
        }
        if inner.book.arrive(index, Instant::now()) {
            return Ok(Entered::Uses(self.admission(inner, index)));
        }
        let (answer, answered) = oneshot::channel();
        inner.num_waiters += 1;
        let number = inner.num_waiters;
        inner.slots[index].waiters.push(Waiter { number, answer });
        Ok(Entered::Waits(answered, Waiting { models: self.clone(), index, number }))
    }

    /// A model for a user whom the book has counted.
    fn admission(&self, inner: &mut Inner, index: usize) -> Admission {
        match inner.slots[index].served() {
            Some(served) => Ok((Arc::clone(served), Lease { models: self.clone(), index })),
            None => {
                // Not by a lease, which would take the lock.
                inner.book.release(index);
                Err(ApiError::not_loaded(inner.slots[index].id()))
            }
        }
    }

    /// The same for all who wait.
    pub(super) fn admit_waiters(&self, inner: &mut Inner, index: usize) -> Answers {
        let waiters = std::mem::take(&mut inner.slots[index].waiters);
        Answers(waiters.into_iter().map(|waiter| (waiter.answer, self.admission(inner, index))).collect())
    }
}

impl Answers {
    /// No for all who wait.
    pub(super) fn refusing(waiters: &mut Vec<Waiter>, error: &ApiError) -> Self {
        Self(waiters.drain(..).map(|waiter| (waiter.answer, Err(error.clone()))).collect())
    }
}
