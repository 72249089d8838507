//! Anthropic's request: what it calls differently, and what is refused by name.

use serde_json::{Map, Value};

use super::history;
use crate::api::chat_completions::{reasoning_effort, switch_thinking, template_variables};
use crate::chat::{
    self, Budget, Conversation, Opening, Reading, Thoughts, Tool, ToolChoice, check_single, check_tools,
};
use crate::errors::ApiError;
use crate::fields::{Fields, show};
use crate::grammar_fields::{Form, schema};
use crate::limits::{MAX_STOPS, MAX_TOOLS};
use crate::parameters::{Parameters, stop_strings};
use crate::sampling_defaults::SamplingDefaults;
use crate::state::{Served, ServerState};
use crate::{body, unsupported};

const CHOICE: &str = "tool_choice";
/// How hard a model may think, in Anthropic's words.
const EFFORTS: &[&str] = &["low", "medium", "high", "xhigh", "max"];

/// A request that can be answered.
pub(crate) struct Prepared {
    pub(super) parameters: Parameters,
    pub(super) prompt: Vec<u32>,
    pub(super) reading: Reading,
    pub(super) ignored: Vec<String>,
}

/// Reads a request for an answer.
pub(crate) fn prepare(body: &[u8], state: &ServerState, served: &Served) -> Result<Prepared, ApiError> {
    let Asked { mut parameters, conversation, mut ignored } = read(body, state, served)?;
    ignored.extend(chat::unkept_strictness(served, &conversation, parameters.form.is_some()));
    if parameters.sampling.max_tokens.is_none() {
        let message = "max_tokens is missing; it is the most tokens that the answer may have";
        return Err(ApiError::missing("max_tokens", message));
    }
    let mut prepared = chat::prepare(served, &conversation, &mut parameters)?;
    prepared.watch_stops(served, &parameters);
    let chat::Prepared { prompt, reading } = prepared;
    Ok(Prepared { parameters, prompt, reading, ignored })
}

/// A request as it was read; its answer may have no limit.
pub(super) struct Asked {
    parameters: Parameters,
    pub(super) conversation: Conversation,
    pub(super) ignored: Vec<String>,
}

/// Reads a request.
pub(super) fn read(body: &[u8], state: &ServerState, served: &Served) -> Result<Asked, ApiError> {
    let mut fields = Fields::new(body::parse_object(body)?);
    let mut parameters = Parameters::take(&mut fields, state, served, SamplingDefaults::NONE)?;
    check_single(&parameters)?;
    take_stops(&mut fields, &mut parameters)?;
    parameters.settle(served)?;
    let mut ignored = Vec::new();
    let mut variables = template_variables(&mut fields)?;
    let (thoughts, thinking_budget) = take_thinking(&mut fields, served, &mut variables)?;
    take_output(&mut fields, served, &mut parameters, &mut variables, &mut ignored)?;
    let messages = history::take(&mut fields)?;
    let (tools, tool_choice, parallel_calls) = take_tools(&mut fields)?;
    refuse_servers(&mut fields)?;
    // Who asks, which changes nothing.
    drop(fields.object("metadata")?.map(Fields::into_rest));
    let opening = Opening::take(&mut fields)?;
    let conversation = Conversation {
        messages,
        messages_field: history::FIELD,
        tools,
        tool_choice,
        parallel_calls,
        thoughts,
        thinking_budget,
        variables,
        opening,
    };
    history::check_continued(&conversation)?;
    ignored.extend(unsupported::check_rest(fields, state)?);
    Ok(Asked { parameters, conversation, ignored })
}

/// `stop_sequences`, beside `stop`, which is the chat endpoint's.
fn take_stops(fields: &mut Fields, parameters: &mut Parameters) -> Result<(), ApiError> {
    const FIELD: &str = "stop_sequences";
    let stops = &mut parameters.sampling.stop;
    stops.extend(stop_strings(fields, FIELD)?);
    if stops.len() > MAX_STOPS {
        let message = format!("{FIELD} and stop have {} strings together; at most {MAX_STOPS} are taken", stops.len());
        return Err(ApiError::invalid(FIELD, message));
    }
    if parameters.sampling.include_stop_str_in_output {
        const SHOWS: &str = "include_stop_str_in_output";
        let message = format!("{SHOWS} is not supported by this endpoint, whose answers tell the stop string apart");
        return Err(ApiError::unsupported(SHOWS, message));
    }
    Ok(())
}

/// `thinking`: what is told of the thoughts, and how many there may be. Templates know at most whether to think.
fn take_thinking(
    fields: &mut Fields,
    served: &Served,
    variables: &mut Map<String, Value>,
) -> Result<(Thoughts, Option<Budget>), ApiError> {
    let Some(mut thinking) = fields.object("thinking")? else { return Ok((Thoughts::Apart, None)) };
    let budget = thinking.integer("budget_tokens", 1..=i64::MAX)?;
    let budget = budget.map(|max_tokens| Budget::new("thinking.budget_tokens", max_tokens));
    let display = thinking.string("display")?;
    let kind_name = thinking.name_of("type");
    match thinking.string("type")?.as_deref() {
        Some("disabled") => {
            switch_thinking(false, served, variables);
            return Ok((Thoughts::LeftOut, budget));
        }
        Some("enabled") => switch_thinking(true, served, variables),
        Some("adaptive") => {}
        other => {
            let got = other.map_or_else(|| "nothing".to_owned(), |kind| show(&Value::from(kind)));
            let message = format!("{kind_name} must be enabled, adaptive or disabled, got {got}");
            return Err(ApiError::invalid(kind_name, message));
        }
    }
    match display.as_deref() {
        // A summary would have to be written; the thoughts themselves say more.
        None | Some("summarized") => Ok((Thoughts::Apart, budget)),
        Some("omitted") => Ok((Thoughts::LeftOut, budget)),
        Some(other) => {
            let name = "thinking.display";
            let message = format!("{name} must be summarized or omitted, got {}", show(&Value::from(other)));
            Err(ApiError::invalid(name, message))
        }
    }
}

/// `output_config`: the form of the answer, and how hard to think; and `output_format`, the former's older name.
fn take_output(
    fields: &mut Fields,
    served: &Served,
    parameters: &mut Parameters,
    variables: &mut Map<String, Value>,
    ignored: &mut Vec<String>,
) -> Result<(), ApiError> {
    if let Some(format) = fields.object("output_format")? {
        take_format(format, "output_format.schema", parameters)?;
    }
    let Some(mut config) = fields.object("output_config")? else { return Ok(()) };
    if let Some(format) = config.object("format")? {
        take_format(format, "output_config.format.schema", parameters)?;
    }
    let name = config.name_of("effort");
    match config.string("effort")? {
        None => Ok(()),
        Some(effort) if EFFORTS.contains(&effort.as_str()) => {
            // The chat endpoint's words end here.
            let nearest = if effort == "max" { "xhigh" } else { effort.as_str() };
            if reasoning_effort(nearest, &name, served, variables).is_err() {
                ignored.push(name);
            }
            Ok(())
        }
        Some(other) => {
            let got = show(&Value::from(other));
            Err(ApiError::invalid(name.clone(), format!("{name} must be one of {}, got {got}", EFFORTS.join(", "))))
        }
    }
}

fn take_format(mut format: Fields, field: &'static str, parameters: &mut Parameters) -> Result<(), ApiError> {
    let kind_name = format.name_of("type");
    match format.string("type")?.as_deref() {
        Some("json_schema") => {}
        other => {
            let got = other.map_or_else(|| "nothing".to_owned(), |kind| show(&Value::from(kind)));
            return Err(ApiError::invalid(kind_name.clone(), format!("{kind_name} must be json_schema, got {got}")));
        }
    }
    let Some(spec) = schema(&mut format, "schema")? else {
        return Err(ApiError::missing(field, format!("{field} is missing; it is a JSON schema")));
    };
    if let Some(other) = &parameters.form {
        let message = format!("{} and {field} both ask for a form of the answer; give one of them", other.field);
        return Err(ApiError::invalid(field, message));
    }
    parameters.form = Some(Form { field, spec, parts: Vec::new() });
    Ok(())
}

/// The tools, the choice, and whether an answer may have several calls.
fn take_tools(fields: &mut Fields) -> Result<(Vec<Tool>, ToolChoice, bool), ApiError> {
    let items = fields.array("tools")?.unwrap_or_default();
    if items.len() > MAX_TOOLS {
        let message = format!("tools has {} tools; at most {MAX_TOOLS} are taken", items.len());
        return Err(ApiError::invalid("tools", message));
    }
    let tools = items.into_iter().enumerate().map(|(index, item)| read_tool(&format!("tools[{index}]"), item));
    let tools = tools.collect::<Result<Vec<Tool>, ApiError>>()?;
    let (choice, parallel) = match fields.object(CHOICE)? {
        None => (ToolChoice::Auto, true),
        Some(choice) => read_choice(choice)?,
    };
    check_tools(&tools, &choice, CHOICE)?;
    Ok((tools, choice, parallel))
}

fn read_tool(path: &str, item: Value) -> Result<Tool, ApiError> {
    let mut tool = Fields::nested(path, item)?;
    let kind_name = tool.name_of("type");
    match tool.string("type")?.as_deref() {
        None | Some("custom") => {}
        Some(other) => {
            let got = show(&Value::from(other));
            let message = format!("{kind_name} must be \"custom\", got {got}; this server has no tools of its own");
            return Err(ApiError::unsupported(kind_name, message));
        }
    }
    let missing = |name: String| ApiError::missing(&name, format!("{name} is missing"));
    let name = tool.string("name")?.ok_or_else(|| missing(tool.name_of("name")))?;
    let description = tool.string("description")?;
    let schema = tool.object("input_schema")?.ok_or_else(|| missing(tool.name_of("input_schema")))?;
    let strict = tool.boolean("strict")?.unwrap_or(false);
    let parameters = Some(Value::Object(schema.into_rest()));
    Ok(Tool { name, description, parameters, strict, field: path.to_owned(), schema_name: "input_schema" })
}

fn read_choice(mut choice: Fields) -> Result<(ToolChoice, bool), ApiError> {
    let parallel = !choice.boolean("disable_parallel_tool_use")?.unwrap_or(false);
    let (kind_name, name_name) = (choice.name_of("type"), choice.name_of("name"));
    let name = choice.string("name")?;
    let choice = match choice.string("type")?.as_deref() {
        Some("auto") => ToolChoice::Auto,
        Some("any") => ToolChoice::Required,
        Some("none") => ToolChoice::None,
        Some("tool") => {
            let missing = || ApiError::missing(&name_name, format!("{name_name} is missing; it says which tool"));
            ToolChoice::Named(name.ok_or_else(missing)?)
        }
        other => {
            let got = other.map_or_else(|| "nothing".to_owned(), |kind| show(&Value::from(kind)));
            let message = format!("{kind_name} must be auto, any, tool or none, got {got}");
            return Err(ApiError::invalid(kind_name, message));
        }
    };
    Ok((choice, parallel))
}

/// What Anthropic's own servers do for a request.
fn refuse_servers(fields: &mut Fields) -> Result<(), ApiError> {
    let refused = |name: &str, got: &Value| {
        let message = format!("{name} is not supported by this server; leave it out (got {})", show(got));
        Err(ApiError::unsupported(name, message))
    };
    if let Some(container) = fields.take("container") {
        return refused("container", &container);
    }
    if let Some(servers) = fields.take("mcp_servers").filter(|servers| servers.as_array().is_none_or(|s| !s.is_empty()))
    {
        return refused("mcp_servers", &servers);
    }
    match fields.take("service_tier") {
        Some(tier) if tier != "auto" && tier != "standard_only" => refused("service_tier", &tier),
        _ => Ok(()),
    }
}
