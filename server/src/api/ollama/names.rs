//! Names of models as Ollama has them: `name:tag`, where no tag is the tag `latest`.

use crate::errors::ApiError;
use crate::fields::Fields;
use crate::models::LATEST;
use crate::parameters::check_unnamed;
use crate::state::{Served, ServerState};

/// Characters of a name that an error repeats.
const SHOWN_CHARS: usize = 80;

/// What a model is listed as: always with a tag, which clients put to names that have none.
pub(super) fn listed(id: &str) -> String {
    if id.contains(':') { id.to_owned() } else { format!("{id}{LATEST}") }
}

/// Takes the name of the model, which has to be one of the served model's; the answer carries it as it was asked for. An empty one
/// is none.
pub(super) fn take(fields: &mut Fields, state: &ServerState, served: &Served) -> Result<String, ApiError> {
    let asked = fields.string("model")?;
    check(asked, state, served)
}

/// The same, also under the older name of the field.
pub(super) fn take_any(fields: &mut Fields, state: &ServerState, served: &Served) -> Result<String, ApiError> {
    let (asked, older) = (fields.string("model")?, fields.string("name")?);
    check(asked.filter(|name| !name.is_empty()).or(older), state, served)
}

fn check(asked: Option<String>, state: &ServerState, served: &Served) -> Result<String, ApiError> {
    let Some(asked) = asked.filter(|name| !name.is_empty()) else {
        check_unnamed(state, served)?;
        return Ok(listed(&served.model.id));
    };
    if state.answers_to(&served.model.id, &asked) {
        Ok(asked)
    } else {
        Err(ApiError::no_such_model(&asked.chars().take(SHOWN_CHARS).collect::<String>()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_listed_with_a_tag() {
        assert_eq!(listed("smollm2:135m"), "smollm2:135m");
        assert_eq!(listed("SmolLM2-135M"), "SmolLM2-135M:latest");
    }
}
