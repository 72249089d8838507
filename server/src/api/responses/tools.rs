//! `tools` and `tool_choice`, which are flatter here than in the chat endpoint.

use serde_json::Value;

use crate::chat::{AllowedTools, Tool, ToolChoice, check_tools};
use crate::errors::ApiError;
use crate::fields::{Fields, show};
use crate::limits::MAX_TOOLS;

const CHOICE: &str = "tool_choice";

/// Takes both.
pub(super) fn take(fields: &mut Fields) -> Result<(Vec<Tool>, ToolChoice), ApiError> {
    let items = fields.array("tools")?.unwrap_or_default();
    if items.len() > MAX_TOOLS {
        let message = format!("tools has {} tools; at most {MAX_TOOLS} are taken", items.len());
        return Err(ApiError::invalid("tools", message));
    }
    let tools = items.into_iter().enumerate().map(|(index, item)| read_tool(&format!("tools[{index}]"), item));
    let tools = tools.collect::<Result<Vec<Tool>, ApiError>>()?;
    let (choice, allowed) = read_choice(fields.take(CHOICE))?;
    check_tools(&tools, &choice, CHOICE)?;
    let tools = match allowed {
        None => tools,
        Some(allowed) => allowed.of(tools)?,
    };
    Ok((tools, choice))
}

fn missing(name: &str) -> ApiError {
    ApiError::missing(name, format!("{name} is missing"))
}

fn read_tool(path: &str, item: Value) -> Result<Tool, ApiError> {
    let mut tool = Fields::nested(path, item)?;
    let kind_name = tool.name_of("type");
    match tool.string("type")?.as_deref() {
        Some("function") => {}
        Some(other) => {
            let got = show(&Value::from(other));
            let message = format!("{kind_name} must be \"function\", got {got}; this server has no tools of its own");
            return Err(ApiError::unsupported(kind_name, message));
        }
        None => return Err(missing(&kind_name)),
    }
    let name = tool.string("name")?.ok_or_else(|| missing(&tool.name_of("name")))?;
    let description = tool.string("description")?;
    let parameters = tool.object("parameters")?.map(|parameters| Value::Object(parameters.into_rest()));
    let strict = tool.boolean("strict")?.unwrap_or(false);
    Ok(Tool { name, description, parameters, strict, field: path.to_owned(), schema_name: "parameters" })
}

/// The choice, and what it is restricted to.
fn read_choice(value: Option<Value>) -> Result<(ToolChoice, Option<AllowedTools>), ApiError> {
    let value = match value {
        None => return Ok((ToolChoice::Auto, None)),
        Some(Value::String(word)) => return Ok((ToolChoice::of_word(&word, CHOICE)?, None)),
        Some(value) => value,
    };
    let mut choice = Fields::nested(CHOICE, value)?;
    let kind_name = choice.name_of("type");
    match choice.string("type")?.as_deref() {
        Some("function") => {
            let name = choice.string("name")?.ok_or_else(|| missing(&choice.name_of("name")))?;
            Ok((ToolChoice::Named(name), None))
        }
        Some("allowed_tools") => {
            let read_name = |mut item: Fields| item.string("name")?.ok_or_else(|| missing(&item.name_of("name")));
            AllowedTools::take(&mut choice, read_name).map(|(mode, allowed)| (mode, Some(allowed)))
        }
        other => {
            let got = other.map_or_else(|| "nothing".to_owned(), |kind| show(&Value::from(kind)));
            let message = format!("{kind_name} must be function or allowed_tools, got {got}");
            Err(ApiError::invalid(kind_name, message))
        }
    }
}
