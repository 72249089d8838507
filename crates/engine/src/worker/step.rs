//! One step: run the model, sample, and contain what goes wrong to the requests it went wrong for.

use super::Worker;
use crate::event::EventSender;
use crate::scheduler::{SequenceId, Step, StepEntry};
use crate::sequence::{Accepted, Form};
use crate::{EngineError, Event, InvalidLogits, RowDraw, RunnerError, Sampled};
use std::any::Any;
use std::collections::BTreeSet;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::Instant;
use taper_models::{LogitRows, SequenceSlice};

/// Failed steps in a row after which the engine calls itself unhealthy.
const MAX_FAILURES_IN_A_ROW: u32 = 3;

impl Worker {
    /// Computes `step`, chooses tokens, and fails the step's requests if that cannot be done.
    pub(super) fn run_step(&mut self, step: &Step) {
        let begin = Instant::now();
        for entry in &step.entries {
            let key = self.sequences[&entry.sequence].request;
            if let Some(request) = self.requests.get_mut(&key) {
                request.note_step(begin);
            }
        }
        let outcome = self.ask_masks(step).and_then(|()| self.compute(step));
        let decoding = step.entries.iter().filter(|entry| entry.tokens.len() == entry.num_guesses + 1);
        let (num_decoding, decode_rows) = decoding.fold((0, 0), |(num, rows), e| (num + 1, rows + e.tokens.len()));
        let recomputed_rows = self.runner.recomputed_rows();
        let mut status = self.shared.status();
        status.steps += 1;
        status.failed_steps += u64::from(outcome.is_err());
        let recomputed_before = std::mem::replace(&mut status.recomputed_rows, recomputed_rows);
        drop(status);
        if recomputed_rows > recomputed_before {
            for key in self.requests_of(step) {
                if let Some(request) = self.requests.get_mut(&key) {
                    request.note_recomputed(recomputed_rows - recomputed_before);
                }
            }
        }
        match outcome {
            Ok(Some(rows)) => {
                let (seconds, prompt_rows) = (begin.elapsed().as_secs_f64(), step.num_rows() - decode_rows);
                if prompt_rows == 0 {
                    self.costs.observe(decode_rows, seconds);
                }
                self.shared.metrics.step_tokens.observe(step.num_rows() as f64);
                self.failures_in_a_row = 0;
                self.shared.is_healthy.store(true, Ordering::Release);
                self.sample(step, &rows, Instant::now() + begin.elapsed().max(self.mask_patience));
                // Who reads an answer waits for what is made of the logits as well: log-probabilities of a prompt take time.
                self.pace.observe(num_decoding, prompt_rows, begin.elapsed().as_secs_f64());
            }
            Ok(None) => {
                tracing::debug!("a step was left: nobody waits for it any more");
                self.cancel_abandoned();
            }
            Err(error) => self.fail_step(step, &error),
        }
    }

    /// Runs the model; the logits end in `self.logits`. Returns how many rows there belong to each entry; nothing if all who wait for
    /// the step left in the midst of it.
    fn compute(&mut self, step: &Step) -> Result<Option<Vec<EntryRows>>, EngineError> {
        let contents: Vec<(Vec<u32>, LogitRows)> =
            step.entries.iter().map(|entry| (self.tokens_of(entry), self.logit_rows(entry))).collect();
        let rows_of = |(tokens, rows): &(Vec<u32>, LogitRows)| EntryRows {
            logits: rows.of(tokens.len()),
            hidden: rows.hidden_of(tokens.len()),
        };
        let rows: Vec<EntryRows> = contents.iter().map(rows_of).collect();
        let draws = self.draws(step, &rows);
        let slices: Vec<SequenceSlice<'_>> = (step.entries.iter().zip(&contents))
            .map(|(entry, (tokens, logits))| SequenceSlice {
                tokens,
                start: entry.tokens.start,
                block_table: self.scheduler.block_table(entry.sequence),
                logits: *logits,
            })
            .collect();
        let streams: Vec<&EventSender> = (self.requests_of(step).iter())
            .filter_map(|key| self.requests.get(key).map(|request| &request.events))
            .collect();
        // Who has left stays away, so all of these are cancelled when the step has been left.
        let is_wanted = || streams.iter().any(|events| !events.is_closed());
        let (runner, logits) = (&mut self.runner, &mut self.logits);
        logits.clear();
        // The sequences of a step that panicked are all thrown away, and with them whatever the runner left half done.
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            step.copies.iter().try_for_each(|copy| runner.copy_block(copy.from, copy.to))?;
            runner.run_while(&slices, &draws, logits, &is_wanted)
        }));
        let due: usize = rows.iter().map(|rows| rows.logits).sum();
        let width = runner.embeddings().map_or(0, |embeddings| embeddings.hidden_size);
        let hidden_due = width * rows.iter().map(|rows| rows.hidden).sum::<usize>();
        match outcome {
            Ok(Ok(false)) => Ok(None),
            Ok(Ok(true)) if logits.num_rows() != due => {
                Err(EngineError::Runner(format!("{} rows of logits where {due} were due", logits.num_rows())))
            }
            Ok(Ok(true)) if logits.hidden().len() != hidden_due => {
                let len = logits.hidden().len();
                Err(EngineError::Runner(format!("{len} elements of hidden states where {hidden_due} were due")))
            }
            Ok(Ok(true)) => Ok(Some(rows)),
            Ok(Err(RunnerError(message))) => Err(EngineError::Runner(message)),
            Err(panic) => Err(EngineError::Panicked(panic_message(panic.as_ref()))),
        }
    }

    /// What is to be drawn from rows of logits; `self.draws` says for whom.
    fn draws(&mut self, step: &Step, rows: &[EntryRows]) -> Vec<RowDraw> {
        self.draws.clear();
        let mut draws = Vec::new();
        let mut next = 0;
        for (entry, rows) in step.entries.iter().zip(rows) {
            next += rows.logits;
            if rows.logits == 0 || !self.scheduler.reaches_end(entry) {
                continue;
            }
            let Some(request) = self.requests.get(&self.sequences[&entry.sequence].request) else { continue };
            // Those of the last known token and of the guesses.
            let first = next - entry.num_guesses - 1;
            for row in first..next {
                // The choices that begin here draw from the first row, too.
                let unborn = request.unborn.iter().filter(|_| row == first);
                let ids: Vec<SequenceId> = unborn.copied().chain([entry.sequence]).collect();
                let drawing = |id: &SequenceId| {
                    let sequence = self.sequences.get(id).filter(|sequence| sequence.form.is_none())?;
                    Some((*id, sequence.sampler.draw(row - first)?))
                };
                let drawn: Vec<_> = ids.iter().filter_map(drawing).collect();
                // Whoever does not draw looks at the row; so do log-probabilities, of the prompt as well.
                let keeps_logits = drawn.len() < ids.len()
                    || request.prompt_logprobs.is_some()
                    || ids.iter().any(|id| self.sequences[id].sampler.wants_logprobs());
                for (id, draw) in drawn {
                    self.draws.push((id, row));
                    draws.push(RowDraw { row, draw, keeps_logits });
                }
            }
        }
        draws
    }

    /// The token that was drawn for a sequence from a row.
    fn drawn(&self, id: SequenceId, row: usize) -> Option<u32> {
        self.draws.iter().position(|&draw| draw == (id, row)).and_then(|index| self.logits.drawn(index))
    }

    /// Which rows of an entry choose a token, or tell the log-probability of one of the prompt, or are part of its vector.
    fn logit_rows(&self, entry: &StepEntry) -> LogitRows {
        let request = &self.requests[&self.sequences[&entry.sequence].request];
        let reaches_end = self.scheduler.reaches_end(entry);
        if let Some(pooler) = &request.pooler {
            return pooler.pooling().rows(reaches_end);
        }
        match reaches_end {
            _ if request.prompt_logprobs.is_some() => LogitRows::All,
            true if entry.num_guesses > 0 => LogitRows::All,
            true => LogitRows::Last,
            false => LogitRows::None,
        }
    }

    /// The tokens of an entry, guesses at the end.
    fn tokens_of(&self, entry: &StepEntry) -> Vec<u32> {
        let sequence = &self.sequences[&entry.sequence];
        let known = entry.tokens.start..entry.tokens.end - entry.num_guesses;
        [&sequence.tokens[known], &sequence.guess.tokens[..entry.num_guesses]].concat()
    }

    fn fail_step(&mut self, step: &Step, error: &EngineError) {
        self.failures_in_a_row = self.failures_in_a_row.saturating_add(1);
        tracing::error!(%error, in_a_row = self.failures_in_a_row, "step failed");
        if self.failures_in_a_row >= MAX_FAILURES_IN_A_ROW {
            self.shared.is_healthy.store(false, Ordering::Release);
        }
        for key in self.requests_of(step) {
            self.fail(key, error);
        }
    }

    /// The keys of the requests that a step computes some of.
    fn requests_of(&self, step: &Step) -> BTreeSet<u64> {
        step.entries.iter().map(|entry| self.sequences[&entry.sequence].request).collect()
    }

    /// Chooses tokens for every sequence that was computed to its end; `rows` are the rows of each entry. Masks are waited for until
    /// `deadline`.
    fn sample(&mut self, step: &Step, rows: &[EntryRows], deadline: Instant) {
        let (mut next, mut next_hidden) = (0, 0);
        for (entry, num_rows) in step.entries.iter().zip(rows) {
            let rows = next..next + num_rows.logits;
            let hidden = next_hidden..next_hidden + num_rows.hidden;
            (next, next_hidden) = (rows.end, hidden.end);
            // An earlier entry of this step may have failed the request, and this sequence with it.
            if !self.sequences.contains_key(&entry.sequence) {
                continue;
            }
            self.tell_progress(entry);
            let outcome = self.read_prompt(entry, rows.clone()).and_then(|()| {
                if self.is_embedded(entry) {
                    return self.pool(entry, hidden);
                }
                if !self.scheduler.reaches_end(entry) {
                    let full = self.scheduler.advance(entry, &[], 0);
                    self.save(entry.sequence, full);
                    return Ok(());
                }
                if !self.has_masks(entry, deadline) {
                    self.put_off(entry);
                    return Ok(());
                }
                let now = Instant::now();
                self.token_begun = now;
                // Those of the last known token and of the guesses.
                let rows = rows.end - entry.num_guesses - 1..rows.end;
                self.give_birth(entry, rows.start, now)?;
                self.go_on(entry, rows, now)
            });
            if let Err(error) = outcome {
                let key = self.sequences[&entry.sequence].request;
                self.fail(key, &error);
            }
        }
    }

    /// Tells how much of a prompt is computed, if that is asked for.
    fn tell_progress(&mut self, entry: &StepEntry) {
        let key = self.sequences[&entry.sequence].request;
        let Some(request) = self.requests.get_mut(&key) else { return };
        if let Some(event) = request.progress(entry.tokens.end, Instant::now()) {
            self.outbox.push(&request.events, event);
        }
    }

    /// Gathers the log-probabilities of a prompt, if they are asked for.
    fn read_prompt(&mut self, entry: &StepEntry, rows: Range<usize>) -> Result<(), EngineError> {
        let sequence = &self.sequences[&entry.sequence];
        let Some(request) = self.requests.get_mut(&sequence.request) else { return Ok(()) };
        let Some(gathered) = &mut request.prompt_logprobs else { return Ok(()) };
        let begun = Instant::now();
        let prompt = &sequence.tokens[..request.prompt_tokens];
        for (position, row) in entry.tokens.clone().zip(rows) {
            gathered
                .push(position, self.logits.row(row), prompt)
                .map_err(|error| EngineError::InvalidLogits { position: position + 1, reason: error.to_string() })?;
        }
        if let Some(logprobs) = gathered.finished(prompt.len()) {
            request.prompt_logprobs = None;
            self.outbox.push(&request.events, Event::PromptLogprobs(logprobs));
        }
        request.note_prompt_logprobs(begun);
        Ok(())
    }

    /// Begins the choices of a request that share its prompt, which was just computed.
    fn give_birth(&mut self, entry: &StepEntry, row: usize, now: Instant) -> Result<(), EngineError> {
        let key = self.sequences[&entry.sequence].request;
        let unborn = self.requests.get_mut(&key).map(|request| std::mem::take(&mut request.unborn)).unwrap_or_default();
        for id in unborn {
            let news = self.next_tokens(id, row..row + 1, &[], now)?;
            if news.iter().all(|accepted| !accepted.is_finished) {
                let chosen: Vec<u32> = news.iter().map(|accepted| accepted.token).collect();
                self.scheduler.fork(entry, id, &chosen);
            }
            for accepted in news {
                self.deliver(id, accepted, now);
            }
        }
        Ok(())
    }

    /// Chooses the tokens that follow an entry: as many as were guessed right, and one more.
    fn go_on(&mut self, entry: &StepEntry, rows: Range<usize>, now: Instant) -> Result<(), EngineError> {
        let id = entry.sequence;
        let guess = std::mem::take(&mut self.sequences.get_mut(&id).expect("looked up by the caller").guess);
        let news = self.next_tokens(id, rows, &guess.tokens, now)?;
        let chosen: Vec<u32> = news.iter().map(|accepted| accepted.token).collect();
        let pairs = chosen.iter().zip(&guess.tokens[..entry.num_guesses]);
        let num_right = pairs.take_while(|(token, guess)| token == guess).count();
        // A choice that goes on has a last token that is not computed, also where a guess was right and the next row has no mask.
        let goes_on = news.last().is_some_and(|accepted| !accepted.is_finished);
        let num_right = if goes_on { num_right.min(chosen.len() - 1) } else { num_right };
        let full = self.scheduler.advance(entry, &chosen, num_right);
        self.save(id, full);
        self.learn(id, &guess, entry.num_guesses, &chosen, num_right);
        for accepted in news {
            self.deliver(id, accepted, now);
        }
        Ok(())
    }

    /// The tokens that follow those that a sequence knows: what its form leaves no choice about, or what is chosen from the
    /// logits in `rows`, the first of them for certain and each later one if the guess before it was right.
    fn next_tokens(
        &mut self,
        id: SequenceId,
        rows: Range<usize>,
        guesses: &[u32],
        now: Instant,
    ) -> Result<Vec<Accepted>, EngineError> {
        self.take_masks(id)?;
        let mut news = self.forced(id, rows.start, now)?;
        if !news.is_empty() {
            return Ok(news);
        }
        for (place, row) in rows.enumerate() {
            let accepted = self.choose(id, row, place, now)?;
            // A guess that a grammar's mask leaves out may be the end mark of thoughts all the same; behind it there is no mask.
            let is_masked = match &self.sequences[&id].form {
                Some(Form::Ready(masked)) => place + 1 < masked.masks.len(),
                _ => true,
            };
            let is_last = accepted.is_finished || !is_masked || guesses.get(place) != Some(&accepted.token);
            news.push(accepted);
            if is_last {
                break;
            }
        }
        self.put_masks_back(id);
        Ok(news)
    }

    /// Chooses the next token of a sequence from a row of logits, with the mask of this place if it has a form.
    fn choose(&mut self, id: SequenceId, row: usize, place: usize, now: Instant) -> Result<Accepted, EngineError> {
        let drawn = self.drawn(id, row);
        let sequence = self.sequences.get_mut(&id).expect("only living sequences choose");
        let due = sequence.due();
        let position = sequence.tokens.len();
        let (logits, scratch) = (&self.logits, &mut self.scratch);
        // A panic in here, say of the tokenizer on a strange vocabulary, costs one request and not the engine.
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let Some(Form::Ready(masked)) = &mut sequence.form else {
                let sampled = match due.or(drawn) {
                    Some(token) if sequence.sampler.wants_logprobs() => {
                        sequence.sampler.forced(token, logits.row(row))?
                    }
                    Some(token) => Sampled { token, logprobs: None, surprise: None },
                    None => sequence.sampler.sample(logits.row(row), None, scratch)?,
                };
                return Ok(sequence.accept(sampled, false));
            };
            // Inside a character a grammar takes no mark; then that character is completed first.
            let sampled = match due.filter(|&token| masked.grammar.accept(token).is_ok()) {
                Some(token) => sequence.sampler.forced(token, logits.row(row))?,
                None => {
                    let mask = masked.masks[place].words();
                    let sampled = sequence.sampler.sample(logits.row(row), Some(mask), scratch)?;
                    masked.grammar.accept(sampled.token).map_err(|error| Unchosen::Form(error.to_string()))?;
                    sampled
                }
            };
            let is_complete = masked.grammar.is_finished();
            Ok(sequence.accept(sampled, is_complete))
        }));
        let key = sequence.request;
        match outcome {
            Ok(Ok(accepted)) => {
                if let Some(request) = self.requests.get_mut(&key) {
                    request.note_token(&mut sequence.clock, &self.shared.metrics, now);
                    request.note_work(&mut self.token_begun, &accepted);
                }
                Ok(accepted)
            }
            Ok(Err(Unchosen::Form(reason))) => Err(EngineError::Grammar(reason)),
            Ok(Err(Unchosen::Logits(InvalidLogits::NoneAllowed))) => {
                Err(EngineError::Grammar(InvalidLogits::NoneAllowed.to_string()))
            }
            Ok(Err(Unchosen::Logits(error))) => Err(EngineError::InvalidLogits { position, reason: error.to_string() }),
            Err(panic) => Err(EngineError::Panicked(panic_message(panic.as_ref()))),
        }
    }
}

/// How many rows of a step's outcome belong to one entry.
#[derive(Debug, Clone, Copy)]
struct EntryRows {
    logits: usize,
    hidden: usize,
}

/// Why no token could be chosen.
enum Unchosen {
    Logits(InvalidLogits),
    Form(String),
}

impl From<InvalidLogits> for Unchosen {
    fn from(error: InvalidLogits) -> Self {
        Unchosen::Logits(error)
    }
}

/// What a panic said.
pub(super) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a message").to_owned()
}
