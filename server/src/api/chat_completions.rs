//! POST /v1/chat/completions: an answer to a conversation, rendered with the model's chat template.
//!
//! Roles are system, developer (which templates know as system), user and assistant. Content is a string or an array of
//! text parts, which are joined by newlines. Without `max_completion_tokens` an answer may take the rest of the context.
//! `chat_template_kwargs` gives variables to the template, such as `{"enable_thinking": false}`.

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::{Map, Value, json};
use taper_engine::{FinishReason, MAX_LOGPROBS, TokenLogprobs};
use taper_text::ChatMessage;

use crate::answer::{self, Answering, Shape};
use crate::errors::ApiError;
use crate::fields::{Fields, show};
use crate::generation::{Generation, Piece};
use crate::parameters::Parameters;
use crate::state::{Served, ServerState};
use crate::token_json::TokenWriter;
use crate::{api, body, prompt, unsupported};

/// Variables of a template that the server sets itself.
const RESERVED_VARIABLES: &[&str] =
    &["messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "raise_exception", "strftime_now"];

struct Prepared {
    parameters: Parameters,
    prompt: Vec<u32>,
    ignored: Vec<String>,
}

pub(crate) async fn chat_completions(
    State(state): State<ServerState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let mut admitted = api::admit(&state, &headers, body).await?;
    let mut request = admitted.read(&state, prepare).await?;
    admitted.compile(&state, &mut request.parameters, std::slice::from_ref(&request.prompt)).await?;
    let api::Admitted { served, active, time_limit, .. } = admitted;
    let writer = TokenWriter::new(&served.model.tokenizer, request.parameters.details);
    let prompt = if request.parameters.details.token_ids { request.prompt.clone() } else { Vec::new() };
    let chat = Chat { writer, prompt, prompt_logprobs: Vec::new() };
    let prompts = vec![request.prompt];
    let generation = Generation::start(&served, prompts, &request.parameters, "messages", (active, time_limit))?;
    let context = Answering { model: &served.model, ignored: &request.ignored, state: &state };
    answer::send(chat, generation, &request.parameters, &context).await
}

fn prepare(body: &[u8], state: &ServerState, served: &Served) -> Result<Prepared, ApiError> {
    let mut fields = Fields::new(body::parse_object(body)?);
    let mut parameters = Parameters::take(&mut fields, state, served)?;
    parameters.details.logprobs = read_logprobs(&mut fields)?;
    parameters.sampling.logprobs = parameters.details.logprobs;
    parameters.check(served)?;
    let messages = read_messages(&mut fields)?;
    let variables = template_variables(&mut fields)?;
    let ignored = unsupported::check_rest(fields, state)?;
    let prompt = prompt::encode_chat(served, &messages, variables)?;
    parameters.check_told_of_prompts(prompt.len(), false)?;
    Ok(Prepared { parameters, prompt, ignored })
}

/// How many tokens the prompt of a request has, and its fields that nobody knows.
pub(crate) fn count_tokens(
    body: &[u8],
    state: &ServerState,
    served: &Served,
) -> Result<(usize, Vec<String>), ApiError> {
    let Prepared { prompt, ignored, .. } = prepare(body, state, served)?;
    Ok((prompt.len(), ignored))
}

/// `logprobs` asks for those of the chosen tokens, `top_logprobs` for the most probable ones beside them.
fn read_logprobs(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let is_asked = fields.boolean("logprobs")?.unwrap_or(false);
    let num_top = fields.integer("top_logprobs", 0..=i64::from(MAX_LOGPROBS))?.map_or(0, |num_top| num_top as u32);
    if num_top > 0 && !is_asked {
        return Err(ApiError::invalid("top_logprobs", "top_logprobs needs logprobs to be true"));
    }
    Ok(is_asked.then_some(num_top))
}

pub(crate) fn template_variables(fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    let Some(variables) = fields.object("chat_template_kwargs")? else { return Ok(Map::new()) };
    let variables = variables.into_rest();
    match RESERVED_VARIABLES.iter().find(|name| variables.contains_key(**name)) {
        None => Ok(variables),
        Some(name) => {
            let param = format!("chat_template_kwargs.{name}");
            let message = format!("{param} is set by the server and cannot be given");
            Err(ApiError::invalid(param, message))
        }
    }
}

pub(crate) fn read_messages(fields: &mut Fields) -> Result<Vec<ChatMessage>, ApiError> {
    let Some(items) = fields.array("messages")? else {
        return Err(ApiError::missing("messages", "messages is missing; it is an array of {\"role\", \"content\"}"));
    };
    if items.is_empty() {
        return Err(ApiError::invalid("messages", "messages must hold at least one message"));
    }
    items
        .into_iter()
        .enumerate()
        .map(|(index, item)| read_message(Fields::nested(&format!("messages[{index}]"), item)?))
        .collect()
}

fn read_message(mut fields: Fields) -> Result<ChatMessage, ApiError> {
    let role_name = fields.name_of("role");
    let role = match fields.string("role")?.as_deref() {
        Some("system" | "developer") => "system",
        Some("user") => "user",
        Some("assistant") => "assistant",
        Some("tool" | "function") => {
            return Err(ApiError::unsupported(role_name, "messages of tools are not supported by this server"));
        }
        Some(other) => {
            let got = show(&Value::String(other.to_owned()));
            let message = format!("{role_name} must be system, developer, user or assistant, got {got}");
            return Err(ApiError::invalid(role_name, message));
        }
        None => return Err(ApiError::missing(&role_name, format!("{role_name} is missing"))),
    };
    for called in ["tool_calls", "function_call"] {
        if let Some(value) = fields.take(called)
            && value.as_array().is_none_or(|calls| !calls.is_empty())
        {
            let name = fields.name_of(called);
            let message = format!("{name} is not supported by this server");
            return Err(ApiError::unsupported(name, message));
        }
    }
    let name = fields.string("name")?;
    let content_name = fields.name_of("content");
    let content = match fields.take("content") {
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => read_parts(parts, &content_name)?,
        Some(other) => {
            let message = format!("{content_name} must be a string or an array of text parts, got {}", show(&other));
            return Err(ApiError::invalid(content_name, message));
        }
        None => return Err(ApiError::missing(&content_name, format!("{content_name} is missing"))),
    };
    Ok(ChatMessage { role: role.to_owned(), content, name })
}

fn read_parts(parts: Vec<Value>, path: &str) -> Result<String, ApiError> {
    let mut texts = Vec::with_capacity(parts.len());
    for (index, part) in parts.into_iter().enumerate() {
        let mut fields = Fields::nested(&format!("{path}[{index}]"), part)?;
        let (kind_name, text_name) = (fields.name_of("type"), fields.name_of("text"));
        match fields.string("type")?.as_deref() {
            Some("text") => {}
            Some(other) => {
                let got = show(&Value::String(other.to_owned()));
                let message = format!("{kind_name} must be \"text\", got {got}; this model reads text only");
                return Err(ApiError::unsupported(kind_name, message));
            }
            None => return Err(ApiError::missing(&kind_name, format!("{kind_name} is missing"))),
        }
        let text = fields.string("text")?;
        texts.push(text.ok_or_else(|| ApiError::missing(&text_name, format!("{text_name} is missing")))?);
    }
    Ok(texts.join("\n"))
}

/// `chat.completion` objects and their chunks.
struct Chat {
    writer: TokenWriter,
    /// The prompt's tokens, if they are asked for.
    prompt: Vec<u32>,
    prompt_logprobs: Vec<Option<TokenLogprobs>>,
}

impl Chat {
    fn chunk(&self, choice: usize, delta: &Value, piece: &Piece, reason: Option<FinishReason>) -> Value {
        let mut chunk = json!({
            "index": choice,
            "delta": delta,
            "logprobs": self.logprobs(piece),
            "finish_reason": reason.map(FinishReason::as_str),
        });
        self.add_token_ids(&mut chunk, piece);
        chunk
    }

    /// Null in chunks without tokens.
    fn logprobs(&self, piece: &Piece) -> Value {
        if piece.tokens.is_empty() { Value::Null } else { self.writer.chat_logprobs(&piece.logprobs) }
    }

    fn add_token_ids(&self, choice: &mut Value, piece: &Piece) {
        if self.writer.details().token_ids {
            choice["token_ids"] = json!(piece.tokens);
        }
    }
}

impl Shape for Chat {
    const OBJECT: &'static str = "chat.completion";
    const CHUNK_OBJECT: &'static str = "chat.completion.chunk";
    const ID_PREFIX: &'static str = "chatcmpl-";

    fn prompt_logprobs(&mut self, _prompt: usize, logprobs: Vec<Option<TokenLogprobs>>) {
        self.prompt_logprobs = logprobs;
    }

    fn opening(&mut self, choice: usize) -> Option<Value> {
        Some(self.chunk(choice, &json!({ "role": "assistant", "content": "" }), &Piece::default(), None))
    }

    fn delta(&mut self, choice: usize, piece: &Piece) -> Value {
        self.chunk(choice, &json!({ "content": piece.text }), piece, None)
    }

    fn ending(&mut self, choice: usize, reason: FinishReason, rest: &Piece) -> Value {
        self.chunk(choice, &json!({}), rest, Some(reason))
    }

    fn whole(&mut self, choice: usize, reason: FinishReason, piece: &Piece) -> Value {
        let mut whole = json!({
            "index": choice,
            "message": { "role": "assistant", "content": piece.text, "refusal": null },
            "logprobs": self.writer.chat_logprobs(&piece.logprobs),
            "finish_reason": reason.as_str(),
        });
        self.add_token_ids(&mut whole, piece);
        whole
    }

    fn complete(&self, body: &mut Value) {
        let details = self.writer.details();
        if details.prompt_logprobs.is_some() {
            body["prompt_logprobs"] = self.writer.prompt_logprobs(&self.prompt_logprobs);
        }
        if details.token_ids {
            body["prompt_token_ids"] = json!(self.prompt);
        }
    }
}
