//! The form of a chat model's answer: calls that must be there or keep to their schemas, and the form of the text, which begins
//! behind the model's thoughts.

use serde_json::json;
use taper_text::{AnswerGrammar, AnswerTool, Calls, GrammarSpec, ReasoningMarks, ReasoningStart, ToolFormat};

use super::{Conversation, Tool, ToolChoice};
use crate::errors::ApiError;
use crate::grammar_fields::{Form, FormPart};
use crate::state::Served;

/// The form of answers; `of_text` is what the client asked for besides tools. `None` where any answer will do. `in_text`: the
/// prompt ends within a text, and the form is that of what the model adds to it.
///
/// # Errors
/// 400 where such an answer is to be a call or JSON, which only the whole of it could be.
pub(super) fn of_answer(
    conversation: &Conversation,
    offered: &[Tool],
    format: ToolFormat,
    reasoning: Option<(ReasoningMarks, ReasoningStart)>,
    of_text: Option<Form>,
    in_text: bool,
) -> Result<Option<Form>, ApiError> {
    if in_text {
        check_addition(conversation, of_text.as_ref())?;
    }
    let calls = calls(conversation, offered, format, of_text.is_some());
    // Without a mark a call within a text would be read as text.
    let calls = calls.filter(|_| !in_text || has_marks(format));
    let Some(calls) = calls else {
        let thinks = reasoning.is_some_and(|(_, start)| start != ReasoningStart::Over);
        return Ok(of_text.map(|form| if thinks { behind_thoughts(form, reasoning) } else { form }));
    };
    // Where a call must come there is no text for a form.
    let content = of_text.filter(|_| !calls.required);
    let mut parts: Vec<FormPart> = offered
        .iter()
        .map(|tool| FormPart { field: tool.parameters_field(), spec: GrammarSpec::JsonSchema(tool.schema()) })
        .collect();
    parts.extend(content.iter().map(|form| FormPart { field: form.field.to_owned(), spec: form.spec.clone() }));
    let content = content.map(|form| Box::new(form.spec));
    let spec = GrammarSpec::Answer(AnswerGrammar { reasoning, calls: Some(calls), content });
    Ok(Some(Form { field: "tools", spec, parts }))
}

/// Refuses what only a whole answer can be.
fn check_addition(conversation: &Conversation, of_text: Option<&Form>) -> Result<(), ApiError> {
    let is_json = |form: &&Form| matches!(form.spec, GrammarSpec::JsonObject | GrammarSpec::JsonSchema(_));
    let (field, what) = match (&conversation.tool_choice, of_text.filter(is_json)) {
        (ToolChoice::Required | ToolChoice::Named(_), _) => ("tool_choice", "a call"),
        (_, Some(form)) => (form.field, "JSON"),
        _ => return Ok(()),
    };
    let message = format!(
        "{field} asks for {what}, and {} ends with a text of the assistant, which the answer goes on with; leave one of them out",
        conversation.messages_field
    );
    Err(ApiError::invalid(field, message))
}

/// The field of `strict` where a tool asks for it and no grammar sees to its calls, for the list of what is ignored; `has_form`:
/// the text must have one.
pub(crate) fn unkept_strictness(served: &Served, conversation: &Conversation, has_form: bool) -> Option<String> {
    let is_guarded = has_form || has_marks(served.dialect.format) || conversation.tool_choice != ToolChoice::Auto;
    let tool = conversation.tools.iter().find(|tool| tool.strict && !is_guarded)?;
    let without_index: String = tool.field.chars().filter(|letter| !letter.is_ascii_digit()).collect();
    Some(format!("{without_index}.strict"))
}

/// Whether a mark tells the beginning of a call from a text's.
fn has_marks(format: ToolFormat) -> bool {
    format != ToolFormat::Llama3
}

/// Whether a form has calls.
pub(super) fn has_calls(form: &Form) -> bool {
    matches!(&form.spec, GrammarSpec::Answer(answer) if answer.calls.is_some())
}

/// The same form behind thoughts.
fn behind_thoughts(form: Form, reasoning: Option<(ReasoningMarks, ReasoningStart)>) -> Form {
    let content = Some(Box::new(form.spec.clone()));
    let spec = GrammarSpec::Answer(AnswerGrammar { reasoning, calls: None, content });
    Form { field: form.field, spec, parts: vec![FormPart { field: form.field.to_owned(), spec: form.spec }] }
}

/// The calls that a grammar must see to; `None` where it need not.
fn calls(conversation: &Conversation, offered: &[Tool], format: ToolFormat, has_form: bool) -> Option<Calls> {
    if offered.is_empty() {
        return None;
    }
    let parallel = conversation.parallel_calls;
    let (chosen, required): (Vec<&Tool>, bool) = match &conversation.tool_choice {
        ToolChoice::None => return None,
        ToolChoice::Required => (offered.iter().collect(), true),
        ToolChoice::Named(name) => (offered.iter().filter(|tool| tool.name == *name).collect(), true),
        ToolChoice::Auto => {
            let is_guarded = has_marks(format) && (offered.iter().any(|tool| tool.strict) || !parallel);
            if !is_guarded && !has_form {
                return None;
            }
            (offered.iter().collect(), false)
        }
    };
    let tool = |tool: &&Tool| {
        // Without `strict` a schema is a hint, and one that does not compile is no reason to refuse.
        let parameters = if required || tool.strict { tool.schema() } else { json!({ "type": "object" }) };
        AnswerTool { name: tool.name.clone(), parameters }
    };
    Some(Calls { format, tools: chosen.iter().map(tool).collect(), required, parallel })
}
