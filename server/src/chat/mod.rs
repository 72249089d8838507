//! A conversation with a chat model, whatever protocol it came by.
//!
//! An endpoint reads its own JSON into a [`Conversation`] and [`Parameters`], calls [`prepare`] (on a blocking thread, unless it is brief), has the form
//! compiled, starts a [`ChatStream`] and writes what comes out of it, in its own words: pieces of thoughts, of text and of
//! calls, the end of each choice, and the totals. Templates, formats of calls and grammars stay behind this seam.

mod dialect;
mod form;
mod history;
mod opening;
mod render;
mod single;
mod stop_watch;
mod stream;
mod thinking;
mod tools;

use serde_json::{Map, Value};
use taper_text::{AnswerSyntax, ChatMessage, ReasoningMarks, ReasoningStart, ToolSyntax};

use self::render::{Part, Rendered};
use self::stop_watch::StopWatch;
use crate::errors::ApiError;
use crate::parameters::Parameters;
use crate::prompt;
use crate::state::Served;

pub(crate) use dialect::Dialect;
pub(crate) use form::unkept_strictness;
pub(crate) use history::{CallNames, arguments_of, call_of, merge_turns, take_function};
pub(crate) use opening::Opening;
pub(crate) use render::{count, encode, render};
pub(crate) use single::{End, Events, Protocol, check_single, send};
pub(crate) use stream::{ChatPart, ChatPiece, ChatStream, Ending};
pub(crate) use thinking::Budget;
pub(crate) use tools::{AllowedTools, Tool, ToolChoice, check_tools};

/// What is said so far, and how the model may answer.
pub(crate) struct Conversation {
    /// The messages. Roles are the template's: `system`, `user`, `assistant`, `tool`.
    pub(crate) messages: Vec<ChatMessage>,
    /// The field that they came in, for errors.
    pub(crate) messages_field: &'static str,
    /// What the model may call.
    pub(crate) tools: Vec<Tool>,
    /// Whether it may, and must.
    pub(crate) tool_choice: ToolChoice,
    /// Whether an answer may have several calls.
    pub(crate) parallel_calls: bool,
    /// What becomes of the model's thoughts.
    pub(crate) thoughts: Thoughts,
    /// How many tokens they may have.
    pub(crate) thinking_budget: Option<Budget>,
    /// Variables for the template.
    pub(crate) variables: Map<String, Value>,
    /// Where the answer begins.
    pub(crate) opening: Opening,
}

impl Conversation {
    /// The tools that the model is told of.
    fn offered(&self) -> &[Tool] {
        if self.tool_choice == ToolChoice::None { &[] } else { &self.tools }
    }
}

/// What becomes of a model's thoughts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Thoughts {
    /// They are told apart from the text.
    Apart,
    /// They are not told.
    LeftOut,
    /// They stay in the text, with their marks.
    InText,
}

/// A conversation as the engine takes it, and how to read the answer.
pub(crate) struct Prepared {
    /// The rendered conversation.
    pub(crate) prompt: Vec<u32>,
    /// For [`ChatStream::new`].
    pub(crate) reading: Reading,
}

/// How answers are read.
#[derive(Debug, Clone)]
pub(crate) struct Reading {
    syntax: AnswerSyntax,
    tells_thoughts: bool,
    /// Calls beyond these are not told.
    max_calls: usize,
    /// Finds the stop string that ended an answer, for protocols that tell.
    stop_watch: Option<StopWatch>,
}

impl Prepared {
    /// Has [`ChatStream::met_stop`] tell which stop string ended an answer.
    pub(crate) fn watch_stops(&mut self, served: &Served, parameters: &Parameters) {
        self.reading.stop_watch = StopWatch::new(&served.model.tokenizer, &self.prompt, &parameters.sampling);
    }
}

/// Renders a conversation, and sets the form, the shown tokens and the budget of thoughts in `parameters` that its answer needs.
pub(crate) fn prepare(
    served: &Served,
    conversation: &Conversation,
    parameters: &mut Parameters,
) -> Result<Prepared, ApiError> {
    let offered = conversation.offered();
    let Rendered { prompt: rendered, continued } = render(served, conversation)?;
    let prompt = encode(served, &rendered, conversation.messages_field, true)?;
    let dialect = &served.dialect;
    let start = |marks: ReasoningMarks| match continued {
        None => marks.at_end_of(&rendered.text()),
        Some(Part::Thoughts) => ReasoningStart::Open,
        Some(Part::Text) => ReasoningStart::Over,
    };
    let reasoning = dialect.reasoning.map(|marks| (marks, start(marks)));
    if let Some(budget) = conversation.thinking_budget {
        parameters.thinking = budget.for_engine(served, reasoning)?;
    }
    let in_text = continued == Some(Part::Text);
    let form = form::of_answer(conversation, offered, dialect.format, reasoning, parameters.form.take(), in_text)?;
    let is_certain = form.as_ref().is_some_and(form::has_calls);
    parameters.form = form;
    let names = || offered.iter().map(|tool| tool.name.clone()).collect();
    let tools = (!offered.is_empty()).then(|| ToolSyntax { format: dialect.format, names: names(), is_certain });
    let max_calls = if conversation.parallel_calls { usize::MAX } else { 1 };
    let mut reading = Reading::new(served, reasoning, tools, conversation.thoughts, parameters);
    reading.max_calls = max_calls;
    reading.syntax.goes_on = continued.is_some();
    Ok(Prepared { prompt, reading })
}

/// A text that is a prompt as it is, from the field `field`; thoughts at the beginning of its answer are found, unless the answer
/// must have a form, which is that of all its text.
pub(crate) fn prepare_text(
    served: &Served,
    text: &str,
    field: &str,
    thoughts: Thoughts,
    parameters: &mut Parameters,
) -> Result<Prepared, ApiError> {
    let prompt = prompt::encode(served, text, field)?;
    let marks = served.dialect.reasoning.filter(|_| parameters.form.is_none());
    let reasoning = marks.map(|marks| (marks, marks.at_end_of(text)));
    Ok(Prepared { prompt, reading: Reading::new(served, reasoning, None, thoughts, parameters) })
}

impl Reading {
    /// Reads thoughts and any number of calls, and has `parameters` show the tokens that mark them.
    fn new(
        served: &Served,
        reasoning: Option<(ReasoningMarks, ReasoningStart)>,
        tools: Option<ToolSyntax>,
        thoughts: Thoughts,
        parameters: &mut Parameters,
    ) -> Reading {
        let marks = tools.iter().flat_map(|tools| tools.format.marks().iter().copied());
        let marks = marks.chain(reasoning.iter().flat_map(|(marks, _)| [marks.start, marks.end]));
        let tokenizer = &served.model.tokenizer;
        parameters.sampling.shown_tokens = marks.filter_map(|mark| tokenizer.control_token(mark)).collect();
        let reasoning = reasoning.filter(|_| thoughts != Thoughts::InText);
        Reading {
            syntax: AnswerSyntax { reasoning, tools, goes_on: false },
            tells_thoughts: thoughts == Thoughts::Apart,
            max_calls: usize::MAX,
            stop_watch: None,
        }
    }
}
