//! How many tokens a model may think: the fields of a request, and what the engine is told.

use taper_engine::ThinkingBudget;
use taper_text::{ReasoningMarks, ReasoningStart};

use crate::errors::ApiError;
use crate::fields::Fields;
use crate::state::Served;

/// Its names on OpenAI's interfaces: vLLM's, and the two of llama.cpp.
const NAMES: [&str; 3] = ["thinking_token_budget", "thinking_budget_tokens", "reasoning_budget_tokens"];

/// A budget, and the field that asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Budget {
    field: &'static str,
    max_tokens: i64,
}

impl Budget {
    /// The budget of so many tokens, at least 0, from this field.
    pub(crate) fn new(field: &'static str, max_tokens: i64) -> Budget {
        Budget { field, max_tokens }
    }

    /// Takes the fields of OpenAI's interfaces; -1 is no budget, as in llama.cpp.
    ///
    /// # Errors
    /// 400 for values that are none, and for two that differ.
    pub(crate) fn take(fields: &mut Fields) -> Result<Option<Budget>, ApiError> {
        let mut taken: Option<Budget> = None;
        for field in NAMES {
            let Some(max_tokens) = fields.integer(field, -1..=i64::MAX)? else { continue };
            match taken {
                Some(other) if other.max_tokens != max_tokens => {
                    let message = format!(
                        "{} is {} and {field} is {max_tokens}, and both are the most tokens of thoughts; give one of them",
                        other.field, other.max_tokens
                    );
                    return Err(ApiError::invalid(field, message));
                }
                _ => taken = Some(Budget::new(field, max_tokens)),
            }
        }
        Ok(taken.filter(|budget| budget.max_tokens >= 0))
    }

    /// What the engine keeps to. A model that does not think keeps to any budget.
    pub(super) fn for_engine(
        self,
        served: &Served,
        reasoning: Option<(ReasoningMarks, ReasoningStart)>,
    ) -> Result<Option<ThinkingBudget>, ApiError> {
        let Some((marks, start)) = reasoning else { return Ok(None) };
        let max_tokens = usize::try_from(self.max_tokens).unwrap_or(usize::MAX);
        let budget = ThinkingBudget::new(max_tokens, marks, start, &served.model.tokenizer);
        budget.map(Some).ok_or_else(|| {
            let Budget { field, .. } = self;
            let message = format!(
                "{field} is not supported with this model: its vocabulary has no tokens for {}, which ends its thoughts; leave it out",
                marks.end
            );
            ApiError::unsupported(field, message)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(body: Value) -> Result<Option<i64>, ApiError> {
        let Value::Object(object) = body else { panic!("tests give objects") };
        Ok(Budget::take(&mut Fields::new(object))?.map(|budget| budget.max_tokens))
    }

    #[test]
    fn every_name_is_read_and_those_that_differ_are_refused() {
        for name in NAMES {
            assert_eq!(read(json!({ name: 0 })).unwrap(), Some(0));
            assert_eq!(read(json!({ name: 512 })).unwrap(), Some(512));
            assert_eq!(read(json!({ name: -1 })).unwrap(), None);
            for bad in [json!(-2), json!("many"), json!(1.5)] {
                assert_eq!(read(json!({ name: bad })).unwrap_err().to_json()["error"]["param"], name);
            }
        }
        assert_eq!(read(json!({ NAMES[0]: 5, NAMES[1]: 5 })).unwrap(), Some(5));
        let error = read(json!({ NAMES[0]: 5, NAMES[2]: -1 })).unwrap_err();
        assert_eq!(error.to_json()["error"]["param"], NAMES[2]);
        assert!(error.message().contains(NAMES[0]), "{}", error.message());
    }
}
