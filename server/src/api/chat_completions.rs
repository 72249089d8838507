//! POST /v1/chat/completions: an answer to a conversation, rendered with the model's chat template.
//!
//! Roles are system, developer (which templates know as system), user, assistant and tool. Content is a string or an array of
//! text parts, which are joined by newlines. Without `max_completion_tokens` an answer may take the rest of the context.
//! `chat_template_kwargs` gives variables to the template, such as `{"enable_thinking": false}`.
//!
//! What lies between the request and the engine is in `chat`, for all protocols.

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::{Map, Value};
use taper_engine::MAX_LOGPROBS;

use crate::answer::{self, Answering};
use crate::chat::{self, Budget, ChatStream, Conversation, Opening, Reading, Thoughts};
use crate::errors::ApiError;
use crate::fields::{Fields, show};
use crate::generation::Generation;
use crate::parameters::Parameters;
use crate::sampling_defaults::SamplingDefaults;
use crate::state::{Served, ServerState};
use crate::token_json::TokenWriter;
use crate::{account_fields, api, body, unsupported};

mod messages;
mod shape;
pub(crate) mod tools;

/// The field of the conversation.
const MESSAGES: &str = "messages";

/// Variables of a template that the server sets itself.
const RESERVED_VARIABLES: &[&str] =
    &["messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "raise_exception", "strftime_now"];

/// How hard a model may think, in OpenAI's words.
pub(crate) const EFFORTS: &[&str] = &["none", "minimal", "low", "medium", "high", "xhigh"];

struct Prepared {
    parameters: Parameters,
    prompt: Vec<u32>,
    reading: Reading,
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
    let shape = shape::Chat::new(writer, prompt);
    let prompts = vec![request.prompt];
    let generation = Generation::start(&served, prompts, &request.parameters, MESSAGES, (active, time_limit)).await?;
    let answers = ChatStream::new(generation, &request.reading);
    let context = Answering { model: &served.model, ignored: &request.ignored, state: &state };
    answer::send(shape, answers, &request.parameters, &context).await
}

/// A request as it was read.
struct Asked {
    parameters: Parameters,
    conversation: Conversation,
    ignored: Vec<String>,
}

fn prepare(body: &[u8], state: &ServerState, served: &Served) -> Result<Prepared, ApiError> {
    let Asked { mut parameters, conversation, mut ignored } = read(body, state, served)?;
    ignored.extend(chat::unkept_strictness(served, &conversation, parameters.form.is_some()));
    let chat::Prepared { prompt, reading } = chat::prepare(served, &conversation, &mut parameters)?;
    parameters.check_told_of_prompts(prompt.len(), false)?;
    Ok(Prepared { parameters, prompt, reading, ignored })
}

fn read(body: &[u8], state: &ServerState, served: &Served) -> Result<Asked, ApiError> {
    let mut fields = Fields::new(body::parse_object(body)?);
    let mut parameters = Parameters::take(&mut fields, state, served, SamplingDefaults::NONE)?;
    parameters.details.logprobs = read_logprobs(&mut fields)?;
    parameters.sampling.logprobs = parameters.details.logprobs;
    parameters.settle(served)?;
    account_fields::take(&mut fields)?;
    let conversation = conversation(&mut fields, served)?;
    let ignored = unsupported::check_rest(fields, state)?;
    Ok(Asked { parameters, conversation, ignored })
}

/// The conversation of a request, with its tools and what the template is told.
pub(crate) fn conversation(fields: &mut Fields, served: &Served) -> Result<Conversation, ApiError> {
    let messages = messages::take(fields, MESSAGES)?;
    let tools::Offer { tools, choice, parallel } = tools::take(fields)?;
    let thoughts = thoughts(fields)?;
    let thinking_budget = Budget::take(fields)?;
    let mut variables = template_variables(fields)?;
    enable_thinking(fields, &mut variables)?;
    if let Some(effort) = fields.string("reasoning_effort")? {
        reasoning_effort(&effort, "reasoning_effort", served, &mut variables)?;
    }
    Ok(Conversation {
        messages,
        messages_field: MESSAGES,
        tools,
        tool_choice: choice,
        parallel_calls: parallel,
        thoughts,
        thinking_budget,
        variables,
        opening: Opening::take(fields)?,
    })
}

/// How many tokens the prompt of a request has, and its fields that nobody knows.
pub(crate) fn count_tokens(
    body: &[u8],
    state: &ServerState,
    served: &Served,
) -> Result<(usize, Vec<String>), ApiError> {
    let Asked { conversation, ignored, .. } = read(body, state, served)?;
    Ok((chat::count(served, &conversation)?, ignored))
}

/// `logprobs` asks for those of the chosen tokens, `top_logprobs` for the most probable ones beside them.
pub(crate) fn read_logprobs(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let is_asked = fields.boolean("logprobs")?.unwrap_or(false);
    let num_top = fields.integer("top_logprobs", 0..=i64::from(MAX_LOGPROBS))?.map_or(0, |num_top| num_top as u32);
    if num_top > 0 && !is_asked {
        return Err(ApiError::invalid("top_logprobs", "top_logprobs needs logprobs to be true"));
    }
    Ok(is_asked.then_some(num_top))
}

/// Variables of the template that a request gives by itself.
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

/// SGLang's and mistral.rs's `enable_thinking`, which is the variable of that name.
fn enable_thinking(fields: &mut Fields, variables: &mut Map<String, Value>) -> Result<(), ApiError> {
    const NAME: &str = "enable_thinking";
    let Some(thinks) = fields.boolean(NAME)? else { return Ok(()) };
    match variables.insert(NAME.to_owned(), thinks.into()) {
        Some(other) if other != thinks => {
            let message = format!(
                "{NAME} is {thinks} and chat_template_kwargs.{NAME} is {}, and both say whether the model thinks; give one of them",
                show(&other)
            );
            Err(ApiError::invalid(NAME, message))
        }
        _ => Ok(()),
    }
}

/// vLLM's `include_reasoning` and llama.cpp's `reasoning_format`.
fn thoughts(fields: &mut Fields) -> Result<Thoughts, ApiError> {
    let is_told = fields.boolean("include_reasoning")?.unwrap_or(true);
    let format = fields.string("reasoning_format")?;
    match format.as_deref() {
        _ if !is_told => Ok(Thoughts::LeftOut),
        None | Some("auto" | "deepseek") => Ok(Thoughts::Apart),
        Some("none") => Ok(Thoughts::InText),
        Some(other) => {
            let got = show(&Value::from(other));
            let message = format!("reasoning_format must be auto, deepseek or none, got {got}");
            Err(ApiError::invalid("reasoning_format", message))
        }
    }
}

/// Tells the template whether to think, where it has such a switch.
pub(crate) fn switch_thinking(thinks: bool, served: &Served, variables: &mut Map<String, Value>) {
    const VARIABLE: &str = "enable_thinking";
    if served.model.template.as_ref().is_some_and(|template| template.source().contains(VARIABLE)) {
        variables.entry(VARIABLE).or_insert(thinks.into());
    }
}

/// `reasoning_effort` is a variable of templates that know it. Others know at most whether to think, and `none` says so to them;
/// `medium` is the default and asks for nothing.
pub(crate) fn reasoning_effort(
    effort: &str,
    field: &str,
    served: &Served,
    variables: &mut Map<String, Value>,
) -> Result<(), ApiError> {
    const VARIABLE: &str = "reasoning_effort";
    if !EFFORTS.contains(&effort) {
        let got = show(&Value::from(effort));
        return Err(ApiError::invalid(field, format!("{field} must be one of {}, got {got}", EFFORTS.join(", "))));
    }
    let knows = |name: &str| served.model.template.as_ref().is_some_and(|template| template.source().contains(name));
    match effort {
        _ if knows(VARIABLE) => {
            variables.entry(VARIABLE).or_insert(effort.into());
        }
        "none" if knows("enable_thinking") => {
            variables.entry("enable_thinking").or_insert(false.into());
        }
        "none" if served.dialect.reasoning.is_none() => {}
        "medium" => {}
        _ => {
            let message = format!(
                "{field} is not supported by this model, whose chat template has no such variable; leave it out (got \"{effort}\")"
            );
            return Err(ApiError::unsupported(field, message));
        }
    }
    Ok(())
}
