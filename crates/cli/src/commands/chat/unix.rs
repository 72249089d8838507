//! HTTP over a Unix socket, as `taper serve --unix-socket` offers it: what the client's library asks of a connection.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, ShutdownHandle, Transport,
};
use ureq::{Agent, Error};

/// An agent whose every connection is one to this socket, whatever the address says.
pub(super) fn agent(config: Config, path: PathBuf) -> Agent {
    Agent::with_parts(config, Sockets(path), Nowhere)
}

/// Connects to a path.
#[derive(Debug)]
struct Sockets(PathBuf);

impl Connector for Sockets {
    type Out = Connection;

    fn connect(&self, details: &ConnectionDetails<'_>, _: Option<()>) -> Result<Option<Connection>, Error> {
        let socket = Arc::new(Socket(UnixStream::connect(&self.0)?));
        let handle: Weak<Socket> = Arc::downgrade(&socket);
        (details.register_shutdown)(handle)?;
        let (input, output) = (details.config.input_buffer_size(), details.config.output_buffer_size());
        Ok(Some(Connection { socket, buffers: LazyBuffers::new(input, output) }))
    }
}

/// A socket has a path and no address.
#[derive(Debug)]
struct Nowhere;

impl Resolver for Nowhere {
    fn resolve(&self, _: &Uri, _: &Config, _: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        Ok(self.empty())
    }
}

#[derive(Debug)]
struct Socket(UnixStream);

impl ShutdownHandle for Socket {
    fn shutdown(&self) {
        // One that has ended by itself is as good.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

#[derive(Debug)]
struct Connection {
    socket: Arc<Socket>,
    buffers: LazyBuffers,
}

/// What is left of a time limit; none at all is an error.
fn left(timeout: NextTimeout) -> Result<Option<Duration>, Error> {
    if timeout.after.is_zero() {
        return Err(Error::Timeout(timeout.reason));
    }
    Ok(timeout.not_zero().map(|left| *left))
}

/// An error of a socket with a time limit.
fn told(error: std::io::Error, timeout: NextTimeout) -> Error {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Error::Timeout(timeout.reason),
        _ => error.into(),
    }
}

impl Transport for Connection {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        let timeout = timeout.for_write();
        let mut socket = &self.socket.0;
        socket.set_write_timeout(left(timeout)?)?;
        socket.write_all(&self.buffers.output()[..amount]).map_err(|error| told(error, timeout))
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        let timeout = timeout.for_read();
        let mut socket = &self.socket.0;
        socket.set_read_timeout(left(timeout)?)?;
        let amount = loop {
            match socket.read(self.buffers.input_append_buf()) {
                // A signal came, which is not meant for the stream.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read.map_err(|error| told(error, timeout))?,
            }
        };
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    /// Between two answers nothing comes; what does, or an end, makes the connection useless.
    fn is_open(&mut self) -> bool {
        let mut socket = &self.socket.0;
        let is_silent = socket.set_nonblocking(true).is_ok()
            && matches!(socket.read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock);
        is_silent && socket.set_nonblocking(false).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;
    use std::sync::mpsc::channel;

    fn config() -> Config {
        Agent::config_builder().proxy(None).build()
    }

    /// Answers requests over a connection until the other end leaves.
    fn answer(stream: &UnixStream) {
        let (mut reader, mut writer) = (BufReader::new(stream), stream);
        loop {
            let mut head = Vec::new();
            loop {
                let mut line = String::new();
                match reader.read_line(&mut line) {
                    Ok(0) | Err(_) => return,
                    Ok(_) if line == "\r\n" => break,
                    Ok(_) => head.push(line.trim_end().to_owned()),
                }
            }
            let _ = write!(writer, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}", head[0].len(), head[0]);
        }
    }

    #[test]
    fn requests_go_through_the_socket_and_share_a_connection() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let (sender, accepted) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                sender.send(()).unwrap();
                std::thread::spawn(move || answer(&stream));
            }
        });
        let agent = agent(config(), path.clone());
        for name in ["a", "b"] {
            let mut response = agent.get(format!("http://localhost/v1/{name}")).call().unwrap();
            assert_eq!(response.body_mut().read_to_string().unwrap(), format!("GET /v1/{name} HTTP/1.1"));
        }
        assert_eq!(accepted.try_iter().count(), 1);
        let nobody = super::agent(config(), folder.path().join("none"));
        let error = nobody.get("http://localhost/").call().unwrap_err().to_string();
        assert!(error.contains("No such file"), "{error}");
    }

    #[test]
    fn a_shutdown_ends_what_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let agent = agent(config(), path);
        let asking = agent.clone();
        let asked = std::thread::spawn(move || asking.get("http://localhost/").call().is_err());
        // The head of the request is there, so the answer is waited for.
        let (stream, _) = listener.accept().unwrap();
        BufReader::new(&stream).read_line(&mut String::new()).unwrap();
        agent.shutdown();
        assert!(asked.join().unwrap());
    }
}
