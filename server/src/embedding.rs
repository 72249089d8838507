//! The inputs of one embeddings request at the engine: a window of them at a time, each with its event stream. Whoever drops
//! the future of [`embed`] drops these, which cancels the inputs.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use taper_engine::{EmbeddingRequest, EngineHandle, Event, EventStream, Pooling, SubmitError, Usage};

use crate::access_log::Cost;
use crate::errors::ApiError;
use crate::generation::{MAX_IN_FLIGHT, QUEUE_PAUSE, Totals, refusal};
use crate::peer::Computing;
use crate::state::Served;
use crate::time_limit::TimeLimit;

/// What is asked of the engine for every input alike.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) pooling: Pooling,
    pub(crate) priority: i32,
    pub(crate) cache_salt: Option<String>,
}

/// The vectors of `inputs`, in their order, as the model gives them. The first that fails fails all.
pub(crate) async fn embed(
    served: &Arc<Served>,
    inputs: Vec<Vec<u32>>,
    asked: Asked,
    time_limit: TimeLimit,
) -> Result<Vec<Vec<f32>>, ApiError> {
    let mut vectors = vec![Vec::new(); inputs.len()];
    let engine = served.model.engine.clone();
    let prompt_tokens = inputs.iter().map(Vec::len).sum();
    let cost = Cost::current();
    let _computing = Computing::begin().await;
    cost.submit(&served.model.id);
    let waiting = inputs.into_iter().enumerate().collect();
    let mut window = Window { engine, asked, time_limit, waiting, running: Vec::new(), is_over: false };
    let outcome = window.work(&mut vectors).await;
    window.is_over = true;
    match outcome {
        Ok(cached_tokens) => {
            cost.set(Totals { prompt_tokens, cached_tokens, ..Totals::default() }, Vec::new());
            tracing::info!(num_inputs = vectors.len(), cached_tokens, "embedded");
            Ok(vectors)
        }
        Err(error) => {
            tracing::info!(error = %error, "an embeddings request could not be finished");
            Err(error)
        }
    }
}

/// An input at the engine.
struct Running {
    input: usize,
    events: EventStream,
    vector: Option<Vec<f32>>,
}

/// Inputs that are at the engine, and those that wait for their turn.
struct Window {
    engine: EngineHandle,
    asked: Asked,
    time_limit: TimeLimit,
    waiting: VecDeque<(usize, Vec<u32>)>,
    running: Vec<Running>,
    is_over: bool,
}

impl Window {
    /// Works off all inputs; returns how many of their tokens were cached.
    async fn work(&mut self, vectors: &mut [Vec<f32>]) -> Result<usize, ApiError> {
        let mut cached_tokens = 0;
        loop {
            self.submit_waiting()?;
            if self.running.is_empty() && self.waiting.is_empty() {
                return Ok(cached_tokens);
            }
            if self.running.is_empty() {
                // The queue is full of others.
                tokio::time::sleep(QUEUE_PAUSE).await;
                continue;
            }
            let (Running { input, vector, .. }, usage) = poll_fn(|context| self.poll_running(context)).await?;
            cached_tokens += usage.cached_tokens;
            vectors[input] =
                vector.ok_or_else(|| ApiError::internal("the engine ended an input without its vector"))?;
        }
    }

    /// Submits inputs until the window is full. A full queue refuses a request that has not begun, and makes one that has begun
    /// wait.
    fn submit_waiting(&mut self) -> Result<(), ApiError> {
        while self.running.len() < MAX_IN_FLIGHT
            && let Some((input, tokens)) = self.waiting.pop_front()
        {
            let timeout = self.time_limit.left();
            if timeout.is_some_and(|left| left.is_zero()) {
                return Err(self.time_limit.error());
            }
            let Asked { pooling, priority, cache_salt } = self.asked.clone();
            let request = EmbeddingRequest { prompt_tokens: tokens.clone(), pooling, priority, cache_salt, timeout };
            match self.engine.embed(request) {
                Ok(events) => self.running.push(Running { input, events, vector: None }),
                Err(SubmitError::QueueFull { .. }) if input > 0 => {
                    self.waiting.push_front((input, tokens));
                    break;
                }
                Err(error) => return Err(ApiError::of_engine(&self.engine, error, "input")),
            }
        }
        Ok(())
    }

    /// The next input that is done.
    fn poll_running(&mut self, context: &mut Context<'_>) -> Poll<Result<(Running, Usage), ApiError>> {
        for place in 0..self.running.len() {
            let running = &mut self.running[place];
            while let Poll::Ready(event) = running.events.poll_recv(context) {
                match event {
                    Some(Event::Embedding(vector)) => running.vector = Some(vector),
                    Some(Event::Done(usage)) => return Poll::Ready(Ok((self.running.swap_remove(place), usage))),
                    Some(Event::Failed(error)) => {
                        return Poll::Ready(Err(refusal(&self.engine, self.time_limit, &error)));
                    }
                    Some(
                        Event::PromptLogprobs(_)
                        | Event::PromptProgress { .. }
                        | Event::Text { .. }
                        | Event::Finished { .. },
                    ) => {}
                    None => {
                        let message = "the engine ended a request without a last word";
                        return Poll::Ready(Err(ApiError::internal(message)));
                    }
                }
            }
        }
        Poll::Pending
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if !self.is_over {
            tracing::info!(unfinished = self.running.len() + self.waiting.len(), "the client left; cancelled");
        }
    }
}
