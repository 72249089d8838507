//! llama-server's answer: a part of a stream, and the last or only word about a choice.

use std::sync::Arc;

use serde_json::{Value, json};
use taper_engine::{FinishReason, Mirostat, MirostatVersion, SamplingParams, TokenLogprobs};
use taper_text::{Detokenizer, Tokenizer};

use super::indent::Indent;
use super::request::{ANY_SEED, Prepared};
use crate::answer::{self, AnswerPiece};
use crate::generation::{Piece, Progress, Totals};
use crate::state::Served;
use crate::token_json::{Details, TokenWriter};

/// `generation_settings`: what a request asks for, or is assumed to.
///
/// Of biases at most `most_biases` are told.
pub(super) fn settings(sampling: &SamplingParams, samplers: &[&str], stream: bool, most_biases: usize) -> Value {
    let last_n = |num: Option<usize>| num.map_or(-1, |num| i64::try_from(num).unwrap_or(i64::MAX));
    let version = match sampling.mirostat.map(|mirostat| mirostat.version) {
        None => 0,
        Some(MirostatVersion::One) => 1,
        Some(MirostatVersion::Two) => 2,
    };
    let mirostat = sampling.mirostat.unwrap_or(Mirostat::new(MirostatVersion::Two));
    let bias = |&(token, bias): &(u32, f32)| json!({ "token": token, "bias": bias });
    let never = |word: &Vec<u32>| word.first().map(|token| json!({ "token": token, "bias": false }));
    let banned = sampling.bad_words.iter().filter(|word| word.len() == 1).filter_map(never);
    let num_tokens = sampling.max_tokens.map_or(-1, |num| i64::try_from(num).unwrap_or(i64::MAX));
    json!({
        "seed": sampling.seed.unwrap_or(ANY_SEED),
        "temperature": sampling.temperature,
        "dynatemp_range": sampling.dynamic_temperature.range,
        "dynatemp_exponent": sampling.dynamic_temperature.exponent,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "top_n_sigma": if sampling.top_n_sigma > 0.0 { sampling.top_n_sigma } else { -1.0 },
        "xtc_probability": sampling.xtc.probability,
        "xtc_threshold": sampling.xtc.threshold,
        "typical_p": sampling.typical_p,
        "repeat_last_n": last_n(sampling.penalty_last_n),
        "repeat_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "dry_multiplier": sampling.dry.multiplier,
        "dry_base": sampling.dry.base,
        "dry_allowed_length": sampling.dry.allowed_length,
        "dry_penalty_last_n": last_n(sampling.dry.last_n),
        "mirostat": version,
        "mirostat_tau": mirostat.tau,
        "mirostat_eta": mirostat.eta,
        "stop": sampling.stop,
        "max_tokens": num_tokens,
        "n_predict": num_tokens,
        "n_keep": 0,
        "ignore_eos": sampling.ignore_eos,
        "stream": stream,
        "logit_bias": sampling.logit_bias.iter().map(bias).chain(banned).take(most_biases).collect::<Value>(),
        "n_probs": sampling.logprobs.unwrap_or(0),
        "min_keep": sampling.min_keep,
        "samplers": samplers,
        "post_sampling_probs": sampling.logprobs_of_draw,
        "lora": [],
    })
}

/// One choice so far.
#[derive(Debug, Default)]
struct Choice {
    piece: Piece,
    reason: Option<FinishReason>,
    indent: Option<Indent>,
}

struct Prompt {
    text: String,
    num_tokens: usize,
    last: Option<u32>,
    totals: Totals,
}

/// All that the answer to a request is made of.
pub(super) struct Native {
    writer: TokenWriter,
    tokenizer: Arc<Tokenizer>,
    model: String,
    context_len: usize,
    settings: Value,
    response_fields: Vec<String>,
    sampling: SamplingParams,
    returns_tokens: bool,
    prompt_only: bool,
    prompts: Vec<Prompt>,
    choices: Vec<Choice>,
}

impl Native {
    pub(super) fn new(served: &Served, request: &Prepared) -> Self {
        let Prepared { parameters, prompts, texts, settings, response_fields, .. } = request;
        let prompt = |(text, tokens): (&String, &Vec<u32>)| Prompt {
            text: text.clone(),
            num_tokens: tokens.len(),
            last: tokens.last().copied(),
            totals: Totals::default(),
        };
        let prompts: Vec<Prompt> = texts.iter().zip(prompts).map(prompt).collect();
        let num_choices = prompts.len() * parameters.sampling.n;
        Self {
            writer: TokenWriter::new(&served.model.tokenizer, Details::default()),
            tokenizer: Arc::clone(&served.model.tokenizer),
            model: served.model.id.clone(),
            context_len: served.model.context_len.min(served.model.engine.limits().context_len),
            settings: settings.clone(),
            response_fields: response_fields.clone(),
            sampling: parameters.sampling.clone(),
            returns_tokens: parameters.details.token_ids,
            prompt_only: parameters.prompt_only,
            prompts,
            choices: std::iter::repeat_with(|| Choice {
                indent: Indent::new(request.least_indent),
                ..Choice::default()
            })
            .take(num_choices)
            .collect(),
        }
    }

    pub(super) fn append(&mut self, choice: usize, piece: Piece) {
        self.choices[choice].piece.append(piece);
    }

    pub(super) fn finish(&mut self, choice: usize, reason: FinishReason) {
        self.choices[choice].reason = Some(reason);
    }

    pub(super) fn is_finished(&self, choice: usize) -> bool {
        self.choices[choice].reason.is_some()
    }

    pub(super) fn are_finished(&self) -> bool {
        self.choices.iter().all(|choice| choice.reason.is_some())
    }

    /// Where more of a choice's text ends because of its indentation.
    pub(super) fn end_of(&mut self, choice: usize, text: &str) -> Option<usize> {
        self.choices[choice].indent.as_mut().and_then(|indent| indent.end_of(text))
    }

    pub(super) fn note_totals(&mut self, prompt: usize, totals: Option<Totals>) {
        self.prompts[prompt].totals = totals.unwrap_or_default();
    }

    fn prompt_of(&self, choice: usize) -> &Prompt {
        &self.prompts[choice / self.sampling.n]
    }

    /// A part of a stream.
    pub(super) fn part(&self, choice: usize, piece: &Piece) -> Value {
        let mut part = json!({
            "index": choice,
            "content": piece.text,
            "tokens": piece.tokens,
            "stop": false,
            "id_slot": -1,
            "tokens_predicted": self.choices[choice].piece.tokens.len(),
            "tokens_evaluated": self.prompt_of(choice).num_tokens,
        });
        self.add_probabilities(&mut part, &piece.logprobs);
        part
    }

    /// A part that tells how much of the prompt of a choice is computed.
    pub(super) fn progress(&self, choice: usize, progress: &Progress) -> Value {
        let mut part = self.part(choice, &Piece::default());
        part["prompt_progress"] = answer::prompt_progress(progress);
        part
    }

    fn add_probabilities(&self, body: &mut Value, logprobs: &[TokenLogprobs]) {
        if self.sampling.logprobs.is_some() {
            body["completion_probabilities"] = logprobs.iter().map(|found| self.probability(found)).collect();
        }
    }

    fn probability(&self, found: &TokenLogprobs) -> Value {
        let entry = |token: u32, logprob: f32| match self.sampling.logprobs_of_draw {
            true => self.writer.entry_with_probability(token, logprob),
            false => self.writer.entry_with_id(token, logprob),
        };
        let mut object = entry(found.token, found.logprob);
        let num_top = self.sampling.logprobs.unwrap_or(0) as usize;
        let top = found.top.iter().take(num_top).map(|&(token, logprob)| entry(token, logprob));
        object[if self.sampling.logprobs_of_draw { "top_probs" } else { "top_logprobs" }] = top.collect();
        object
    }

    /// The whole answer: an object, or an array of them where there are several choices. One after another, because as a value
    /// it takes many times the memory.
    pub(super) fn write(&self) -> String {
        let mut texts = (0..self.choices.len()).map(|choice| self.chosen(self.whole(choice)).to_string());
        if self.choices.len() == 1 {
            return texts.next().unwrap_or_default();
        }
        let mut text = "[".to_owned();
        for one in texts {
            if text.len() > 1 {
                text.push(',');
            }
            text.push_str(&one);
        }
        text.push(']');
        text
    }

    /// A choice with its text.
    fn whole(&self, choice: usize) -> Value {
        let piece = &self.choices[choice].piece;
        let mut body = self.ending(choice);
        body["content"] = piece.text.as_str().into();
        if self.returns_tokens {
            body["tokens"] = json!(piece.tokens);
        }
        self.add_probabilities(&mut body, &piece.logprobs);
        body
    }

    /// The last part of a choice's stream.
    pub(super) fn last_word(&self, choice: usize) -> Value {
        self.chosen(self.ending(choice))
    }

    /// Of an answer the fields that were asked for, under the names that they were asked for by.
    fn chosen(&self, body: Value) -> Value {
        if self.response_fields.is_empty() {
            return body;
        }
        let field = |path: &String| {
            let found = path.split('/').try_fold(&body, |value, name| value.as_object()?.get(name))?;
            Some((path.clone(), found.clone()))
        };
        self.response_fields.iter().filter_map(field).collect()
    }

    /// All of a choice but its text, which the parts of a stream had.
    fn ending(&self, choice: usize) -> Value {
        let prompt = self.prompt_of(choice);
        let Choice { piece, reason, .. } = &self.choices[choice];
        let num_predicted = if self.prompt_only { 0 } else { piece.tokens.len() };
        let (stop_type, stopping_word) = self.stop_of(choice);
        let is_full = *reason == Some(FinishReason::Length) && prompt.num_tokens + num_predicted >= self.context_len;
        json!({
            "index": choice,
            "content": "",
            "tokens": [],
            "id_slot": -1,
            "stop": true,
            "model": self.model,
            "tokens_predicted": num_predicted,
            "tokens_evaluated": prompt.num_tokens,
            "generation_settings": self.settings,
            "prompt": prompt.text,
            "has_new_line": piece.text.contains('\n'),
            "truncated": is_full,
            "stop_type": stop_type,
            "stopping_word": stopping_word,
            "tokens_cached": prompt.totals.cached_tokens,
            "timings": answer::timings(&prompt.totals).unwrap_or_default(),
        })
    }

    /// (`stop_type`, `stopping_word`).
    fn stop_of(&self, choice: usize) -> (&'static str, &str) {
        match self.choices[choice].reason {
            None => ("none", ""),
            Some(FinishReason::Length) => ("limit", ""),
            Some(FinishReason::Stop) => match self.stopping_word(choice) {
                Some(word) => ("word", word),
                // A token that ends a text, or a form that was complete.
                None => ("eos", ""),
            },
        }
    }

    /// The stop string that ended a choice: where its text ends, what the tokens say goes on with it.
    fn stopping_word(&self, choice: usize) -> Option<&str> {
        let Piece { text, tokens, .. } = &self.choices[choice].piece;
        let mut detokenizer =
            Detokenizer::continuing(Arc::clone(&self.tokenizer), self.prompt_of(choice).last.as_slice());
        let mut spoken: String = tokens.iter().map(|&token| detokenizer.push(token)).collect();
        spoken.push_str(&detokenizer.finish());
        let cut = spoken.get(text.len()..).unwrap_or_default();
        let is_met = |stop: &&String| {
            if self.sampling.include_stop_str_in_output {
                text.ends_with(stop.as_str())
            } else {
                cut.starts_with(stop.as_str())
            }
        };
        self.sampling.stop.iter().find(is_met).map(String::as_str)
    }

    pub(super) fn num_choices(&self) -> usize {
        self.choices.len()
    }
}
