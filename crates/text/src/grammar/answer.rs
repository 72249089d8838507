//! The form of a chat model's whole answer: thoughts first, then calls of tools, or a text of a certain form, or either.
//!
//! It is one Lark grammar around the JSON schemas of the tools' parameters and around the form of the text. Marks that a
//! vocabulary has as control tokens are these tokens, and only these places of the grammar reach them; other marks are text.
//! Calls are written as [`crate::AnswerParser`] reads them, with one blank behind each comma and colon.

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::Value;

use super::json_bounds::JsonPosition;
use super::{GrammarError, GrammarSpec, lark, schema};
use crate::{ReasoningMarks, ReasoningStart, Tokenizer, ToolFormat};

/// What an answer must look like.
#[derive(Debug, Clone, PartialEq)]
pub struct AnswerGrammar {
    /// The marks of the model's thoughts, if it thinks, and where the answer begins. Thoughts may be any text.
    pub reasoning: Option<(ReasoningMarks, ReasoningStart)>,
    /// The calls that the answer may or must have.
    pub calls: Option<Calls>,
    /// The form of the text where there is no call; any text without it.
    pub content: Option<Box<GrammarSpec>>,
}

/// Most calls of an answer that has nothing else: a small model that has begun with calls may find no end of them.
const MOST_REQUIRED_CALLS: usize = 16;

/// Which calls an answer may have.
#[derive(Debug, Clone, PartialEq)]
pub struct Calls {
    /// How the model writes them.
    pub format: ToolFormat,
    /// What may be called.
    pub tools: Vec<AnswerTool>,
    /// Whether there must be one.
    pub required: bool,
    /// Whether there may be several.
    pub parallel: bool,
}

/// A tool as a grammar sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct AnswerTool {
    /// Its name: letters of ASCII, digits, `_` and `-`.
    pub name: String,
    /// The JSON schema of its arguments.
    pub parameters: Value,
}

impl AnswerGrammar {
    /// What it is called in errors.
    pub(super) fn kind(&self) -> &'static str {
        match (&self.content, &self.calls) {
            (Some(content), None) => content.kind(),
            _ => "tools' grammar",
        }
    }

    /// Where the answer stands at its beginning, if everything in it is JSON but for thoughts and marks.
    pub(super) fn json_start(&self) -> Option<JsonPosition> {
        let is_json = match &self.content {
            Some(content) => content.json_start().is_some(),
            None => self.calls.as_ref().is_some_and(|calls| calls.required),
        };
        is_json.then(|| JsonPosition::before(self.reasoning))
    }

    /// All JSON schemas in it.
    pub(super) fn schemas(&self) -> Vec<&Value> {
        let tools = self.calls.iter().flat_map(|calls| &calls.tools).map(|tool| &tool.parameters);
        tools.chain(self.content.iter().flat_map(|content| content.schemas())).collect()
    }

    /// A text that no other has.
    pub(super) fn key(&self, content_key: impl Fn(&GrammarSpec) -> String) -> String {
        let calls = self.calls.as_ref().map(|calls| {
            // Neither names nor JSON have ends of lines.
            let tools: Vec<String> =
                calls.tools.iter().map(|tool| format!("{} {}\n", tool.name, tool.parameters)).collect();
            format!("{:?} {} {} {}", calls.format, calls.required, calls.parallel, tools.concat())
        });
        let content = self.content.as_deref().map(content_key);
        let (calls, content) = (calls.unwrap_or_default(), content.unwrap_or_default());
        format!("{:?} {calls}\n{content}", self.reasoning)
    }

    /// The grammar in the library's terms, and the control tokens that it names. `blank_first`: the answer begins a stretch of
    /// text, whose first blank is the tokenizer's. `of_content` gives the grammar of the text.
    pub(super) fn source(
        &self,
        tokenizer: &Tokenizer,
        blank_first: bool,
        of_content: impl Fn(&GrammarSpec) -> Result<TopLevelGrammar, GrammarError>,
    ) -> Result<(TopLevelGrammar, Vec<u32>), GrammarError> {
        let mut writer = Writer { tokenizer, rules: String::new(), named: Vec::new(), inner: Vec::new() };
        let blank = if blank_first { Blank::First } else { Blank::None };
        let start = match self.reasoning {
            None | Some((_, ReasoningStart::Over)) => self.content_rule(&mut writer, "at_start", blank, ANY_TEXT)?,
            Some((marks, ReasoningStart::Open)) => {
                let thoughts = writer.until("thoughts", marks.end, ANY_TEXT).text;
                let content = self.content_rule(&mut writer, "behind_thoughts", Blank::None, ANY_TEXT)?;
                format!("{thoughts} WS? {content}")
            }
            Some((marks, ReasoningStart::Possible)) => {
                // Text of any form would swallow the mark: the lexer takes the longest lexeme.
                writer.define_text_without(marks.start);
                let at_start = self.content_rule(&mut writer, "at_start", blank, NO_THOUGHTS)?;
                let open = writer.mark(marks.start, "", blank);
                let thoughts = writer.until("thoughts", marks.end, ANY_TEXT).text;
                let behind = self.content_rule(&mut writer, "behind_thoughts", Blank::None, ANY_TEXT)?;
                format!("{at_start} | {} {thoughts} WS? {behind}", open.text)
            }
        };
        if let Some(content) = &self.content {
            let mut grammars = of_content(content)?.grammars.into_iter();
            let first = grammars.next().map(|first| GrammarWithLexer { name: Some("content".to_owned()), ..first });
            writer.inner.extend(first.into_iter().chain(grammars));
        }
        writer.rules.push_str("TEXT: /(\\n|.)*/\nPROSE: /(\\n|.)+/\nWS: /[ \\n]{1,5}/\n");
        let outer = GrammarWithLexer::from_lark(format!("start: {start}\n{}", writer.rules));
        let grammars = std::iter::once(outer).chain(writer.inner).collect();
        Ok((TopLevelGrammar { grammars, max_tokens: None }, writer.named))
    }

    /// Writes a rule for what stands behind the thoughts, and returns its name.
    fn content_rule(
        &self,
        writer: &mut Writer<'_>,
        name: &str,
        blank: Blank,
        text: FreeText,
    ) -> Result<String, GrammarError> {
        let form = self.content.is_some().then(|| format!("{}@content", blank.text()));
        let body = match (&self.calls, form) {
            (None, form) => form.unwrap_or_else(|| format!("{}?", text.some)),
            (Some(calls), _) if calls.required => writer.calls(calls, name, blank)?,
            (Some(calls), Some(form)) => format!("{} | {form}", writer.calls(calls, name, blank)?),
            (Some(calls), None) => writer.calls_in_text(calls, name, text)?,
        };
        writer.rules.push_str(&format!("{name}: {body}\n"));
        Ok(name.to_owned())
    }
}

/// Whether a blank is the tokenizer's where something begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blank {
    None,
    First,
}

impl Blank {
    fn text(self) -> &'static str {
        match self {
            Blank::None => "",
            Blank::First => "\" \" ",
        }
    }
}

/// The terminals of text without a form: any text, and any but none.
#[derive(Debug, Clone, Copy)]
struct FreeText {
    any: &'static str,
    some: &'static str,
}

const ANY_TEXT: FreeText = FreeText { any: "TEXT", some: "PROSE" };
/// Text that does not begin with the mark of thoughts.
const NO_THOUGHTS: FreeText = FreeText { any: "OTHER_TEXT", some: "OTHER_PROSE" };

/// A part of a rule, and whether a blank follows from it.
struct Part {
    text: String,
    blank: Blank,
}

struct Writer<'a> {
    tokenizer: &'a Tokenizer,
    rules: String,
    /// Control tokens in the rules.
    named: Vec<u32>,
    /// The grammars that the rules refer to.
    inner: Vec<GrammarWithLexer>,
}

impl Writer<'_> {
    /// The token of a mark, where its text alone would not be it.
    fn token(&self, mark: &str) -> Option<u32> {
        let is_apart =
            |&token: &u32| self.tokenizer.has_space_prefix() || self.tokenizer.control_token(mark) == Some(token);
        self.tokenizer.special_token(mark).filter(is_apart)
    }

    /// A mark and the text behind it, at a place where `blank` is due before text.
    fn mark(&mut self, mark: &str, then: &str, blank: Blank) -> Part {
        match self.token(mark) {
            Some(token) => {
                self.named.push(token);
                let behind = self.blank_behind_token();
                let text = format!("{}{then}", if behind == Blank::First && !then.is_empty() { " " } else { "" });
                let text = if text.is_empty() { String::new() } else { format!(" {}", lark::string(&text)) };
                let blank = if then.is_empty() { behind } else { Blank::None };
                Part { text: format!("<[{token}]>{text}"), blank }
            }
            None => {
                let text = format!("{}{}", blank.text(), lark::string(&format!("{mark}{then}")));
                Part { text, blank: Blank::None }
            }
        }
    }

    /// The blank of the text behind a mark, if it is a token and the vocabulary has such blanks.
    fn blank_behind(&self, mark: &str) -> &'static str {
        if self.token(mark).is_some() && self.tokenizer.has_space_prefix() { " " } else { "" }
    }

    fn blank_behind_token(&self) -> Blank {
        if self.tokenizer.has_space_prefix() { Blank::First } else { Blank::None }
    }

    /// Writes the terminals of [`NO_THOUGHTS`].
    fn define_text_without(&mut self, start: &str) {
        // Marks have brackets of both kinds, which a regular expression reads in its own way.
        let begins = format!("~/{}(\\n|.)*/", start.replace('[', "\\[").replace(']', "\\]").replace('/', "\\/"));
        let FreeText { any, some } = NO_THOUGHTS;
        self.rules.push_str(&format!("{any}: /(\\n|.)*/ & {begins}\n{some}: /(\\n|.)+/ & {begins}\n"));
    }

    /// Any text up to the first place where a mark stands, and the mark. Writes a rule of the name.
    fn until(&mut self, rule: &str, mark: &str, text: FreeText) -> Part {
        match self.token(mark) {
            Some(token) => {
                self.named.push(token);
                self.rules.push_str(&format!("{rule}: {}? <[{token}]>\n", text.some));
                Part { text: rule.to_owned(), blank: self.blank_behind_token() }
            }
            None => {
                self.rules.push_str(&format!("{rule}[lazy]: {} {}\n", text.any, lark::string(mark)));
                Part { text: rule.to_owned(), blank: Blank::None }
            }
        }
    }

    /// One or more calls, the first of them at a place where `blank` is due before text.
    fn calls(&mut self, calls: &Calls, name: &str, blank: Blank) -> Result<String, GrammarError> {
        let format = calls.format;
        let objects = self.objects(calls)?;
        let more = MOST_REQUIRED_CALLS - 1;
        let many =
            |first: String, next: &str| if calls.parallel { format!("{first} ({next}){{0,{more}}}") } else { first };
        Ok(match format {
            ToolFormat::Hermes => {
                let close = self.hermes_close();
                let first = self.mark(format.open(), "\n", blank).text;
                let next = self.mark(format.open(), "\n", Blank::None).text;
                self.rules.push_str(&format!("{name}_first: {first} {objects} {close}\n"));
                let separator = lark::string(&format!("{}\n", self.blank_behind("</tool_call>")));
                many(format!("{name}_first"), &format!("{separator} {next} {objects} {close}"))
            }
            ToolFormat::Llama3 => many(format!("{}{objects}", blank.text()), &format!("\"; \" {objects}")),
            ToolFormat::Mistral => {
                let open = self.mark(format.open(), "[", blank).text;
                format!("{open} {} \"]\"", many(objects.clone(), &format!("\", \" {objects}")))
            }
            ToolFormat::MistralArgs => {
                let first = self.mark(format.open(), "", blank);
                let next = self.mark(format.open(), "", Blank::None);
                let (first, next) = (
                    format!("{} {}{objects}", first.text, first.blank.text()),
                    format!("{} {}{objects}", next.text, next.blank.text()),
                );
                many(first, &next)
            }
        })
    }

    /// Any text with calls in it, or without.
    fn calls_in_text(&mut self, calls: &Calls, name: &str, text: FreeText) -> Result<String, GrammarError> {
        let format = calls.format;
        let objects = self.objects(calls)?;
        let head = self.until(&format!("{name}_head"), format.open(), text);
        // Behind the first call the text may be any.
        let next = if calls.parallel {
            self.until(&format!("{name}_next"), format.open(), ANY_TEXT).text
        } else {
            String::new()
        };
        let some = text.some;
        let behind = |text: &str| {
            let blank = if head.blank == Blank::First { " " } else { "" };
            lark::string(&format!("{blank}{text}"))
        };
        Ok(match format {
            ToolFormat::Hermes => {
                let close = self.hermes_close();
                let behind = format!("{} {objects} {close}", behind("\n"));
                let more = if calls.parallel { format!("({next} {behind})* PROSE?") } else { String::new() };
                format!("{some}? | {} {behind} {more}", head.text)
            }
            ToolFormat::Mistral => {
                let list = if calls.parallel { format!("{objects} (\", \" {objects})*") } else { objects.clone() };
                format!("{some}? | {} {} {list} \"]\"", head.text, behind("["))
            }
            ToolFormat::MistralArgs => {
                let behind = format!("{}{objects}", head.blank.text());
                let more = if calls.parallel { format!("({next} {behind})*") } else { String::new() };
                format!("{some}? | {} {behind} {more}", head.text)
            }
            // Without a mark no call can be told from the text.
            ToolFormat::Llama3 => format!("{some}?"),
        })
    }

    fn hermes_close(&mut self) -> String {
        match self.token("</tool_call>") {
            Some(token) => {
                self.named.push(token);
                format!("\"\\n\" <[{token}]>")
            }
            None => "\"\\n</tool_call>\"".to_owned(),
        }
    }

    /// Writes a rule that is one of the tools' calls without marks, once, and returns its name.
    fn objects(&mut self, calls: &Calls) -> Result<String, GrammarError> {
        const RULE: &str = "object";
        if !self.inner.is_empty() {
            return Ok(RULE.to_owned());
        }
        let mut alternatives = Vec::with_capacity(calls.tools.len());
        for (index, tool) in calls.tools.iter().enumerate() {
            let name = format!("arguments_{index}");
            let schema = TopLevelGrammar::from_json_schema(schema::prepare(&tool.parameters)?);
            let grammar = schema.grammars.into_iter().next();
            self.inner.extend(grammar.map(|grammar| GrammarWithLexer { name: Some(name.clone()), ..grammar }));
            alternatives.push(if calls.format == ToolFormat::MistralArgs {
                let mark = self.mark("[ARGS]", "", Blank::None);
                format!("{} {} {}@{name}", lark::string(&tool.name), mark.text, mark.blank.text())
            } else if calls.format == ToolFormat::Llama3 {
                // In the lexemes of JSON: without a mark, a text of another form may begin alike.
                let tool = format!("\"{}\"", tool.name);
                let head =
                    ["{", "\"name\"", ": ", tool.as_str(), ", ", "\"parameters\"", ": "].map(lark::string).join(" ");
                format!("{head} @{name} \"}}\"")
            } else {
                let key = calls.format.arguments_key();
                let head = format!("{{\"name\": \"{}\", \"{key}\": ", tool.name);
                format!("{} @{name} \"}}\"", lark::string(&head))
            });
        }
        self.rules.push_str(&format!("{RULE}: {}\n", alternatives.join(" | ")));
        Ok(RULE.to_owned())
    }
}
