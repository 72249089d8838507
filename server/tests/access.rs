//! Who may ask: API keys, rates, web pages of other origins.
#![allow(clippy::unwrap_used, reason = "a helper of a test may end the test")]

mod support;

use axum::body::Body;
use axum::http::{HeaderMap, Method, Request};
use serde_json::json;
use support::*;
use taper_engine::EngineConfig;
use taper_server::{ApiKeys, CorsOrigins, ServerConfig};

fn keys(keys: &[&str]) -> ApiKeys {
    ApiKeys::new(&keys.iter().map(|&key| key.to_owned()).collect::<Vec<_>>(), None).unwrap()
}

/// A ready server with these settings.
fn state(config: ServerConfig) -> taper_server::ServerState {
    state_with_config(replying(REPLY), EngineConfig::default(), config).0
}

async fn ask(state: &taper_server::ServerState, method: Method, path: &str, headers: &[(&str, &str)]) -> Answer {
    let request = Request::builder().method(method).uri(path);
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    send(state, request.body(Body::from(json!({ "prompt": "a" }).to_string())).unwrap()).await
}

async fn complete_as(state: &taper_server::ServerState, key: &str) -> Answer {
    ask(state, Method::POST, COMPLETIONS, &[("authorization", &format!("Bearer {key}"))]).await
}

fn number(headers: &HeaderMap, name: &str) -> u64 {
    headers[name].to_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn without_a_key_only_the_open_paths_answer() {
    let state = state(ServerConfig { api_keys: keys(&["sesame"]), ..ServerConfig::default() });
    for path in ["/health", "/v1/health", "/metrics"] {
        assert_eq!(get(&state, path).await.status, 200, "{path}");
    }
    for path in ["/live", "/version"] {
        assert_ne!(get(&state, path).await.status, 401, "{path}");
    }
    for (method, path) in [
        (Method::POST, COMPLETIONS),
        (Method::POST, CHAT),
        (Method::POST, "/models/unload"),
        (Method::POST, "/v1/models/unload"),
        (Method::GET, "/v1/models"),
        (Method::GET, "/v1/models/default"),
        (Method::GET, "/health/"),
        (Method::GET, "//health"),
        (Method::GET, "/no/such/path"),
        (Method::OPTIONS, COMPLETIONS),
    ] {
        let answer = ask(&state, method, path, &[]).await;
        assert_eq!(answer.status, 401, "{path}");
        assert_eq!(answer.headers["www-authenticate"], "Bearer realm=\"taper\"");
        assert_eq!(answer.error()["code"], "invalid_api_key");
        assert_eq!(answer.error()["type"], "invalid_request_error");
        assert!(answer.headers.contains_key("x-request-id"), "a refusal is in the log, too");
    }
}

#[tokio::test]
async fn each_key_answers_in_either_header_and_wrong_ones_do_not() {
    let state = state(ServerConfig { api_keys: keys(&["sesame", "barley"]), ..ServerConfig::default() });
    for (name, value) in
        [("authorization", "Bearer sesame"), ("Authorization", "bearer barley"), ("x-api-key", "sesame")]
    {
        assert_eq!(ask(&state, Method::POST, COMPLETIONS, &[(name, value)]).await.status, 200, "{name}: {value}");
    }
    for (name, value) in [
        ("authorization", "Bearer sesame2"),
        ("authorization", "Bearer s"),
        ("authorization", "Bearer Sesame"),
        ("authorization", "Bearer sesame,barley"),
        ("authorization", "sesame"),
        ("x-api-key", ""),
    ] {
        let answer = ask(&state, Method::POST, COMPLETIONS, &[(name, value)]).await;
        assert_eq!((answer.status.as_u16(), &answer.error()["code"]), (401, &json!("invalid_api_key")), "{value}");
        assert!(!answer.body.contains("sesame"), "{}", answer.body);
    }
}

#[tokio::test]
async fn a_file_of_keys_is_read_again_and_a_broken_one_keeps_the_old_keys() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let write = |text: &str| std::fs::write(file.path(), text).unwrap();
    write("# of the team\nfirst\n");
    let api_keys = ApiKeys::new(&[], Some(file.path().to_owned())).unwrap();
    let state = state(ServerConfig { api_keys, ..ServerConfig::default() });
    assert_eq!(complete_as(&state, "first").await.status, 200);
    write("second\n");
    assert_eq!(complete_as(&state, "second").await.status, 401, "not before it is told to");
    state.reload();
    assert_eq!(complete_as(&state, "second").await.status, 200);
    assert_eq!(complete_as(&state, "first").await.status, 401);
    write("third and fourth\n");
    state.reload();
    assert_eq!(complete_as(&state, "second").await.status, 200);
    assert_eq!(complete_as(&state, "third").await.status, 401);
}

#[tokio::test]
async fn each_key_has_its_own_rate_and_hears_how_much_is_left() {
    let config = ServerConfig {
        api_keys: keys(&["sesame", "barley"]),
        rate_limit: Some("2/h".parse().unwrap()),
        ..ServerConfig::default()
    };
    let state = state(config);
    for key in ["sesame", "barley"] {
        for remaining in [1, 0] {
            let answer = complete_as(&state, key).await;
            assert_eq!(answer.status, 200);
            assert_eq!(number(&answer.headers, "x-ratelimit-limit-requests"), 2);
            assert_eq!(number(&answer.headers, "x-ratelimit-remaining-requests"), remaining);
        }
        let answer = complete_as(&state, key).await;
        assert_eq!((answer.status.as_u16(), &answer.error()["code"]), (429, &json!("rate_limit_exceeded")));
        assert_eq!(answer.error()["type"], "rate_limit_error");
        assert!((1..=1800).contains(&number(&answer.headers, "retry-after")));
        assert_eq!(number(&answer.headers, "x-ratelimit-remaining-requests"), 0);
        assert!(answer.headers.contains_key("x-ratelimit-reset-requests"));
        assert!(answer.error()["message"].as_str().unwrap().contains("2/h"));
    }
    assert_eq!(complete_as(&state, "wrong").await.status, 401, "a wrong key takes nothing from anyone");
    for _ in 0..3 {
        let health = get(&state, "/health").await;
        assert_eq!(health.status, 200);
        assert!(!health.headers.contains_key("x-ratelimit-limit-requests"));
    }
}

#[tokio::test]
async fn without_keys_the_rate_is_that_of_all() {
    let state = state(ServerConfig { rate_limit: Some("1/h".parse().unwrap()), ..ServerConfig::default() });
    assert_eq!(complete_as(&state, "any").await.status, 200);
    assert_eq!(complete_as(&state, "other").await.status, 429);
}

#[tokio::test]
async fn pages_of_named_origins_may_ask_and_others_may_not() {
    let origin = "https://app.example.com";
    let config = ServerConfig {
        api_keys: keys(&["sesame"]),
        cors: CorsOrigins::parse(&[origin.to_owned()]).unwrap(),
        ..ServerConfig::default()
    };
    let state = state(config);
    let preflight = |origin: &'static str| {
        let state = state.clone();
        async move {
            let headers = [
                ("origin", origin),
                ("access-control-request-method", "POST"),
                ("access-control-request-headers", "authorization,content-type,x-stainless-os"),
            ];
            ask(&state, Method::OPTIONS, COMPLETIONS, &headers).await
        }
    };
    let answer = preflight(origin).await;
    assert_eq!(answer.status, 200, "a preflight brings no key");
    assert_eq!(answer.headers["access-control-allow-origin"], origin);
    assert!(answer.headers["access-control-allow-methods"].to_str().unwrap().contains("POST"));
    let allowed = answer.headers["access-control-allow-headers"].to_str().unwrap();
    assert!(allowed.contains("authorization") && allowed.contains("x-stainless-os"), "{allowed}");
    assert!(!preflight("https://evil.example.com").await.headers.contains_key("access-control-allow-origin"));

    let headers = [("origin", origin), ("authorization", "Bearer sesame")];
    let answer = ask(&state, Method::POST, COMPLETIONS, &headers).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.headers["access-control-allow-origin"], origin);
    assert!(answer.headers["access-control-expose-headers"].to_str().unwrap().contains("x-request-id"));
    let refused = ask(&state, Method::POST, COMPLETIONS, &[("origin", origin)]).await;
    assert_eq!(refused.status, 401);
    assert_eq!(refused.headers["access-control-allow-origin"], origin, "the page can read why");
}

#[tokio::test]
async fn a_star_allows_every_page_and_without_origins_no_header_is_sent() {
    let everyone = ServerConfig { cors: CorsOrigins::parse(&["*".to_owned()]).unwrap(), ..ServerConfig::default() };
    let headers = [("origin", "http://localhost:3000")];
    let answer = ask(&state(everyone), Method::GET, "/v1/models", &headers).await;
    assert_eq!(answer.headers["access-control-allow-origin"], "*");
    let answer = ask(&state(ServerConfig::default()), Method::GET, "/v1/models", &headers).await;
    assert!(answer.headers.keys().all(|name| !name.as_str().starts_with("access-control")), "{:?}", answer.headers);
}

#[tokio::test]
async fn sane_request_ids_come_back_and_others_are_replaced() {
    let state = state(ServerConfig::default());
    let id_of = |sent: &'static str| {
        let state = state.clone();
        async move {
            let answer = ask(&state, Method::GET, "/v1/models", &[("x-request-id", sent)]).await;
            answer.headers["x-request-id"].to_str().unwrap().to_owned()
        }
    };
    assert_eq!(id_of("trace-42/a").await, "trace-42/a");
    for other in ["", "two words", "tab\there"] {
        assert_eq!(id_of(other).await.len(), 32, "{other:?}");
    }
}
