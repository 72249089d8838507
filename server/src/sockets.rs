//! What a server listens on: a TCP port or a Unix socket; and how many connections it has at a time.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use axum::serve::Listener;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits::SPARE_CONNECTIONS;
use crate::peer::Connection;

/// A socket that listens.
#[derive(Debug)]
pub enum Socket {
    /// A port.
    Tcp(TcpListener),
    /// A path.
    Unix(UnixListener),
}

impl From<TcpListener> for Socket {
    fn from(listener: TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

impl From<UnixListener> for Socket {
    fn from(listener: UnixListener) -> Self {
        Self::Unix(listener)
    }
}

impl Socket {
    /// The address that it is bound to; a path has none.
    pub(crate) fn ip(&self) -> io::Result<Option<IpAddr>> {
        match self {
            Self::Tcp(listener) => Ok(Some(listener.local_addr()?.ip())),
            Self::Unix(_) => Ok(None),
        }
    }

    async fn accept(&mut self) -> Connection {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = Listener::accept(listener).await;
                // Tokens are small packets that must not wait for each other.
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "TCP_NODELAY could not be set");
                }
                Connection::Tcp(stream)
            }
            Self::Unix(listener) => Connection::Unix(Listener::accept(listener).await.0),
        }
    }
}

/// Room for connections: `max` of them, and a few more on which the server says that it has no room, or how it is.
#[derive(Debug)]
pub(crate) struct Places {
    all: Arc<Semaphore>,
    spare: Arc<Semaphore>,
}

/// A connection, and what it may do.
pub(crate) struct Accepted {
    pub(crate) connection: Connection,
    /// Given back when the connection ends.
    pub(crate) place: Option<OwnedSemaphorePermit>,
    /// It is one of the few more.
    pub(crate) is_crowded: bool,
}

impl Places {
    pub(crate) fn new(max: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(max)), spare: Arc::new(Semaphore::new(SPARE_CONNECTIONS)) }
    }

    /// The next connection. While there is no room at all, those that come wait in the system's queue. May be dropped and
    /// called again without losing one.
    pub(crate) async fn accept(&self, socket: &mut Socket) -> Accepted {
        // Whoever is accepted has a place for certain: one of the spare ones, if not a better one. There would be none if the
        // semaphore were closed, and it never is.
        let spare = Arc::clone(&self.spare).acquire_owned().await.ok();
        let connection = socket.accept().await;
        match Arc::clone(&self.all).try_acquire_owned() {
            Ok(place) => Accepted { connection, place: Some(place), is_crowded: false },
            Err(_) => Accepted { connection, place: spare, is_crowded: true },
        }
    }
}
