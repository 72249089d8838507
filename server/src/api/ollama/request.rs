//! Ollama's requests for answers: what they call differently, and what is refused by name.

use serde_json::{Map, Value};
use taper_text::{ChatMessage, GrammarSpec};

use super::shape::{Answer, Kind, nothing_to_answer};
use super::{history, keep_alive, names, options};
use crate::api::chat_completions::{read_logprobs, reasoning_effort, switch_thinking, tools};
use crate::chat::{self, Conversation, Opening, Reading, Thoughts, ToolChoice};
use crate::errors::ApiError;
use crate::fields::{Fields, show};
use crate::grammar_fields::Form;
use crate::parameters::Parameters;
use crate::reply::Reply;
use crate::state::{Served, ServerState};
use crate::token_fields::token_ids;
use crate::{body, unsupported};

/// How hard a model may think.
pub(crate) const LEVELS: &[&str] = &["low", "medium", "high", "max"];

/// A request that was understood.
pub(crate) enum Asked {
    /// It has something to answer.
    Answer(Box<Prepared>),
    /// It only asks that the model be loaded or unloaded.
    Nothing(Nothing),
}

/// A request that has nothing to answer.
pub(crate) struct Nothing {
    kind: Kind,
    /// The model, as it was asked for.
    pub(super) model: String,
    /// Whether the model is to be unloaded.
    pub(super) unloads: bool,
    ignored: Vec<String>,
}

impl Nothing {
    /// What it is answered, which says where the model is now.
    pub(super) fn reply(self, is_unloaded: bool) -> Reply {
        let reason = if is_unloaded { "unload" } else { "load" };
        let text = nothing_to_answer(self.kind, &self.model, reason).to_string();
        Reply { text, ignored: self.ignored }
    }
}

/// Bytes of a body that asks for nothing else than an unload.
const MAX_UNLOAD_BYTES: usize = 4096;

/// A body that asks for nothing else than that the model that it names be unloaded. All others are read with the model at hand, which
/// says what is wrong with them.
pub(super) fn only_unloads(body: &[u8], kind: Kind) -> Option<Nothing> {
    if body.len() > MAX_UNLOAD_BYTES {
        return None;
    }
    let mut fields = Fields::new(body::parse_object(body).ok()?);
    let model = fields.string("model").ok()??;
    let unloads = keep_alive::take_zero(&mut fields).ok()?;
    fields.boolean("stream").ok()?;
    let content = fields.take(match kind {
        Kind::Chat => "messages",
        Kind::Generate => "prompt",
    });
    let has_content = content.is_some_and(|content| content != Value::Array(Vec::new()) && content != "");
    let only = unloads && !has_content && fields.into_rest().is_empty();
    only.then_some(Nothing { kind, model, unloads, ignored: Vec::new() })
}

/// A request that can be answered.
pub(crate) struct Prepared {
    pub(super) parameters: Parameters,
    pub(super) prompt: Vec<u32>,
    /// The field that the prompt came in, for errors.
    pub(super) prompt_field: &'static str,
    pub(super) reading: Reading,
    pub(super) shape: Answer,
    /// Whether the model is to be unloaded after the answer.
    pub(super) unloads: bool,
    pub(super) ignored: Vec<String>,
}

/// Reads a request of /api/chat.
pub(crate) fn prepare_chat(body: &[u8], state: &ServerState, served: &Served) -> Result<Asked, ApiError> {
    let mut fields = Fields::new(body::parse_object(body)?);
    let mut common = Common::take(&mut fields, state, served)?;
    let messages = history::take(&mut fields)?;
    let tools::Offer { tools, choice, parallel } = tools::take(&mut fields)?;
    let opening = Opening::take(&mut fields)?;
    common.ignored.extend(unsupported::check_rest(fields, state)?);
    if messages.is_empty() {
        return Ok(common.nothing(Kind::Chat));
    }
    let conversation = Conversation {
        messages,
        messages_field: "messages",
        tools,
        tool_choice: choice,
        parallel_calls: parallel,
        thoughts: common.thoughts,
        thinking_budget: None,
        variables: std::mem::take(&mut common.variables),
        opening,
    };
    let prepared = chat::prepare(served, &conversation, &mut common.parameters)?;
    Ok(common.answer(served, Kind::Chat, "messages", prepared, None))
}

/// Reads a request of /api/generate.
pub(crate) fn prepare_generate(body: &[u8], state: &ServerState, served: &Served) -> Result<Asked, ApiError> {
    let mut fields = Fields::new(body::parse_object(body)?);
    let mut common = Common::take(&mut fields, state, served)?;
    let prompt = fields.string("prompt")?.unwrap_or_default();
    let system = fields.string("system")?.filter(|system| !system.is_empty());
    let raw = fields.boolean("raw")?.unwrap_or(false);
    let context = take_context(&mut fields, served)?;
    refuse_text(&mut fields, "suffix", "the model does not fill in what lies between two texts")?;
    refuse_text(&mut fields, "template", "the server's own template is used; with raw none is")?;
    history::refuse_images(&mut fields)?;
    common.ignored.extend(unsupported::check_rest(fields, state)?);
    if raw && (system.is_some() || !context.is_empty()) {
        let field = if system.is_some() { "system" } else { "context" };
        return Err(ApiError::invalid("raw", format!("raw means that the prompt is all; leave out {field}")));
    }
    if prompt.is_empty() {
        return Ok(common.nothing(Kind::Generate));
    }
    let is_text = raw || (served.model.template.is_none() && system.is_none());
    let mut prepared = if is_text {
        chat::prepare_text(served, &prompt, "prompt", common.thoughts, &mut common.parameters)?
    } else {
        let system = system.map(|system| ChatMessage::new("system", system));
        let conversation = Conversation {
            messages: system.into_iter().chain([ChatMessage::new("user", prompt)]).collect(),
            messages_field: "prompt",
            tools: Vec::new(),
            tool_choice: ToolChoice::None,
            parallel_calls: true,
            thoughts: common.thoughts,
            thinking_budget: None,
            variables: std::mem::take(&mut common.variables),
            opening: Opening::NewTurn,
        };
        chat::prepare(served, &conversation, &mut common.parameters)?
    };
    if !context.is_empty() {
        prepared.prompt = continued(context, prepared.prompt, served);
    }
    let context = (!raw).then(|| prepared.prompt.clone());
    Ok(common.answer(served, Kind::Generate, "prompt", prepared, context))
}

/// What both requests have.
struct Common {
    /// The model, as it was asked for.
    model: String,
    parameters: Parameters,
    thoughts: Thoughts,
    variables: Map<String, Value>,
    /// Whether it asks that the model be unloaded.
    unloads: bool,
    ignored: Vec<String>,
}

impl Common {
    fn take(fields: &mut Fields, state: &ServerState, served: &Served) -> Result<Common, ApiError> {
        let model = names::take(fields, state, served)?;
        let (mut ignored, mut variables) = (Vec::new(), Map::new());
        let mut parameters = options::take(fields, state, served, &mut ignored)?;
        parameters.stream = fields.boolean("stream")?.unwrap_or(true);
        parameters.details.logprobs = read_logprobs(fields)?;
        parameters.sampling.logprobs = parameters.details.logprobs;
        take_format(fields, &mut parameters)?;
        let thoughts = take_think(fields, served, &mut variables, &mut ignored)?;
        let unloads = keep_alive::take_zero(fields)?;
        // A prompt that would have to be cut is refused, and there is no shift of the context.
        for name in ["truncate", "shift"] {
            fields.boolean(name)?;
        }
        const RENDER: &str = "_debug_render_only";
        if fields.boolean(RENDER)?.unwrap_or(false) {
            let message = format!("{RENDER} is not supported by this server; POST /apply-template renders messages");
            return Err(ApiError::unsupported(RENDER, message));
        }
        parameters.settle(served)?;
        Ok(Common { model, parameters, thoughts, variables, unloads, ignored })
    }

    fn nothing(self, kind: Kind) -> Asked {
        let Common { model, unloads, ignored, .. } = self;
        Asked::Nothing(Nothing { kind, model, unloads, ignored })
    }

    fn answer(
        self,
        served: &Served,
        kind: Kind,
        prompt_field: &'static str,
        prepared: chat::Prepared,
        context: Option<Vec<u32>>,
    ) -> Asked {
        let Common { model, parameters, unloads, ignored, .. } = self;
        let chat::Prepared { prompt, reading } = prepared;
        let shape = Answer::new(kind, model, &served.model.tokenizer, parameters.details, context);
        Asked::Answer(Box::new(Prepared { parameters, prompt, prompt_field, reading, shape, unloads, ignored }))
    }
}

/// `format`: any JSON object, or a schema.
fn take_format(fields: &mut Fields, parameters: &mut Parameters) -> Result<(), ApiError> {
    const FIELD: &str = "format";
    let spec = match fields.take(FIELD) {
        None => return Ok(()),
        Some(Value::String(word)) if word.is_empty() => return Ok(()),
        Some(Value::String(word)) if word == "json" => GrammarSpec::JsonObject,
        Some(schema @ Value::Object(_)) => GrammarSpec::JsonSchema(schema),
        Some(other) => {
            let message = format!("{FIELD} must be \"json\" or a JSON schema, got {}", show(&other));
            return Err(ApiError::invalid(FIELD, message));
        }
    };
    if let Some(other) = &parameters.form {
        let message =
            format!("options.{} and {FIELD} both ask for a form of the answer; give one of them", other.field);
        return Err(ApiError::invalid(FIELD, message));
    }
    parameters.form = Some(Form { field: FIELD, spec, parts: Vec::new() });
    Ok(())
}

/// `think`. Templates know at most a switch and a level; a level that this one does not know is told among the ignored fields.
fn take_think(
    fields: &mut Fields,
    served: &Served,
    variables: &mut Map<String, Value>,
    ignored: &mut Vec<String>,
) -> Result<Thoughts, ApiError> {
    const FIELD: &str = "think";
    let Some(value) = fields.take(FIELD) else { return Ok(Thoughts::Apart) };
    let level = match &value {
        Value::Bool(false) => {
            switch_thinking(false, served, variables);
            return Ok(Thoughts::LeftOut);
        }
        Value::Bool(true) => None,
        Value::String(level) if LEVELS.contains(&level.as_str()) => Some(level.as_str()),
        other => {
            let message = format!("{FIELD} must be true, false or one of {}, got {}", LEVELS.join(", "), show(other));
            return Err(ApiError::invalid(FIELD, message));
        }
    };
    if served.dialect.reasoning.is_none() {
        return Err(ApiError::unsupported(FIELD, format!("\"{}\" does not support thinking", served.model.id)));
    }
    switch_thinking(true, served, variables);
    if let Some(level) = level {
        // OpenAI's words end here.
        let nearest = if level == "max" { "xhigh" } else { level };
        if reasoning_effort(nearest, FIELD, served, variables).is_err() {
            ignored.push(FIELD.to_owned());
        }
    }
    Ok(Thoughts::Apart)
}

/// `context`: the tokens of a former prompt and its answer.
fn take_context(fields: &mut Fields, served: &Served) -> Result<Vec<u32>, ApiError> {
    const FIELD: &str = "context";
    let tokens = token_ids(fields, FIELD)?.unwrap_or_default();
    let vocab_size = served.vocab_size();
    match tokens.iter().find(|&&token| token as usize >= vocab_size) {
        None => Ok(tokens),
        Some(token) => {
            let message = format!("token id {token} is not in the vocabulary, whose ids are below {vocab_size}");
            Err(ApiError::invalid(FIELD, message))
        }
    }
}

/// A prompt behind the tokens of a former one: a text begins once.
fn continued(mut context: Vec<u32>, prompt: Vec<u32>, served: &Served) -> Vec<u32> {
    let tokenizer = &served.model.tokenizer;
    let begins = tokenizer.adds_bos() && prompt.first().copied() == tokenizer.bos();
    context.extend(prompt.into_iter().skip(usize::from(begins)));
    context
}

/// Refuses a text that asks for what is not there; an empty one asks for nothing.
fn refuse_text(fields: &mut Fields, field: &'static str, why: &str) -> Result<(), ApiError> {
    match fields.string(field)? {
        Some(text) if !text.is_empty() => {
            let got = show(&Value::from(text));
            Err(ApiError::unsupported(field, format!("{field} is not supported: {why}; leave it out (got {got})")))
        }
        _ => Ok(()),
    }
}
