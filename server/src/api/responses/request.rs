//! The request: what it calls differently, what it repeats in the answer, and what is refused by name.

use serde_json::{Map, Value, json};
use taper_engine::MAX_LOGPROBS;
use taper_text::GrammarSpec;

use super::{history, tools};
use crate::api::chat_completions::{reasoning_effort, template_variables};
use crate::chat::{self, Budget, Conversation, Opening, Reading, Thoughts, check_single};
use crate::errors::ApiError;
use crate::fields::{Fields, show};
use crate::grammar_fields::{Form, schema};
use crate::limits::SMALL_BODY_BYTES;
use crate::parameters::Parameters;
use crate::sampling_defaults::{SamplingDefaults, as_written};
use crate::state::{Served, ServerState};
use crate::{account_fields, body, unsupported};

/// What asks the answer for log-probabilities.
const LOGPROBS: &str = "message.output_text.logprobs";

/// A request that can be answered.
pub(crate) struct Prepared {
    pub(super) parameters: Parameters,
    pub(super) prompt: Vec<u32>,
    pub(super) reading: Reading,
    /// Fields of the request that the answer repeats.
    pub(super) echo: Map<String, Value>,
    /// Its bytes as JSON; at most those, where they are few.
    pub(super) echo_len: usize,
    pub(super) ignored: Vec<String>,
}

/// Reads a request.
pub(crate) fn prepare(body: &[u8], state: &ServerState, served: &Served) -> Result<Prepared, ApiError> {
    let object = body::parse_object(body)?;
    let mut echo = echo(&object);
    let mut fields = Fields::new(object);
    refuse_memory(&mut fields)?;
    let mut ignored = Vec::new();
    let mut parameters = Parameters::take(&mut fields, state, served, SamplingDefaults::NONE)?;
    check_single(&parameters)?;
    let most = fields.integer("max_output_tokens", 1..=i64::MAX)?;
    if let Some(most) = most {
        parameters.sampling.max_tokens = Some(usize::try_from(most).unwrap_or(usize::MAX));
    }
    parameters.details.logprobs = take_logprobs(&mut fields, &mut ignored)?;
    parameters.sampling.logprobs = parameters.details.logprobs;
    take_text(&mut fields, &mut parameters)?;
    parameters.settle(served)?;
    account_fields::take(&mut fields)?;
    let mut variables = template_variables(&mut fields)?;
    take_reasoning(&mut fields, served, &mut variables, &mut ignored)?;
    let thinking_budget = Budget::take(&mut fields)?;
    let parallel_calls = fields.boolean("parallel_tool_calls")?.unwrap_or(true);
    let (tools, tool_choice) = tools::take(&mut fields)?;
    let parallel_calls = tool_choice.allows_several(parallel_calls);
    let conversation = Conversation {
        messages: history::take(&mut fields)?,
        messages_field: "input",
        tools,
        tool_choice,
        parallel_calls,
        thoughts: Thoughts::Apart,
        thinking_budget,
        variables,
        opening: Opening::take(&mut fields)?,
    };
    ignored.extend(unsupported::check_rest(fields, state)?);
    ignored.extend(chat::unkept_strictness(served, &conversation, parameters.form.is_some()));
    for (field, value) in [
        ("temperature", json!(as_written(parameters.sampling.temperature))),
        ("top_p", json!(as_written(parameters.sampling.top_p))),
        ("presence_penalty", json!(as_written(parameters.sampling.presence_penalty))),
        ("frequency_penalty", json!(as_written(parameters.sampling.frequency_penalty))),
        ("max_output_tokens", json!(parameters.sampling.max_tokens)),
        ("top_logprobs", json!(parameters.details.logprobs.unwrap_or(0))),
    ] {
        echo.insert(field.to_owned(), value);
    }
    let chat::Prepared { prompt, reading } = chat::prepare(served, &conversation, &mut parameters)?;
    let is_small = body.len() <= SMALL_BODY_BYTES;
    let echo_len =
        if is_small { body.len() } else { serde_json::to_string(&echo).map_or(body.len(), |text| text.len()) };
    Ok(Prepared { parameters, prompt, reading, echo, echo_len, ignored })
}

/// What the answer repeats as it came, with OpenAI's defaults.
fn echo(object: &Map<String, Value>) -> Map<String, Value> {
    let given = |field: &str| object.get(field).filter(|value| !value.is_null()).cloned();
    let mut echo = Map::new();
    for (field, default) in [
        ("instructions", Value::Null),
        ("metadata", json!({})),
        ("parallel_tool_calls", json!(true)),
        ("tool_choice", json!("auto")),
        ("tools", json!([])),
        ("user", Value::Null),
        ("safety_identifier", Value::Null),
        ("prompt_cache_key", Value::Null),
    ] {
        echo.insert(field.to_owned(), given(field).unwrap_or(default));
    }
    // With every field of theirs.
    if let Some(Value::Array(tools)) = echo.get_mut("tools") {
        for tool in tools.iter_mut().filter_map(Value::as_object_mut) {
            for (field, default) in
                [("description", Value::Null), ("parameters", Value::Null), ("strict", json!(false))]
            {
                let value = tool.entry(field).or_insert(Value::Null);
                if value.is_null() {
                    *value = default;
                }
            }
        }
    }
    let nested = |field: &str, inner: &str| object.get(field).and_then(|value| value.get(inner)).cloned();
    let format = nested("text", "format").filter(|format| !format.is_null());
    echo.insert("text".to_owned(), json!({ "format": format.unwrap_or_else(|| json!({ "type": "text" })) }));
    let effort = nested("reasoning", "effort").unwrap_or_default();
    echo.insert("reasoning".to_owned(), json!({ "effort": effort, "summary": null }));
    echo
}

/// What would need former responses, or work that goes on after the answer.
fn refuse_memory(fields: &mut Fields) -> Result<(), ApiError> {
    let refused = |name: &str, got: &Value, why: &str| {
        let message = format!("{name} is not supported by this server: {why} (got {})", show(got));
        Err(ApiError::unsupported(name, message))
    };
    const NO_MEMORY: &str = "it stores no responses; send the whole conversation as input";
    for (name, off, why) in [
        ("previous_response_id", Value::Null, NO_MEMORY),
        ("conversation", Value::Null, NO_MEMORY),
        ("store", json!(false), "it stores no responses; leave it out or give false"),
        ("background", json!(false), "a response is computed while its client waits; leave it out"),
        ("prompt", Value::Null, "it stores no prompts; send the text as instructions and input"),
        ("truncation", json!("disabled"), "a prompt is never cut; leave it out or give disabled"),
        ("max_tool_calls", Value::Null, "it has no tools of its own to call; leave it out"),
    ] {
        if let Some(value) = fields.take(name).filter(|value| *value != off) {
            return refused(name, &value, why);
        }
    }
    Ok(())
}

/// `include` and `top_logprobs`; either asks for log-probabilities.
fn take_logprobs(fields: &mut Fields, ignored: &mut Vec<String>) -> Result<Option<u32>, ApiError> {
    let mut is_asked = false;
    for (index, item) in fields.array("include")?.unwrap_or_default().into_iter().enumerate() {
        let name = format!("include[{index}]");
        match item.as_str() {
            Some(LOGPROBS) => is_asked = true,
            // Thoughts are told in clear, and may be sent back so.
            Some("reasoning.encrypted_content") => ignored.push("include.reasoning.encrypted_content".to_owned()),
            _ => {
                let message = format!("{name} must be {LOGPROBS} or reasoning.encrypted_content, got {}", show(&item));
                return Err(ApiError::unsupported(name, message));
            }
        }
    }
    let num_top = fields.integer("top_logprobs", 0..=i64::from(MAX_LOGPROBS))?.map_or(0, |num_top| num_top as u32);
    Ok((is_asked || num_top > 0).then_some(num_top))
}

/// `text`: the form of the answer.
fn take_text(fields: &mut Fields, parameters: &mut Parameters) -> Result<(), ApiError> {
    const SCHEMA: &str = "text.format.schema";
    let Some(mut text) = fields.object("text")? else { return Ok(()) };
    if let Some(verbosity) = text.string("verbosity")?.filter(|verbosity| verbosity != "medium") {
        let name = text.name_of("verbosity");
        let message = format!("{name} is not supported by this server; leave it out (got \"{verbosity}\")");
        return Err(ApiError::unsupported(name, message));
    }
    let Some(mut format) = text.object("format")? else { return Ok(()) };
    let kind_name = format.name_of("type");
    let (field, spec) = match format.string("type")?.as_deref() {
        Some("text") => return Ok(()),
        Some("json_object") => ("text.format", GrammarSpec::JsonObject),
        Some("json_schema") => {
            format.string("name")?;
            format.boolean("strict")?;
            let spec = schema(&mut format, "schema")?;
            let missing = || ApiError::missing(SCHEMA, format!("{SCHEMA} is missing; it is a JSON schema"));
            (SCHEMA, spec.ok_or_else(missing)?)
        }
        other => {
            let got = other.map_or_else(|| "nothing".to_owned(), |kind| show(&Value::from(kind)));
            let message = format!("{kind_name} must be text, json_object or json_schema, got {got}");
            return Err(ApiError::invalid(kind_name, message));
        }
    };
    if let Some(other) = &parameters.form {
        let message = format!("{} and {field} both ask for a form of the answer; give one of them", other.field);
        return Err(ApiError::invalid(field, message));
    }
    parameters.form = Some(Form { field, spec, parts: Vec::new() });
    Ok(())
}

/// `reasoning`. Summaries are not written: the thoughts themselves are told.
fn take_reasoning(
    fields: &mut Fields,
    served: &Served,
    variables: &mut Map<String, Value>,
    ignored: &mut Vec<String>,
) -> Result<(), ApiError> {
    let Some(mut reasoning) = fields.object("reasoning")? else { return Ok(()) };
    for summary in ["summary", "generate_summary"] {
        if let Some(kind) = reasoning.string(summary)? {
            if !["auto", "concise", "detailed"].contains(&kind.as_str()) {
                let name = reasoning.name_of(summary);
                let message = format!("{name} must be auto, concise or detailed, got {}", show(&Value::from(kind)));
                return Err(ApiError::invalid(name, message));
            }
            ignored.push(reasoning.name_of(summary));
        }
    }
    match reasoning.string("effort")? {
        None => Ok(()),
        Some(effort) => reasoning_effort(&effort, "reasoning.effort", served, variables),
    }
}
