//! One file over HTTP: what the hub says of it, then its bytes into a `.part` file, resumed where an earlier attempt
//! stopped, checked, and only then named.
//!
//! This is not left to hf-hub because hf-hub 0.5 gives a file its final name before anything has compared it with its hash,
//! sends the token on to the host that a redirect names, and waits for ever on a line that went dead.

use crate::store::{self, CopyError, Hasher};
use crate::{Error, Progress};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::time::Duration;
use ureq::Agent;

/// How often a line that broke is taken up again within one call, as long as each attempt brings something.
const MAX_RESUMES: usize = 5;

/// Longest chain of redirects.
const MAX_HOPS: usize = 5;

const USER_AGENT: &str = concat!("taper/", env!("CARGO_PKG_VERSION"));

/// What is fetched and what it must be.
#[derive(Debug)]
pub(crate) struct Download<'a> {
    /// For messages.
    pub(crate) name: &'a str,
    /// Where it is.
    pub(crate) url: &'a str,
    /// Who is asked, for messages.
    pub(crate) host: &'a str,
    /// Sent as a bearer token, to the first host only.
    pub(crate) token: Option<&'a str>,
    /// Length of the whole.
    pub(crate) size: u64,
    /// SHA-256 in hex, where the source gives one.
    pub(crate) sha256: Option<&'a str>,
}

/// An agent that gives up on a dead line instead of hanging; a slow one may take as long as it needs.
pub(crate) fn agent() -> Agent {
    Agent::config_builder()
        .timeout_resolve(Some(Duration::from_secs(10)))
        .timeout_connect(Some(Duration::from_secs(10)))
        .timeout_recv_response(Some(Duration::from_secs(60)))
        .timeout_per_read(Some(Duration::from_secs(60)))
        .user_agent(USER_AGENT)
        .build()
        .into()
}

/// What the hub says of a file without sending it.
#[derive(Debug)]
pub(crate) struct Published {
    /// Its hash in some form; the SHA-256 where it is 64 characters long.
    pub(crate) etag: String,
    /// The commit that the revision names now.
    pub(crate) commit: String,
    /// Length of the whole.
    pub(crate) size: u64,
}

/// Asks for the first byte only, since the hub tells the length of the whole beside it. The hub answers large files with a
/// redirect to another host and says the rest itself.
pub(crate) fn probe(url: &str, name: &str, host: &str, token: Option<&str>) -> Result<Published, Error> {
    let agent: Agent = Agent::config_builder()
        .max_redirects(0)
        .timeout_global(Some(Duration::from_secs(20)))
        .timeout_connect(Some(Duration::from_secs(10)))
        .user_agent(USER_AGENT)
        .build()
        .into();
    let bad = |reason: &str| Error::BadAnswer { name: name.to_string(), reason: reason.to_string() };
    let ask = |url: &str, token: Option<&str>| {
        let mut request = agent.get(url).header("range", "bytes=0-0");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        request.call().map_err(|e| from_http(&e, name, host, token.is_some()))
    };
    let header = |response: &ureq::http::Response<ureq::Body>, name: &str| {
        response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_string)
    };

    let mut url = url.to_string();
    let mut response = ask(&url, token)?;
    // A renamed repository redirects within the hub; the answers come from where it ends.
    for _ in 0..MAX_HOPS {
        let Some(path) = header(&response, "location").filter(|location| location.starts_with('/')) else { break };
        url = format!("{}{path}", origin(&url));
        response = ask(&url, token)?;
    }
    let etag = header(&response, "x-linked-etag").or_else(|| header(&response, "etag"));
    let etag = etag.ok_or_else(|| bad("no etag"))?.trim_start_matches("W/").replace('"', "");
    let commit = header(&response, "x-repo-commit").ok_or_else(|| bad("no commit"))?;
    // The token is not for the host that stores the bytes.
    for _ in 0..MAX_HOPS {
        let Some(location) = header(&response, "location") else { break };
        url = if location.starts_with('/') { format!("{}{location}", origin(&url)) } else { location };
        response = ask(&url, None)?;
    }
    let range = header(&response, "content-range").ok_or_else(|| bad("no content-range"))?;
    let size = range.rsplit('/').next().and_then(|size| size.parse().ok()).ok_or_else(|| bad("no size"))?;
    Ok(Published { etag, commit, size })
}

/// `scheme://host:port` of a URL.
fn origin(url: &str) -> &str {
    let host = url.find("://").map_or(0, |scheme| scheme + 3);
    url[host..].find('/').map_or(url, |path| &url[..host + path])
}

/// Fetches into `part`, checks, and renames to `path`.
pub(crate) fn fetch(
    agent: &Agent,
    download: &Download<'_>,
    part: &Path,
    path: &Path,
    progress: &dyn Progress,
) -> Result<(), Error> {
    progress.start(download.name, Some(download.size));
    let fetched = fetch_whole(agent, download, part, progress);
    progress.finish();
    let file = fetched?;
    store::publish(&file, part, path).map_err(|e| no_space_or_io(part, download, e))
}

fn fetch_whole(agent: &Agent, download: &Download<'_>, part: &Path, progress: &dyn Progress) -> Result<File, Error> {
    let mut resumed = false;
    loop {
        let mut transfer = Transfer::open(download, part, progress)?;
        resumed |= transfer.received > 0;
        transfer.run(agent, progress)?;
        let Transfer { hasher, file, .. } = transfer;
        let actual = hasher.hex();
        match download.sha256 {
            Some(expected) if !expected.eq_ignore_ascii_case(&actual) => {
                drop(file);
                std::fs::remove_file(part).map_err(|e| Error::io("cannot remove", part, e))?;
                if !resumed {
                    return Err(Error::WrongHash {
                        name: download.name.to_string(),
                        expected: expected.to_ascii_lowercase(),
                        actual,
                    });
                }
                // What an earlier attempt left behind may belong to another file; one clean attempt decides.
                progress.note("the part from an earlier attempt does not fit; starting over");
                resumed = false;
            }
            _ => return Ok(file),
        }
    }
}

/// A `.part` file and the hash of what is in it.
struct Transfer<'a> {
    download: &'a Download<'a>,
    part: &'a Path,
    file: File,
    hasher: Hasher,
    received: u64,
}

impl<'a> Transfer<'a> {
    /// Opens the part of an earlier attempt, or a new one.
    fn open(download: &'a Download<'a>, part: &'a Path, progress: &dyn Progress) -> Result<Self, Error> {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(part)
            .map_err(|e| no_space_or_io(part, download, e))?;
        let mut transfer = Transfer { download, part, file, hasher: Hasher::default(), received: 0 };
        if transfer.file.metadata().map_err(|e| Error::io("cannot read", part, e))?.len() > download.size {
            transfer.restart()?;
        }
        let mut sink = std::io::sink();
        transfer.received = store::copy_hashed(&mut transfer.file, &mut sink, &mut transfer.hasher, progress)
            .map_err(|(CopyError::Read(e) | CopyError::Write(e))| Error::io("cannot read", part, e))?;
        Ok(transfer)
    }

    /// Forgets everything received.
    fn restart(&mut self) -> Result<(), Error> {
        self.file.set_len(0).and_then(|()| self.file.rewind()).map_err(|e| Error::io("cannot write", self.part, e))?;
        self.hasher = Hasher::default();
        self.received = 0;
        Ok(())
    }

    /// Receives until the size is reached.
    fn run(&mut self, agent: &Agent, progress: &dyn Progress) -> Result<(), Error> {
        let mut resumes = 0;
        while self.received < self.download.size {
            let before = self.received;
            let Err(error) = self.receive(agent, progress) else { continue };
            let broke_off = matches!(error, Error::Interrupted { .. });
            if !broke_off || self.received == before || resumes == MAX_RESUMES {
                return Err(error);
            }
            resumes += 1;
        }
        Ok(())
    }

    /// One request for the rest.
    fn receive(&mut self, agent: &Agent, progress: &dyn Progress) -> Result<(), Error> {
        let download = self.download;
        let mut request = agent.get(download.url).header("range", format!("bytes={}-", self.received));
        if let Some(token) = download.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let mut response =
            request.call().map_err(|e| from_http(&e, download.name, download.host, download.token.is_some()))?;
        if self.received > 0 && response.status() != 206 {
            // The server ignored the range and sends the whole; begin again with it.
            self.restart()?;
        }
        let expected = download.size - self.received;
        // One byte more than promised is enough to see that it is too long.
        let mut body = response.body_mut().as_reader().take(expected + 1);
        let before = self.received;
        let copied = store::copy_hashed(
            &mut body,
            &mut CountingFile(&mut self.file, &mut self.received),
            &mut self.hasher,
            progress,
        );
        match copied {
            Ok(_) if self.received > download.size => {
                self.restart()?;
                Err(Error::BadAnswer {
                    name: download.name.to_string(),
                    reason: format!("more than the {} bytes it announced", download.size),
                })
            }
            Ok(_) if self.received == download.size => Ok(()),
            Ok(_) => Err(self.interrupted("the connection was closed")),
            Err(CopyError::Read(e)) => Err(self.interrupted(&e.to_string())),
            Err(CopyError::Write(e)) => {
                // A write that failed half way left bytes that the hash has not seen.
                self.file.set_len(self.received.max(before)).map_err(|e| Error::io("cannot write", self.part, e))?;
                Err(no_space_or_io(self.part, download, e))
            }
        }
    }

    fn interrupted(&self, reason: &str) -> Error {
        Error::Interrupted {
            name: self.download.name.to_string(),
            received: self.received,
            expected: self.download.size,
            reason: reason.to_string(),
        }
    }
}

/// Counts only what was written whole, so that the count and the hash agree.
struct CountingFile<'a>(&'a mut File, &'a mut u64);

impl Write for CountingFile<'_> {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        self.0.write_all(buf)?;
        *self.1 += buf.len() as u64;
        Ok(buf.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

fn no_space_or_io(path: &Path, download: &Download<'_>, error: std::io::Error) -> Error {
    Error::write(path, &format!("the {} bytes of {}", download.size, download.name), "HF_HUB_CACHE", error)
}

/// What an HTTP failure means to the user.
pub(crate) fn from_http(error: &ureq::Error, name: &str, host: &str, had_token: bool) -> Error {
    let name = name.to_string();
    match error {
        ureq::Error::StatusCode(status @ (401 | 403)) => Error::Refused { name, status: *status, had_token },
        ureq::Error::StatusCode(404) => Error::NotFound { name },
        ureq::Error::StatusCode(status) => Error::BadAnswer { name, reason: format!("HTTP {status}") },
        ureq::Error::Io(_)
        | ureq::Error::Timeout(_)
        | ureq::Error::HostNotFound
        | ureq::Error::ConnectionFailed
        | ureq::Error::ConnectProxyFailed(_)
        | ureq::Error::Rustls(_)
        | ureq::Error::Tls(_) => Error::NoNetwork { host: host.to_string(), reason: error.to_string() },
        other => Error::BadAnswer { name, reason: other.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_origin_of_a_url_ends_before_its_path() {
        assert_eq!(origin("http://127.0.0.1:80/a/b"), "http://127.0.0.1:80");
        assert_eq!(origin("https://hub"), "https://hub");
    }
}
