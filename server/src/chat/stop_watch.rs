//! Which stop string ended an answer: where its text ends, its tokens go on with that string.

use std::sync::Arc;

use taper_engine::SamplingParams;
use taper_text::{Detokenizer, Tokenizer};

/// Follows one answer.
#[derive(Debug, Clone)]
pub(super) struct StopWatch {
    detokenizer: Detokenizer,
    stops: Arc<[String]>,
    /// What the tokens say and nobody was shown.
    unshown: String,
}

impl StopWatch {
    /// For answers to `prompt` that do not show their stop strings; `None` where there are none.
    pub(super) fn new(tokenizer: &Arc<Tokenizer>, prompt: &[u32], sampling: &SamplingParams) -> Option<StopWatch> {
        let last = prompt.last().copied();
        let detokenizer = Detokenizer::continuing(Arc::clone(tokenizer), last.as_slice());
        (!sampling.stop.is_empty()).then(|| StopWatch {
            detokenizer: detokenizer.showing(&sampling.shown_tokens),
            stops: sampling.stop.clone().into(),
            unshown: String::new(),
        })
    }

    /// Takes the next tokens and the text that was shown since.
    pub(super) fn note(&mut self, text: &str, tokens: &[u32]) {
        for &token in tokens {
            self.unshown.push_str(&self.detokenizer.push(token));
        }
        // The end of a text may show a character that is not complete, which no token says.
        match self.unshown.get(text.len()..) {
            Some(rest) => self.unshown = rest.to_owned(),
            None => self.unshown.clear(),
        }
    }

    /// The stop string that was met.
    pub(super) fn met(&self) -> Option<&str> {
        self.stops.iter().find(|stop| self.unshown.starts_with(stop.as_str())).map(String::as_str)
    }
}
