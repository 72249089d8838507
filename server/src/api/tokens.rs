//! POST /tokenize, /detokenize, /apply-template and /v1/chat/completions/input_tokens: what the tokenizer and the chat template
//! make of a text or of a conversation, in the words of vLLM and of llama.cpp. The field that is there decides:
//!
//! - `prompt` or `messages` (vLLM): `{"count", "max_model_len", "tokens", "token_strs"}`;
//! - `content` (llama.cpp): `{"tokens"}`, with `with_pieces` as `[{"id", "piece"}]`.
//!
//! A conversation becomes the tokens that the chat endpoint would compute, BOS included where the model wants one
//! (`add_special_tokens` false leaves it out). A text of more tokens than the context holds is counted too, but not one that
//! could not fit whatever its tokens were.

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use serde_json::{Value, json};
use taper_text::EncodeOptions;

use crate::api::chat_completions;
use crate::chat;
use crate::errors::ApiError;
use crate::fields::Fields;
use crate::limits::MAX_TOLD_BYTES;
use crate::mixed_prompt::{self, Mixing};
use crate::models::Asked;
use crate::parameters::check_model;
use crate::reply::{Reply, json_len};
use crate::state::{Served, ServerState};
use crate::{api, body, prompt, unsupported};

pub(crate) async fn tokenize(
    State(state): State<ServerState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Reply, ApiError> {
    api::admit(&state, &headers, body).await?.read(&state, read_tokenize).await
}

pub(crate) async fn detokenize(
    State(state): State<ServerState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Reply, ApiError> {
    api::admit(&state, &headers, body).await?.read(&state, read_detokenize).await
}

pub(crate) async fn apply_template(
    State(state): State<ServerState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Reply, ApiError> {
    api::admit(&state, &headers, body).await?.read(&state, read_apply_template).await
}

/// The prompt's length of a chat request, whose fields are checked as if it were to be answered; it need not fit.
pub(crate) async fn input_tokens(
    State(state): State<ServerState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Reply, ApiError> {
    api::admit(&state, &headers, body).await?.read(&state, read_input_tokens).await
}

pub(crate) fn read_tokenize(body: &[u8], state: &ServerState, served: &Served) -> Result<Reply, ApiError> {
    let mut fields = Fields::new(body::parse_object(body)?);
    check_model(&mut fields, state, served)?;
    let mut given = ["prompt", "messages", "content"].into_iter().filter(|name| fields.has(name));
    let (first, second) = (given.next(), given.next());
    if let (Some(first), Some(second)) = (first, second) {
        return Err(ApiError::invalid(second, format!("{second} cannot be given beside {first}")));
    }
    match first {
        Some("content") => tokenize_content(fields, state, served),
        Some(_) => tokenize_prompt(fields, state, served),
        None => {
            let message = "there is nothing to tokenize: give prompt (a text), messages (a conversation) or content (llama.cpp's name of a text)";
            Err(ApiError::missing("prompt", message))
        }
    }
}

/// As llama.cpp has it.
fn tokenize_content(mut fields: Fields, state: &ServerState, served: &Served) -> Result<Reply, ApiError> {
    let mixing = Mixing {
        add_special: fields.boolean("add_special")?.unwrap_or(false),
        parse_special: fields.boolean("parse_special")?.unwrap_or(true),
    };
    let with_pieces = fields.boolean("with_pieces")?.unwrap_or(false);
    let content = fields.take("content").unwrap_or_default();
    let ignored = unsupported::check_rest(fields, state)?;
    let tokens = mixed_prompt::encode(served, content, "content", mixing)?;
    let tokens = if with_pieces {
        let piece = |&id: &u32| {
            let bytes = served.model.tokenizer.token_bytes(id).unwrap_or_default();
            let piece = std::str::from_utf8(bytes).map_or_else(|_| json!(bytes), Value::from);
            format!("{{\"id\":{id},\"piece\":{piece}}}")
        };
        list("content", tokens.iter().map(piece))?
    } else {
        list("content", tokens.iter().map(u32::to_string))?
    };
    Ok(Reply { text: format!("{{\"tokens\":{tokens}}}"), ignored })
}

/// As vLLM has it.
fn tokenize_prompt(mut fields: Fields, state: &ServerState, served: &Served) -> Result<Reply, ApiError> {
    let add_special = fields.boolean("add_special_tokens")?.unwrap_or(true);
    let with_strings = fields.boolean("return_token_strs")?.unwrap_or(false);
    let (param, tokens, ignored) = if fields.has("messages") {
        let (prompt, ignored) = conversation(fields, state, served)?;
        ("messages", chat::encode(served, &prompt, "messages", add_special)?, ignored)
    } else {
        let text = fields.string("prompt")?.unwrap_or_default();
        let ignored = unsupported::check_rest(fields, state)?;
        let options = EncodeOptions { parse_special: true, add_bos: add_special };
        ("prompt", prompt::encode_with(served, &text, "prompt", options)?, ignored)
    };
    let strings = if with_strings {
        let string = |&id: &u32| Value::from(served.model.tokenizer.token_text(id)).to_string();
        list(param, tokens.iter().map(string))?
    } else {
        "null".to_owned()
    };
    let ids = list(param, tokens.iter().map(u32::to_string))?;
    let (count, context_len) = (tokens.len(), served.model.context_len);
    let text =
        format!("{{\"count\":{count},\"max_model_len\":{context_len},\"tokens\":{ids},\"token_strs\":{strings}}}");
    Ok(Reply { text, ignored })
}

/// A conversation as the model would see it. Takes all fields that are left.
fn conversation(
    mut fields: Fields,
    state: &ServerState,
    served: &Served,
) -> Result<(taper_text::Prompt, Vec<String>), ApiError> {
    let conversation = chat_completions::conversation(&mut fields, served)?;
    let ignored = unsupported::check_rest(fields, state)?;
    Ok((chat::render(served, &conversation)?.prompt, ignored))
}

pub(crate) fn read_detokenize(body: &[u8], state: &ServerState, served: &Served) -> Result<Reply, ApiError> {
    let mut fields = Fields::new(body::parse_object(body)?);
    check_model(&mut fields, state, served)?;
    let Some(items) = fields.array("tokens")? else {
        return Err(ApiError::missing("tokens", "tokens is missing; it is an array of token ids"));
    };
    let ignored = unsupported::check_rest(fields, state)?;
    let tokens = mixed_prompt::tokens(&items, served, "tokens")?;
    drop(items);
    let num_bytes: usize =
        tokens.iter().filter_map(|&id| served.model.tokenizer.token_bytes(id)).map(<[u8]>::len).sum();
    // Before any of it is made.
    check_told("tokens", 2 * num_bytes)?;
    let text = twice(&served.model.tokenizer.decode(&tokens, false))?;
    Ok(Reply { text, ignored })
}

/// A text under vLLM's name of it and llama.cpp's.
fn twice(text: &str) -> Result<String, ApiError> {
    check_told("tokens", 2 * json_len(text))?;
    let text = Value::from(text).to_string();
    Ok(format!("{{\"prompt\":{text},\"content\":{text}}}"))
}

pub(crate) fn read_apply_template(body: &[u8], state: &ServerState, served: &Served) -> Result<Reply, ApiError> {
    let mut fields = Fields::new(body::parse_object(body)?);
    check_model(&mut fields, state, served)?;
    let (prompt, ignored) = conversation(fields, state, served)?;
    Ok(Reply { text: json!({ "prompt": prompt.text() }).to_string(), ignored })
}

pub(crate) fn read_input_tokens(body: &[u8], state: &ServerState, served: &Served) -> Result<Reply, ApiError> {
    let (num_tokens, ignored) = chat_completions::count_tokens(body, state, served)?;
    let text = json!({ "object": "response.input_tokens", "input_tokens": num_tokens }).to_string();
    Ok(Reply { text, ignored })
}

/// A JSON array of items that are JSON already; as values they would take many times the memory.
fn list(param: &str, items: impl Iterator<Item = String>) -> Result<String, ApiError> {
    let mut text = "[".to_owned();
    for item in items {
        if text.len() > 1 {
            text.push(',');
        }
        text.push_str(&item);
        check_told(param, text.len())?;
    }
    text.push(']');
    Ok(text)
}

/// Refuses an answer of more bytes than one may have.
fn check_told(param: &str, num_bytes: usize) -> Result<(), ApiError> {
    if num_bytes <= MAX_TOLD_BYTES {
        return Ok(());
    }
    let message =
        format!("the answer to {param} would have more than {MAX_TOLD_BYTES} bytes; ask about less of it at a time");
    Err(ApiError::invalid(param, message))
}

/// GET /tokenizer_info, as vLLM has it: what clients that render templates by themselves need to know.
pub(crate) async fn info(Asked(served): Asked) -> axum::Json<Value> {
    let tokenizer = &served.model.tokenizer;
    let special: Vec<&str> = tokenizer.special_ids().iter().filter_map(|&id| tokenizer.token_text(id)).collect();
    let text = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id));
    axum::Json(json!({
        // The class that loads any vocabulary; the file does not say which one it was made by.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "vocab_size": tokenizer.vocab_size(),
        "model_max_length": served.model.context_len,
        "add_bos_token": tokenizer.adds_bos(),
        "bos_token": text(tokenizer.bos()),
        "bos_token_id": tokenizer.bos(),
        "eos_token": text(tokenizer.eos()),
        "eos_token_id": tokenizer.eos(),
        "end_of_generation_ids": tokenizer.end_of_generation(),
        "special_tokens": special,
        "chat_template": served.model.template.as_ref().map(taper_text::ChatTemplate::source),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_beyond_the_limit_is_refused_by_the_field_that_asks_for_it() {
        assert_eq!(list("content", ["1".to_owned(), "2".to_owned()].into_iter()).unwrap(), "[1,2]");
        assert_eq!(list("content", std::iter::empty()).unwrap(), "[]");
        let long = std::iter::repeat_n("x".repeat(1 << 20), 65);
        let error = list("content", long).unwrap_err();
        assert_eq!((error.status().as_u16(), &error.to_json()["error"]["param"]), (400, &json!("content")));
        assert!(error.message().contains(&MAX_TOLD_BYTES.to_string()));
        assert_eq!(twice("a\n").unwrap(), r#"{"prompt":"a\n","content":"a\n"}"#);
        // As text it would fit, as JSON it has six times as many bytes.
        let error = twice(&"\u{1}".repeat(MAX_TOLD_BYTES / 8)).unwrap_err();
        assert_eq!((error.status().as_u16(), &error.to_json()["error"]["param"]), (400, &json!("tokens")));
    }
}
