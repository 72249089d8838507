//! Chat templates: Jinja programs that turn messages into the text a chat model was trained on.
//!
//! They come from anyone's model file and run on every request, so their length and their steps are limited, and they
//! have access to nothing but what is handed in. (Their memory is not limited: a loop that doubles a string is stopped by
//! nothing before the system does it.) They were written for Python's Jinja as the `transformers` library sets it
//! up: strings have Python's methods, `tojson` writes what `json.dumps` writes, `raise_exception` refuses a
//! conversation, `strftime_now` tells the date (here in UTC), and `{% generation %}` marks the model's own text, which
//! matters in training only.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, ErrorKind, UndefinedBehavior, Value};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde::{Deserialize, Serialize};
use taper_checkpoint::Metadata;

use crate::strftime::strftime;
use crate::{Error, json};

/// Steps that one rendering may take. A template spends tens of steps on a message; this many take a fraction of a second.
const FUEL: u64 = 5_000_000;

/// Longest source. Models' templates have up to 20 KB.
const MAX_SOURCE_LEN: usize = 128 << 10;

/// Stack of the thread that compiles. The parser calls itself for every minus sign of `----1`; a source of
/// [`MAX_SOURCE_LEN`] takes up to 64 MiB that way (measured with minijinja 3.0.5), and running out would end the process.
const COMPILE_STACK: usize = 256 << 20;

/// The one template of an environment. The name has no extension, so nothing is escaped for HTML.
const NAME: &str = "chat template";

/// Templates for files that have none, by name.
const BUILTIN: &[(&str, &str)] = &[
    ("alpaca", include_str!("templates/alpaca.jinja")),
    ("chatml", include_str!("templates/chatml.jinja")),
    ("llama2", include_str!("templates/llama2.jinja")),
    ("llama3", include_str!("templates/llama3.jinja")),
    ("mistral", include_str!("templates/mistral.jinja")),
    ("vicuna", include_str!("templates/vicuna.jinja")),
    ("zephyr", include_str!("templates/zephyr.jinja")),
];

const BUILTIN_NAMES: [&str; BUILTIN.len()] = {
    let mut names = [""; BUILTIN.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = BUILTIN[at].0;
        at += 1;
    }
    names
};

/// One message of a conversation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// Who says it: `system`, `user`, `assistant`, or what else the template knows.
    pub role: String,
    /// The text.
    pub content: String,
    /// Which of several speakers of a role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What an assistant called: objects of `id`, `type` and `function`, whose `arguments` are an object where they can be.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<serde_json::Value>,
    /// Which call a message of role `tool` answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// What an assistant thought before it spoke.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
}

impl ChatMessage {
    /// A message without a name.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> ChatMessage {
        ChatMessage { role: role.into(), content: content.into(), ..ChatMessage::default() }
    }
}

/// What a template sees besides the messages.
#[derive(Debug, Clone, Default)]
pub struct RenderContext {
    /// Seen as `bos_token`.
    pub bos_text: String,
    /// Seen as `eos_token`.
    pub eos_text: String,
    /// End with the beginning of an answer.
    pub add_generation_prompt: bool,
    /// Seen as `tools`; templates ask whether it is defined, so absent is not the same as empty.
    pub tools: Option<serde_json::Value>,
    /// Any other variables, such as `enable_thinking`. They cannot replace the ones above.
    pub extra: serde_json::Map<String, serde_json::Value>,
}

/// Why a conversation could not be rendered. All are for the client to mend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The template refused the conversation, with its own words: "roles must alternate".
    #[error("the chat template does not accept this conversation: {0}")]
    Raised(String),
    /// The template did something impossible, such as using a field that these messages do not have.
    #[error("the chat template failed: {0}")]
    Failed(String),
    /// The last message is to be continued, and what it says is not in what the template wrote.
    #[error("the chat template does not show the {0} of the last message, which therefore cannot be continued")]
    Unshown(Unshown),
}

/// What of a message a template does not show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unshown {
    /// Its text.
    Text,
    /// What the model thought before it.
    Thoughts,
}

impl std::fmt::Display for Unshown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Unshown::Text => "text",
            Unshown::Thoughts => "thoughts",
        })
    }
}

/// A compiled template; cheap to clone.
#[derive(Clone)]
pub struct ChatTemplate {
    environment: Arc<Environment<'static>>,
    source: Arc<str>,
}

impl ChatTemplate {
    /// The template of a GGUF file: its only one, or of several the default. `None` if the file has none.
    pub fn from_metadata(metadata: &Metadata) -> Result<Option<ChatTemplate>, Error> {
        for key in ["tokenizer.chat_template", "tokenizer.chat_template.default"] {
            if let Some(source) = metadata.string(key)? {
                return ChatTemplate::from_source(key, source).map(Some);
            }
        }
        Ok(None)
    }

    /// Compiles a template; `name` says in errors where it came from.
    pub fn from_source(name: &str, source: &str) -> Result<ChatTemplate, Error> {
        ChatTemplate::with_clock(source, || {
            // A clock before 1970 is no reason to fail.
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            i64::try_from(now.as_secs()).unwrap_or(i64::MAX)
        })
        .map_err(|reason| Error::Template { name: name.to_owned(), reason })
    }

    /// One of [`ChatTemplate::builtin_names`].
    pub fn builtin(name: &str) -> Option<ChatTemplate> {
        let (name, source) = BUILTIN.iter().find(|(known, _)| *known == name)?;
        // A test compiles them all.
        ChatTemplate::from_source(name, source).ok()
    }

    /// The names of templates that need no file.
    pub fn builtin_names() -> &'static [&'static str] {
        &BUILTIN_NAMES
    }

    /// The Jinja text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether tools change what it writes.
    pub fn knows_tools(&self) -> bool {
        let parameters = serde_json::json!({ "type": "object", "properties": { "x": { "type": "string" } } });
        let function = serde_json::json!({ "name": "f", "description": "F", "parameters": parameters });
        let tools = serde_json::json!([{ "type": "function", "function": function }]);
        let render = |tools| {
            let context = RenderContext { add_generation_prompt: true, tools, ..RenderContext::default() };
            self.render(&[ChatMessage::new("user", "Hi")], &context)
        };
        // A date may change between the two; a second look does not see it change again.
        let differs = || match (render(Some(tools.clone())), render(None)) {
            (Ok(with), Ok(without)) => with != without,
            _ => false,
        };
        differs() && differs()
    }

    /// The conversation as one text. To make tokens of it, see [`ChatTemplate::prompt`]: here a `<|im_end|>` that a user
    /// typed looks like the template's own.
    pub fn render(&self, messages: &[ChatMessage], context: &RenderContext) -> Result<String, TemplateError> {
        let mut variables = context.extra.clone();
        let failed = |error: serde_json::Error| TemplateError::Failed(error.to_string());
        variables.insert("messages".to_owned(), serde_json::to_value(messages).map_err(failed)?);
        variables.insert("bos_token".to_owned(), context.bos_text.as_str().into());
        variables.insert("eos_token".to_owned(), context.eos_text.as_str().into());
        variables.insert("add_generation_prompt".to_owned(), context.add_generation_prompt.into());
        match &context.tools {
            Some(tools) => variables.insert("tools".to_owned(), tools.clone()),
            None => variables.remove("tools"),
        };
        let template = self.environment.get_template(NAME);
        template.and_then(|template| template.render(Value::from(Serde(&variables)))).map_err(|error| {
            match raised_message(&error) {
                Some(message) => TemplateError::Raised(message),
                None => TemplateError::Failed(describe(&error)),
            }
        })
    }

    /// As [`ChatTemplate::from_source`], with a clock that gives seconds since 1970.
    fn with_clock(source: &str, now: fn() -> i64) -> Result<ChatTemplate, String> {
        if source.len() > MAX_SOURCE_LEN {
            return Err(format!("it is {} bytes long; at most {MAX_SOURCE_LEN} are read", source.len()));
        }
        let environment = std::thread::scope(|scope| {
            let compiling = std::thread::Builder::new()
                .name("compile-template".to_owned())
                .stack_size(COMPILE_STACK)
                .spawn_scoped(scope, || environment(source, now))
                .map_err(|error| format!("no thread to compile it: {error}"))?;
            let environment = compiling.join().map_err(|_| "its parser panicked".to_owned())?;
            environment.map_err(|error| describe(&error))
        })?;
        Ok(ChatTemplate { environment: Arc::new(environment), source: source.into() })
    }
}

/// The template and all that it can use.
fn environment(source: &str, now: fn() -> i64) -> Result<Environment<'static>, minijinja::Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_undefined_behavior(UndefinedBehavior::Chainable);
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.add_filter("tojson", tojson);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", move |format: &str| strftime(format, now()));
    environment.add_template_owned(NAME, without_generation_tags(source))?;
    Ok(environment)
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("source", &self.source).finish_non_exhaustive()
    }
}

/// Carries the words of `raise_exception` through minijinja's error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn raise_exception(message: String) -> Result<Value, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(message)))
}

fn raised_message(error: &minijinja::Error) -> Option<String> {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = source {
        if let Some(Raised(message)) = error.downcast_ref() {
            return Some(message.clone());
        }
        source = error.source();
    }
    None
}

/// The error with its causes, on one line.
fn describe(error: &minijinja::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

#[expect(clippy::needless_pass_by_value, reason = "the form of a filter's arguments")]
fn tojson(value: &Value, arguments: Kwargs) -> Result<Value, minijinja::Error> {
    let style = json::Style {
        // A template that indents by thousands is after our memory.
        indent: arguments.get::<Option<usize>>("indent")?.map(|indent| indent.min(16)),
        ensure_ascii: arguments.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: arguments.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        separators: match arguments.get::<Option<Vec<String>>>("separators")?.as_deref() {
            Some([item, key]) => Some((item.clone(), key.clone())),
            _ => None,
        },
    };
    arguments.assert_all_used()?;
    let value = serde_json::to_value(value)
        .map_err(|error| minijinja::Error::new(ErrorKind::InvalidOperation, "tojson").with_source(error))?;
    Ok(Value::from_safe_string(json::dumps(&value, &style)))
}

/// `{% generation %}` blocks as `{% if true %}` ones: the text is the same, and so is the control of white space.
fn without_generation_tags(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        let (before, tag) = rest.split_at(open + 2);
        result.push_str(before);
        let close = tag.find("%}").unwrap_or(tag.len());
        let (inside, after) = tag.split_at(close);
        let word = inside.trim_matches(|letter: char| letter == '-' || letter == '+' || letter.is_whitespace());
        match word {
            "generation" => result.push_str(&inside.replace(word, "if true")),
            "endgeneration" => result.push_str(&inside.replace(word, "endif")),
            _ => result.push_str(inside),
        }
        rest = after;
    }
    result.push_str(rest);
    result
}

#[cfg(test)]
mod tests;
