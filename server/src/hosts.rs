//! What requests may call this server: the name in their `Host`, in HTTP/2 `:authority`.
//!
//! A web page can have the name of its own site point at this machine (DNS rebinding). To the browser the page and this server
//! are one site then, and CORS keeps the page from nothing. But the browser still sends that name. So a server that only this
//! machine reaches, and that asks for no key, answers to its own names alone. Addresses and what ends in `localhost` are no names
//! that a site can have.
//!
//! A page may also send what it will not be told the answer to, such as that a model be unloaded. Of that the browser says by
//! `Origin` whose page it is, and such a server does nothing for pages of others.

use std::net::IpAddr;
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderValue, Uri, header};

use crate::cors::CorsOrigins;
use crate::errors::ApiError;

/// Characters of a name that an error repeats; no name has more.
const SHOWN_NAME: usize = 253;

/// The names of a server besides addresses and `localhost`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowedHosts {
    listed: Vec<String>,
    /// Whether every name is listed.
    is_any: bool,
    /// The one that it listens at.
    own: Option<String>,
}

/// A name is written wrongly.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no name of a host; expected one without scheme and port, such as llm.example.com, or *")]
pub struct NotAHost(String);

impl AllowedHosts {
    /// These names, such as `llm.example.com`; `*` is every one.
    ///
    /// # Errors
    /// When one is no name: it could never match.
    pub fn parse(names: &[String]) -> Result<Self, NotAHost> {
        let listed = names.iter().filter(|name| *name != "*").map(|name| parse(name));
        let listed = listed.collect::<Result<Vec<_>, _>>()?;
        Ok(Self { is_any: listed.len() < names.len(), listed, own: None })
    }

    /// These, and what the server listens at.
    #[must_use]
    pub fn with_own(mut self, host: &str) -> Self {
        self.own = parse(host).ok().filter(|name| !is_everyones(name));
        self
    }

    /// What is asked of requests to a socket that is bound to `address`; `None` where they may use any name. That is so on Unix
    /// sockets, which have no address and which no browser reaches. Where others than this machine connect, or bring a key, the
    /// names are as whoever runs the server has them, unless they are listed.
    pub(crate) fn guard(&self, address: Option<IpAddr>, has_keys: bool) -> Option<HostGuard> {
        let is_private = address?.to_canonical().is_loopback() && !has_keys;
        let is_asked = !self.is_any && (is_private || !self.listed.is_empty());
        is_asked.then(|| HostGuard(self.own.iter().chain(&self.listed).cloned().collect()))
    }
}

/// Refuses requests that call the server by none of these names.
#[derive(Debug, Clone)]
pub(crate) struct HostGuard(Arc<[String]>);

impl HostGuard {
    /// Whether each name that a request says is one of the server's. Who says none is no browser.
    pub(crate) fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        let said = headers.get_all(header::HOST).iter().map(HeaderValue::as_bytes);
        for host in uri.host().map(str::as_bytes).into_iter().chain(said) {
            let host = String::from_utf8_lossy(host);
            let name = name_of(&host);
            if !self.has(name) {
                return Err(ApiError::host_not_allowed(&name.chars().take(SHOWN_NAME).collect::<String>()));
            }
        }
        Ok(())
    }

    /// Whether a request is of no web page, or of one of this server's, of its names' or of `allowed`. Schemes other than those of
    /// the web are those of programs; `null` is any page that hides where it is from.
    pub(crate) fn check_origin(&self, headers: &HeaderMap, allowed: Option<&CorsOrigins>) -> Result<(), ApiError> {
        let is_own = |authority: &str| {
            let is_said = |said: &HeaderValue| said.as_bytes().eq_ignore_ascii_case(authority.as_bytes());
            headers.get_all(header::HOST).iter().any(is_said) || self.lists(name_of(authority))
        };
        for origin in headers.get_all(header::ORIGIN) {
            let text = String::from_utf8_lossy(origin.as_bytes());
            let is_fine = match text.split_once("://") {
                Some(("http" | "https", authority)) => is_own(authority),
                Some(_) => true,
                None => false,
            };
            if !is_fine && !allowed.is_some_and(|allowed| allowed.has(origin)) {
                return Err(ApiError::origin_not_allowed(&text.chars().take(SHOWN_NAME).collect::<String>()));
            }
        }
        Ok(())
    }

    fn has(&self, name: &str) -> bool {
        name.is_empty() || is_everyones(name) || self.lists(name)
    }

    fn lists(&self, name: &str) -> bool {
        self.0.iter().any(|own| own.eq_ignore_ascii_case(name))
    }
}

/// `name:port` without the port, the brackets of an address and the dot of the root.
fn name_of(host: &str) -> &str {
    let is_port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let name = match host.rsplit_once(':') {
        // An address without brackets has colons of its own.
        Some((name, port)) if is_port(port) && (!name.contains(':') || name.ends_with(']')) => name,
        _ => host,
    };
    let name = name.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')).unwrap_or(name);
    name.strip_suffix('.').unwrap_or(name)
}

/// Whether no site can have this name: an address, `localhost`, what ends in `.localhost`, and what ends in `.internal`, by which
/// containers call the machine that they run on.
fn is_everyones(name: &str) -> bool {
    let ends_in = |last: &str| name.rsplit('.').next().is_some_and(|end| end.eq_ignore_ascii_case(last));
    let is_internal = || name.contains('.') && ends_in("internal");
    name.parse::<IpAddr>().is_ok() || (is_name(name) && (ends_in("localhost") || is_internal()))
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

fn parse(text: &str) -> Result<String, NotAHost> {
    let name = text.strip_suffix('.').unwrap_or(text);
    if is_name(name) { Ok(name.to_ascii_lowercase()) } else { Err(NotAHost(text.to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOPBACK: &str = "127.0.0.1";

    fn hosts(names: &[&str]) -> AllowedHosts {
        AllowedHosts::parse(&names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>()).unwrap()
    }

    fn guard(hosts: &AllowedHosts) -> HostGuard {
        hosts.guard(Some(LOOPBACK.parse().unwrap()), false).unwrap()
    }

    /// Whether a request with these `Host`s is answered.
    fn answers(guard: &HostGuard, uri: &str, said: &[&[u8]]) -> bool {
        let said = said.iter().map(|said| (header::HOST, HeaderValue::from_bytes(said).unwrap()));
        guard.check(&uri.parse().unwrap(), &said.collect()).is_ok()
    }

    #[track_caller]
    fn check(guard: &HostGuard, host: &str, expected: bool) {
        assert_eq!(answers(guard, "/v1/models", &[host.as_bytes()]), expected, "{host:?}");
    }

    #[test]
    fn pages_of_others_are_answered_only_where_they_are_allowed() {
        let guard = guard(&hosts(&["llm.example"]));
        let cors = CorsOrigins::parse(&["https://app.example".to_owned()]).unwrap();
        for (origin, expected) in [
            ("http://localhost:8080", true),
            ("https://LocalHost:8080", true),
            ("http://localhost:3000", false),
            ("http://localhost", false),
            ("https://llm.example", true),
            ("https://app.example", true),
            ("https://other.example", false),
            ("null", false),
            ("", false),
            ("vscode-webview://abc", true),
        ] {
            let headers = [(header::HOST, "localhost:8080"), (header::ORIGIN, origin)];
            let headers: HeaderMap =
                headers.into_iter().map(|(name, value)| (name, HeaderValue::from_static(value))).collect();
            assert_eq!(guard.check_origin(&headers, cors.as_ref()).is_ok(), expected, "{origin:?}");
        }
        assert!(guard.check_origin(&HeaderMap::new(), None).is_ok(), "programs say none");
    }

    #[test]
    fn addresses_and_localhost_are_answered_to_and_other_names_are_not() {
        let guard = guard(&AllowedHosts::default());
        for host in [
            "127.0.0.1",
            "127.0.0.1:8080",
            "10.1.2.3:80",
            "[::1]",
            "[::1]:8080",
            "::1",
            "localhost",
            "LocalHost:8080",
            "localhost.",
            "localhost.:8080",
            "host.docker.internal:8080",
            "localhost:",
            "app.localhost",
            "a.b.LOCALHOST:1",
            "",
            ":8080",
        ] {
            check(&guard, host, true);
        }
        for host in [
            "evil.example",
            "evil.example:8080",
            "evil.example.",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "notlocalhost",
            "taper",
            "[::1].evil.example",
            "[::1]evil.example:80",
            "evil.example:80:80",
            "evil.example/.localhost",
            "evil.example@localhost",
            "evil.example localhost",
            "localhost, evil.example",
            "127.0.0.1:http",
        ] {
            check(&guard, host, false);
        }
        assert!(!answers(&guard, "/", &[b"\xfcber.localhost"]), "what is no text is no name");
    }

    #[test]
    fn names_that_were_listed_are_answered_to_in_any_case_and_at_any_port() {
        let guard = guard(&hosts(&["LLM.example.com.", "taper"]).with_own("mybox"));
        for host in ["llm.example.com", "llm.Example.com.:443", "taper:8080", "MyBox", "localhost", "127.0.0.1"] {
            check(&guard, host, true);
        }
        for host in ["example.com", "a.llm.example.com", "llm.example.com.evil.example", "taper.evil.example"] {
            check(&guard, host, false);
        }
    }

    #[test]
    fn every_name_that_a_request_says_counts() {
        let guard = guard(&AllowedHosts::default());
        assert!(answers(&guard, "/", &[]), "HTTP/1.0 has no name");
        assert!(answers(&guard, "http://localhost:80/", &[]));
        assert!(answers(&guard, "http://[::1]:80/", &[b"localhost"]));
        assert!(!answers(&guard, "http://evil.example/", &[]), ":authority");
        assert!(!answers(&guard, "http://localhost@evil.example/", &[]));
        assert!(!answers(&guard, "http://evil.example/", &[b"localhost"]));
        assert!(!answers(&guard, "http://localhost/", &[b"evil.example"]));
        assert!(!answers(&guard, "/", &[b"localhost", b"evil.example"]));
    }

    #[test]
    fn names_are_asked_for_on_this_machines_own_addresses_without_keys_and_where_they_are_listed() {
        let (none, some) = (AllowedHosts::default().with_own("mybox"), hosts(&["a"]));
        let (any, both) = (hosts(&["*"]), hosts(&["a", "*"]));
        for (address, has_keys, if_none, if_some) in [
            (Some("127.0.0.1"), false, true, true),
            (Some("127.0.1.1"), false, true, true),
            (Some("::1"), false, true, true),
            (Some("::ffff:127.0.0.1"), false, true, true),
            (Some("127.0.0.1"), true, false, true),
            (Some("0.0.0.0"), false, false, true),
            (Some("::"), false, false, true),
            (Some("192.0.2.1"), false, false, true),
            (Some("192.0.2.1"), true, false, true),
            (None, false, false, false),
            (None, true, false, false),
        ] {
            let is_asked =
                |hosts: &AllowedHosts| hosts.guard(address.map(|address| address.parse().unwrap()), has_keys).is_some();
            assert_eq!(is_asked(&none), if_none, "{address:?} {has_keys}");
            assert_eq!(is_asked(&some), if_some, "{address:?} {has_keys}");
            assert!(!is_asked(&any) && !is_asked(&both), "{address:?} {has_keys}");
        }
    }

    #[test]
    fn what_could_never_match_is_refused() {
        for wrong in ["", ".", "http://a", "a:80", "a/b", "a b", "*.example.com", "[::1]", "\u{fc}ber.example"] {
            let names = ["*".to_owned(), wrong.to_owned()];
            assert_eq!(AllowedHosts::parse(&names), Err(NotAHost(wrong.to_owned())), "{wrong:?}");
        }
    }

    #[test]
    fn addresses_and_localhost_need_not_be_named() {
        for host in ["127.0.0.1", "0.0.0.0", "::1", "[::1]", "localhost"] {
            assert_eq!(AllowedHosts::default().with_own(host), AllowedHosts::default(), "{host}");
        }
    }

    #[test]
    fn the_refusal_names_the_host_and_the_flag() {
        let headers = [(header::HOST, HeaderValue::from_static("evil.example:80"))].into_iter().collect();
        let error = guard(&AllowedHosts::default()).check(&Uri::from_static("/"), &headers).unwrap_err();
        assert_eq!(error.status(), 403);
        assert!(error.message().contains("\"evil.example\"") && error.message().contains("--allowed-host"), "{error}");
    }
}
