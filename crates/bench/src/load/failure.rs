//! Why a request has no answer.

use serde_json::Value;
use std::time::Duration;

/// Why a request has no answer, or a server is not measured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// There is no connection.
    #[error("cannot connect: {0}")]
    Connect(String),
    /// The server answered with an error.
    #[error("HTTP {status}: {message}")]
    Status {
        /// Of HTTP.
        status: u16,
        /// In the server's words.
        message: String,
        /// When it may be asked again.
        retry_after: Option<Duration>,
    },
    /// It took too long.
    #[error("no answer within the time limit")]
    Timeout,
    /// The connection ended before the answer did, or the answer is no stream of events.
    #[error("the stream broke: {0}")]
    Broken(String),
    /// The server told of an error in the stream.
    #[error("the server failed: {0}")]
    Told(String),
    /// The measurement cannot begin.
    #[error("{0}")]
    Setup(String),
}

impl Failure {
    /// What failures are counted by.
    pub(super) fn kind(&self) -> String {
        match self {
            Failure::Connect(_) => "connect".to_owned(),
            Failure::Status { status, .. } => format!("HTTP {status}"),
            Failure::Timeout => "timeout".to_owned(),
            Failure::Broken(_) => "broken stream".to_owned(),
            Failure::Told(_) => "error in stream".to_owned(),
            Failure::Setup(_) => "setup".to_owned(),
        }
    }

    /// How long a user waits before the next request: as long as the server says, within a minute; else long enough that a server
    /// that is not there is not asked without end.
    pub(super) fn pause(&self) -> Duration {
        match self {
            Failure::Status { retry_after: Some(wait), .. } => (*wait).min(Duration::from_secs(60)),
            _ => Duration::from_millis(100),
        }
    }
}

/// The words of an error, as OpenAI, vLLM and others wrap them; else the text.
pub(super) fn message_of(text: &str) -> String {
    let json: Value = serde_json::from_str(text).unwrap_or_default();
    let error = json.get("error").unwrap_or(&json);
    let message = error.as_str().or_else(|| error["message"].as_str()).or_else(|| error["detail"].as_str());
    message.unwrap_or(text).trim().chars().take(300).collect()
}

/// An error with what caused it.
pub(super) fn in_words(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        words.push_str(": ");
        words.push_str(&error.to_string());
        cause = error.source();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_found_wherever_servers_put_them() {
        for text in
            [r#"{"error":{"message":"x"}}"#, r#"{"error":"x"}"#, r#"{"message":"x"}"#, r#"{"detail":"x"}"#, " x\n"]
        {
            assert_eq!(message_of(text), "x", "{text}");
        }
    }

    #[test]
    fn a_pause_is_what_the_server_says_within_a_minute() {
        let status = |retry_after| Failure::Status { status: 429, message: String::new(), retry_after };
        assert_eq!(status(Some(Duration::from_secs(2))).pause(), Duration::from_secs(2));
        assert_eq!(status(Some(Duration::from_secs(9999))).pause(), Duration::from_secs(60));
        assert!(status(None).pause() > Duration::ZERO && Failure::Timeout.pause() > Duration::ZERO);
    }
}
