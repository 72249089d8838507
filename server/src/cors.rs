//! Which web pages may ask (CORS). Off unless origins are named; what is no browser does not care.

use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, Method, header};
use tower_http::cors::{AllowHeaders, AllowOrigin, Any, CorsLayer};

use crate::middleware::REQUEST_ID;
use crate::rate_limit;

/// How long a browser may remember what it was allowed.
const REMEMBERED: Duration = Duration::from_secs(600);

/// Origins whose pages may ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CorsOrigins {
    /// Every page.
    Any,
    /// Pages of these.
    These(Vec<HeaderValue>),
}

/// An origin is written wrongly.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not an origin; expected scheme, host and port alone, such as https://app.example.com or http://localhost:3000, or *"
)]
pub struct NotAnOrigin(String);

impl CorsOrigins {
    /// Origins as browsers write them, such as `https://app.example.com`; `*` is every one. `None` for no origins.
    ///
    /// # Errors
    /// When one is no origin: it could never match.
    pub fn parse(origins: &[String]) -> Result<Option<Self>, NotAnOrigin> {
        let parsed = origins.iter().filter(|origin| *origin != "*").map(|origin| parse(origin));
        let parsed = parsed.collect::<Result<Vec<_>, _>>()?;
        Ok(match origins {
            [] => None,
            _ if parsed.len() < origins.len() => Some(Self::Any),
            _ => Some(Self::These(parsed)),
        })
    }

    /// Whether pages of this origin may ask.
    pub(crate) fn has(&self, origin: &HeaderValue) -> bool {
        match self {
            Self::Any => true,
            Self::These(origins) => origins.contains(origin),
        }
    }

    /// What answers preflights and marks answers.
    pub(crate) fn layer(&self) -> CorsLayer {
        let origins = match self {
            Self::Any => AllowOrigin::from(Any),
            Self::These(origins) => AllowOrigin::list(origins.iter().cloned()),
        };
        let shown = [REQUEST_ID, header::RETRY_AFTER, HeaderName::from_static("x-taper-ignored-fields")];
        CorsLayer::new()
            .allow_origin(origins)
            .allow_methods([Method::GET, Method::POST, Method::DELETE])
            // Clients send headers of their own (x-stainless-os); none of them decides anything but the key.
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers(shown.into_iter().chain(rate_limit::HEADERS).collect::<Vec<_>>())
            .max_age(REMEMBERED)
    }
}

fn parse(origin: &str) -> Result<HeaderValue, NotAnOrigin> {
    let wrong = || NotAnOrigin(origin.to_owned());
    let (scheme, host) = origin.split_once("://").ok_or_else(wrong)?;
    let is_scheme = !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
    let is_host = |byte: u8| byte.is_ascii_graphic() && !byte.is_ascii_uppercase() && !b"/?#@*,".contains(&byte);
    if !is_scheme || host.is_empty() || !host.bytes().all(is_host) {
        return Err(wrong());
    }
    HeaderValue::from_str(origin).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(origins: &[&str]) -> Result<Option<CorsOrigins>, NotAnOrigin> {
        CorsOrigins::parse(&origins.iter().map(|&origin| origin.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn origins_are_schemes_with_hosts() {
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&["*"]), Ok(Some(CorsOrigins::Any)));
        let both = ["https://app.example.com", "http://localhost:3000"];
        assert_eq!(of(&both), Ok(Some(CorsOrigins::These(both.map(HeaderValue::from_static).to_vec()))));
        assert_eq!(of(&[both[0], "*"]), Ok(Some(CorsOrigins::Any)));
    }

    #[test]
    fn what_could_never_match_is_refused() {
        for wrong in
            ["", "localhost", "https://", "https://a.example/", "https://a.example/x", "HTTPS://a", "https://*.b"]
        {
            assert!(of(&[wrong]).is_err(), "{wrong}");
            assert!(of(&["*", wrong]).is_err(), "{wrong}");
        }
    }
}
