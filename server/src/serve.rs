//! The router, and the loop that serves it.
//!
//! The loop is our own rather than `axum::serve` because that has no time limits: headers, idle connections and unread
//! answers each have one here (`Timeouts`).
//!
//! Stopping: for `drain_delay` only `/health` says so, so that nobody is sent here any more. Then new requests get 503 with
//! `Connection: close` (the socket keeps accepting for that, so that a client hears a reason instead of a refused
//! connection), running answers are finished and flushed, for `drain_timeout` at most, the engines are drained, [`run`] returns
//! and the socket closes.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, OriginalUri, Request, State};
use axum::http::Method;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use taper_engine::Handoff;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tower_http::catch_panic::CatchPanicLayer;

use crate::absent;
use crate::access::{self, Crowded};
use crate::api::{messages, ollama};
use crate::body;
use crate::errors::ApiError;
use crate::io_timeout::WriteTimeout;
use crate::limits::MAX_HEADERS;
use crate::middleware;
use crate::peer::peer;
use crate::routes::routes;
use crate::sockets::{Accepted, Places, Socket};
use crate::state::ServerState;
use crate::tls::Tls;
use crate::web;

/// How long headers may take where there is no room for the connection.
const CROWDED_HEADER_TIMEOUT: Duration = Duration::from_secs(2);

/// Bytes of a connection that are read at once; the smallest buffer that has room for most headers, and few enough that thousands of
/// clients who send for ever take hundreds of MiB and not thousands.
const BUFFER_BYTES: usize = 128 << 10;

/// The routes of the API, which are rows of `routes`, the page, and who may ask for them.
pub fn app(state: ServerState) -> Router {
    let rows = routes().into_iter();
    let router = rows
        .fold(Router::new(), |router, row| router.route(row.path, row.answer))
        .merge(web::routes())
        .fallback(no_such_path)
        .method_not_allowed_fallback(method_not_allowed)
        // The handlers limit bodies themselves, with an OpenAI error.
        .layer(DefaultBodyLimit::disable())
        .layer(axum::middleware::from_fn_with_state(state.clone(), access::check))
        .layer(CatchPanicLayer::custom(middleware::panicked))
        .layer(axum::middleware::from_fn(messages::errors_in_own_words))
        .layer(axum::middleware::from_fn(ollama::errors_in_own_words));
    // Browsers send no key with a preflight, and shall be able to read a refusal.
    let router = match &state.config().cors {
        Some(origins) => router.layer(origins.layer()),
        None => router,
    };
    router.layer(axum::middleware::from_fn_with_state(state.clone(), middleware::identify)).with_state(state)
}

/// Characters of a path that an error repeats.
const SHOWN_PATH: usize = 80;

async fn no_such_path(State(state): State<ServerState>, OriginalUri(uri): OriginalUri, request: Request) -> ApiError {
    linger(request, &state);
    let path: String = uri.path().chars().take(SHOWN_PATH).collect();
    if path.starts_with("/v1/responses/") {
        ApiError::nothing_stored(&path)
    } else if ollama::is_management(&path) {
        ollama::no_management(&path)
    } else {
        absent::at(&path).unwrap_or_else(|| ApiError::no_such_path(&path))
    }
}

async fn method_not_allowed(
    State(state): State<ServerState>,
    OriginalUri(uri): OriginalUri,
    method: Method,
    request: Request,
) -> ApiError {
    linger(request, &state);
    let method: String = method.as_str().chars().take(SHOWN_PATH).collect();
    let path: String = uri.path().chars().take(SHOWN_PATH).collect();
    ApiError::method_not_allowed(&method, &path, absent::why_not(&method, &path))
}

/// Forgets the body of a request that is refused.
fn linger(request: Request, state: &ServerState) {
    let (parts, body) = request.into_parts();
    body::linger(&parts.headers, body, state.work(), access::patience(&parts, state));
}

/// Serves `app(state)` on `socket` until `shutdown` completes and the requests that run then are answered. Where the socket is one
/// of this machine alone, requests must call it by a name of its own ([`crate::AllowedHosts`]).
pub async fn run(
    socket: impl Into<Socket>,
    state: ServerState,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let mut socket = socket.into();
    let door = Door::new(&state, socket.ip()?);
    let mut connections = JoinSet::new();
    let graceful = GracefulShutdown::new();
    door.serve_until(shutdown, &mut socket, true, &graceful, &mut connections).await;

    let config = state.config();
    // Nobody would be sent to a server that is not well.
    if !config.drain_delay.is_zero() && state.health().is_ok() {
        state.set_stopping();
        tracing::info!(
            delay_s = config.drain_delay.as_secs_f64(),
            "stopping: /health says so, requests are still taken"
        );
        let delay = tokio::time::sleep(config.drain_delay);
        door.serve_until(delay, &mut socket, true, &graceful, &mut connections).await;
    }
    tracing::info!(active = state.active_requests(), "stopping: new requests are refused, running ones are finished");
    state.set_draining();
    // Idle connections close at once, busy ones after their answer; those that come now get one answer each.
    let finished = finish(&state, graceful.shutdown());
    let finished = async {
        match config.drain_timeout {
            None => finished.await,
            Some(limit) if tokio::time::timeout(limit, finished).await.is_ok() => {}
            Some(limit) => {
                let (active, limit_s) = (state.active_requests(), limit.as_secs_f64());
                tracing::warn!(active, limit_s, "requests that still run are cut off");
            }
        }
    };
    let late = GracefulShutdown::new();
    door.serve_until(finished, &mut socket, false, &late, &mut connections).await;
    drop(socket);
    let flushed = tokio::time::timeout(Duration::from_secs(1), late.shutdown());
    if flushed.await.is_err() {
        tracing::debug!("connections that came while stopping are cut off");
    }
    connections.shutdown().await;
    Ok(())
}

/// Waits for the running requests, then for the engines, then (not for long) for the connections.
async fn finish(state: &ServerState, all_closed: impl Future<Output = ()>) {
    let drained = async {
        state.idle().await;
        state.models().end().await;
    };
    let mut all_closed = pin!(all_closed);
    let mut drained = pin!(drained);
    // Connections are watched from the start, since telling them to close is part of that future.
    let closed_first = tokio::select! {
        () = &mut all_closed => true,
        () = &mut drained => false,
    };
    if closed_first {
        drained.await;
    } else if tokio::time::timeout(state.timeouts().closing, all_closed).await.is_err() {
        tracing::warn!("connections without a complete request are cut off");
    }
}

/// Polls a future in the context of this runtime, whichever thread does it.
async fn in_runtime(future: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Handle::current();
    let mut future = pin!(future);
    std::future::poll_fn(|context| {
        let _entered = runtime.enter();
        future.as_mut().poll(context)
    })
    .await;
}

/// What a connection carries, encrypted or not.
trait Bytes: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Bytes for S {}

/// What a connection meets.
struct Door {
    state: ServerState,
    router: Router,
    /// The same for connections beyond the limit.
    crowded: Router,
    places: Places,
}

impl Door {
    /// For a socket that is bound to `address`, if it has one.
    fn new(state: &ServerState, address: Option<IpAddr>) -> Self {
        let router = app(state.clone());
        let config = state.config();
        let router = match config.allowed_hosts.guard(address, !config.api_keys.is_empty()) {
            Some(guard) => router.layer(Extension(guard)),
            None => router,
        };
        let crowded = router.clone().layer(Extension(Crowded));
        Self { state: state.clone(), router, crowded, places: Places::new(config.max_connections) }
    }

    /// Serves connections that come until `end` completes.
    async fn serve_until(
        &self,
        end: impl Future<Output = ()>,
        socket: &mut Socket,
        keep_alive: bool,
        graceful: &GracefulShutdown,
        connections: &mut JoinSet<()>,
    ) {
        let mut end = pin!(end);
        loop {
            tokio::select! {
                () = &mut end => break,
                accepted = self.places.accept(socket) => {
                    let connection = self.connection(accepted, keep_alive, graceful.watcher());
                    connections.spawn(Handoff::new(in_runtime(connection)));
                }
                Some(_) = connections.join_next() => {}
            }
        }
    }

    /// Serves one connection to its end.
    fn connection(
        &self,
        accepted: Accepted,
        keep_alive: bool,
        watcher: Watcher,
    ) -> impl Future<Output = ()> + Send + use<> {
        let Accepted { connection, place, is_crowded } = accepted;
        let config = self.state.config();
        let timeouts = config.timeouts;
        let header = if is_crowded { timeouts.header.min(CROWDED_HEADER_TIMEOUT) } else { timeouts.header };
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(header)
            .max_header_size(config.max_header_bytes)
            .max_buf_size(BUFFER_BYTES.max(2 * config.max_header_bytes))
            .keep_alive(keep_alive && !is_crowded);
        // Any other number takes memory from the heap for each request.
        if config.max_headers != MAX_HEADERS {
            builder.max_headers(config.max_headers);
        }
        let router = if is_crowded { &self.crowded } else { &self.router };
        let service = TowerToHyperService::new(router.clone());
        let acceptor = config.tls.as_ref().map(Tls::acceptor);
        let open = self.state.http().connect(is_crowded);
        let (stream, watch) = peer(connection);
        let stream = WriteTimeout::new(stream, timeouts.write_stall);
        async move {
            let _held = (place, open);
            let stream: Box<dyn Bytes> = match acceptor {
                None => Box::new(stream),
                Some(acceptor) => match tokio::time::timeout(header, acceptor.accept(stream)).await {
                    Ok(Ok(stream)) => Box::new(stream),
                    Ok(Err(error)) => return tracing::debug!(%error, "a TLS handshake failed"),
                    Err(_) => return tracing::debug!("a TLS handshake took too long"),
                },
            };
            let connection = watch.scope(watcher.watch(builder.serve_connection(TokioIo::new(stream), service)));
            tokio::select! {
                biased;
                () = watch.left() => tracing::debug!("a client left"),
                served = connection => {
                    if let Err(error) = served {
                        tracing::debug!(%error, "a connection ended early");
                    }
                }
            }
        }
    }
}
