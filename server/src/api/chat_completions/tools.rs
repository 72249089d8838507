//! OpenAI's `tools`, `tool_choice` and `parallel_tool_calls`.

use serde_json::Value;

use crate::chat::{AllowedTools, Tool, ToolChoice, check_tools};
use crate::errors::ApiError;
use crate::fields::{Fields, show};
use crate::limits::MAX_TOOLS;

const CHOICE: &str = "tool_choice";

/// What a request offers.
pub(crate) struct Offer {
    pub(crate) tools: Vec<Tool>,
    pub(crate) choice: ToolChoice,
    pub(crate) parallel: bool,
}

/// Takes the fields.
pub(crate) fn take(fields: &mut Fields) -> Result<Offer, ApiError> {
    let items = fields.array("tools")?.unwrap_or_default();
    if items.len() > MAX_TOOLS {
        let message = format!("tools has {} tools; at most {MAX_TOOLS} are taken", items.len());
        return Err(ApiError::invalid("tools", message));
    }
    let tools = items.into_iter().enumerate().map(|(index, item)| read_tool(&format!("tools[{index}]"), item));
    let tools = tools.collect::<Result<Vec<Tool>, ApiError>>()?;
    let parallel = fields.boolean("parallel_tool_calls")?.unwrap_or(true);
    let (choice, allowed) = read_choice(fields.take(CHOICE))?;
    check_tools(&tools, &choice, CHOICE)?;
    let tools = match allowed {
        None => tools,
        Some(allowed) => allowed.of(tools)?,
    };
    let parallel = choice.allows_several(parallel);
    Ok(Offer { tools, choice, parallel })
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
        None => return Err(ApiError::missing(&kind_name, format!("{kind_name} is missing; it is \"function\""))),
    }
    let field = tool.name_of("function");
    let missing = |name: &str| ApiError::missing(name, format!("{name} is missing"));
    let mut function = tool.object("function")?.ok_or_else(|| missing(&field))?;
    let name = function.string("name")?.ok_or_else(|| missing(&function.name_of("name")))?;
    let description = function.string("description")?;
    let parameters = function.object("parameters")?.map(|parameters| Value::Object(parameters.into_rest()));
    let strict = function.boolean("strict")?.unwrap_or(false);
    Ok(Tool { name, description, parameters, strict, field, schema_name: "parameters" })
}

/// The choice, and what it is restricted to.
fn read_choice(value: Option<Value>) -> Result<(ToolChoice, Option<AllowedTools>), ApiError> {
    match value {
        None => Ok((ToolChoice::Auto, None)),
        Some(Value::String(word)) => Ok((ToolChoice::of_word(&word, CHOICE)?, None)),
        Some(value) => {
            let mut choice = Fields::nested(CHOICE, value)?;
            match choice.string("type")?.as_deref() {
                Some("function") => Ok((ToolChoice::Named(read_name(choice)?), None)),
                Some("allowed_tools") => {
                    let name = choice.name_of("allowed_tools");
                    let missing = || ApiError::missing(&name, format!("{name} is missing"));
                    let mut allowed = choice.object("allowed_tools")?.ok_or_else(missing)?;
                    AllowedTools::take(&mut allowed, read_name).map(|(mode, allowed)| (mode, Some(allowed)))
                }
                other => {
                    let got = other.map_or_else(|| "nothing".to_owned(), |kind| show(&Value::from(kind)));
                    let name = choice.name_of("type");
                    Err(ApiError::invalid(name.clone(), format!("{name} must be function or allowed_tools, got {got}")))
                }
            }
        }
    }
}

/// The name in `{"type": "function", "function": {"name": ...}}`.
fn read_name(mut choice: Fields) -> Result<String, ApiError> {
    let missing = |name: String| ApiError::missing(&name, format!("{name} is missing"));
    let mut function = choice.object("function")?.ok_or_else(|| missing(choice.name_of("function")))?;
    function.string("name")?.ok_or_else(|| missing(function.name_of("name")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(body: Value) -> Result<Offer, ApiError> {
        let Value::Object(object) = body else { panic!("tests give objects") };
        take(&mut Fields::new(object))
    }

    fn tool(name: &str) -> Value {
        json!({ "type": "function", "function": { "name": name } })
    }

    fn check_choice(choice: &Value, expected: &ToolChoice, names: &[&str]) {
        let offer = read(json!({ "tools": [tool("f"), tool("g")], "tool_choice": choice })).unwrap();
        assert_eq!(&offer.choice, expected);
        assert_eq!(offer.tools.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(), names);
    }

    #[test]
    fn every_way_to_choose_is_read() {
        check_choice(&json!(null), &ToolChoice::Auto, &["f", "g"]);
        check_choice(&json!("auto"), &ToolChoice::Auto, &["f", "g"]);
        check_choice(&json!("none"), &ToolChoice::None, &["f", "g"]);
        check_choice(&json!("required"), &ToolChoice::Required, &["f", "g"]);
        check_choice(&tool("g"), &ToolChoice::Named("g".to_owned()), &["f", "g"]);
        let allowed =
            |mode: &str| json!({ "type": "allowed_tools", "allowed_tools": { "mode": mode, "tools": [tool("g")] } });
        check_choice(&allowed("auto"), &ToolChoice::Auto, &["g"]);
        check_choice(&allowed("required"), &ToolChoice::Required, &["g"]);
    }

    fn check_refused(body: Value, param: &str, part: &str) {
        let shown = body.to_string();
        let Err(error) = read(body) else { panic!("{shown} was taken") };
        assert_eq!(error.status(), 400);
        assert_eq!(error.to_json()["error"]["param"], param, "{shown}");
        assert!(error.message().contains(part) && error.message().contains(param), "{}", error.message());
    }

    #[test]
    fn what_is_wrong_is_refused_by_its_place() {
        let named = |name: Value| json!({ "tools": [{ "type": "function", "function": { "name": name } }] });
        check_refused(json!({ "tools": "f" }), "tools", "an array");
        check_refused(json!({ "tools": vec![tool("f"); MAX_TOOLS + 1] }), "tools", "at most");
        check_refused(json!({ "tools": [5] }), "tools[0]", "an object");
        check_refused(json!({ "tools": [{ "function": {} }] }), "tools[0].type", "missing");
        check_refused(json!({ "tools": [{ "type": "web_search" }] }), "tools[0].type", "web_search");
        check_refused(json!({ "tools": [{ "type": "function" }] }), "tools[0].function", "missing");
        check_refused(named(json!(null)), "tools[0].function.name", "missing");
        for bad in ["", "a b", "é", "a.b", &"a".repeat(129)] {
            check_refused(named(json!(bad)), "tools[0].function.name", "1 to 128");
        }
        check_refused(json!({ "tools": [tool("f"), tool("f")] }), "tools[1].function.name", "another tool");
        let parameters = |value: Value| json!({ "tools": [{ "type": "function", "function": { "name": "f", "parameters": value } }] });
        check_refused(parameters(json!(5)), "tools[0].function.parameters", "an object");
        check_refused(parameters(json!({ "type": "string" })), "tools[0].function.parameters.type", "string");
        let choice = |value: Value| json!({ "tools": [tool("f")], "tool_choice": value });
        check_refused(choice(json!("any")), "tool_choice", "any");
        check_refused(choice(json!(5)), "tool_choice", "an object");
        check_refused(choice(json!({})), "tool_choice.type", "nothing");
        check_refused(choice(json!({ "type": "function" })), "tool_choice.function", "missing");
        check_refused(choice(tool("g")), "tool_choice", "\"g\"");
        check_refused(json!({ "tool_choice": "required" }), "tool_choice", "no tools");
        let allowed = json!({ "type": "allowed_tools", "allowed_tools": { "mode": "auto", "tools": [tool("h")] } });
        check_refused(choice(allowed), "tool_choice.allowed_tools.tools", "\"h\"");
        check_refused(json!({ "parallel_tool_calls": 1 }), "parallel_tool_calls", "true or false");
    }
}
