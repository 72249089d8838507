//! How models write calls of tools, and how a model that never learnt it is told.
//!
//! A format is chosen by looking at the chat template: it writes former calls as the model shall write the next. A template
//! that does not know tools gets the text of [`ToolFormat::Hermes`] in its messages ([`with_tools_in_text`]).
//! Reading calls is left to [`crate::AnswerParser`], forcing them to [`crate::GrammarSpec::Answer`].

use serde_json::Value;

use crate::json::{Style, dumps};
use crate::{ChatMessage, ChatTemplate};

/// How a model writes calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ToolFormat {
    /// `<tool_call>{"name": "f", "arguments": {}}</tool_call>` for each call, as Hermes and Qwen write.
    Hermes,
    /// The answer is `{"name": "f", "parameters": {}}`, possibly behind `<|python_tag|>`; further calls follow semicolons. Llama 3.
    Llama3,
    /// `[TOOL_CALLS][{"name": "f", "arguments": {}}]`: Mistral.
    Mistral,
    /// `[TOOL_CALLS]f[ARGS]{}` for each call: Mistral's later models.
    MistralArgs,
}

impl ToolFormat {
    /// The format of the calls in a template that knows tools; [`ToolFormat::Hermes`] if it shows none of the others.
    pub fn of_template(template: &ChatTemplate) -> ToolFormat {
        let source = template.source();
        let has = |text: &str| source.contains(text);
        if has("[TOOL_CALLS]") {
            if has("[ARGS]") { ToolFormat::MistralArgs } else { ToolFormat::Mistral }
        } else if has("<tool_call>") {
            ToolFormat::Hermes
        } else if has("<|python_tag|>") || (has("<|start_header_id|>") && has("\"parameters\"")) {
            ToolFormat::Llama3
        } else {
            ToolFormat::Hermes
        }
    }

    /// What stands before a call. Llama's models often leave it out.
    pub fn open(self) -> &'static str {
        match self {
            ToolFormat::Hermes => "<tool_call>",
            ToolFormat::Llama3 => "<|python_tag|>",
            ToolFormat::Mistral | ToolFormat::MistralArgs => "[TOOL_CALLS]",
        }
    }

    /// All marks. Where a vocabulary has them as control tokens, an answer's text must show them.
    pub fn marks(self) -> &'static [&'static str] {
        match self {
            ToolFormat::Hermes => &["<tool_call>", "</tool_call>"],
            ToolFormat::Llama3 => &["<|python_tag|>"],
            ToolFormat::Mistral | ToolFormat::MistralArgs => &["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"],
        }
    }

    /// What the member of a call's object is called that holds the arguments.
    pub fn arguments_key(self) -> &'static str {
        if self == ToolFormat::Llama3 { "parameters" } else { "arguments" }
    }
}

/// The conversation for a template that knows no tools: a system text describes them, and former calls and their results are
/// text in Hermes' format.
pub fn with_tools_in_text(messages: &[ChatMessage], tools: &[Value]) -> Vec<ChatMessage> {
    let mut result: Vec<ChatMessage> = Vec::with_capacity(messages.len() + 1);
    for message in messages {
        match message.role.as_str() {
            "tool" => {
                let text = format!("<tool_response>\n{}\n</tool_response>", message.content);
                match result.last_mut() {
                    // Results of several calls are one turn.
                    Some(last) if last.role == "user" && last.content.ends_with("</tool_response>") => {
                        last.content.push('\n');
                        last.content.push_str(&text);
                    }
                    _ => result.push(ChatMessage::new("user", text)),
                }
            }
            _ if !message.tool_calls.is_empty() => {
                let calls = message.tool_calls.iter().map(call_text);
                let parts: Vec<String> =
                    std::iter::once(message.content.clone()).filter(|text| !text.is_empty()).chain(calls).collect();
                result.push(ChatMessage { content: parts.join("\n"), tool_calls: Vec::new(), ..message.clone() });
            }
            _ => result.push(message.clone()),
        }
    }
    if tools.is_empty() {
        return result;
    }
    let description = description(tools);
    match result.first_mut().filter(|first| first.role == "system") {
        Some(system) => {
            system.content.push_str("\n\n");
            system.content.push_str(&description);
        }
        None => result.insert(0, ChatMessage::new("system", description)),
    }
    result
}

fn call_text(call: &Value) -> String {
    let function = &call["function"];
    let call = serde_json::json!({ "name": function["name"], "arguments": function["arguments"] });
    format!("<tool_call>\n{}\n</tool_call>", dumps(&call, &Style::default()))
}

fn description(tools: &[Value]) -> String {
    let lines: Vec<String> = tools.iter().map(|tool| dumps(tool, &Style::default())).collect();
    format!(
        "There are functions that you can use. Each line between <tools> and </tools> describes one, its parameters as a JSON \
         schema:\n<tools>\n{}\n</tools>\n\nWhere a function helps, write its name and its arguments as a JSON object between \
         <tool_call> and </tool_call>, once for each use:\n<tool_call>\n{{\"name\": \"the name\", \"arguments\": \
         {{\"parameter\": \"value\"}}}}\n</tool_call>\nYou then read what it returns between <tool_response> and \
         </tool_response>. Where no function helps, answer without one.",
        lines.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(source: &str, expected: ToolFormat) {
        let template = ChatTemplate::from_source("test", source).expect("it compiles");
        assert_eq!(ToolFormat::of_template(&template), expected, "{source}");
    }

    #[test]
    fn the_format_is_the_templates() {
        check("{{ tools }}<tool_call>{\"name\": 1}</tool_call>", ToolFormat::Hermes);
        check("{{ tools }}[AVAILABLE_TOOLS][TOOL_CALLS] [{}]", ToolFormat::Mistral);
        check("{{ tools }}[TOOL_CALLS]f[ARGS]{}", ToolFormat::MistralArgs);
        check("{{ tools }}<|python_tag|>", ToolFormat::Llama3);
        check("{{ tools }}<|start_header_id|>{\"name\": 1, \"parameters\": 2}", ToolFormat::Llama3);
        check("{{ tools }}", ToolFormat::Hermes);
    }

    #[test]
    fn a_template_that_writes_tools_knows_them() {
        let knows = |source: &str| ChatTemplate::from_source("test", source).expect("it compiles").knows_tools();
        assert!(knows("{% if tools %}{{ tools | tojson }}{% endif %}{{ messages[0].content }}"));
        assert!(!knows("{{ messages[0].content }}"));
        assert!(!knows("{# tools #}{{ messages[0].content }}"));
        assert!(!knows("{% if tools %}{{ raise_exception('no tools') }}{% endif %}"));
    }

    #[test]
    fn calls_and_results_become_text() {
        let call =
            |city: &str| json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": {"city": city}}});
        let result = |text: &str| ChatMessage { tool_call_id: Some("1".into()), ..ChatMessage::new("tool", text) };
        let messages = [
            ChatMessage::new("user", "U"),
            ChatMessage { tool_calls: vec![call("Rom"), call("Ulm")], ..ChatMessage::new("assistant", "A") },
            result("warm"),
            result("cold"),
            ChatMessage::new("user", "V"),
        ];
        let text = with_tools_in_text(&messages, &[]);
        let expected = [
            ("user", "U"),
            (
                "assistant",
                "A\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"city\": \"Rom\"}}\n</tool_call>\n\
                 <tool_call>\n{\"name\": \"f\", \"arguments\": {\"city\": \"Ulm\"}}\n</tool_call>",
            ),
            ("user", "<tool_response>\nwarm\n</tool_response>\n<tool_response>\ncold\n</tool_response>"),
            ("user", "V"),
        ];
        assert_eq!(text, expected.map(|(role, content)| ChatMessage::new(role, content)));
    }

    #[test]
    fn tools_are_described_in_the_system_message() {
        let tools = [json!({"type": "function", "function": {"name": "f"}})];
        let line = "\n{\"type\": \"function\", \"function\": {\"name\": \"f\"}}\n";
        let alone = with_tools_in_text(&[ChatMessage::new("user", "U")], &tools);
        assert_eq!((alone.len(), alone[0].role.as_str()), (2, "system"));
        assert!(alone[0].content.contains(line), "{}", alone[0].content);
        let with_system = with_tools_in_text(&[ChatMessage::new("system", "S"), ChatMessage::new("user", "U")], &tools);
        assert_eq!(with_system.len(), 2);
        assert!(with_system[0].content.starts_with("S\n\n") && with_system[0].content.contains(line));
    }
}
