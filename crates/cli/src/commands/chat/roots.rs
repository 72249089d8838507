//! Which certificates a server with https is believed by: those of the system, as curl and Python believe them, so that a house
//! with its own authority needs no setting here. Where there are none, Mozilla's, which come with the program.

use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use ureq::tls::{Certificate, PemItem, RootCerts, parse_pem};

/// Where systems keep them: Debian, Fedora, openSUSE, Alpine and macOS.
const BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The certificates; `SSL_CERT_FILE` names other ones.
///
/// # Errors
/// When that file cannot be read, or has none in it.
pub(super) fn root_certificates() -> Result<RootCerts> {
    match std::env::var_os("SSL_CERT_FILE").filter(|path| !path.is_empty()).map(PathBuf::from) {
        Some(path) => {
            let found = read(&path).with_context(|| format!("cannot read SSL_CERT_FILE={}", path.display()))?;
            if found.is_empty() {
                bail!("SSL_CERT_FILE={} has no certificate in it", path.display());
            }
            Ok(found.into())
        }
        None => Ok(of_bundles(&BUNDLES.map(Path::new))),
    }
}

/// Those of the system or of `SSL_CERT_FILE`, DER; none where there are none.
///
/// # Errors
/// When that file cannot be read, or has none in it.
pub(crate) fn system_certificates() -> Result<Vec<Vec<u8>>> {
    Ok(match root_certificates()? {
        RootCerts::Specific(found) => found.iter().map(|certificate| certificate.der().to_vec()).collect(),
        _ => Vec::new(),
    })
}

/// Those of the first bundle that has any.
fn of_bundles(bundles: &[&Path]) -> RootCerts {
    let found = bundles.iter().filter_map(|path| read(path).ok()).find(|found| !found.is_empty());
    found.map_or(RootCerts::WebPki, RootCerts::from)
}

/// What of a file is a certificate.
fn read(path: &Path) -> std::io::Result<Vec<Certificate<'static>>> {
    let text = fs::read(path)?;
    let certificate = |item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    };
    // No system has as many; a file that never gets on is none.
    Ok(parse_pem(&text).take(100_000).filter_map(certificate).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bundle_with_certificates_counts() {
        let folder = tempfile::tempdir().unwrap();
        let (empty, one) = (folder.path().join("empty.pem"), folder.path().join("one.pem"));
        fs::write(&empty, "no certificate\n").unwrap();
        fs::write(&one, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
        let none = folder.path().join("none.pem");
        let number = |bundles: &[&Path]| match of_bundles(bundles) {
            RootCerts::Specific(found) => found.len(),
            _ => 0,
        };
        assert_eq!(number(&[&none, &empty, &one]), 1);
        assert_eq!(number(&[&none, &empty]), 0, "Mozilla's");
    }
}
