//! What a server listens on, how much it takes from a connection, and how it stops: real sockets.
#![allow(clippy::unwrap_used, reason = "a helper of a test may end the test")]

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use support::*;
use taper_engine::EngineConfig;
use taper_server::{AllowedHosts, ApiKeys, ServerConfig, ServerState, Socket, Timeouts, Tls, run};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

const HEALTH: &[u8] = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

fn state(config: ServerConfig) -> ServerState {
    state_with_config(replying(REPLY), EngineConfig::default(), config).0
}

fn completion() -> Vec<u8> {
    raw_post(COMPLETIONS, &json!({ "prompt": "a" }))
}

/// Serves until the sender is dropped.
fn serve(socket: impl Into<Socket>, state: &ServerState) -> oneshot::Sender<()> {
    let (stop, stopped) = oneshot::channel::<()>();
    let shutdown = async move {
        let _ = stopped.await;
    };
    tokio::spawn(run(socket.into(), state.clone(), shutdown));
    stop
}

/// Sends bytes and reads the answer to its end.
async fn talk(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), bytes: &[u8]) -> String {
    let work = async {
        stream.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        String::from_utf8(answer).unwrap()
    };
    tokio::time::timeout(PATIENCE, work).await.expect("an answer in time")
}

fn body(answer: &str) -> Value {
    let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no body: {answer}"));
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

#[tokio::test]
async fn a_unix_socket_serves_as_a_port_does() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("taper.sock");
    let _stop = serve(UnixListener::bind(&path).unwrap(), &state(ServerConfig::default()));
    for request in [
        HEALTH.to_vec(),
        completion(),
        raw_post(CHAT, &json!({ "messages": [{ "role": "user", "content": "Hi" }], "stream": true })),
    ] {
        let answer = talk(&mut UnixStream::connect(&path).await.unwrap(), &request).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

#[tokio::test]
async fn a_token_reaches_its_client_while_the_runtime_is_busy() {
    let (runner, gate) = babbling().with_gate();
    let (listener, address) = listen().await;
    let _stop = serve(listener, &state_with_config(runner, EngineConfig::default(), ServerConfig::default()).0);
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&raw_post(COMPLETIONS, &json!({ "prompt": "a", "max_tokens": 9, "stream": true }))).await.unwrap();
    gate.allow(1);
    read_until(&mut stream, "\"text\":\"").await;
    // The runtime has one thread, which waits here: whoever sent the event goes on with the connection.
    let mut stream = stream.into_std().unwrap();
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    for _ in 0..3 {
        gate.allow(1);
        let mut frame = [0; 4096];
        let len = std::io::Read::read(&mut stream, &mut frame).expect("a token in time");
        let frame = String::from_utf8_lossy(&frame[..len]);
        assert!(frame.contains("\"text\":\""), "{frame}");
    }
}

/// The status of a request that calls the server so.
async fn status(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), path: &str, host: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let answer = talk(stream, request.as_bytes()).await;
    answer.split(' ').nth(1).unwrap_or_else(|| panic!("no status: {answer}")).to_owned()
}

#[tokio::test]
async fn a_page_that_has_its_name_point_at_this_machine_gets_no_answers() {
    let (listener, address) = listen().await;
    let names = AllowedHosts::parse(&["llm.example".to_owned()]).unwrap();
    let config = ServerConfig { allowed_hosts: names.with_own("mybox"), ..ServerConfig::default() };
    let _stop = serve(listener, &state(config));
    for (path, host, expected) in [
        ("/v1/models", "127.0.0.1:8080", "200"),
        ("/v1/models", "[::1]:8080", "200"),
        ("/v1/models", "LOCALHOST.:8080", "200"),
        ("/v1/models", "app.localhost", "200"),
        ("/v1/models", "llm.example:443", "200"),
        ("/v1/models", "mybox", "200"),
        ("/v1/models", "", "200"),
        ("/v1/models", "evil.example", "403"),
        ("/no/such/path", "evil.example", "403"),
        ("http://evil.example/v1/models", "localhost", "403"),
        ("/health", "evil.example", "200"),
        ("/metrics", "evil.example", "200"),
    ] {
        assert_eq!(status(&mut connect(address).await, path, host).await, expected, "{path} of {host:?}");
    }
    let answer = talk(&mut connect(address).await, b"GET /v1/models HTTP/1.0\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");

    let request = String::from_utf8(completion()).unwrap().replace("localhost", "Evil.example:8080");
    let answer = talk(&mut connect(address).await, request.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    let error = &body(&answer)["error"];
    assert_eq!((&error["code"], &error["type"]), (&json!("host_not_allowed"), &json!("invalid_request_error")));
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("\"Evil.example\"") && message.contains("--allowed-host"), "{message}");
}

#[tokio::test]
async fn where_others_connect_or_keys_are_asked_for_names_do_not_matter_unless_they_are_listed() {
    let listed = || AllowedHosts::parse(&["llm.example".to_owned()]).unwrap();
    let keys = || ApiKeys::new(&["sesame".to_owned()], None).unwrap();
    for (bound_to, config, expected) in [
        ("127.0.0.1:0", ServerConfig::default(), "403"),
        ("127.0.0.1:0", ServerConfig { api_keys: keys(), ..ServerConfig::default() }, "401"),
        ("127.0.0.1:0", ServerConfig { api_keys: keys(), allowed_hosts: listed(), ..ServerConfig::default() }, "403"),
        ("0.0.0.0:0", ServerConfig::default(), "200"),
        ("0.0.0.0:0", ServerConfig { allowed_hosts: listed(), ..ServerConfig::default() }, "403"),
    ] {
        let listener = TcpListener::bind(bound_to).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let _stop = serve(listener, &state(config));
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        assert_eq!(status(&mut stream, "/v1/models", "other.example").await, expected, "{bound_to}");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("taper.sock");
    let config = ServerConfig { allowed_hosts: listed(), ..ServerConfig::default() };
    let _stop = serve(UnixListener::bind(&path).unwrap(), &state(config));
    let mut stream = UnixStream::connect(&path).await.unwrap();
    assert_eq!(status(&mut stream, "/v1/models", "other.example").await, "200");
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// A connection of a client that trusts the certificate in this file alone.
async fn connect_tls(address: std::net::SocketAddr, trusted: &str) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(data(trusted)).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, TcpStream::connect(address).await?).await
}

async fn connect(address: std::net::SocketAddr) -> TcpStream {
    TcpStream::connect(address).await.unwrap()
}

async fn listen() -> (TcpListener, std::net::SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

#[tokio::test]
async fn encrypted_connections_are_served_and_a_renewed_certificate_is_used_from_then_on() {
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = (folder.path().join("server.crt"), folder.path().join("server.key"));
    let install = |name: &str| {
        std::fs::copy(data(&format!("{name}.crt")), &cert).unwrap();
        std::fs::copy(data(&format!("{name}.key")), &key).unwrap();
    };
    install("localhost");
    let tls = Tls::load(cert.clone(), key.clone()).unwrap();
    let state = state(ServerConfig { tls: Some(tls), ..ServerConfig::default() });
    let (listener, address) = listen().await;
    let _stop = serve(listener, &state);

    let mut client = connect_tls(address, "localhost.crt").await.unwrap();
    let answer = talk(&mut client, &completion()).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let mut streaming = connect_tls(address, "localhost.crt").await.unwrap();
    let answer = talk(&mut streaming, &raw_post(COMPLETIONS, &json!({ "prompt": "a", "stream": true }))).await;
    assert!(answer.contains("data: [DONE]"), "{answer}");

    assert!(connect_tls(address, "renewed.crt").await.is_err(), "not that certificate yet");
    install("renewed");
    state.reload();
    let mut client = connect_tls(address, "renewed.crt").await.unwrap();
    assert!(talk(&mut client, HEALTH).await.starts_with("HTTP/1.1 200"));
    assert!(connect_tls(address, "localhost.crt").await.is_err());

    std::fs::write(&key, "no key").unwrap();
    state.reload();
    assert!(connect_tls(address, "renewed.crt").await.is_ok(), "a broken pair changes nothing");
}

#[tokio::test]
async fn bad_and_slow_handshakes_harm_nobody() {
    let start = |header| async move {
        let config = ServerConfig {
            tls: Some(Tls::load(data("localhost.crt"), data("localhost.key")).unwrap()),
            timeouts: Timeouts { header, ..Timeouts::default() },
            ..ServerConfig::default()
        };
        let (listener, address) = listen().await;
        (serve(listener, &state(config)), address)
    };
    let (_stop, address) = start(Duration::from_secs(60)).await;
    // A silent one first: it must not hold up the others.
    let _silent = connect(address).await;
    for garbage in [HEALTH, b"\x16\x03\x01\xff\xff", &[0; 100]] {
        let mut bad = TcpStream::connect(address).await.unwrap();
        bad.write_all(garbage).await.unwrap();
        let mut answer = Vec::new();
        // An alert, or a connection that is reset.
        let _ = tokio::time::timeout(PATIENCE, bad.read_to_end(&mut answer)).await.expect("it ends");
        assert!(!answer.starts_with(b"HTTP"), "nothing is answered in the clear");
    }
    let mut good = connect_tls(address, "localhost.crt").await.unwrap();
    assert!(talk(&mut good, &completion()).await.starts_with("HTTP/1.1 200"));
    // And it does not stay for ever.
    let (_stop, impatient) = start(Duration::from_millis(100)).await;
    let mut answer = Vec::new();
    let _ =
        tokio::time::timeout(PATIENCE, connect(impatient).await.read_to_end(&mut answer)).await.expect("it is closed");
}

#[tokio::test]
async fn beyond_the_most_connections_health_answers_and_all_else_is_503() {
    let config = ServerConfig { max_connections: 1, ..ServerConfig::default() };
    let server = Running::start(&state(config)).await;
    let mut held = server.connect().await;
    // It has its place when it is answered.
    held.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    read_until(&mut held, "\"status\":\"ok\"").await;
    for _ in 0..3 {
        let answer = talk(&mut server.connect().await, HEALTH).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let answer = talk(&mut server.connect().await, &completion()).await;
        assert!(answer.starts_with("HTTP/1.1 503") && answer.to_lowercase().contains("retry-after: 1\r\n"), "{answer}");
        assert_eq!(body(&answer)["error"]["code"], "busy");
    }
    drop(held);
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !talk(&mut server.connect().await, &completion()).await.starts_with("HTTP/1.1 200") {
        assert!(tokio::time::Instant::now() < deadline, "its place is never given back");
    }
}

#[tokio::test]
async fn too_many_or_too_large_headers_are_431() {
    let config = ServerConfig { max_header_bytes: 2000, max_headers: 10, ..ServerConfig::default() };
    let server = Running::start(&state(config)).await;
    let request =
        |headers: String| format!("GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
    let few = request("X-A: b\r\n".repeat(5));
    assert!(talk(&mut server.connect().await, few.as_bytes()).await.starts_with("HTTP/1.1 200"));
    for headers in ["X-A: b\r\n".repeat(20), format!("X-A: {}\r\n", "b".repeat(4000))] {
        let answer = talk(&mut server.connect().await, request(headers).as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    }
}

#[tokio::test]
async fn a_body_beyond_the_configured_size_is_413_and_names_the_limit() {
    let state = state(ServerConfig { max_body_bytes: 1000, ..ServerConfig::default() });
    assert_eq!(complete(&state, json!({ "user": "a".repeat(900) })).await.status, 200);
    let answer = complete(&state, json!({ "user": "a".repeat(1000) })).await;
    assert_eq!((answer.status.as_u16(), &answer.error()["code"]), (413, &json!("request_too_large")));
    assert!(answer.error()["message"].as_str().unwrap().contains("1000 bytes"));
}

#[tokio::test]
async fn health_turns_first_and_requests_are_taken_for_the_delay() {
    let config = ServerConfig { drain_delay: Duration::from_secs(600), ..ServerConfig::default() };
    let server = Running::start(&state(config)).await;
    let (address, kept) = (server.address, server.connect().await);
    server.stop.send(()).unwrap();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let answer = talk(&mut connect(address).await, HEALTH).await;
        if answer.starts_with("HTTP/1.1 503") {
            assert_eq!(body(&answer)["status"], "server_draining");
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{answer}");
    }
    for mut client in [connect(address).await, kept] {
        let answer = talk(&mut client, &completion()).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    server.task.abort();
}

#[tokio::test]
async fn after_the_delay_requests_are_refused_and_running_ones_finish() {
    let config = ServerConfig { drain_delay: Duration::from_millis(100), ..ServerConfig::default() };
    let (runner, gate) = replying(REPLY).with_gate();
    let (state, engine) = state_with_config(runner, EngineConfig::default(), config);
    let server = Running::start(&state).await;
    let address = server.address;
    let mut running = server.connect().await;
    running.write_all(&completion()).await.unwrap();
    eventually("the request is at the engine", || engine.status().running + engine.status().queued == 1).await;
    server.stop.send(()).unwrap();
    // Of those that came in the delay nobody waits for an answer here: they would wait for the gate.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let mut late = connect(address).await;
        late.write_all(&completion()).await.unwrap();
        let mut begin = [0; 12];
        let read = tokio::time::timeout(Duration::from_millis(500), late.read_exact(&mut begin)).await;
        if read.is_ok_and(|read| read.is_ok()) {
            assert_eq!(&begin, b"HTTP/1.1 503");
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "requests are still taken");
    }
    gate.open();
    let answer = read_all(&mut running).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    tokio::time::timeout(PATIENCE, server.task).await.expect("the server ends").unwrap().unwrap();
}

#[tokio::test]
async fn answers_that_outlast_the_drain_are_cut_off() {
    let config = ServerConfig { drain_timeout: Some(Duration::from_millis(100)), ..ServerConfig::default() };
    let (runner, gate) = replying(REPLY).with_gate();
    let (state, engine) = state_with_config(runner, EngineConfig::default(), config);
    let server = Running::start(&state).await;
    let mut running = server.connect().await;
    running.write_all(&completion()).await.unwrap();
    eventually("the request is at the engine", || engine.status().running + engine.status().queued == 1).await;
    server.stop.send(()).unwrap();
    tokio::time::timeout(PATIENCE, server.task).await.expect("the server does not wait").unwrap().unwrap();
    assert_eq!(read_all(&mut running).await, "", "there is no answer");
    eventually("nobody works on it", || state.active_requests() == 0).await;
    gate.open();
}
