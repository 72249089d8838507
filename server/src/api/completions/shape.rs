//! `text_completion` objects; chunks and whole answers have the same form.

use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use taper_engine::{FinishReason, TokenLogprobs};
use taper_text::{Detokenizer, Tokenizer};

use crate::answer::Shape;
use crate::generation::{Generation, Piece};
use crate::parameters::Parameters;
use crate::token_json::{CompletionLogprobs, TextOffsets, TokenWriter};

/// Writes the choices.
pub(super) struct Completion {
    writer: TokenWriter,
    tokenizer: Arc<Tokenizer>,
    n: usize,
    /// Empty when the answer tells nothing about tokens.
    prompts: Vec<Vec<u32>>,
    /// What to put before the answers, by prompt; empty without `echo`.
    echoes: Vec<String>,
    prompt_logprobs: Vec<Vec<Option<TokenLogprobs>>>,
    /// Where each choice's next token begins.
    offsets: HashMap<usize, TextOffsets>,
}

impl Completion {
    pub(super) fn new(
        tokenizer: &Arc<Tokenizer>,
        parameters: &Parameters,
        prompts: &[Vec<u32>],
        echoes: Vec<String>,
    ) -> Self {
        let details = parameters.details;
        let tells_tokens = details.token_ids || details.logprobs.is_some();
        Completion {
            writer: TokenWriter::new(tokenizer, details),
            tokenizer: Arc::clone(tokenizer),
            n: parameters.num_choices,
            prompts: if tells_tokens { prompts.to_vec() } else { Vec::new() },
            echoes,
            prompt_logprobs: vec![Vec::new(); prompts.len()],
            offsets: HashMap::new(),
        }
    }

    fn echo(&self, choice: usize) -> Option<&str> {
        self.echoes.get(choice / self.n).map(String::as_str)
    }

    /// A choice with `text`; `logprobs` are those of the text's tokens.
    fn choice(
        &self,
        choice: usize,
        text: &str,
        logprobs: Option<CompletionLogprobs>,
        reason: Option<FinishReason>,
    ) -> Value {
        json!({
            "text": text,
            "index": choice,
            "logprobs": logprobs.map(CompletionLogprobs::into_json),
            "finish_reason": reason.map(FinishReason::as_str),
        })
    }

    /// Log-probabilities of the echoed prompt.
    fn echo_logprobs(&self, choice: usize) -> Option<CompletionLogprobs> {
        self.writer.details().logprobs?;
        let text = self.echo(choice)?;
        let prompt = &self.prompts[choice / self.n];
        let found = &self.prompt_logprobs[choice / self.n];
        let mut offsets = TextOffsets::new(Detokenizer::keeping_special(Arc::clone(&self.tokenizer)), 0);
        let mut logprobs = CompletionLogprobs::default();
        for (place, &token) in prompt.iter().enumerate() {
            let found = found.get(place).and_then(Option::as_ref);
            // A token that was put before the client's text is no part of it.
            let is_added =
                place == 0 && Some(token) == self.tokenizer.bos() && !text.starts_with(self.tokenizer.bos_text());
            let offset = if is_added { 0 } else { offsets.next(token) };
            logprobs.push(&self.writer, token, found, offset);
        }
        Some(logprobs)
    }

    /// Log-probabilities of generated tokens.
    fn logprobs(&mut self, choice: usize, piece: &Piece) -> Option<CompletionLogprobs> {
        self.writer.details().logprobs?;
        let num_chars = self.echo(choice).map_or(0, |text| text.chars().count());
        let prompt = &self.prompts[choice / self.n];
        let offsets = self.offsets.entry(choice).or_insert_with(|| {
            TextOffsets::new(Detokenizer::continuing(Arc::clone(&self.tokenizer), prompt), num_chars)
        });
        let mut logprobs = CompletionLogprobs::default();
        for (&token, found) in piece.tokens.iter().zip(&piece.logprobs) {
            logprobs.push(&self.writer, token, Some(found), offsets.next(token));
        }
        Some(logprobs)
    }

    /// A chunk of text.
    fn delta(&mut self, choice: usize, piece: &Piece) -> Value {
        let logprobs = self.logprobs(choice, piece);
        let mut delta = self.choice(choice, &piece.text, logprobs, None);
        self.add_token_ids(&mut delta, &piece.tokens);
        delta
    }

    fn add_token_ids(&self, choice: &mut Value, tokens: &[u32]) {
        if self.writer.details().token_ids {
            choice["token_ids"] = json!(tokens);
        }
    }

    fn add_prompt_token_ids(&self, choice: &mut Value, index: usize) {
        if self.writer.details().token_ids {
            choice["prompt_token_ids"] = json!(self.prompts[index / self.n]);
        }
    }
}

impl Shape for Completion {
    type Source = Generation;

    const OBJECT: &'static str = "text_completion";
    const CHUNK_OBJECT: &'static str = "text_completion";
    const ID_PREFIX: &'static str = "cmpl-";

    fn awaits_prompt(&self) -> bool {
        self.writer.details().logprobs.is_some() && !self.echoes.is_empty()
    }

    fn prompt_logprobs(&mut self, prompt: usize, logprobs: Vec<Option<TokenLogprobs>>) {
        self.prompt_logprobs[prompt] = logprobs;
    }

    fn opening(&mut self, choice: usize) -> Option<Value> {
        if self.echoes.is_empty() && !self.writer.details().token_ids {
            return None;
        }
        let text = self.echo(choice).unwrap_or_default();
        let mut opening = self.choice(choice, text, self.echo_logprobs(choice), None);
        self.add_prompt_token_ids(&mut opening, choice);
        self.add_token_ids(&mut opening, &[]);
        Some(opening)
    }

    fn deltas(&mut self, choice: usize, piece: &Piece) -> Vec<Value> {
        vec![self.delta(choice, piece)]
    }

    fn ending(&mut self, choice: usize, reason: FinishReason, rest: &Piece) -> Value {
        let logprobs = if rest.tokens.is_empty() { None } else { self.logprobs(choice, rest) };
        let mut ending = self.choice(choice, "", logprobs, Some(reason));
        self.add_token_ids(&mut ending, &rest.tokens);
        ending
    }

    fn whole(&mut self, choice: usize, reason: FinishReason, piece: &Piece) -> Value {
        let logprobs = self.logprobs(choice, piece).map(|generated| match self.echo_logprobs(choice) {
            Some(mut all) => {
                all.append(generated);
                all
            }
            None => generated,
        });
        let text = format!("{}{}", self.echo(choice).unwrap_or_default(), piece.text);
        let mut whole = self.choice(choice, &text, logprobs, Some(reason));
        if self.writer.details().prompt_logprobs.is_some() {
            whole["prompt_logprobs"] = self.writer.prompt_logprobs(&self.prompt_logprobs[choice / self.n]);
        }
        self.add_prompt_token_ids(&mut whole, choice);
        self.add_token_ids(&mut whole, &piece.tokens);
        whole
    }
}

#[cfg(test)]
mod tests;
