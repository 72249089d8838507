//! A prompt that ends within its last message, so that the answer goes on with it.
//!
//! Templates close each turn. So a mark is put behind what the last message says, the template runs without the beginning of
//! an answer, and what it wrote is cut at the mark, whatever it trims and wraps. (`transformers` has this idea too. Looking for
//! the text alone would find a short one in the marks of the turn: `im` in `<|im_end|>`.) Blanks at the text's end stay, though a
//! template trims them: who puts text and answer together has counted them.
//!
//! A message that has only thoughts is cut behind these, where the template shows them between the model's marks. Many leave
//! former thoughts out; if such a template begins an answer with thoughts, they are put behind that beginning. A text that
//! begins with the mark of thoughts and does not end them is taken for thoughts.

use super::{Prompt, marked, marked_inside, unused_marks};
use crate::{
    ChatMessage, ChatTemplate, ReasoningMarks, ReasoningStart, RenderContext, TemplateError, Tokenizer, Unshown,
};

/// A conversation without the end of its last message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContinuedPrompt {
    /// What the model sees.
    pub prompt: Prompt,
    /// Whether it goes on with thoughts, not with a text.
    pub in_thoughts: bool,
}

impl ChatTemplate {
    /// Renders a conversation up to what its last message says: its text, or without one its thoughts. `marks` are the model's;
    /// whether `context` asks for the beginning of an answer does not matter. Otherwise as [`ChatTemplate::prompt`].
    ///
    /// # Errors
    /// [`TemplateError::Unshown`] where the template does not show it, or where there is nothing.
    pub fn continued(
        &self,
        tokenizer: &Tokenizer,
        messages: &[ChatMessage],
        context: &RenderContext,
        marks: Option<ReasoningMarks>,
    ) -> Result<ContinuedPrompt, TemplateError> {
        let Some((last, before)) = messages.split_last() else { return Err(TemplateError::Unshown(Unshown::Text)) };
        let former = last.reasoning_content.as_deref().filter(|thoughts| !thoughts.trim().is_empty());
        let has_text = !last.content.trim().is_empty();
        let begun = marks.and_then(|marks| marks.begun_in(&last.content)).filter(|_| former.is_none());
        let Some(thoughts) = begun.or(former.filter(|_| !has_text)) else {
            let prompt = self.cut_behind(tokenizer, messages, context, Unshown::Text)?;
            let in_thoughts = marks.is_some_and(|marks| opens_thoughts(&prompt.text(), &last.content, marks));
            return Ok(ContinuedPrompt { prompt, in_thoughts });
        };
        let in_thoughts = match marks {
            Some(marks) => self.within_thoughts(tokenizer, (before, last, thoughts), context, marks),
            None => Err(TemplateError::Unshown(Unshown::Thoughts)),
        };
        let prompt = match in_thoughts {
            // As text they are shown at least.
            Err(TemplateError::Unshown(_)) if has_text => self.cut_behind(tokenizer, messages, context, Unshown::Text),
            shown => shown,
        };
        Ok(ContinuedPrompt { prompt: prompt?, in_thoughts: true })
    }

    /// Up to the end of `thoughts`, which are all that `last` has.
    fn within_thoughts(
        &self,
        tokenizer: &Tokenizer,
        (before, last, thoughts): (&[ChatMessage], &ChatMessage, &str),
        context: &RenderContext,
        marks: ReasoningMarks,
    ) -> Result<Prompt, TemplateError> {
        let last = ChatMessage { content: String::new(), reasoning_content: Some(thoughts.to_owned()), ..last.clone() };
        let messages: Vec<ChatMessage> = before.iter().cloned().chain([last]).collect();
        match self.cut_behind(tokenizer, &messages, context, Unshown::Thoughts) {
            Ok(prompt) if marks.are_open_in(&prompt.text()) => return Ok(prompt),
            Ok(_) | Err(TemplateError::Unshown(_)) => {}
            Err(error) => return Err(error),
        }
        let [mark, _] = unused_marks(self.source(), &messages, context)?;
        let context = RenderContext { add_generation_prompt: true, ..context.clone() };
        let beginning =
            marked(tokenizer, before, &context, mark, &|messages, context| self.render(&messages, context))?;
        if marks.at_end_of(&beginning.text()) != ReasoningStart::Open {
            return Err(TemplateError::Unshown(Unshown::Thoughts));
        }
        // The mark between them: no control token is made of both.
        let thoughts = marked_inside(thoughts, mark, &tokenizer.control_starts(thoughts));
        Ok(Prompt { marked: format!("{}{mark}{thoughts}", beginning.marked), mark })
    }

    /// Up to the end of this part of the last message.
    fn cut_behind(
        &self,
        tokenizer: &Tokenizer,
        messages: &[ChatMessage],
        context: &RenderContext,
        part: Unshown,
    ) -> Result<Prompt, TemplateError> {
        let [mark, end] = unused_marks(self.source(), messages, context)?;
        let context = RenderContext { add_generation_prompt: false, ..context.clone() };
        marked(tokenizer, messages, &context, mark, &|mut messages, context| {
            if let Some(last) = messages.last_mut() {
                match part {
                    Unshown::Text => last.content.push(end),
                    Unshown::Thoughts => last.reasoning_content.get_or_insert_default().push(end),
                }
            }
            let text = self.render(&messages, context)?;
            // Of several places the last is in the open turn.
            let at = text.rfind(end).ok_or(TemplateError::Unshown(part))?;
            Ok(text[..at].replace(end, ""))
        })
    }
}

/// Whether a template has put the mark of thoughts before a text, which it shows at the end of `prompt`, and the text does not end
/// them: then the model takes it for thoughts.
fn opens_thoughts(prompt: &str, text: &str, marks: ReasoningMarks) -> bool {
    let before = prompt.trim_end().strip_suffix(text.trim());
    before.is_some_and(|before| marks.at_end_of(before) == ReasoningStart::Open) && !text.contains(marks.end)
}

#[cfg(test)]
mod tests;
