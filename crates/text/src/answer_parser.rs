//! A chat model's answer as it comes: its thoughts, its text, and the calls of tools in it.
//!
//! Thoughts stand at the beginning, between the marks of [`ReasoningMarks`]; calls are written in a [`ToolFormat`]. Text that may
//! turn out to be a mark or a call is held back, and so are blanks, which do not count beside thoughts and calls. However the
//! text is cut, the parts put together are the same.
//!
//! A call that is not written as its format asks stays text: nothing is an error and nothing is lost. So a call is told when
//! it is complete. Where a grammar made sure of its form ([`ToolSyntax::is_certain`]) its arguments are told as they come, and
//! one that ends before its arguments is no text: only the limit of tokens can have cut it.

mod calls;
mod json_scan;

use crate::{ReasoningMarks, ReasoningStart, ToolFormat};

use calls::{Found, Region};

/// What an answer may hold besides text.
#[derive(Debug, Clone, Default)]
pub struct AnswerSyntax {
    /// The marks of thoughts, if they are to be told apart, and where the answer begins.
    pub reasoning: Option<(ReasoningMarks, ReasoningStart)>,
    /// How calls are written, if any tools were offered.
    pub tools: Option<ToolSyntax>,
    /// Whether the prompt ends within a text, or within thoughts, which the answer goes on with: the blanks that it begins with
    /// count, and in a text no call begins without its mark.
    pub goes_on: bool,
}

/// How calls are written.
#[derive(Debug, Clone)]
pub struct ToolSyntax {
    /// The model's format.
    pub format: ToolFormat,
    /// The names of the tools that were offered.
    pub names: Vec<String>,
    /// Whether a grammar keeps the calls to their form.
    pub is_certain: bool,
}

/// A part of an answer. Neighbours of one kind belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnswerPart {
    /// More of the thoughts.
    Reasoning(String),
    /// More of the text.
    Text(String),
    /// A call begins.
    CallBegun {
        /// The calls of an answer are counted from 0.
        index: usize,
        /// The tool.
        name: String,
    },
    /// More of the arguments of the call that began last: JSON, as the model wrote it.
    CallArguments {
        /// The call.
        index: usize,
        /// The next piece.
        text: String,
    },
}

/// Reads one answer.
#[derive(Debug, Clone)]
pub struct AnswerParser {
    syntax: AnswerSyntax,
    state: State,
    /// What is not told yet.
    buffer: String,
    /// Bytes at the buffer's front that are known to be blanks, and are not looked at again.
    num_blanks: usize,
    num_calls: usize,
    /// Whether the call that was told last has not ended.
    has_open_call: bool,
    /// Whether a call may begin without its mark: nothing but calls was told since the answer began.
    is_fresh: bool,
}

#[derive(Debug, Clone)]
enum State {
    /// Thoughts may begin.
    Start,
    /// In thoughts; whether something of them was told.
    Reasoning {
        told: bool,
    },
    /// Behind thoughts, before anything else.
    Between,
    Text,
    Call(Region),
}

/// What a step of the parser came to.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// There may be more to do.
    Again,
    /// More of the answer is needed.
    Wait,
}

impl AnswerParser {
    /// At the beginning of an answer.
    pub fn new(syntax: AnswerSyntax) -> AnswerParser {
        let goes_on = syntax.goes_on;
        let state = match syntax.reasoning {
            Some((_, ReasoningStart::Open)) => State::Reasoning { told: goes_on },
            Some((_, ReasoningStart::Possible)) => State::Start,
            // The blanks behind the prompt's thoughts do not count either.
            Some((_, ReasoningStart::Over)) if !goes_on => State::Between,
            Some((_, ReasoningStart::Over)) | None => State::Text,
        };
        let is_fresh = !(goes_on && matches!(state, State::Text));
        AnswerParser {
            syntax,
            state,
            buffer: String::new(),
            num_blanks: 0,
            num_calls: 0,
            has_open_call: false,
            is_fresh,
        }
    }

    /// Takes the next piece of the answer and returns what is certain by now.
    pub fn push(&mut self, piece: &str) -> Vec<AnswerPart> {
        self.buffer.push_str(piece);
        self.advance(false)
    }

    /// The end of the answer: what was held back.
    pub fn finish(&mut self) -> Vec<AnswerPart> {
        self.advance(true)
    }

    /// Whether the model thinks.
    pub fn is_reasoning(&self) -> bool {
        matches!(self.state, State::Reasoning { .. })
    }

    /// Calls told so far.
    pub fn num_calls(&self) -> usize {
        self.num_calls
    }

    /// Whether the call that was told last has arguments that do not end, or not yet.
    pub fn has_open_call(&self) -> bool {
        self.has_open_call
    }

    fn advance(&mut self, is_end: bool) -> Vec<AnswerPart> {
        let mut parts = Vec::new();
        while self.step(is_end, &mut parts) == Step::Again {}
        parts
    }

    fn step(&mut self, is_end: bool, parts: &mut Vec<AnswerPart>) -> Step {
        match self.state {
            State::Start => self.start(is_end),
            State::Reasoning { told } => self.reasoning(told, is_end, parts),
            State::Between => {
                self.drop_front_blanks();
                if self.buffer.is_empty() {
                    return Step::Wait;
                }
                self.state = State::Text;
                Step::Again
            }
            State::Text => self.text(is_end, parts),
            State::Call(_) => self.call(is_end, parts),
        }
    }

    fn start(&mut self, is_end: bool) -> Step {
        let Some((marks, _)) = self.syntax.reasoning else {
            self.state = State::Text;
            return Step::Again;
        };
        let blanks = self.count_blanks();
        let text = &self.buffer[blanks..];
        if text.starts_with(marks.start) {
            self.drop_front(blanks + marks.start.len());
            self.state = State::Reasoning { told: false };
        } else if marks.start.starts_with(text) && !is_end {
            return Step::Wait;
        } else {
            self.state = State::Text;
        }
        Step::Again
    }

    fn reasoning(&mut self, told: bool, is_end: bool, parts: &mut Vec<AnswerPart>) -> Step {
        let Some((marks, _)) = self.syntax.reasoning else {
            self.state = State::Text;
            return Step::Again;
        };
        if !told {
            self.drop_front_blanks();
        }
        let (len, rest, next) = match self.find(marks.end) {
            Some(at) => (self.buffer[..at].trim_end().len(), at + marks.end.len(), Some(State::Between)),
            None if is_end => (self.buffer.trim_end().len(), self.buffer.len(), None),
            None => {
                let len = self.certain_len(marks.end);
                (len, len, None)
            }
        };
        if len > 0 {
            parts.push(AnswerPart::Reasoning(self.buffer[..len].to_owned()));
            self.state = State::Reasoning { told: true };
        }
        self.drop_front(rest);
        match next {
            Some(state) => {
                self.state = state;
                Step::Again
            }
            None => Step::Wait,
        }
    }

    fn text(&mut self, is_end: bool, parts: &mut Vec<AnswerPart>) -> Step {
        let Some(format) = self.syntax.tools.as_ref().map(|tools| tools.format) else {
            return self.tell(self.buffer.len(), parts);
        };
        let open = format.open();
        if self.is_fresh && format == ToolFormat::Llama3 {
            let blanks = self.count_blanks();
            let text = &self.buffer[blanks..];
            if text.starts_with('{') {
                self.state = State::Call(Region::new(blanks, false));
                return Step::Again;
            }
            if open.starts_with(text) && !is_end {
                return Step::Wait;
            }
        }
        if let Some(at) = self.find(open) {
            let blanks = self.buffer[..at].trim_end().len();
            self.tell(blanks, parts);
            self.state = State::Call(Region::new(at - blanks + open.len(), true));
            return Step::Again;
        }
        if !is_end {
            let len = self.certain_len(open);
            return self.tell(len, parts);
        }
        if self.num_calls > 0 && self.buffer.trim().is_empty() {
            self.drop_front(self.buffer.len());
        }
        self.tell(self.buffer.len(), parts)
    }

    /// Tells the first `len` bytes of the buffer as text.
    fn tell(&mut self, len: usize, parts: &mut Vec<AnswerPart>) -> Step {
        if len > 0 {
            let text = self.take_front(len);
            self.is_fresh = self.is_fresh && text.trim().is_empty();
            match parts.last_mut() {
                Some(AnswerPart::Text(last)) => last.push_str(&text),
                _ => parts.push(AnswerPart::Text(text)),
            }
        }
        Step::Wait
    }

    fn call(&mut self, is_end: bool, parts: &mut Vec<AnswerPart>) -> Step {
        let (State::Call(region), Some(tools)) = (&mut self.state, &self.syntax.tools) else {
            self.state = State::Text;
            return Step::Again;
        };
        match region.advance(&self.buffer, tools, is_end) {
            Found::Nothing if is_end && region.is_surely_call(tools) => {
                self.drop_front(self.buffer.len());
                self.state = State::Text;
                Step::Wait
            }
            Found::Nothing if is_end => self.give_up(parts),
            Found::Nothing => Step::Wait,
            Found::Call { name, arguments, end } => {
                let arguments = arguments.of(&self.buffer);
                self.begin_call(name, parts);
                self.add_arguments(arguments, parts);
                self.drop_front(end);
                Step::Again
            }
            Found::Begun { name, end } => {
                self.begin_call(name, parts);
                self.has_open_call = true;
                self.drop_front(end);
                Step::Again
            }
            Found::Arguments { end, is_last } => {
                self.has_open_call = !is_last;
                let text = self.take_front(end);
                self.add_arguments(text, parts);
                Step::Again
            }
            Found::End { end } => {
                self.drop_front(end);
                self.state = State::Text;
                Step::Again
            }
            Found::Malformed => self.give_up(parts),
        }
    }

    /// What was taken for a call is text: the mark is, and what follows is looked at again.
    fn give_up(&mut self, parts: &mut Vec<AnswerPart>) -> Step {
        if let State::Call(region) = &self.state {
            let len = region.mark_end().min(self.buffer.len());
            self.is_fresh = false;
            self.tell(len, parts);
        }
        self.state = State::Text;
        Step::Again
    }

    fn begin_call(&mut self, name: String, parts: &mut Vec<AnswerPart>) {
        parts.push(AnswerPart::CallBegun { index: self.num_calls, name });
        self.num_calls += 1;
    }

    fn add_arguments(&self, text: String, parts: &mut Vec<AnswerPart>) {
        if !text.is_empty() {
            parts.push(AnswerPart::CallArguments { index: self.num_calls - 1, text });
        }
    }

    fn drop_front_blanks(&mut self) {
        let num_blanks = self.count_blanks();
        self.drop_front(num_blanks);
    }

    fn drop_front(&mut self, len: usize) {
        self.buffer.drain(..len);
        self.num_blanks = self.num_blanks.saturating_sub(len);
    }

    fn take_front(&mut self, len: usize) -> String {
        let text = self.buffer[..len].to_owned();
        self.drop_front(len);
        text
    }

    /// Bytes of blanks at the buffer's front.
    fn count_blanks(&mut self) -> usize {
        let rest = &self.buffer[self.num_blanks..];
        self.num_blanks += rest.len() - rest.trim_start().len();
        self.num_blanks
    }

    /// Where the first of these marks stands, none of which begins with a blank.
    fn find(&self, mark: &str) -> Option<usize> {
        self.buffer[self.num_blanks..].find(mark).map(|at| self.num_blanks + at)
    }

    /// How much of the buffer is certain, where `mark` may follow: all but the beginning of one, and the blanks before it.
    fn certain_len(&mut self, mark: &str) -> usize {
        let blanks = self.count_blanks();
        let rest = &self.buffer[blanks..];
        let mut begun = (1..mark.len()).rev().filter(|&len| mark.is_char_boundary(len)).map(|len| &mark[..len]);
        let held = begun.find(|start| rest.ends_with(start)).map_or(0, str::len);
        let certain = rest[..rest.len() - held].trim_end().len();
        if certain == 0 { 0 } else { blanks + certain }
    }
}

#[cfg(test)]
mod tests;
