//! A tokenizer whose ids are bytes, and a way to read a whole answer.

use std::io::Write;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use taper_checkpoint::Checkpoint;
use taper_engine::stub::{StubRunner, stub_limits};
use taper_engine::{
    Engine, EngineConfig, EngineError, EngineHandle, Event, EventStream, FinishReason, Request, RunnerLimits,
    SamplingParams, TokenLogprobs, Usage,
};
use taper_testkit::tiny::TinyModel;
use taper_testkit::vocab::ByteVocab;
use taper_text::Tokenizer;

/// Writes a tiny model to a temporary file and opens it; the mapping outlives the file's name.
pub(crate) fn checkpoint(model: &TinyModel) -> Checkpoint {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&model.to_gguf()).unwrap();
    Checkpoint::open(file.path()).unwrap()
}

/// Token ids below 256 are bytes.
pub(crate) fn tokenizer() -> Arc<Tokenizer> {
    static TOKENIZER: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    let build = || Arc::new(Tokenizer::from_metadata(checkpoint(&TinyModel::default()).metadata()).unwrap());
    Arc::clone(TOKENIZER.get_or_init(build))
}

/// The token that ends an answer.
pub(crate) fn end_token() -> u32 {
    ByteVocab::new(vocab_size()).id("<|im_end|>")
}

pub(crate) fn vocab_size() -> usize {
    TinyModel::default().vocab
}

pub(crate) fn limits() -> RunnerLimits {
    stub_limits(vocab_size())
}

pub(crate) fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

pub(crate) fn start(runner: StubRunner) -> EngineHandle {
    start_with(runner, EngineConfig::default())
}

pub(crate) fn start_with(runner: StubRunner, config: EngineConfig) -> EngineHandle {
    Engine::start(Box::new(runner), tokenizer(), config)
}

/// A model that answers every prompt with `reply`.
pub(crate) fn replying(reply: &str) -> StubRunner {
    StubRunner::replying(limits(), bytes(reply), end_token())
}

/// A model with no two histories alike: flat-ish logits over letters that depend on every token so far.
pub(crate) fn chaotic(limits: RunnerLimits) -> StubRunner {
    StubRunner::with_logits(limits, chaotic_logits)
}

/// The row of [`chaotic`] after `tokens`.
pub(crate) fn chaotic_logits(tokens: &[u32], logits: &mut [f32]) {
    logits.fill(f32::NEG_INFINITY);
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for &token in tokens {
        hash = (hash ^ u64::from(token)).wrapping_mul(0x0100_0000_01b3);
    }
    for letter in b'a'..=b'z' {
        hash = hash.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        logits[usize::from(letter)] = (hash >> 40) as f32 / (1 << 23) as f32;
    }
}

pub(crate) fn request(prompt: &str, sampling: SamplingParams) -> Request {
    Request { prompt_tokens: bytes(prompt), sampling, ..Request::default() }
}

pub(crate) fn greedy(prompt: &str, max_tokens: usize) -> Request {
    request(prompt, SamplingParams { max_tokens: Some(max_tokens), ..SamplingParams::greedy() })
}

/// One choice, put together from its events.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Choice {
    pub(crate) text: String,
    pub(crate) pieces: Vec<String>,
    pub(crate) tokens: Vec<u32>,
    pub(crate) logprobs: Vec<TokenLogprobs>,
    pub(crate) reason: Option<FinishReason>,
}

/// A whole answer.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Answer {
    pub(crate) choices: Vec<Choice>,
    pub(crate) prompt_logprobs: Option<Vec<Option<TokenLogprobs>>>,
    pub(crate) embedding: Option<Vec<f32>>,
    /// Tokens of the prompt that were cached, and that were computed, as they were told.
    pub(crate) progress: Vec<(usize, usize)>,
    pub(crate) usage: Option<Usage>,
    pub(crate) error: Option<EngineError>,
}

impl Answer {
    fn choice(&mut self, index: usize) -> &mut Choice {
        if self.choices.len() <= index {
            self.choices.resize(index + 1, Choice::default());
        }
        assert_eq!(self.choices[index].reason, None, "news of a finished choice");
        &mut self.choices[index]
    }

    pub(crate) fn text(&self) -> &str {
        assert_eq!(self.choices.len(), 1, "{self:?}");
        &self.choices[0].text
    }

    pub(crate) fn reason(&self) -> FinishReason {
        assert_eq!(self.choices.len(), 1, "{self:?}");
        self.choices[0].reason.expect("the choice is finished")
    }
}

/// Reads a stream to its end, checking that its events come in a sensible order.
pub(crate) fn read(mut stream: EventStream) -> Answer {
    let mut answer = Answer::default();
    while let Some(event) = stream.blocking_recv() {
        match event {
            Event::PromptLogprobs(logprobs) => {
                assert!(answer.choices.is_empty() && answer.prompt_logprobs.is_none(), "before all text, and once");
                answer.prompt_logprobs = Some(logprobs);
            }
            Event::PromptProgress { cached_tokens, computed_tokens, seconds } => {
                assert!(answer.choices.is_empty() && seconds >= 0.0, "before all text");
                answer.progress.push((cached_tokens, computed_tokens));
            }
            Event::Embedding(vector) => {
                assert!(answer.choices.is_empty() && answer.embedding.is_none(), "nothing else, and once");
                answer.embedding = Some(vector);
            }
            Event::Text { choice, text, tokens, logprobs } => {
                assert!(!text.is_empty() && !tokens.is_empty());
                assert!(logprobs.is_empty() || logprobs.len() == tokens.len());
                let choice = answer.choice(choice);
                choice.text.push_str(&text);
                choice.pieces.push(text);
                choice.tokens.extend(tokens);
                choice.logprobs.extend(logprobs);
            }
            Event::Finished { choice, reason, text, tokens, logprobs } => {
                let choice = answer.choice(choice);
                choice.text.push_str(&text);
                choice.pieces.push(text);
                choice.tokens.extend(tokens);
                choice.logprobs.extend(logprobs);
                choice.reason = Some(reason);
            }
            Event::Done(usage) => {
                assert!(answer.choices.iter().all(|choice| choice.reason.is_some()), "{answer:?}");
                answer.usage = Some(usage);
            }
            Event::Failed(error) => answer.error = Some(error),
        }
    }
    assert!(answer.usage.is_some() != answer.error.is_some(), "an end, and one only: {answer:?}");
    answer
}

pub(crate) fn ask(engine: &EngineHandle, request: Request) -> Answer {
    read(engine.submit(request).unwrap())
}

/// Sequences that run or wait, of the same moment: between two readings, one that waits could pass from the one count to the
/// other.
pub(crate) fn num_live(engine: &EngineHandle) -> usize {
    let status = engine.status();
    status.running + status.queued
}

/// Waits for something that another thread brings about.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(20), "still not true: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
