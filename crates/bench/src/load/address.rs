//! Where a server is.

use super::Failure;
use hyper::Uri;
use hyper::header::HeaderValue;
use std::path::PathBuf;

/// What the address of a Unix socket begins with; its path follows.
const UNIX: &str = "unix:";

/// Where a server is, and what it asks to know.
#[derive(Clone)]
pub struct Address {
    /// Up to and with the version.
    base: String,
    pub(super) is_tls: bool,
    /// What is connected to instead of the host.
    pub(super) socket: Option<PathBuf>,
    /// Without the brackets that an IPv6 address has.
    pub(super) host: String,
    pub(super) port: u16,
    /// What a `Host` header says.
    pub(super) authority: HeaderValue,
    /// Path of the base.
    path: String,
    pub(super) authorization: Option<HeaderValue>,
}

impl Address {
    /// From an address with its version, `http://host:port/v1`, or the path of a Unix socket, `unix:PATH`, and a key.
    ///
    /// # Errors
    /// When it is none.
    pub fn new(base: &str, key: Option<&str>) -> Result<Address, Failure> {
        let bad = |what: &str| Failure::Setup(format!("{base} is no address of a server: {what}"));
        let socket = base.strip_prefix(UNIX).map(PathBuf::from);
        if socket.as_ref().is_some_and(|path| path.as_os_str().is_empty()) {
            return Err(bad("it has no path of a socket"));
        }
        let url = if socket.is_some() { "http://localhost/v1" } else { base };
        let uri: Uri = url.parse().map_err(|_| bad("expected one such as http://localhost:8080/v1"))?;
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(bad("expected http or https")),
        };
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(|| bad("it names no host"))?;
        let authority = uri.authority().map_or(host, |authority| authority.as_str());
        let header = |text: &str| HeaderValue::from_str(text).map_err(|_| bad("a header cannot hold it"));
        let authorization = key.map(|key| {
            let value = HeaderValue::from_str(&format!("Bearer {key}"));
            let mut value = value.map_err(|_| Failure::Setup("a header cannot hold the API key".to_owned()))?;
            value.set_sensitive(true);
            Ok::<_, Failure>(value)
        });
        Ok(Address {
            base: base.to_owned(),
            is_tls,
            socket,
            host: host.trim_matches(['[', ']']).to_owned(),
            port: uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 }),
            authority: header(authority)?,
            path: uri.path().trim_end_matches('/').to_owned(),
            authorization: authorization.transpose()?,
        })
    }

    /// As it was given.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Path of an endpoint of OpenAI's interface.
    pub(super) fn endpoint(&self, name: &str) -> String {
        format!("{}/{name}", self.path)
    }

    /// Path of what servers have beside it.
    pub(super) fn beside(&self, name: &str) -> String {
        format!("{}/{name}", self.path.strip_suffix("/v1").unwrap_or(&self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_port_a_path_and_a_key() {
        let address = Address::new("https://[::1]/openai/v1", Some("k")).unwrap();
        assert_eq!((address.is_tls, address.host.as_str(), address.port), (true, "::1", 443));
        assert_eq!(address.authority, "[::1]");
        assert_eq!(address.endpoint("completions"), "/openai/v1/completions");
        assert_eq!(address.beside("tokenize"), "/openai/tokenize");
        assert_eq!(address.authorization.as_ref().unwrap(), "Bearer k");
        let address = Address::new("http://host:8080/v1", None).unwrap();
        assert_eq!((address.port, address.authority.to_str().unwrap()), (8080, "host:8080"));
        assert_eq!(address.beside("tokenize"), "/tokenize");
    }

    #[test]
    fn a_socket_has_a_path_and_the_version() {
        let address = Address::new("unix:/run/a b.sock", None).unwrap();
        assert_eq!(address.socket, Some(PathBuf::from("/run/a b.sock")));
        assert_eq!(
            (address.base(), address.endpoint("completions").as_str()),
            ("unix:/run/a b.sock", "/v1/completions")
        );
        assert_eq!(
            (address.authority.to_str().unwrap(), address.beside("tokenize").as_str()),
            ("localhost", "/tokenize")
        );
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for base in ["", "host", "ftp://host/v1", "http://", "unix:"] {
            assert!(matches!(Address::new(base, None), Err(Failure::Setup(_))), "{base}");
        }
        let Err(Failure::Setup(words)) = Address::new("http://host/v1", Some("secret\n")) else { panic!() };
        assert!(!words.contains("secret"), "{words}");
    }
}
