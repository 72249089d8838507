//! One request and the times of its answer.

use super::Failure;
use super::connections::Connections;
use super::events::{Lines, Usage, event, whole};
use hyper::Method;
use hyper::header::CONTENT_TYPE;
use std::time::Instant;

/// An answer that came to its end.
#[derive(Debug)]
pub(super) struct Answer {
    /// When each event with text arrived.
    pub(super) texts: Vec<Instant>,
    /// When the stream was over.
    pub(super) end: Instant,
    pub(super) usage: Usage,
}

/// Asks, and reads the stream to its end.
pub(super) async fn ask(server: &Connections, path: &str, body: String) -> Result<Answer, Failure> {
    let mut response = server.send(Method::POST, path, body).await?;
    let kind = response.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !kind.starts_with("text/event-stream") {
        return Err(Failure::Broken(format!("the answer is `{kind}` and no stream of events")));
    }
    let mut answer = Answer { texts: Vec::new(), end: Instant::now(), usage: Usage::default() };
    let (mut lines, mut is_finished, mut is_done) = (Lines::default(), false, false);
    while let Some(part) = response.part().await {
        let part = part?;
        // Before anything is made of it.
        answer.end = Instant::now();
        lines.push(&part, &mut |data| {
            if data == "[DONE]" {
                is_done = true;
            }
            if is_done {
                return Ok(());
            }
            let event = event(data)?;
            if event.has_text {
                answer.texts.push(answer.end);
            }
            is_finished |= event.is_finished;
            is_done = event.is_last;
            answer.usage = event.usage.map_or(answer.usage, |usage| usage.or(answer.usage));
            Ok(())
        })?;
        if is_done {
            server.keep(response).await;
            return Ok(answer);
        }
    }
    // Some servers end with the last piece and no more.
    if is_finished { Ok(answer) } else { Err(Failure::Broken("it ended early".to_owned())) }
}

/// Asks for what comes whole, and reads it.
pub(super) async fn ask_whole(server: &Connections, path: &str, body: String) -> Result<Answer, Failure> {
    let text = server.text(Method::POST, path, body).await?;
    // Before anything is made of it.
    let end = Instant::now();
    Ok(Answer { texts: Vec::new(), end, usage: whole(&text)? })
}
