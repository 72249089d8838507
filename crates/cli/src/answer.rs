//! An answer on its way to the reader: the model's thoughts told apart from what it says. What it says goes to stdout; thoughts go
//! to stderr, where they step back behind it, so that a pipe gets the answer alone.

use crate::color;
use crate::load::Loaded;
use crate::markdown::{self, Renderer, Shown};
use crate::output;
use crate::parameters::{ENABLE_THINKING, Parameters};
use anyhow::{Result, bail};
use taper_text::{AnswerParser, AnswerPart, AnswerSyntax, ReasoningMarks, ReasoningStart};

/// A piece of what comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Said<'a> {
    Answer(&'a str),
    /// What the model thinks before it, which is not kept.
    Thought(&'a str),
}

/// Refuses a wish to think, or not to, that nothing would come of.
pub(crate) fn check_thinking(loaded: &Loaded, parameters: &Parameters) -> Result<()> {
    let (Some(thinks), Some(template)) = (parameters.think, &loaded.template) else { return Ok(()) };
    if template.source().contains(ENABLE_THINKING) {
        return Ok(());
    }
    match (thinks, ReasoningMarks::find(template, &loaded.tokenizer).is_some()) {
        // It does so anyway.
        (true, true) | (false, false) => Ok(()),
        (true, false) => bail!("the model does not think, so `think` cannot be on"),
        (false, true) => {
            bail!(
                "the model's chat template has no variable `{ENABLE_THINKING}`, so `think` cannot be off: it thinks as it likes"
            )
        }
    }
}

/// One answer, cut into thoughts and text.
pub(crate) struct Splitter {
    parser: AnswerParser,
    /// Of the marks.
    shown_tokens: Vec<u32>,
    /// What was said so far, without the thoughts.
    pub(crate) text: String,
    pub(crate) thoughts: String,
}

impl Splitter {
    /// For an answer that begins so; without marks, all of it is text. One that goes on keeps the blanks that it begins with.
    pub(crate) fn new(loaded: &Loaded, reasoning: Option<(ReasoningMarks, ReasoningStart)>, goes_on: bool) -> Splitter {
        let marks = reasoning.iter().flat_map(|(marks, _)| [marks.start, marks.end]);
        Splitter {
            shown_tokens: marks.filter_map(|mark| loaded.tokenizer.control_token(mark)).collect(),
            parser: AnswerParser::new(AnswerSyntax { reasoning, tools: None, goes_on }),
            text: String::new(),
            thoughts: String::new(),
        }
    }

    /// The tokens that must be in the text that is pushed, for [`taper_engine::SamplingParams::shown_tokens`].
    pub(crate) fn shown_tokens(&self) -> Vec<u32> {
        self.shown_tokens.clone()
    }

    /// Takes the next piece of the answer and hands on what is certain by now.
    pub(crate) fn push(&mut self, piece: &str, show: &mut dyn FnMut(Said<'_>) -> Result<()>) -> Result<()> {
        let parts = self.parser.push(piece);
        self.tell(parts, show)
    }

    /// The end of the answer: what was held back.
    pub(crate) fn finish(&mut self, show: &mut dyn FnMut(Said<'_>) -> Result<()>) -> Result<()> {
        let parts = self.parser.finish();
        self.tell(parts, show)
    }

    fn tell(&mut self, parts: Vec<AnswerPart>, show: &mut dyn FnMut(Said<'_>) -> Result<()>) -> Result<()> {
        for part in parts {
            match part {
                AnswerPart::Text(text) => {
                    self.text.push_str(&text);
                    show(Said::Answer(&text))?;
                }
                AnswerPart::Reasoning(text) => {
                    self.thoughts.push_str(&text);
                    show(Said::Thought(&text))?;
                }
                // No tools are offered.
                AnswerPart::CallBegun { .. } | AnswerPart::CallArguments { .. } => {}
            }
        }
        Ok(())
    }
}

/// Writes an answer as it comes.
pub(crate) struct AnswerWriter {
    renderer: Renderer,
    /// Whether thoughts step back.
    is_dimmed: bool,
    is_begun: bool,
    is_thinking: bool,
}

impl AnswerWriter {
    pub(crate) fn new(shown: Shown, is_dimmed: bool) -> AnswerWriter {
        AnswerWriter { renderer: Renderer::new(shown), is_dimmed, is_begun: false, is_thinking: false }
    }

    /// For an answer that goes on behind a text that was shown to its end.
    pub(crate) fn behind(shown: Shown, is_dimmed: bool, text: &str) -> AnswerWriter {
        AnswerWriter { renderer: Renderer::behind(shown, text), ..AnswerWriter::new(shown, is_dimmed) }
    }

    /// Writes the next piece.
    pub(crate) fn show(&mut self, said: Said<'_>) -> Result<()> {
        match said {
            Said::Thought(text) => {
                if self.is_begun && !self.is_thinking {
                    output::aside("\n");
                }
                self.is_thinking = true;
                output::aside(&color::dimmed(&markdown::visible(text), self.is_dimmed));
                Ok(())
            }
            Said::Answer(text) => {
                self.end_thoughts();
                self.is_begun = true;
                output::print(&self.renderer.push(text))
            }
        }
    }

    /// Ends the answer; what of it was held back.
    pub(crate) fn finish(&mut self) -> String {
        self.end_thoughts();
        self.renderer.finish()
    }

    /// Whether something was said that is no thought.
    pub(crate) fn is_begun(&self) -> bool {
        self.is_begun
    }

    /// Ends the line of thoughts.
    fn end_thoughts(&mut self) {
        if self.is_thinking {
            output::aside("\n");
        }
        self.is_thinking = false;
    }
}
