//! What a server is told when it starts: who may ask, how much, how long, and how it stops.

use std::time::Duration;

use crate::access::ApiKeys;
use crate::cors::CorsOrigins;
use crate::hosts::AllowedHosts;
use crate::limits::{MAX_BODY_BYTES, MAX_CONNECTIONS, MAX_HEADER_BYTES, MAX_HEADERS};
use crate::rate_limit::Rate;
use crate::report::RequestListener;
use crate::sampling_defaults::SamplingDefaults;
use crate::timeouts::Timeouts;
use crate::tls::Tls;

/// The settings of a server. The default is open to everyone who reaches it, and has limits that suit one machine.
#[derive(Debug)]
pub struct ServerConfig {
    /// How long the server waits for a client.
    pub timeouts: Timeouts,
    /// Bytes of a request body; more is a 413.
    pub max_body_bytes: usize,
    /// Bytes of a request's line and headers together; more is a 431.
    pub max_header_bytes: usize,
    /// Headers of a request; more is a 431.
    pub max_headers: usize,
    /// Connections that are served at a time; on further ones everything but health and metrics is a 503.
    pub max_connections: usize,
    /// How long requests are still taken after the server was told to stop and `/health` says so.
    pub drain_delay: Duration,
    /// How long running answers may take after that; they are cut off then. `None` waits for all of them.
    pub drain_timeout: Option<Duration>,
    /// Who may ask.
    pub api_keys: ApiKeys,
    /// What requests may call this server, where that matters.
    pub allowed_hosts: AllowedHosts,
    /// Web pages that may ask, if any.
    pub cors: Option<CorsOrigins>,
    /// Whether a request without the name of a model is a 400, as OpenAI has it, and not for the first model.
    pub require_model: bool,
    /// What requests get that do not say it, before what a model's file suggests and before a protocol's own defaults.
    pub sampling: SamplingDefaults,
    /// How many requests each key may send; without keys, how many all clients together may.
    pub rate_limit: Option<Rate>,
    /// Certificate and key of TCP and Unix sockets alike; without them connections are plain.
    pub tls: Option<Tls>,
    /// Who is told of each request when it is over.
    pub on_request: Option<RequestListener>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            timeouts: Timeouts::default(),
            max_body_bytes: MAX_BODY_BYTES,
            max_header_bytes: MAX_HEADER_BYTES,
            max_headers: MAX_HEADERS,
            max_connections: MAX_CONNECTIONS,
            drain_delay: Duration::ZERO,
            drain_timeout: None,
            api_keys: ApiKeys::default(),
            allowed_hosts: AllowedHosts::default(),
            cors: None,
            require_model: false,
            sampling: SamplingDefaults::NONE,
            rate_limit: None,
            tls: None,
            on_request: None,
        }
    }
}
