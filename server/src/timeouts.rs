//! How long the server waits for a client.

use std::time::Duration;

/// The waits of a server; the default suits clients on slow networks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// How long a request's headers may take, and how long an idle connection is kept.
    pub header: Duration,
    /// How long a request body may pause.
    pub body_pause: Duration,
    /// How long a request body may take in all.
    pub body_total: Duration,
    /// How long a client may leave its answer unread before its connection is closed.
    pub write_stall: Duration,
    /// The interval of comments in a silent stream, and the longest wait for a first event before a stream's 200 goes out.
    pub keep_alive: Duration,
    /// How long connections may take to close when the server stops and no request is being worked on.
    pub closing: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            header: Duration::from_secs(30),
            body_pause: Duration::from_secs(30),
            body_total: Duration::from_secs(300),
            write_stall: Duration::from_secs(60),
            keep_alive: Duration::from_secs(15),
            closing: Duration::from_secs(5),
        }
    }
}
