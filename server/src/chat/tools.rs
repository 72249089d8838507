//! Tools that a client offers, and which of them an answer may or must call.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::errors::ApiError;
use crate::fields::{Fields, show};

/// Bytes of the longest name, as in Anthropic's interface; OpenAI's takes 64.
const MAX_NAME_BYTES: usize = 128;

/// A function that a model may call.
#[derive(Debug, Clone)]
pub(crate) struct Tool {
    /// Its name; [`Tool::check`] says which are good.
    pub(crate) name: String,
    /// What it is for, in words.
    pub(crate) description: Option<String>,
    /// The JSON schema of its arguments; without it there are none.
    pub(crate) parameters: Option<Value>,
    /// Whether calls must keep to the schema also where none is required.
    pub(crate) strict: bool,
    /// The field that holds the tool, for errors: `tools[0].function`.
    pub(crate) field: String,
    /// What its schema is called there, for errors.
    pub(crate) schema_name: &'static str,
}

/// Whether an answer calls tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    /// As the model likes.
    Auto,
    /// It does not; tools are not offered.
    None,
    /// At least one.
    Required,
    /// This one.
    Named(String),
}

impl ToolChoice {
    /// The choice that OpenAI's word stands for, in the field `field`.
    pub(crate) fn of_word(word: &str, field: &str) -> Result<ToolChoice, ApiError> {
        match word {
            "auto" => Ok(ToolChoice::Auto),
            "none" => Ok(ToolChoice::None),
            "required" => Ok(ToolChoice::Required),
            other => {
                let got = show(&Value::from(other));
                let message =
                    format!("{field} must be none, auto, required or an object that names a function, got {got}");
                Err(ApiError::invalid(field, message))
            }
        }
    }

    /// Whether an answer may have several calls, in OpenAI's interface: a function that is named is called exactly once,
    /// whatever `parallel_tool_calls` says.
    pub(crate) fn allows_several(&self, parallel_tool_calls: bool) -> bool {
        parallel_tool_calls && !matches!(self, ToolChoice::Named(_))
    }
}

impl Tool {
    /// Refuses names and schemas that no call could be made with.
    pub(crate) fn check(&self) -> Result<(), ApiError> {
        let is_good = |letter: u8| letter.is_ascii_alphanumeric() || b"_-".contains(&letter);
        if self.name.is_empty() || self.name.len() > MAX_NAME_BYTES || !self.name.bytes().all(is_good) {
            let field = format!("{}.name", self.field);
            let got = show(&Value::from(self.name.as_str()));
            let message = format!("{field} must have 1 to {MAX_NAME_BYTES} of a-z, A-Z, 0-9, _ and -, got {got}");
            return Err(ApiError::invalid(field, message));
        }
        let kind = self.parameters.as_ref().and_then(|parameters| parameters.get("type"));
        let is_object =
            |kind: &Value| kind == "object" || kind.as_array().is_some_and(|kinds| kinds.contains(&json!("object")));
        match kind {
            Some(kind) if !is_object(kind) => {
                let field = format!("{}.type", self.parameters_field());
                let message = format!("{field} must be \"object\", got {}", show(kind));
                Err(ApiError::invalid(field, message))
            }
            _ => Ok(()),
        }
    }

    /// The field of the schema, for errors.
    pub(crate) fn parameters_field(&self) -> String {
        format!("{}.{}", self.field, self.schema_name)
    }

    /// The tool as templates know it.
    pub(super) fn for_template(&self) -> Value {
        let mut function = json!({ "name": self.name });
        if let Some(description) = &self.description {
            function["description"] = description.as_str().into();
        }
        let nothing = || json!({ "type": "object", "properties": {} });
        function["parameters"] = self.parameters.clone().unwrap_or_else(nothing);
        json!({ "type": "function", "function": function })
    }

    /// The schema that a grammar keeps its arguments to: always an object.
    pub(super) fn schema(&self) -> Value {
        let Some(parameters) = &self.parameters else {
            return json!({ "type": "object", "properties": {}, "additionalProperties": false });
        };
        let mut schema = parameters.clone();
        if let Value::Object(fields) = &mut schema
            && !["$ref", "anyOf", "oneOf", "allOf"].iter().any(|key| fields.contains_key(*key))
        {
            fields.insert("type".to_owned(), "object".into());
        }
        schema
    }
}

/// OpenAI's `allowed_tools`: of the tools of a request only some are offered.
pub(crate) struct AllowedTools {
    names: Vec<String>,
    /// The field that lists them, for errors.
    field: String,
}

impl AllowedTools {
    /// Takes `mode` and `tools` from the object that holds them. What `read_name` is given is an item of `tools`, whose type has
    /// been read.
    pub(crate) fn take(
        fields: &mut Fields,
        read_name: impl Fn(Fields) -> Result<String, ApiError>,
    ) -> Result<(ToolChoice, AllowedTools), ApiError> {
        let mode_name = fields.name_of("mode");
        let mode = match fields.string("mode")?.as_deref() {
            None | Some("auto") => ToolChoice::Auto,
            Some("required") => ToolChoice::Required,
            Some(other) => {
                let got = show(&Value::from(other));
                let message = format!("{mode_name} must be auto or required, got {got}");
                return Err(ApiError::invalid(mode_name, message));
            }
        };
        let field = fields.name_of("tools");
        let items = fields.array("tools")?.filter(|items| !items.is_empty());
        let items = items.ok_or_else(|| ApiError::missing(&field, format!("{field} is missing")))?;
        let names = items.into_iter().enumerate().map(|(index, item)| {
            let mut item = Fields::nested(&format!("{field}[{index}]"), item)?;
            let kind_name = item.name_of("type");
            match item.string("type")?.as_deref() {
                Some("function") => read_name(item),
                _ => Err(ApiError::invalid(kind_name.clone(), format!("{kind_name} must be \"function\""))),
            }
        });
        let names = names.collect::<Result<_, ApiError>>()?;
        Ok((mode, AllowedTools { names, field }))
    }

    /// The tools of these names, each of which must be there.
    pub(crate) fn of(self, tools: Vec<Tool>) -> Result<Vec<Tool>, ApiError> {
        let known: HashSet<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
        if let Some(name) = self.names.iter().find(|name| !known.contains(name.as_str())) {
            return Err(not_among_tools(&self.field, name));
        }
        let names: HashSet<String> = self.names.into_iter().collect();
        Ok(tools.into_iter().filter(|tool| names.contains(&tool.name)).collect())
    }
}

fn not_among_tools(field: &str, name: &str) -> ApiError {
    ApiError::invalid(field, format!("{field} names {}, which is not among tools", show(&Value::from(name))))
}

/// Refuses tools of one name, and a choice of a tool that is not among them.
pub(crate) fn check_tools(tools: &[Tool], choice: &ToolChoice, choice_field: &str) -> Result<(), ApiError> {
    let mut names = HashSet::with_capacity(tools.len());
    for tool in tools {
        tool.check()?;
        if !names.insert(tool.name.as_str()) {
            let field = format!("{}.name", tool.field);
            let message =
                format!("{field} is the name of another tool too: {}", show(&Value::from(tool.name.as_str())));
            return Err(ApiError::invalid(field, message));
        }
    }
    match choice {
        ToolChoice::Required | ToolChoice::Named(_) if tools.is_empty() => {
            let message = format!("{choice_field} asks for a call, and there are no tools to call");
            Err(ApiError::invalid(choice_field, message))
        }
        ToolChoice::Named(name) if !names.contains(name.as_str()) => Err(not_among_tools(choice_field, name)),
        _ => Ok(()),
    }
}
