//! What Ollama's clients ask of models: GET /api/tags, /api/ps and /api/version, POST /api/show.

use std::fmt::Write;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::names;
use super::time::{moment, since_1970};
use crate::errors::ApiError;
use crate::facts::ServerFacts;
use crate::fields::Fields;
use crate::models::ToldState;
use crate::reply::Reply;
use crate::state::{Served, ServerState};
use crate::{api, body, unsupported};

/// The version of Ollama whose interface this is: clients ask whether it is new enough for what they want.
const VERSION: &str = "0.32.0";

/// How far away the end of a model is that stays loaded: a hundred years.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);

pub(crate) async fn version() -> Json<Value> {
    Json(json!({ "version": VERSION }))
}

/// The models that there are, loaded or not.
pub(crate) async fn tags(State(state): State<ServerState>) -> Result<Json<Value>, ApiError> {
    state.models().check_open()?;
    let models = state.models().each(|told| {
        let created_unix = match &told.state {
            ToldState::Loaded(served) => served.model.created_unix,
            _ => told.created_unix,
        };
        let mut card = card(told.id, told.facts);
        card["size"] = told.facts.model_bytes.unwrap_or(0).into();
        card["modified_at"] = moment(Duration::from_secs(created_unix)).into();
        card
    });
    Ok(Json(json!({ "models": models })))
}

/// The models in memory. Their size is that of the file and of the KV cache.
pub(crate) async fn ps(State(state): State<ServerState>) -> Result<Json<Value>, ApiError> {
    state.models().check_open()?;
    let models = state.models().each(|told| {
        let ToldState::Loaded(served) = &told.state else { return None };
        let facts = told.facts;
        let size = facts.model_bytes.unwrap_or(0) + served.model.engine.kv_cache_bytes() as u64;
        let is_on_gpu = facts.device.as_deref().is_some_and(|device| device.starts_with("cuda"));
        let mut card = card(told.id, facts);
        card["size"] = size.into();
        card["size_vram"] = if is_on_gpu { size } else { 0 }.into();
        card["expires_at"] = moment(since_1970() + FOREVER).into();
        card["context_length"] = context_len(served).into();
        Some(card)
    });
    Ok(Json(json!({ "models": models.into_iter().flatten().collect::<Vec<Value>>() })))
}

pub(crate) async fn show(State(state): State<ServerState>, headers: HeaderMap, body: Body) -> Result<Reply, ApiError> {
    api::admit(&state, &headers, body).await?.read(&state, read_show).await
}

pub(crate) fn read_show(body: &[u8], state: &ServerState, served: &Served) -> Result<Reply, ApiError> {
    let mut fields = Fields::new(body::parse_object(body)?);
    names::take_any(&mut fields, state, served)?;
    // Tensors and arrays of the vocabulary are not told in either case; the rest would change a copy of the model's settings.
    fields.boolean("verbose")?;
    for name in ["system", "template", "options"] {
        fields.take(name);
    }
    let ignored = unsupported::check_rest(fields, state)?;
    Ok(Reply { text: shown(served, &state.models().facts(&served.model.id)).to_string(), ignored })
}

/// Tokens that a request and its answer may have.
fn context_len(served: &Served) -> usize {
    served.model.context_len.min(served.model.engine.limits().context_len)
}

/// What the lists have in common.
fn card(id: &str, facts: &ServerFacts) -> Value {
    let name = names::listed(id);
    json!({ "name": name, "model": name, "digest": digest(&name, facts), "details": details(facts) })
}

/// Names the model as a hash of its file would, without reading it: the same as long as its name and what is known of it are.
fn digest(name: &str, facts: &ServerFacts) -> String {
    let ServerFacts { architecture, quantization, num_params, model_bytes, .. } = facts;
    let known = json!([name, architecture, quantization, num_params, model_bytes]);
    Sha256::digest(known.to_string()).iter().fold(String::new(), |mut digest, byte| {
        // A string takes all of it.
        let _ = write!(digest, "{byte:02x}");
        digest
    })
}

fn details(facts: &ServerFacts) -> Value {
    let family = facts.architecture.as_deref();
    json!({
        "parent_model": "",
        "format": "gguf",
        "family": family.unwrap_or_default(),
        "families": family.as_slice(),
        "parameter_size": facts.num_params.map(human).unwrap_or_default(),
        "quantization_level": facts.quantization.as_deref().unwrap_or_default(),
    })
}

/// A count as Ollama writes those of parameters: 134.52M, 7.6B, 8B.
fn human(num: u64) -> String {
    let (unit, letter, digits) = match num {
        1_000_000_000.. => (1e9, "B", 1),
        1_000_000.. => (1e6, "M", 2),
        1_000.. => (1e3, "K", 0),
        _ => return num.to_string(),
    };
    let number = num as f64 / unit;
    let digits = if number.fract() == 0.0 { 0 } else { digits };
    format!("{number:.digits$}{letter}")
}

fn shown(served: &Served, facts: &ServerFacts) -> Value {
    let model = &served.model;
    let name = names::listed(&model.id);
    let template = model.template.as_ref().map_or("", taper_text::ChatTemplate::source);
    let context_len = context_len(served);
    json!({
        "modelfile": format!("FROM {name}\nTEMPLATE \"\"\"{template}\"\"\"\nPARAMETER num_ctx {context_len}\n"),
        "parameters": format!("{:<30} {context_len}", "num_ctx"),
        "template": template,
        "details": details(facts),
        "model_info": model_info(served, facts),
        "capabilities": capabilities(served),
        "modified_at": moment(Duration::from_secs(model.created_unix)),
    })
}

/// What is known of the file's metadata, by its keys.
fn model_info(served: &Served, facts: &ServerFacts) -> Map<String, Value> {
    let (model, tokenizer) = (&served.model, &served.model.tokenizer);
    let mut info = Map::new();
    let mut add = |key: String, value: Option<Value>| info.extend(value.map(|value| (key, value)));
    add("general.architecture".to_owned(), facts.architecture.clone().map(Value::from));
    add("general.basename".to_owned(), Some(model.id.as_str().into()));
    add("general.parameter_count".to_owned(), facts.num_params.map(Value::from));
    if let Some(architecture) = &facts.architecture {
        // What a request may have, which clients cut conversations by, and not what the model was made for.
        add(format!("{architecture}.context_length"), Some(context_len(served).into()));
        let hidden_size = model.engine.embeddings().map(|embeddings| embeddings.hidden_size);
        add(format!("{architecture}.embedding_length"), hidden_size.map(Value::from));
        add(format!("{architecture}.vocab_size"), Some(tokenizer.vocab_size().into()));
    }
    add("tokenizer.ggml.bos_token_id".to_owned(), tokenizer.bos().map(Value::from));
    add("tokenizer.ggml.eos_token_id".to_owned(), tokenizer.eos().map(Value::from));
    info
}

/// What the model can do, in Ollama's words. Tools are offered to any model; here stand those that its template knows.
fn capabilities(served: &Served) -> Vec<&'static str> {
    let all = [
        ("completion", true),
        ("tools", served.dialect.knows_tools),
        ("thinking", served.dialect.reasoning.is_some()),
        ("embedding", served.model.engine.embeddings().is_some()),
    ];
    all.iter().filter(|(_, is_there)| *is_there).map(|(name, _)| *name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_written_as_ollama_writes_them() {
        for (num, expected) in [
            (134_515_008, "134.52M"),
            (7_615_616_512, "7.6B"),
            (8_000_000_000, "8B"),
            (3_000_000, "3M"),
            (1_500, "2K"),
            (999, "999"),
            (0, "0"),
        ] {
            assert_eq!(human(num), expected);
        }
    }

    #[test]
    fn a_digest_names_the_model_and_stays() {
        let facts = ServerFacts { model_bytes: Some(5), ..ServerFacts::default() };
        let first = digest("a:latest", &facts);
        assert!(first.len() == 64 && first.bytes().all(|byte| byte.is_ascii_hexdigit()), "{first}");
        assert_eq!(first, digest("a:latest", &facts.clone()));
        assert_ne!(first, digest("b:latest", &facts));
        assert_ne!(first, digest("a:latest", &ServerFacts::default()));
    }
}
