//! Encrypted connections: a certificate and its key from PEM files, which can be read again while the server runs.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

/// Why connections cannot be encrypted; names the file.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file cannot be read, or is no PEM.
    #[error("the {what} {path} cannot be used: {reason}")]
    Unusable {
        /// Certificate or key.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Each is one, but the two do not belong together.
    #[error("the certificate {cert} and the key {key} cannot be used together: {source}")]
    Pair {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// What rustls says.
        source: rustls::Error,
    },
}

/// A certificate with its key.
pub struct Tls {
    cert: PathBuf,
    key: PathBuf,
    acceptor: RwLock<TlsAcceptor>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("cert", &self.cert).field("key", &self.key).finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads a chain of certificates, the server's first, and the key of the first.
    ///
    /// # Errors
    /// When a file cannot be read, holds something else, or the two do not belong together.
    pub fn load(cert: PathBuf, key: PathBuf) -> Result<Self, TlsError> {
        let acceptor = RwLock::new(acceptor(&cert, &key)?);
        Ok(Self { cert, key, acceptor })
    }

    /// Reads both files again, for connections from now on.
    ///
    /// # Errors
    /// As [`Tls::load`]; what was read before stays in use.
    pub fn reload(&self) -> Result<(), TlsError> {
        let acceptor = acceptor(&self.cert, &self.key)?;
        *self.acceptor.write().unwrap_or_else(PoisonError::into_inner) = acceptor;
        Ok(())
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        self.acceptor.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn acceptor(cert: &Path, key: &Path) -> Result<TlsAcceptor, TlsError> {
    let unusable = |what, path: &Path, error: pem::Error| {
        let reason = match error {
            pem::Error::NoItemsFound => format!("it holds no {what} in PEM"),
            pem::Error::Io(error) => error.to_string(),
            other => other.to_string(),
        };
        TlsError::Unusable { what, path: path.to_owned(), reason }
    };
    let not_certs = |error| unusable("certificate", cert, error);
    let chain = CertificateDer::pem_file_iter(cert).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.map_err(not_certs)?;
    if chain.is_empty() {
        return Err(not_certs(pem::Error::NoItemsFound));
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable("private key", key, error))?;
    let pair = |source| TlsError::Pair { cert: cert.to_owned(), key: key.to_owned(), source };
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(pair)?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(pair)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
    }

    fn refusal(cert: PathBuf, key: PathBuf) -> String {
        Tls::load(cert, key).expect_err("it cannot be used").to_string()
    }

    #[test]
    fn a_pair_that_cannot_be_used_is_refused_by_the_name_of_its_file() {
        let (cert, key) = (data("localhost.crt"), data("localhost.key"));
        assert!(Tls::load(cert.clone(), key.clone()).is_ok());
        assert!(refusal(data("none.crt"), key.clone()).contains("none.crt"));
        assert!(refusal(cert.clone(), data("none.key")).contains("none.key"));
        assert!(refusal(key.clone(), key.clone()).contains("no certificate in PEM"));
        assert!(refusal(cert.clone(), cert.clone()).contains("no private key in PEM"));
        let other = refusal(cert, data("renewed.key"));
        assert!(other.contains("localhost.crt") && other.contains("renewed.key"), "{other}");
    }
}
