//! How `taper serve` is operated: who may ask, how much and how long, what it listens on, and how it stops.

use crate::args::engine::{seconds, size};
use anyhow::{Context, Result, bail};
use clap::builder::BoolishValueParser;
use clap::{ArgAction, Args};
use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use taper_server::limits::MAX_HELD_BYTES;
use taper_server::{AllowedHosts, ApiKeys, CorsOrigins, Rate, SamplingDefaults, ServerConfig, Timeouts, Tls};

/// The most that `--max-header-size` may say: more than any client sends, and little enough for every connection at once.
const MAX_HEADER_SIZE: usize = 256 << 10;

/// A value that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

impl FromStr for Secret {
    type Err = Infallible;

    // Whatever it is: an error of the command line would repeat it. The server checks it.
    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Secret(text.trim().to_owned()))
    }
}

/// Settings of the server that are not about models.
#[derive(Debug, Clone, Args)]
pub(crate) struct OperationArgs {
    /// Ask for this key in all requests but /health, /live, /version and /metrics, as `Authorization: Bearer KEY` or `x-api-key: KEY`.
    /// May be given several times, or several with commas between; other users of this machine may see the command line, so
    /// the variable or --api-key-file is the better place.
    #[arg(long, value_name = "KEY", env = "TAPER_API_KEY", hide_env_values = true, value_delimiter = ',')]
    pub(crate) api_key: Vec<Secret>,

    /// A file of such keys, one a line; lines that begin with # are comments. Read again on SIGHUP.
    #[arg(long, value_name = "FILE", env = "TAPER_API_KEY_FILE")]
    pub(crate) api_key_file: Option<PathBuf>,

    /// Requests that each key may send, such as 10/s, 600/min or 1000/h: as many at once, and then as they become free; more
    /// get 429. Without keys, all clients together [default: no limit].
    #[arg(long, value_name = "N/TIME", env = "TAPER_RATE_LIMIT")]
    pub(crate) rate_limit: Option<Rate>,

    /// Let web pages of this origin ask, such as `https://app.example.com`; `*` is every one. May be given several times, or
    /// several with commas between [default: none].
    #[arg(long, value_name = "ORIGIN", env = "TAPER_CORS_ORIGIN", value_delimiter = ',')]
    pub(crate) cors_origin: Vec<String>,

    /// Answer requests whose Host is this name, such as `llm.example.com`; `*` is every one. May be given several times, or several
    /// with commas between. Addresses, localhost and the name in --host are always answered; others get 403, so that no web page
    /// of another site has its name point here and asks [default: every name; on 127.0.0.1 and ::1 without API keys none].
    #[arg(long, value_name = "NAME", env = "TAPER_ALLOWED_HOST", value_delimiter = ',')]
    pub(crate) allowed_host: Vec<String>,

    /// Serve https with this certificate, a PEM file with the server's own first and those that signed it after it. Read again
    /// on SIGHUP.
    #[arg(long, value_name = "FILE", env = "TAPER_TLS_CERT")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// The certificate's private key, a PEM file.
    #[arg(long, value_name = "FILE", env = "TAPER_TLS_KEY")]
    pub(crate) tls_key: Option<PathBuf>,

    /// Listen at a Unix socket of this path instead of --host and --port; only this user may connect (mode 0600). A flag --host or
    /// --port overrides a socket of a variable or the file.
    #[arg(long, value_name = "PATH", env = "TAPER_UNIX_SOCKET")]
    pub(crate) unix_socket: Option<PathBuf>,

    /// Most bytes of a request's body; larger ones get 413.
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "32MiB", env = "TAPER_MAX_BODY_SIZE")]
    pub(crate) max_body_size: usize,

    /// Most bytes of a request's headers; larger ones get 431.
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "64KiB", env = "TAPER_MAX_HEADER_SIZE")]
    pub(crate) max_header_size: usize,

    /// Most headers of a request; more get 431.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000), env = "TAPER_MAX_HEADERS")]
    pub(crate) max_headers: u16,

    /// Most connections at a time, idle ones included. On further ones only /health and the like are answered, all else gets
    /// 503.
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..), env = "TAPER_MAX_CONNECTIONS")]
    pub(crate) max_connections: u32,

    /// How long a TLS handshake and a request's headers may take, and how long an idle connection is kept.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "30", env = "TAPER_HEADER_TIMEOUT")]
    pub(crate) header_timeout: Duration,

    /// How long a request's body may pause.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "30", env = "TAPER_BODY_PAUSE_TIMEOUT")]
    pub(crate) body_pause_timeout: Duration,

    /// How long a request's body may take in all.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "300", env = "TAPER_BODY_TIMEOUT")]
    pub(crate) body_timeout: Duration,

    /// How long a client may leave its answer unread before its connection is closed.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "60", env = "TAPER_WRITE_TIMEOUT")]
    pub(crate) write_timeout: Duration,

    /// How long requests are still taken after SIGTERM, while /health says 503 already, so that load balancers turn away first.
    #[arg(long, value_name = "SECONDS", value_parser = seconds_or_none, default_value = "0", env = "TAPER_DRAIN_DELAY")]
    pub(crate) drain_delay: Duration,

    /// How long running requests may take after that before they are cut off [default: as long as they need].
    #[arg(long, value_name = "SECONDS", value_parser = seconds, env = "TAPER_DRAIN_TIMEOUT")]
    pub(crate) drain_timeout: Option<Duration>,

    /// Send a trace of each request to the OpenTelemetry collector at this URL, such as `http://localhost:4318` [default: what
    /// OTEL_EXPORTER_OTLP_ENDPOINT says]. Only in programs that are built with `--features otlp`.
    #[arg(long, value_name = "URL", env = "TAPER_OTLP_ENDPOINT")]
    pub(crate) otlp_endpoint: Option<String>,

    /// Refuse requests that do not name their model, as OpenAI does. Without this they are for the first one. The variable is 1, true,
    /// yes or on, or 0, false, no or off.
    #[arg(long, env = "TAPER_REQUIRE_MODEL", action = ArgAction::SetTrue, value_parser = BoolishValueParser::new())]
    pub(crate) require_model: bool,

    /// A TOML file of settings: the long names of these flags, with - or _, and their values. Flags and variables override it.
    #[arg(long, value_name = "FILE", env = "TAPER_CONFIG")]
    pub(crate) config: Option<PathBuf>,

    /// Print all settings as TOML, with where each comes from, and exit. API keys are left out.
    #[arg(long)]
    pub(crate) print_config: bool,
}

impl OperationArgs {
    /// What the server is told, which listens at `host`.
    ///
    /// # Errors
    /// When a file cannot be used, or a value makes no sense; the flag or the file is named.
    pub(crate) fn server_config(&self, host: &str) -> Result<ServerConfig> {
        let given: Vec<String> = self.api_key.iter().map(|key| key.0.clone()).collect();
        let tls = match (&self.tls_cert, &self.tls_key) {
            (None, None) => None,
            (Some(cert), Some(key)) => Some(Tls::load(cert.clone(), key.clone()).context("--tls-cert, --tls-key")?),
            (Some(_), None) => bail!("--tls-cert needs --tls-key, the certificate's private key"),
            (None, Some(_)) => bail!("--tls-key needs --tls-cert, the certificate that it belongs to"),
        };
        if self.max_body_size > MAX_HELD_BYTES {
            bail!("--max-body-size may be 256MiB at most: that is what all large bodies share");
        }
        if self.max_header_size > MAX_HEADER_SIZE {
            bail!("--max-header-size may be 256KiB at most");
        }
        Ok(ServerConfig {
            timeouts: Timeouts {
                header: self.header_timeout,
                body_pause: self.body_pause_timeout,
                body_total: self.body_timeout,
                write_stall: self.write_timeout,
                ..Timeouts::default()
            },
            max_body_bytes: self.max_body_size,
            max_header_bytes: self.max_header_size,
            max_headers: usize::from(self.max_headers),
            max_connections: self.max_connections as usize,
            drain_delay: self.drain_delay,
            drain_timeout: self.drain_timeout,
            api_keys: ApiKeys::new(&given, self.api_key_file.clone()).context("--api-key, --api-key-file")?,
            allowed_hosts: AllowedHosts::parse(&self.allowed_host).context("--allowed-host")?.with_own(host),
            cors: CorsOrigins::parse(&self.cors_origin).context("--cors-origin")?,
            require_model: self.require_model,
            // Not about operation: `ServeArgs` has it.
            sampling: SamplingDefaults::NONE,
            rate_limit: self.rate_limit,
            tls,
            on_request: None,
        })
    }
}

/// Seconds, or 0 for none.
fn seconds_or_none(text: &str) -> Result<Duration, String> {
    if matches!(text, "0" | "0s") { Ok(Duration::ZERO) } else { seconds(text) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command, ServeArgs};
    use crate::settings::without_variables;
    use clap::{CommandFactory, FromArgMatches};

    fn parsed(flags: &str) -> Result<ServeArgs> {
        let words = ["taper", "serve"].into_iter().chain(flags.split_whitespace());
        let matches = without_variables(Cli::command()).try_get_matches_from(words)?;
        let Command::Serve(args) = Cli::from_arg_matches(&matches)?.command else { panic!("it is serve") };
        Ok(*args)
    }

    fn config(flags: &str) -> Result<ServerConfig> {
        let args = parsed(flags)?;
        args.operation.server_config(&args.host)
    }

    fn refusal(flags: &str) -> String {
        format!("{:#}", config(flags).expect_err("it cannot be used"))
    }

    #[test]
    fn the_defaults_are_those_of_the_server() {
        let (ours, theirs) = (config("").unwrap(), ServerConfig::default());
        assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        for (flags, part) in [
            ("--tls-cert a.pem", "--tls-key"),
            ("--tls-key a.pem", "--tls-cert"),
            ("--tls-cert /none.crt --tls-key /none.key", "/none.crt"),
            ("--api-key-file /none.keys", "/none.keys"),
            ("--cors-origin localhost", "\"localhost\""),
            ("--allowed-host a,http://b", "\"http://b\""),
            ("--rate-limit 10", "--rate-limit"),
            ("--max-body-size 1GiB", "--max-body-size"),
            ("--max-header-size 1MiB", "--max-header-size"),
            ("--drain-delay=-1", "--drain-delay"),
        ] {
            assert!(refusal(flags).contains(part), "{flags}: {}", refusal(flags));
        }
    }

    #[test]
    fn the_host_that_it_listens_at_is_one_of_the_names() {
        let listed = AllowedHosts::parse(&["a".to_owned(), "b".to_owned()]).unwrap();
        assert_eq!(config("--allowed-host a,b").unwrap().allowed_hosts, listed);
        assert_eq!(config("--allowed-host a,b --host c").unwrap().allowed_hosts, listed.with_own("c"));
    }

    #[test]
    fn keys_are_not_shown() {
        let args = parsed("--api-key alpha,beta").unwrap();
        assert!(!format!("{args:?}").contains("alpha"));
        assert_eq!(args.operation.api_key, ["alpha", "beta"].map(|key| Secret(key.to_owned())));
        assert!(!refusal("--api-key alpha,b\u{e4}ta").contains("alpha"));
    }
}
