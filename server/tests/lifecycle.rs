//! Loading, failing, overload, clients that leave or dawdle, and stopping.
#![allow(clippy::unwrap_used, reason = "a helper of a test may end the test")]

mod support;

use std::time::Duration;

use serde_json::{Value, json};
use support::*;
use taper_engine::EngineConfig;
use taper_server::{ServerState, Timeouts};
use tokio::io::AsyncWriteExt;

fn chat_body(fields: &Value) -> Value {
    let mut body = json!({ "messages": [{ "role": "user", "content": "Hi" }] });
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn while_loading_everything_is_503_with_the_reason() {
    let state = ServerState::new();
    state.set_loading_reason("reading weights, 40 %");
    let health = get(&state, "/health").await;
    assert_eq!(health.status, 503);
    assert!(health.json()["reason"].as_str().unwrap().contains("reading weights, 40 %"));
    assert_eq!(health.json()["status"], "model_loading");
    for answer in [
        health,
        get(&state, "/v1/models").await,
        chat(&state, json!({})).await,
        complete(&state, json!({})).await,
        post_bytes(&state, CHAT, b"not json".to_vec()).await,
    ] {
        assert_eq!(answer.status, 503);
        assert!(answer.headers["retry-after"].to_str().unwrap().parse::<u32>().unwrap() >= 1);
        assert_eq!(answer.error()["code"], "model_loading");
        assert_eq!(answer.error()["type"], "service_unavailable");
    }
}

#[tokio::test]
async fn health_is_ok_when_ready_and_says_why_when_failed() {
    let state = state();
    assert_eq!(get(&state, "/health").await.json(), json!({ "status": "ok", "deterministic": true }));
    state.set_failed("the file is damaged");
    let health = get(&state, "/health").await;
    assert_eq!(health.status, 503);
    assert!(health.headers.get("retry-after").is_none(), "waiting does not help");
    assert!(health.json()["reason"].as_str().unwrap().contains("the file is damaged"));
    assert_eq!(chat(&state, json!({})).await.status, 503);
}

#[tokio::test]
async fn nothing_is_computed_for_who_sends_no_more() {
    let (state, engine) = state_with(babbling(), EngineConfig::default(), Timeouts::default());
    let server = Running::start(&state).await;
    let asked = raw_post(COMPLETIONS, &json!({ "prompt": "Once", "max_tokens": 2 }));
    let health = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec();
    let kept_open = String::from_utf8(asked.clone()).unwrap().replace("Connection: close\r\n", "").into_bytes();
    // What is sent behind a request keeps the connection from being read to its end; the last is given up where that is read.
    for (first, num_answers) in [(kept_open, 0), (health.clone(), 2)] {
        let mut stream = server.connect().await;
        stream.write_all(&[first, health.clone(), health.clone()].concat()).await.unwrap();
        stream.shutdown().await.unwrap();
        let answer = read_all(&mut stream).await;
        assert_eq!(answer.matches("HTTP/1.1 200 ").count(), num_answers, "{answer}");
    }
    assert_eq!(engine.status().prompt_tokens, 0);
    // Who waits for an answer gets it.
    assert!(exchange(&mut server.connect().await, &asked).await.starts_with("HTTP/1.1 200 "));
    assert!(engine.status().prompt_tokens > 0);
}

#[tokio::test]
async fn a_full_queue_is_429_with_retry_after() {
    let config = EngineConfig { max_batch: 1, max_queued: 1, ..EngineConfig::default() };
    let (runner, gate) = babbling().with_gate();
    let (state, engine) = state_with(runner, config, Timeouts::default());
    let waiting: Vec<_> = (0..2)
        .map(|_| {
            let state = state.clone();
            tokio::spawn(async move { complete(&state, json!({})).await.status })
        })
        .collect();
    eventually("two requests are at the engine", || engine.status().running + engine.status().queued == 2).await;
    for stream in [false, true] {
        let answer = complete(&state, json!({ "stream": stream })).await;
        assert_eq!(answer.status, 429);
        assert_eq!(answer.error()["type"], "rate_limit_error");
        assert_eq!(answer.error()["code"], "queue_full");
        assert!(answer.headers["retry-after"].to_str().unwrap().parse::<u32>().unwrap() >= 1);
    }
    gate.open();
    for request in waiting {
        assert_eq!(request.await.unwrap(), 200);
    }
}

#[tokio::test]
async fn a_failure_before_the_first_event_is_a_real_status() {
    for stream in [false, true] {
        let (state, _engine) = state_with(babbling().failing_at(0..1), EngineConfig::default(), Timeouts::default());
        let answer = complete(&state, json!({ "stream": stream })).await;
        assert_eq!(answer.status, 500);
        assert_eq!(answer.error()["type"], "server_error");
        assert_eq!(complete(&state, json!({})).await.status, 200, "the next request is served");
    }
}

#[tokio::test]
async fn a_failure_after_the_first_event_is_an_error_frame_and_the_end() {
    let (state, _engine) = state_with(babbling().failing_at(5..6), EngineConfig::default(), Timeouts::default());
    let frames = chat(&state, json!({ "stream": true })).await.frames();
    let last: Value = serde_json::from_str(frames.last().unwrap()).unwrap();
    assert_eq!(last["error"]["type"], "server_error");
    assert!(frames.len() > 2);
    assert!(!frames.contains(&"[DONE]".to_owned()));
}

#[tokio::test]
async fn an_engine_that_fails_again_and_again_is_unhealthy_until_a_step_succeeds() {
    let (state, _engine) = state_with(babbling().failing_at(0..4), EngineConfig::default(), Timeouts::default());
    for failures in 1..=4 {
        let answer = complete(&state, json!({})).await;
        let (status, code) = if failures < 3 { (500, "internal_error") } else { (503, "model_failed") };
        assert_eq!((answer.status.as_u16(), &answer.error()["code"]), (status, &json!(code)));
        assert!(answer.error()["message"].as_str().unwrap().contains("the stub fails"), "{}", answer.body);
    }
    let health = get(&state, "/health").await;
    assert_eq!((health.status.as_u16(), &health.json()["status"]), (503, &json!("model_failed")));
    assert_eq!(complete(&state, json!({})).await.status, 200, "requests are still tried");
    assert_eq!(get(&state, "/health").await.status, 200);
}

#[tokio::test]
async fn a_crash_of_the_engine_is_a_500_and_not_the_end() {
    let (state, _engine) = state_with(babbling().panicking_at(0..1), EngineConfig::default(), Timeouts::default());
    assert_eq!(complete(&state, json!({})).await.status, 500);
    assert_eq!(complete(&state, json!({})).await.status, 200);
}

#[tokio::test]
async fn an_engine_whose_thread_died_is_503_for_all_and_can_be_waited_for() {
    let (state, engine) = state_with(babbling().dying_at(2), EngineConfig::default(), Timeouts::default());
    for stream in [false, true] {
        let answer = complete(&state, json!({ "stream": stream })).await;
        assert_eq!((answer.status.as_u16(), &answer.error()["code"]), (503, &json!("model_failed")));
        assert!(answer.error()["message"].as_str().unwrap().contains("restart"), "{}", answer.body);
        assert!(answer.headers.get("retry-after").is_none(), "waiting does not help");
    }
    engine.drained().await;
    let health = get(&state, "/health").await;
    assert_eq!((health.status.as_u16(), &health.json()["status"]), (503, &json!("model_failed")));
}

#[tokio::test]
async fn a_stopped_engine_is_503() {
    let (state, engine) = state_with(babbling(), EngineConfig::default(), Timeouts::default());
    engine.drain();
    engine.drained().await;
    for stream in [false, true] {
        assert_eq!(complete(&state, json!({ "stream": stream })).await.status, 503);
    }
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_answered_although_the_client_still_sends() {
    let server = Running::start(&state()).await;
    let too_much = taper_server::limits::MAX_BODY_BYTES + 1;
    for head in
        [format!("Content-Length: {too_much}\r\n\r\n"), format!("Transfer-Encoding: chunked\r\n\r\n{too_much:x}\r\n")]
    {
        let mut client = server.connect().await;
        let head = format!("POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n{head}");
        client.write_all(head.as_bytes()).await.unwrap();
        client.write_all(&vec![b' '; too_much]).await.unwrap();
        client.write_all(b"\r\n0\r\n\r\n").await.unwrap();
        let answer = read_until(&mut client, "request_too_large").await;
        assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    }
}

#[tokio::test]
async fn a_body_that_is_announced_as_too_large_is_not_waited_for() {
    let timeouts = Timeouts { body_pause: Duration::from_secs(3600), ..Timeouts::default() };
    let (state, _engine) = state_with(babbling(), EngineConfig::default(), timeouts);
    let server = Running::start(&state).await;
    for (path, expect, status) in
        [(CHAT, "", 413), (CHAT, "Expect: 100-continue\r\n", 413), ("/no/such/path", "", 404), ("/health", "", 405)]
    {
        let mut client = server.connect().await;
        let head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n{expect}Content-Length: {}\r\n\r\n", 100 << 20);
        client.write_all(head.as_bytes()).await.unwrap();
        let answer = read_until(&mut client, "\"error\"").await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
    }
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_place() {
    for fields in [json!({ "stream": true }), json!({}), json!({ "stream": true, "n": 3 })] {
        let runner = babbling().with_delay(Duration::from_millis(10));
        let (state, engine) = state_with(runner, EngineConfig::default(), Timeouts::default());
        let server = Running::start(&state).await;
        let mut client = server.connect().await;
        client.write_all(&raw_post(CHAT, &chat_body(&fields))).await.unwrap();
        if fields.get("stream").is_some() {
            read_until(&mut client, "\"content\":\"").await;
        }
        eventually("the request runs", || engine.status().running > 0).await;
        drop(client);
        // The rest of the context would take five seconds.
        let left = tokio::time::Instant::now();
        eventually("it is cancelled", || engine.status().running == 0 && state.active_requests() == 0).await;
        assert!(left.elapsed() < Duration::from_secs(2));
    }
}

#[tokio::test]
async fn requests_of_a_client_that_left_are_not_computed() {
    let runner = babbling().with_delay(Duration::from_millis(10));
    let (state, engine) = state_with(runner, EngineConfig::default(), Timeouts::default());
    let server = Running::start(&state).await;
    let mut client = server.connect().await;
    let one = String::from_utf8(raw_post(CHAT, &chat_body(&json!({})))).unwrap().replace("Connection: close\r\n", "");
    client.write_all(one.repeat(20).as_bytes()).await.unwrap();
    eventually("the first runs", || engine.status().running > 0).await;
    drop(client);
    // The rest of the context would take five seconds, for each of them.
    let left = tokio::time::Instant::now();
    eventually("it is cancelled", || engine.status().running == 0 && state.active_requests() == 0).await;
    assert!(left.elapsed() < Duration::from_secs(4));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!((engine.status().running, state.active_requests()), (0, 0), "no other begins");
}

#[tokio::test]
async fn a_silent_stream_gets_comments() {
    let timeouts = Timeouts { keep_alive: Duration::from_millis(100), ..Timeouts::default() };
    let (runner, gate) = replying("ok").with_gate();
    let (state, _engine) = state_with(runner, EngineConfig::default(), timeouts);
    let server = Running::start(&state).await;
    let mut client = server.connect().await;
    client.write_all(&raw_post(CHAT, &chat_body(&json!({ "stream": true })))).await.unwrap();
    let begin = read_until(&mut client, ": keep-alive\n\n").await;
    assert!(begin.starts_with("HTTP/1.1 200"), "{begin}");
    assert!(begin.contains("\"role\":\"assistant\""), "the role does not wait for text: {begin}");
    gate.open();
    assert!(read_all(&mut client).await.contains("data: [DONE]\n\n"));
}

#[tokio::test]
async fn stopping_finishes_running_answers_and_refuses_new_ones() {
    let runner = babbling().with_delay(Duration::from_millis(20));
    let (state, engine) = state_with(runner, EngineConfig::default(), Timeouts::default());
    let server = Running::start(&state).await;
    let mut streaming = server.connect().await;
    let body = chat_body(&json!({ "stream": true, "max_tokens": 40 }));
    streaming.write_all(&raw_post(CHAT, &body)).await.unwrap();
    read_until(&mut streaming, "\"content\":\"").await;
    let mut waiting = server.connect().await;
    waiting.write_all(&raw_post(CHAT, &chat_body(&json!({ "max_tokens": 30 })))).await.unwrap();
    eventually("both run", || engine.status().running == 2).await;
    let mut idle = server.connect().await;

    server.stop.send(()).unwrap();
    let mut late = connect_late(server.address).await;
    let refused = exchange(&mut late, &raw_post(CHAT, &chat_body(&json!({})))).await;
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    assert!(refused.contains("server_draining") && refused.to_lowercase().contains("retry-after"), "{refused}");
    let mut probe = connect_late(server.address).await;
    let health = exchange(&mut probe, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    assert!(health.starts_with("HTTP/1.1 503"), "{health}");

    let rest = read_all(&mut streaming).await;
    assert!(rest.contains("\"finish_reason\":\"length\"") && rest.contains("data: [DONE]\n\n"), "{rest}");
    let whole = read_all(&mut waiting).await;
    assert!(whole.starts_with("HTTP/1.1 200") && whole.contains("\"completion_tokens\":30"), "{whole}");
    assert_eq!(read_all(&mut idle).await, "", "an idle connection is closed");
    tokio::time::timeout(PATIENCE, server.task).await.expect("the server ends").unwrap().unwrap();
    assert!(tokio::net::TcpStream::connect(server.address).await.is_err(), "the socket is closed");
}

/// Connects after a moment in which the server's task sees that it shall stop.
async fn connect_late(address: std::net::SocketAddr) -> tokio::net::TcpStream {
    tokio::time::sleep(Duration::from_millis(50)).await;
    tokio::net::TcpStream::connect(address).await.expect("a stopping server still says so")
}

#[tokio::test]
async fn an_idle_server_stops_at_once_also_while_loading() {
    for state in [state(), ServerState::new()] {
        let server = Running::start(&state).await;
        let _idle = server.connect().await;
        server.stop.send(()).unwrap();
        tokio::time::timeout(Duration::from_secs(2), server.task).await.expect("at once").unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_client_that_never_finishes_its_request_does_not_hold_up_the_stop() {
    let timeouts = Timeouts { closing: Duration::from_millis(200), ..Timeouts::default() };
    let (state, _engine) = state_with(replying("x"), EngineConfig::default(), timeouts);
    let server = Running::start(&state).await;
    let mut half = server.connect().await;
    half.write_all(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{").await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.stop.send(()).unwrap();
    tokio::time::timeout(Duration::from_secs(3), server.task).await.expect("soon").unwrap().unwrap();
}

#[tokio::test]
async fn slow_headers_and_slow_bodies_run_out_of_time() {
    let short = Duration::from_millis(200);
    let timeouts = Timeouts { header: short, body_pause: short, ..Timeouts::default() };
    let (state, _engine) = state_with(replying("x"), EngineConfig::default(), timeouts);
    let server = Running::start(&state).await;

    let mut slow = server.connect().await;
    slow.write_all(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Slow").await.unwrap();
    let answer = read_all(&mut slow).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");

    let mut slow = server.connect().await;
    slow.write_all(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{").await.unwrap();
    let answer = read_all(&mut slow).await;
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("request_timeout"), "{answer}");

    let mut idle = server.connect().await;
    assert_eq!(read_all(&mut idle).await, "", "a connection without a request is closed");
    let mut good = server.connect().await;
    assert!(exchange(&mut good, &raw_post(COMPLETIONS, &json!({ "prompt": "a" }))).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn one_connection_serves_several_requests() {
    let server = Running::start(&state()).await;
    let mut client = server.connect().await;
    for _ in 0..3 {
        let body = chat_body(&json!({ "stream": true })).to_string();
        let length = body.len();
        let request = format!("POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}");
        client.write_all(request.as_bytes()).await.unwrap();
        // The end of a chunked body.
        let answer = read_until(&mut client, "\r\n0\r\n\r\n").await;
        assert!(answer.contains("data: [DONE]\n\n"));
    }
}

#[tokio::test]
async fn concurrent_streams_give_the_texts_of_single_ones() {
    let (state, _engine) = state_with(babbling(), EngineConfig::default(), Timeouts::default());
    let text = |answer: &Answer| -> String {
        answer.chunks().iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect()
    };
    let request = |index: usize| json!({ "prompt": "x".repeat(index + 1), "stream": true, "max_tokens": 50 });
    let mut alone = Vec::new();
    for index in 0..8 {
        alone.push(text(&complete(&state, request(index)).await));
    }
    let together: Vec<_> = (0..8)
        .map(|index| {
            let state = state.clone();
            tokio::spawn(async move { complete(&state, request(index)).await })
        })
        .collect();
    for (expected, answer) in alone.iter().zip(together) {
        assert_eq!(&text(&answer.await.unwrap()), expected);
    }
}
