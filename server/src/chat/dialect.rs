//! What a model's template and vocabulary say of tools and thoughts, found out once.

use taper_text::{ChatTemplate, ReasoningMarks, Tokenizer, ToolFormat};

/// How a model speaks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dialect {
    /// Whether its template writes tools; otherwise a system text describes them.
    pub(crate) knows_tools: bool,
    /// How it writes calls.
    pub(crate) format: ToolFormat,
    /// The marks of its thoughts, if it thinks.
    pub(crate) reasoning: Option<ReasoningMarks>,
}

impl Dialect {
    /// That of a model. Renders its template a few times.
    pub(crate) fn of(template: Option<&ChatTemplate>, tokenizer: &Tokenizer) -> Dialect {
        let knows_tools = template.is_some_and(ChatTemplate::knows_tools);
        Dialect {
            knows_tools,
            format: template.filter(|_| knows_tools).map_or(ToolFormat::Hermes, ToolFormat::of_template),
            reasoning: template.and_then(|template| ReasoningMarks::find(template, tokenizer)),
        }
    }
}
