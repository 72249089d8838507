//! What stands at the other end of traces in tests: an HTTP server that takes one POST after another and keeps it.

use std::io::{BufRead, BufReader, Error, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};

/// A POST that was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// Where it went.
    pub path: String,
    /// What it brought.
    pub body: Vec<u8>,
}

/// Listens on a free port and answers every POST with `status`, such as `200 OK`, and nothing more. Returns its URL and what it takes;
/// it ends with the process.
///
/// # Panics
/// When there is no port to be had.
pub fn collector(status: &'static str) -> (String, Receiver<Taken>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let url = format!("http://{}", listener.local_addr().expect("it listens"));
    let (sender, taken) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            // A client that leaves is none of ours, and the test may have seen enough.
            if let Ok(post) = take(stream, status) {
                let _ = sender.send(post);
            }
        }
    });
    (url, taken)
}

fn take(stream: TcpStream, status: &str) -> Result<Taken, Error> {
    let mut stream = BufReader::new(stream);
    let mut first = String::new();
    stream.read_line(&mut first)?;
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut length = 0;
    loop {
        let mut header = String::new();
        if stream.read_line(&mut header)? <= 2 {
            break;
        }
        if let Some(value) = header.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().map_err(Error::other)?;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    stream.get_mut().write_all(answer.as_bytes())?;
    Ok(Taken { path, body })
}
