//! A conversation as tokens in which only the template speaks in control tokens.
//!
//! Templates write a turn's borders as text (`<|im_end|>`), and so can a user. llama.cpp's server and vLLM tokenize the
//! rendered text with special tokens parsed, so that a message can forge a turn; here a message stays text. Special
//! tokens must be found before the text is cut into words, and ordinary text must reach the pre-tokenizer whole, so
//! messages are not tokenized apart. Instead a mark, a character that occurs nowhere else, is put into them before the
//! template runs; a token that a mark interrupts is not found, and the marks are taken out of the text around the tokens.
//!
//! Where the marks go: one into each control token that a message spells out. That leaves all else as it was, for
//! templates look into messages (`'</think>' in content`). But a template may also join a token together
//! (`content.replace('/think', '')`), so the conversation is rendered a second time with marks around every
//! character. Should the two differ in their control tokens, the second is taken: what may come from a message is text.
//!
//! Tokens that a user added to the vocabulary (`<think>`, `<tool_call>`) are found in messages too, as in llama.cpp.
//! Roles are the caller's words and are not marked, since templates build tokens from them (`<|user|>`).

mod continued;

use ahash::AHashSet;
use serde_json::Value;

use crate::{ChatMessage, ChatTemplate, RenderContext, TemplateError, Tokenizer};

pub use continued::ContinuedPrompt;

/// Private-use characters, of which one that no message contains becomes the mark.
const MARKS: std::ops::RangeInclusive<char> = '\u{100000}'..='\u{10FFFD}';

/// A rendered conversation; [`Tokenizer::encode_prompt`] makes its tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// With marks in it.
    pub(crate) marked: String,
    pub(crate) mark: char,
}

impl Prompt {
    /// The text that the model sees.
    pub fn text(&self) -> String {
        self.marked.replace(self.mark, "")
    }
}

impl ChatTemplate {
    /// Renders a conversation so that messages, names and variables cannot hold control tokens of `tokenizer`.
    pub fn prompt(
        &self,
        tokenizer: &Tokenizer,
        messages: &[ChatMessage],
        context: &RenderContext,
    ) -> Result<Prompt, TemplateError> {
        let [mark, _] = unused_marks(self.source(), messages, context)?;
        marked(tokenizer, messages, context, mark, &|messages, context| self.render(&messages, context))
    }
}

/// Makes a text of messages.
type Render<'a> = dyn Fn(Vec<ChatMessage>, &RenderContext) -> Result<String, TemplateError> + 'a;

/// What `render` makes of the messages with `mark` in them.
fn marked(
    tokenizer: &Tokenizer,
    messages: &[ChatMessage],
    context: &RenderContext,
    mark: char,
    render: &Render<'_>,
) -> Result<Prompt, TemplateError> {
    let render = |how: &dyn Fn(&str) -> String| -> Result<Prompt, TemplateError> {
        let (messages, context) = with_texts(messages, context, how);
        Ok(Prompt { marked: render(messages, &context)?, mark })
    };
    let is_suspect = |text: &str| tokenizer.may_hold_control(text);
    let spelled_out = render(&|text| marked_inside(text, mark, &tokenizer.control_starts(text)))?;
    if !any_text(messages, context, &is_suspect) {
        return Ok(spelled_out);
    }
    let everywhere = render(&|text| if is_suspect(text) { marked_everywhere(text, mark) } else { text.to_owned() })?;
    let same = tokenizer.control_tokens(&spelled_out.marked) == tokenizer.control_tokens(&everywhere.marked);
    Ok(if same { spelled_out } else { everywhere })
}

/// A mark behind the first character of each token that begins at one of `starts`.
fn marked_inside(text: &str, mark: char, starts: &[usize]) -> String {
    let mut result = String::with_capacity(text.len() + starts.len() * mark.len_utf8());
    let mut done = 0;
    for &start in starts {
        let end = start + text[start..].chars().next().map_or(0, char::len_utf8);
        result.push_str(&text[done..end]);
        result.push(mark);
        done = end;
    }
    result.push_str(&text[done..]);
    result
}

fn marked_everywhere(text: &str, mark: char) -> String {
    std::iter::once(mark).chain(text.chars().flat_map(|letter| [letter, mark])).collect()
}

/// The first two of [`MARKS`] that occur nowhere.
fn unused_marks(source: &str, messages: &[ChatMessage], context: &RenderContext) -> Result<[char; 2], TemplateError> {
    let mut used: AHashSet<char> = source.chars().filter(|letter| MARKS.contains(letter)).collect();
    for_texts(messages, context, &mut |text| used.extend(text.chars().filter(|letter| MARKS.contains(letter))));
    let mut unused = MARKS.filter(|mark| !used.contains(mark));
    let two = unused.next().zip(unused.next()).map(<[char; 2]>::from);
    two.ok_or_else(|| TemplateError::Failed("the messages use all private-use characters".to_owned()))
}

fn any_text(messages: &[ChatMessage], context: &RenderContext, is: &dyn Fn(&str) -> bool) -> bool {
    let mut any = false;
    for_texts(messages, context, &mut |text| any = any || is(text));
    any
}

/// Shows every text that a client wrote.
fn for_texts(messages: &[ChatMessage], context: &RenderContext, see: &mut dyn FnMut(&str)) {
    fn in_value(value: &Value, see: &mut dyn FnMut(&str)) {
        match value {
            Value::String(text) => see(text),
            Value::Array(items) => items.iter().for_each(|item| in_value(item, see)),
            Value::Object(object) => object.iter().for_each(|(key, value)| {
                see(key);
                in_value(value, see);
            }),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
    for message in messages {
        see(&message.content);
        let rest = [&message.name, &message.tool_call_id, &message.reasoning_content];
        rest.into_iter().flatten().for_each(|text| see(text));
        message.tool_calls.iter().for_each(|call| in_value(call, see));
    }
    context.tools.iter().chain(context.extra.values()).for_each(|value| in_value(value, see));
}

/// The same with every text that a client wrote changed.
fn with_texts(
    messages: &[ChatMessage],
    context: &RenderContext,
    change: &dyn Fn(&str) -> String,
) -> (Vec<ChatMessage>, RenderContext) {
    fn value(original: &Value, change: &dyn Fn(&str) -> String) -> Value {
        match original {
            Value::String(text) => Value::String(change(text)),
            Value::Array(items) => items.iter().map(|item| value(item, change)).collect(),
            Value::Object(object) => object.iter().map(|(key, item)| (change(key), value(item, change))).collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) => original.clone(),
        }
    }
    let message = |message: &ChatMessage| ChatMessage {
        role: message.role.clone(),
        content: change(&message.content),
        name: message.name.as_deref().map(change),
        tool_calls: message.tool_calls.iter().map(|call| value(call, change)).collect(),
        tool_call_id: message.tool_call_id.as_deref().map(change),
        reasoning_content: message.reasoning_content.as_deref().map(change),
    };
    let context = RenderContext {
        tools: context.tools.as_ref().map(|tools| value(tools, change)),
        // The names of the variables are the template's.
        extra: context.extra.iter().map(|(name, item)| (name.clone(), value(item, change))).collect(),
        ..context.clone()
    };
    (messages.iter().map(message).collect(), context)
}

#[cfg(test)]
mod tests;
