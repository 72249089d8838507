//! The router, and the loop that serves it.
//!
//! The loop is our own rather than `axum::serve` because that has no time limits: headers, idle connections and unread
//! answers each have one here (`Timeouts`).
//!
//! Stopping: new requests get 503 with `Connection: close` (the socket keeps accepting for that, so that a client hears a
//! reason instead of a refused connection), running answers are finished and flushed, the engine is drained, then
//! [`run`] returns and the socket closes.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, OriginalUri, Request, State};
use axum::http::Method;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tower_http::catch_panic::CatchPanicLayer;

use crate::body;
use crate::errors::ApiError;
use crate::io_timeout::WriteTimeout;
use crate::middleware;
use crate::routes::routes;
use crate::state::ServerState;
use crate::timeouts::Timeouts;
use crate::web;

/// The routes of the API, which are rows of `routes`.
pub fn app(state: ServerState) -> Router {
    let rows = routes().into_iter();
    rows.fold(Router::new(), |router, row| router.route(row.path, row.answer))
        .merge(web::routes())
        .fallback(no_such_path)
        .method_not_allowed_fallback(method_not_allowed)
        // The handlers limit bodies themselves, with an OpenAI error.
        .layer(DefaultBodyLimit::disable())
        .layer(CatchPanicLayer::custom(middleware::panicked))
        .layer(axum::middleware::from_fn(middleware::identify))
        .with_state(state)
}

/// Characters of a path that an error repeats.
const SHOWN_PATH: usize = 80;

async fn no_such_path(State(state): State<ServerState>, OriginalUri(uri): OriginalUri, request: Request) -> ApiError {
    body::discard(request.into_body(), state.timeouts()).await;
    ApiError::no_such_path(&uri.path().chars().take(SHOWN_PATH).collect::<String>())
}

async fn method_not_allowed(
    State(state): State<ServerState>,
    OriginalUri(uri): OriginalUri,
    method: Method,
    request: Request,
) -> ApiError {
    body::discard(request.into_body(), state.timeouts()).await;
    let method: String = method.as_str().chars().take(SHOWN_PATH).collect();
    ApiError::method_not_allowed(&method, &uri.path().chars().take(SHOWN_PATH).collect::<String>())
}

/// Serves `app(state)` on `listener` until `shutdown` completes and the requests that run then are answered.
pub async fn run(
    mut listener: TcpListener,
    state: ServerState,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let door = Door { router: app(state.clone()), timeouts: *state.timeouts() };
    let mut connections = JoinSet::new();
    let graceful = GracefulShutdown::new();

    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            (stream, _) = Listener::accept(&mut listener) => serve_connection(&door, stream, true, &graceful, &mut connections),
            Some(_) = connections.join_next() => {}
        }
    }

    tracing::info!(active = state.active_requests(), "stopping: new requests are refused, running ones are finished");
    state.set_draining();
    // Idle connections close at once, busy ones after their answer; those that come now get one answer each.
    let all_closed = graceful.shutdown();
    let late = GracefulShutdown::new();
    {
        let mut finished = pin!(finish(&state, all_closed));
        loop {
            tokio::select! {
                () = &mut finished => break,
                (stream, _) = Listener::accept(&mut listener) => serve_connection(&door, stream, false, &late, &mut connections),
                Some(_) = connections.join_next() => {}
            }
        }
    }
    drop(listener);
    let flushed = tokio::time::timeout(Duration::from_secs(1), late.shutdown());
    if flushed.await.is_err() {
        tracing::debug!("connections that came while stopping are cut off");
    }
    connections.shutdown().await;
    Ok(())
}

/// Waits for the running requests, then for the engine, then (not for long) for the connections.
async fn finish(state: &ServerState, all_closed: impl Future<Output = ()>) {
    let drained = async {
        state.idle().await;
        if let Some(engine) = state.engine() {
            engine.drain();
            engine.drained().await;
        }
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

/// What a connection meets.
struct Door {
    router: Router,
    timeouts: Timeouts,
}

/// Serves one connection in a task of its own.
fn serve_connection(
    door: &Door,
    stream: TcpStream,
    keep_alive: bool,
    graceful: &GracefulShutdown,
    connections: &mut JoinSet<()>,
) {
    // Tokens are small packets that must not wait for each other.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY could not be set");
    }
    let io = TokioIo::new(Box::pin(WriteTimeout::new(stream, door.timeouts.write_stall)));
    let service = TowerToHyperService::new(door.router.clone());
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(door.timeouts.header).keep_alive(keep_alive);
    let connection = graceful.watch(builder.serve_connection(io, service));
    connections.spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection ended early");
        }
    });
}
