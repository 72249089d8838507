//! One choice of a request while it is generated: its tokens, and the way from a new token to text.

use crate::grammar::Masked;
use crate::metrics::ChoiceClock;
use crate::speculation::{Acceptance, Guess, Lookup};
use crate::thoughts::Thoughts;
use crate::{Event, FinishReason, RunningChoice, Sampled, Sampler, SamplingParams, TokenLogprobs};
use std::sync::Arc;
use std::time::Instant;
use taper_text::{BitMask, Detokenizer, Grammar, StopMatcher, StopOutput, Tokenizer};

/// A sequence of tokens, known from the left; the scheduler keeps how many of them are computed.
pub(crate) struct Sequence {
    /// Key of the request it belongs to.
    pub(crate) request: u64,
    /// The prompt and what was generated so far.
    pub(crate) tokens: Vec<u32>,
    /// Chooses its tokens.
    pub(crate) sampler: Sampler,
    /// What may follow; the next step may verify it.
    pub(crate) guess: Guess,
    /// Where guesses come from, if they are wanted.
    pub(crate) lookup: Option<Lookup>,
    /// How good they are.
    pub(crate) acceptance: Acceptance,
    /// Tokens since the draft model was asked; very many when it never was.
    pub(crate) undrafted: usize,
    /// When its tokens came.
    pub(crate) clock: ChoiceClock,
    /// How often it lost its blocks to another.
    pub(crate) num_preemptions: usize,
    /// The form that its text must have.
    pub(crate) form: Option<Form>,
    /// Its thoughts, if they have a budget.
    pub(crate) thoughts: Option<Thoughts>,
    choice: usize,
    max_len: usize,
    prompt_len: usize,
    min_tokens: usize,
    ignore_eos: bool,
    stop_token_ids: Vec<u32>,
    stops: Vec<String>,
    shows_stop: bool,
    tokenizer: Arc<Tokenizer>,
    detokenizer: Detokenizer,
    stop: StopMatcher,
    // Tokens that no event has carried yet, and their log-probabilities.
    unsent: Vec<u32>,
    unsent_logprobs: Vec<TokenLogprobs>,
}

/// Where the grammar of a sequence is.
pub(crate) enum Form {
    /// Here; the masks are memory to be used again.
    Idle(Grammar, Vec<BitMask>),
    /// With the thread that computes masks.
    Asked,
    /// Here, with masks of what may come next.
    Ready(Masked),
}

/// What a new token did to its sequence.
pub(crate) struct Accepted {
    /// The token; of a sequence that was cut, its last.
    pub(crate) token: u32,
    /// News for the client, if there is any.
    pub(crate) event: Option<Event>,
    /// Whether the sequence is complete.
    pub(crate) is_finished: bool,
    /// When the token was chosen and noted,
    pub(crate) chosen: Instant,
    /// and when its text was made.
    pub(crate) told: Instant,
}

impl Sequence {
    /// Choice `choice` of request `request`; it ends at the latest when it is `max_len` tokens long, prompt included.
    pub(crate) fn new(
        (request, choice): (u64, usize),
        prompt: Vec<u32>,
        max_len: usize,
        params: &SamplingParams,
        sampler: Sampler,
        tokenizer: &Arc<Tokenizer>,
    ) -> Self {
        Sequence {
            request,
            // Made first: it looks at the end of the prompt that the next line takes.
            detokenizer: Detokenizer::continuing(Arc::clone(tokenizer), &prompt).showing(&params.shown_tokens),
            prompt_len: prompt.len(),
            tokens: prompt,
            sampler,
            guess: Guess::default(),
            lookup: None,
            acceptance: Acceptance::default(),
            undrafted: usize::MAX / 2,
            clock: ChoiceClock::default(),
            num_preemptions: 0,
            form: None,
            thoughts: None,
            choice,
            max_len,
            min_tokens: params.min_tokens,
            ignore_eos: params.ignore_eos,
            stop_token_ids: params.stop_token_ids.clone(),
            stops: params.stop.clone(),
            shows_stop: params.include_stop_str_in_output,
            tokenizer: Arc::clone(tokenizer),
            stop: StopMatcher::new(params.stop.clone()),
            unsent: Vec::new(),
            unsent_logprobs: Vec::new(),
        }
    }

    /// Appends a generated token and says what follows from it; `completes` when nothing may follow. A sequence whose client
    /// asked for log-probabilities takes no token without them.
    pub(crate) fn accept(&mut self, sampled: Sampled, completes: bool) -> Accepted {
        let Sampled { token, logprobs, surprise } = sampled;
        self.sampler.accept(token, surprise);
        self.tokens.push(token);
        self.undrafted += 1;
        if let Some(thoughts) = &mut self.thoughts {
            thoughts.accept(token, &self.tokenizer);
        }
        if let Some(lookup) = &mut self.lookup {
            lookup.note_last(&self.tokens);
        }
        self.unsent.push(token);
        self.unsent_logprobs.extend(logprobs);
        let chosen = Instant::now();
        let (event, is_finished) = self.tell(token, completes);
        Accepted { token, event, is_finished, chosen, told: Instant::now() }
    }

    /// What the client hears of a token, and whether that was the last.
    fn tell(&mut self, token: u32, completes: bool) -> (Option<Event>, bool) {
        let is_end = !self.ignore_eos && self.tokenizer.end_of_generation().contains(&token);
        let is_end = is_end || self.stop_token_ids.contains(&token);
        let piece = if is_end && !self.shows_stop { String::new() } else { self.detokenizer.push(token) };
        let shown = self.show(&piece);
        if shown.matched.is_some() {
            return (Some(self.finished_event(FinishReason::Stop, shown.text)), true);
        }
        if is_end || completes {
            return (Some(self.finish(FinishReason::Stop, shown.text)), true);
        }
        if self.tokens.len() >= self.max_len {
            return (Some(self.finish(FinishReason::Length, shown.text)), true);
        }
        let event = (!shown.text.is_empty()).then(|| Event::Text {
            choice: self.choice,
            text: shown.text,
            tokens: std::mem::take(&mut self.unsent),
            logprobs: std::mem::take(&mut self.unsent_logprobs),
        });
        (event, false)
    }

    /// The token that comes next whatever the model says, because its thoughts have used up their budget.
    pub(crate) fn due(&self) -> Option<u32> {
        self.thoughts.as_ref().and_then(Thoughts::due)
    }

    /// Whether its prompt is computed for it, and not for a choice whose blocks it shares.
    pub(crate) fn is_first(&self) -> bool {
        self.choice == 0
    }

    /// What others are told of it while it runs.
    pub(crate) fn running(&self) -> RunningChoice {
        RunningChoice {
            request: self.request,
            choice: self.choice,
            prompt_tokens: self.prompt_len,
            generated_tokens: self.tokens.len() - self.prompt_len,
            room: self.room(),
        }
    }

    /// How many more tokens it may have.
    pub(crate) fn room(&self) -> usize {
        self.max_len - self.tokens.len()
    }

    /// Ends the sequence where it is, because it can hold no more tokens.
    pub(crate) fn cut(&mut self) -> Accepted {
        let chosen = Instant::now();
        let event = Some(self.finish(FinishReason::Length, String::new()));
        let token = self.tokens.last().copied().unwrap_or_default();
        Accepted { token, event, is_finished: true, chosen, told: Instant::now() }
    }

    /// What of the text may be shown after `piece`.
    fn show(&mut self, piece: &str) -> StopOutput {
        if self.tokens.len() - self.prompt_len < self.min_tokens {
            // No stop string ends a choice this early, so none is looked for.
            return StopOutput { text: piece.to_owned(), matched: None };
        }
        let mut shown = self.stop.push(piece);
        if let Some(stop) = shown.matched
            && self.shows_stop
        {
            shown.text.push_str(&self.stops[stop]);
        }
        shown
    }

    /// Ends with all text that was held back. It may still complete a stop string, and then that is the reason.
    fn finish(&mut self, reason: FinishReason, mut text: String) -> Event {
        let tail = self.detokenizer.finish();
        let shown = self.show(&tail);
        text.push_str(&shown.text);
        if shown.matched.is_some() {
            return self.finished_event(FinishReason::Stop, text);
        }
        text.push_str(&self.stop.finish());
        self.finished_event(reason, text)
    }

    fn finished_event(&mut self, reason: FinishReason, text: String) -> Event {
        let (tokens, logprobs) = (std::mem::take(&mut self.unsent), std::mem::take(&mut self.unsent_logprobs));
        Event::Finished { choice: self.choice, reason, text, tokens, logprobs }
    }
}
