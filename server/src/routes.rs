//! Every route of the API, one row each: its path, who answers, and its description. [`crate::app`] serves the rows, and
//! `/openapi.json` and `/docs` tell of them. Several rows of one path are its methods.

use axum::handler::Handler;
use axum::routing::{self, MethodRouter};

use crate::api::description::{self as describe, Operation};
use crate::api::{
    chat_completions, completions, embeddings, health, loads, messages, metrics, model_control, models, native, ollama,
    responses, server_info, tokens,
};
use crate::state::ServerState;

/// One method of one path.
pub(crate) struct Route {
    /// As OpenAPI writes it: `get`, `post`.
    pub(crate) method: &'static str,
    /// As axum writes it.
    pub(crate) path: &'static str,
    pub(crate) answer: MethodRouter<ServerState>,
    pub(crate) describe: fn() -> Operation,
}

/// All of them.
pub(crate) fn routes() -> Vec<Route> {
    vec![
        post("/v1/chat/completions", chat_completions::chat_completions, describe::generation::chat),
        post("/v1/chat/completions/input_tokens", tokens::input_tokens, describe::tokens::input_tokens),
        post("/chat/completions", chat_completions::chat_completions, describe::generation::chat),
        post("/chat/completions/input_tokens", tokens::input_tokens, describe::tokens::input_tokens),
        post("/v1/completions", completions::completions, describe::generation::completions),
        post("/v1/embeddings", embeddings::embeddings, describe::embeddings::embeddings),
        post("/embedding", embeddings::native, describe::embeddings::native),
        post("/embeddings", embeddings::native, describe::embeddings::native),
        post("/v1/messages", messages::messages, describe::messages::messages),
        post("/v1/messages/count_tokens", messages::count_tokens, describe::messages::count_tokens),
        post("/v1/responses", responses::responses, describe::responses::responses),
        post("/responses", responses::responses, describe::responses::responses),
        post("/completion", native::completion, describe::native::completion),
        post("/completions", native::completion, describe::native::completion),
        post("/api/chat", ollama::chat, describe::ollama::chat),
        post("/api/generate", ollama::generate, describe::ollama::generate),
        post("/api/embed", ollama::embed, describe::ollama::embed),
        post("/api/embeddings", ollama::embeddings, describe::ollama::embeddings),
        post("/api/show", ollama::show, describe::ollama::show),
        get("/api/tags", ollama::tags, describe::ollama::tags),
        get("/api/ps", ollama::ps, describe::ollama::ps),
        get("/api/version", ollama::version, describe::ollama::version),
        post("/tokenize", tokens::tokenize, describe::tokens::tokenize),
        post("/v1/tokenize", tokens::tokenize, describe::tokens::tokenize),
        post("/detokenize", tokens::detokenize, describe::tokens::detokenize),
        post("/v1/detokenize", tokens::detokenize, describe::tokens::detokenize),
        post("/apply-template", tokens::apply_template, describe::tokens::apply_template),
        get("/tokenizer_info", tokens::info, describe::tokens::info),
        get("/v1/models", models::list, describe::info::models),
        get("/models", models::list, describe::info::models),
        get("/v1/models/{*id}", models::get, describe::info::model),
        post("/v1/models/reload", model_control::reload_by_id, describe::model_control::reload_by_id),
        post("/v1/models/unload", model_control::unload_by_id, describe::model_control::unload_by_id),
        post("/models/load", model_control::load, describe::model_control::load),
        post("/models/unload", model_control::unload, describe::model_control::unload),
        get("/live", server_info::live, describe::info::live),
        get("/health", health::health, describe::info::health),
        get("/v1/health", health::health, describe::info::health),
        get("/ping", health::health, describe::info::health),
        get("/version", server_info::version, describe::info::version),
        get("/server_info", server_info::server_info, describe::info::server_info),
        get("/props", server_info::props, describe::native::props),
        get("/slots", server_info::slots, describe::native::slots),
        get("/lora-adapters", server_info::lora_adapters, describe::native::lora_adapters),
        get("/loads", loads::loads, describe::info::loads),
        get("/v1/loads", loads::loads, describe::info::loads),
        get("/metrics", metrics::metrics, describe::info::metrics),
        get("/openapi.json", describe::openapi, describe::info::openapi),
        get("/docs", describe::docs, describe::info::docs),
    ]
}

fn get<H, T>(path: &'static str, handler: H, describe: fn() -> Operation) -> Route
where
    H: Handler<T, ServerState>,
    T: 'static,
{
    Route { method: "get", path, answer: routing::get(handler), describe }
}

fn post<H, T>(path: &'static str, handler: H, describe: fn() -> Operation) -> Route
where
    H: Handler<T, ServerState>,
    T: 'static,
{
    Route { method: "post", path, answer: routing::post(handler), describe }
}
