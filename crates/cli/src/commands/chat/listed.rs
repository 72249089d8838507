//! What a server's list of models says: their names, and what a chat sends of the sampler though its user has not asked for it.
//!
//! With `taper serve` that is what makes an answer as good as without a server: the sampler of a model that is loaded here, as far
//! as neither the server's settings nor the model's file say another. Of others' servers it is what OpenAI's interface knows.

use crate::parameters::sampler;
use serde_json::{Map, Value};

/// Of the sampler, what OpenAI's interface knows.
const OPENAIS: [&str; 2] = ["temperature", "top_p"];

/// The names of the models.
pub(super) fn names(list: &Value) -> Vec<String> {
    cards(list).iter().filter_map(|card| card["id"].as_str().map(str::to_owned)).collect()
}

/// What is sent with every request for answers of the model `name`, as far as the user says nothing else.
pub(super) fn assumed(list: &Value, name: &str) -> Map<String, Value> {
    let chosen = |is_sent: &dyn Fn(&str) -> bool| {
        let sent = sampler().into_iter().filter(|(name, _)| is_sent(name));
        sent.map(|(name, value)| (name.to_owned(), value)).collect()
    };
    if !cards(list).iter().any(|card| card["owned_by"] == "taper") {
        return chosen(&|name| OPENAIS.contains(&name));
    }
    let is_alias =
        |card: &Value| card["aliases"].as_array().is_some_and(|names| names.iter().any(|alias| alias == name));
    let named = cards(list).iter().find(|card| card["id"] == name || is_alias(card));
    match named.or_else(|| cards(list).first().filter(|_| name == "default")) {
        Some(card) => chosen(&|name| card["sampling_defaults"].get(name).is_none()),
        // Which model that is, is the server's to say, and so is how it answers.
        None => Map::new(),
    }
}

fn cards(list: &Value) -> &[Value] {
    list["data"].as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_list_names_its_models() {
        assert_eq!(names(&json!({ "data": [{ "id": "a" }, { "id": "b" }, {}] })), ["a", "b"]);
        assert_eq!(names(&json!({})), Vec::<String>::new());
    }

    #[test]
    fn a_server_of_ours_is_asked_for_the_sampler_that_neither_it_nor_its_model_has() {
        let said = json!({ "temperature": { "value": 0.6, "from": "setting" }, "max_tokens": { "value": 9, "from": "setting" } });
        let list = json!({ "data": [
            { "id": "a", "owned_by": "taper", "aliases": ["x"], "sampling_defaults": said },
            { "id": "b", "owned_by": "taper", "aliases": [], "sampling_defaults": {} },
            { "id": "c", "owned_by": "taper" },
        ] });
        let rest = json!({ "top_k": 40, "top_p": 0.95, "min_p": 0.05 });
        let all = json!({ "temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05 });
        for (name, expected) in [("a", &rest), ("x", &rest), ("default", &rest), ("b", &all), ("c", &all)] {
            assert_eq!(&Value::Object(assumed(&list, name)), expected, "{name}");
        }
        assert!(assumed(&list, "d").is_empty());
    }

    #[test]
    fn another_server_is_asked_for_what_openai_knows() {
        for list in [json!({ "data": [{ "id": "a", "owned_by": "vllm" }] }), json!({ "data": [] }), json!({})] {
            assert_eq!(Value::Object(assumed(&list, "a")), json!({ "temperature": 0.8, "top_p": 0.95 }), "{list}");
        }
    }
}
