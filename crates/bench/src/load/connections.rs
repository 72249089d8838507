//! Connections to one server: HTTP/1.1 by hyper, over TCP, TLS or a Unix socket. A connection that has given its answer waits for the next
//! request, as clients keep them, so that a user connects once and not for every question.

use super::Failure;
use super::address::Address;
use super::failure::{in_words, message_of};
use hyper::body::{Body, Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, RETRY_AFTER, USER_AGENT};
use hyper::{HeaderMap, Method, Request};
use hyper_util::rt::TokioIo;
use std::future::poll_fn;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::sleep;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

/// Servers close connections on which nothing comes; the shortest wait in use is 5 s. Younger ones are taken again.
const KEPT: Duration = Duration::from_secs(2);
/// Most of an error that is read.
const MOST_ERROR_BYTES: usize = 64 << 10;
/// How long the end of an answer may take that is over.
const END: Duration = Duration::from_secs(1);

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A server, and connections to it.
pub(super) struct Connections {
    pub(super) address: Address,
    /// Looked up once: a name server is not what is measured. A socket has none.
    addresses: Vec<SocketAddr>,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    idle: Mutex<Vec<(Instant, SendRequest<String>)>>,
}

/// An answer whose body has not come yet.
pub(super) struct Response {
    pub(super) headers: HeaderMap,
    body: Incoming,
    sender: SendRequest<String>,
}

impl Connections {
    /// Looks the server up; `roots` are the certificates (DER) that https is believed by.
    pub(super) async fn new(address: Address, roots: &[Vec<u8>]) -> Result<Connections, Failure> {
        let mut addresses = Vec::new();
        if address.socket.is_none() {
            let found = lookup_host((address.host.as_str(), address.port)).await;
            addresses.extend(found.map_err(|error| Failure::Connect(format!("{}: {error}", address.host)))?);
        }
        let tls = if address.is_tls { Some(connector(&address.host, roots)?) } else { None };
        Ok(Connections { address, addresses, tls, idle: Mutex::default() })
    }

    /// Sends a request and waits for the head of its answer; another status than success is a failure.
    pub(super) async fn send(&self, method: Method, path: &str, body: String) -> Result<Response, Failure> {
        let mut request = self.request(method, path, body)?;
        let (response, sender) = loop {
            let Some(mut sender) = self.idle() else {
                let mut sender = self.connect().await?;
                let response = sender.send_request(request).await;
                break (response.map_err(|error| Failure::Broken(in_words(&error)))?, sender);
            };
            if sender.ready().await.is_err() {
                continue;
            }
            match sender.try_send_request(request).await {
                Ok(response) => break (response, sender),
                // The server had closed it, and has seen nothing of the request.
                Err(mut error) => match error.take_message() {
                    Some(message) => request = message,
                    None => return Err(Failure::Broken(in_words(error.error()))),
                },
            }
        };
        let (head, body) = response.into_parts();
        let mut response = Response { headers: head.headers, body, sender };
        if head.status.is_success() {
            return Ok(response);
        }
        let retry_after = response.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let text = response.text(MOST_ERROR_BYTES).await;
        Err(Failure::Status {
            status: head.status.as_u16(),
            message: message_of(&text),
            retry_after: retry_after.map(Duration::from_secs),
        })
    }

    fn request(&self, method: Method, path: &str, body: String) -> Result<Request<String>, Failure> {
        let request = Request::builder().method(method).uri(path).header(HOST, &self.address.authority);
        let mut request = request
            .header(USER_AGENT, concat!("taper/", env!("CARGO_PKG_VERSION")))
            .header(ACCEPT, "text/event-stream, application/json")
            .header(CONTENT_TYPE, "application/json");
        if let Some(authorization) = &self.address.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        request.body(body).map_err(|error| Failure::Setup(error.to_string()))
    }

    async fn connect(&self) -> Result<SendRequest<String>, Failure> {
        let failed = |error: &dyn std::error::Error| Failure::Connect(in_words(error));
        let io = self.open().await.map_err(|error| failed(&error))?;
        let (sender, connection) = handshake(TokioIo::new(io)).await.map_err(|error| failed(&error))?;
        // Ends when its sender is dropped, or with the server's end of it, which the request is told.
        tokio::spawn(connection);
        Ok(sender)
    }

    async fn open(&self) -> std::io::Result<Box<dyn Io>> {
        if let Some(path) = &self.address.socket {
            loop {
                match UnixStream::connect(path).await {
                    // More connect than the server has taken yet. Over TCP the system waits for that.
                    Err(error) if error.kind() == ErrorKind::WouldBlock => sleep(Duration::from_millis(1)).await,
                    connected => return Ok(Box::new(connected?)),
                }
            }
        }
        let tcp = TcpStream::connect(&self.addresses[..]).await?;
        tcp.set_nodelay(true)?;
        Ok(match &self.tls {
            None => Box::new(tcp),
            Some((connector, name)) => Box::new(connector.connect(name.clone(), tcp).await?),
        })
    }

    fn idle(&self) -> Option<SendRequest<String>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, sender) = idle.pop()?;
        if since.elapsed() < KEPT {
            return Some(sender);
        }
        // The others have waited longer.
        idle.clear();
        None
    }

    /// Takes the connection of an answer that is over, once its body has ended.
    pub(super) async fn keep(&self, mut response: Response) {
        let ended = async { while let Some(Ok(_)) = response.part().await {} };
        if tokio::time::timeout(END, ended).await.is_ok() && !response.sender.is_closed() {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.push((Instant::now(), response.sender));
        }
    }

    /// Sends a request and reads its answer as text.
    pub(super) async fn text(&self, method: Method, path: &str, body: String) -> Result<String, Failure> {
        let mut response = self.send(method, path, body).await?;
        let text = response.text(super::events::MOST_LINE_BYTES).await;
        self.keep(response).await;
        Ok(text)
    }
}

impl Response {
    /// The next bytes of the body, `None` at its end.
    pub(super) async fn part(&mut self) -> Option<Result<Bytes, Failure>> {
        loop {
            let frame = poll_fn(|context| Pin::new(&mut self.body).poll_frame(context)).await?;
            match frame {
                Ok(frame) => match frame.into_data() {
                    Ok(bytes) => return Some(Ok(bytes)),
                    // Trailers.
                    Err(_) => continue,
                },
                Err(error) => return Some(Err(Failure::Broken(in_words(&error)))),
            }
        }
    }

    /// What there is of the body, up to a size.
    async fn text(&mut self, most: usize) -> String {
        let mut text = Vec::new();
        while let Some(Ok(part)) = self.part().await {
            text.extend_from_slice(&part);
            if text.len() >= most {
                break;
            }
        }
        String::from_utf8_lossy(&text).into_owned()
    }
}

fn connector(host: &str, roots: &[Vec<u8>]) -> Result<(TlsConnector, ServerName<'static>), Failure> {
    let setup = |error: &dyn std::error::Error| Failure::Setup(in_words(error));
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(roots.iter().map(|der| CertificateDer::from_slice(der)));
    if store.is_empty() {
        let words = "there is no certificate that https could be believed by; SSL_CERT_FILE names a file with some";
        return Err(Failure::Setup(words.to_owned()));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().map_err(|error| setup(&error))?;
    let config = config.with_root_certificates(store).with_no_client_auth();
    let name = ServerName::try_from(host.to_owned()).map_err(|error| setup(&error))?;
    Ok((TlsConnector::from(Arc::new(config)), name))
}
