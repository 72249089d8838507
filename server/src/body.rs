//! Reading a request body: at most so many bytes, at most so long, and only JSON that is cheap to hold.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes, HttpBody as _};
use axum::http::{HeaderMap, header};
use serde::Deserializer as _;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};
use tokio::time::{Instant, timeout_at};
use tokio_stream::StreamExt;

use crate::errors::ApiError;
use crate::limits::{BRIEF_BODY_BYTES, MAX_BODY_BYTES, MAX_JSON_VALUES};
use crate::timeouts::Timeouts;
use crate::work::{HeldBytes, Pace, ReturnedBytes, Returning, Work};

/// What is read at most of a body that is not used.
const MAX_FORGOTTEN_BYTES: usize = 2 * MAX_BODY_BYTES;

/// So many bytes of a body go back to the system at once: to unmap 32 MiB takes 4 ms.
const RETURNED_BYTES: usize = 1 << 20;

/// How long a body is read on whose time is over.
const LATE_PATIENCE: Duration = Duration::from_secs(1);

/// Reads the body whole, on the account `held`.
pub(crate) async fn read(
    headers: &HeaderMap,
    body: Body,
    timeouts: &Timeouts,
    work: &Work,
    held: &mut HeldBytes,
) -> Result<Bytes, ApiError> {
    let declared =
        headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()).and_then(|v| v.parse::<u64>().ok());
    let max = held.max();
    if declared.is_some_and(|len| len > max as u64) {
        linger(headers, body, work, timeouts.body_pause);
        return Err(ApiError::body_too_large(max));
    }
    let deadline = Instant::now() + timeouts.body_total;
    let mut chunks = body.into_data_stream();
    let mut read = ReadBytes { bytes: Vec::new(), returning: work.returning() };
    let mut pace = work.reading();
    loop {
        let next = timeout_at(deadline.min(Instant::now() + timeouts.body_pause), chunks.next());
        let chunk = match next.await {
            Err(_) => return Err(ApiError::body_timeout()),
            Ok(None) => return Ok(Bytes::from_owner(read)),
            // More of it may always be there.
            Ok(Some(_)) if Instant::now() > deadline => {
                tokio::spawn(forget(chunks, work.forgetting(), LATE_PATIENCE));
                return Err(ApiError::body_timeout());
            }
            Ok(Some(Err(_))) => return Err(ApiError::malformed("the request body broke off").closing()),
            Ok(Some(Ok(chunk))) => chunk,
        };
        let len = read.bytes.len() + chunk.len();
        let fits = if len > max { Err(ApiError::body_too_large(max)) } else { held.grow(len) };
        if let Err(refused) = fits {
            tokio::spawn(forget(chunks, work.forgetting(), timeouts.body_pause));
            return Err(refused);
        }
        read.bytes.extend_from_slice(&chunk);
        let len = chunk.len();
        drop(chunk);
        // All that was announced is here.
        if declared != Some(read.bytes.len() as u64) {
            pace.after(len).await;
        }
    }
}

/// What has been read of a body. A large one is given back a piece after the other: whoever drops it may serve the other clients too.
struct ReadBytes {
    bytes: Vec<u8>,
    returning: Returning,
}

impl AsRef<[u8]> for ReadBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for ReadBytes {
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if self.bytes.capacity() > RETURNED_BYTES {
            let going = self.returning.account(self.bytes.capacity());
            runtime.spawn(give_back(std::mem::take(&mut self.bytes), going));
        }
    }
}

async fn give_back(mut bytes: Vec<u8>, mut going: ReturnedBytes) {
    while let Some(kept) = bytes.capacity().checked_sub(RETURNED_BYTES) {
        let shrink = || {
            bytes.truncate(kept);
            bytes.shrink_to(kept);
        };
        going.piece(kept, shrink).await;
    }
}

/// Whether the thread that serves the client may read this body: it is short, and asks for nothing that the vocabulary is looked
/// through for, which takes few words and many milliseconds.
pub(crate) fn is_brief(body: &[u8]) -> bool {
    // Names may be written with escapes.
    let has = |word: &[u8]| body.windows(word.len()).any(|bytes| bytes == word);
    body.len() <= BRIEF_BODY_BYTES && !has(b"dry_") && !has(br"\u")
}

/// Reads and forgets a body that nobody needs, for so long at most, while its request is answered. A connection that is closed
/// over unread bytes is reset, and the client, which may still be sending, would not get to read the answer.
pub(crate) fn linger(headers: &HeaderMap, body: Body, work: &Work, patience: Duration) {
    // Who waits to be told to go on will not send it.
    if !body.is_end_stream() && !headers.contains_key(header::EXPECT) {
        tokio::spawn(forget(body.into_data_stream(), work.forgetting(), patience));
    }
}

async fn forget(mut chunks: BodyDataStream, mut pace: Pace, patience: Duration) {
    let deadline = Instant::now() + patience;
    let mut total = 0;
    while let Ok(Some(Ok(chunk))) = timeout_at(deadline, chunks.next()).await {
        let len = chunk.len();
        drop(chunk);
        total += len;
        // More of it may always be there.
        if total > MAX_FORGOTTEN_BYTES || Instant::now() > deadline {
            break;
        }
        pace.after(len).await;
    }
}

/// Parses a body that must be one JSON object. The content type is not asked for: clients often leave it out.
pub(crate) fn parse_object(bytes: &[u8]) -> Result<Map<String, Value>, ApiError> {
    if let Err(error) = std::str::from_utf8(bytes) {
        return Err(ApiError::malformed(format!(
            "the body is not UTF-8: a wrong byte at offset {}",
            error.valid_up_to()
        )));
    }
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(ApiError::malformed("the body is empty; expected a JSON object"));
    }
    if count_values(bytes) > MAX_JSON_VALUES {
        return Err(ApiError::malformed(format!("the body has more than {MAX_JSON_VALUES} JSON values")));
    }
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(other) => {
            Err(ApiError::malformed(format!("the body must be a JSON object, got {}", crate::fields::show(&other))))
        }
        Err(error) => Err(ApiError::malformed(format!("the body is not valid JSON: {error}"))),
    }
}

/// The name in the field `model` of a body, as [`parse_object`] would have it; `None` where there is none, or an empty one, or no
/// object. The rest is passed over.
pub(crate) fn model_of(bytes: &[u8]) -> Option<String> {
    if count_values(bytes) > MAX_JSON_VALUES {
        return None;
    }
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let name = deserializer.deserialize_map(ModelName).ok()?;
    deserializer.end().ok()?;
    name.filter(|name| !name.is_empty())
}

/// Takes the field from an object; of several the last, as everywhere.
struct ModelName;

impl<'de> Visitor<'de> for ModelName {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Option<String>, M::Error> {
        let mut name = None;
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            if key == "model" {
                name = map.next_value::<Value>()?.as_str().map(str::to_owned);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(name)
    }
}

/// How many values the text can hold at most: one more than its commas, colons and opening brackets outside strings.
fn count_values(text: &[u8]) -> usize {
    let mut values = 1;
    let mut in_string = false;
    let mut escaped = false;
    for &byte in text {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
        } else {
            match byte {
                b'"' => in_string = true,
                b',' | b':' | b'[' | b'{' => values += 1,
                _ => {}
            }
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &[u8]) -> String {
        let error = parse_object(text).expect_err("should be refused");
        assert_eq!(error.status(), 400);
        error.message().to_owned()
    }

    #[tokio::test]
    async fn what_was_read_of_a_large_body_is_given_back_to_its_end() {
        let returning = Work::default().returning();
        for bytes in [0, RETURNED_BYTES - 1, RETURNED_BYTES, 3 * RETURNED_BYTES + 1] {
            let given_back = give_back(vec![1; bytes], returning.account(bytes));
            tokio::time::timeout(Duration::from_secs(10), given_back).await.expect("it comes to an end");
        }
        let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
        let held = |len| Bytes::from_owner(ReadBytes { bytes: vec![1; len], returning: returning.clone() });
        drop(held(RETURNED_BYTES));
        assert_eq!(tasks(), 0, "a small one at once");
        drop(held(RETURNED_BYTES + 1));
        assert_eq!(tasks(), 1, "a large one by a task");
        let ended = async {
            while tasks() > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), ended).await.expect("the task comes to an end");
    }

    #[test]
    fn what_is_short_and_takes_no_time_is_brief() {
        assert!(is_brief(br#"{"prompt": "a laundry bag"}"#));
        assert!(is_brief(&[b' '; BRIEF_BODY_BYTES]));
        assert!(!is_brief(&[b' '; BRIEF_BODY_BYTES + 1]));
        assert!(!is_brief(br#"{"prompt": "a", "dry_multiplier": 1}"#));
        assert!(!is_brief(br#"{"prompt": "a", "\u0064ry_multiplier": 1}"#));
    }

    #[test]
    fn a_json_object_is_parsed_in_key_order() {
        let object = parse_object(br#"{"b": 1, "a": [2]}"#).unwrap();
        assert_eq!(object.keys().collect::<Vec<_>>(), ["b", "a"]);
    }

    #[test]
    fn broken_json_is_refused_with_its_position() {
        assert!(refusal(b"{\"a\": }").contains("line 1 column 7"));
        assert!(refusal(b"{\"a\": 1").contains("EOF"));
        assert!(refusal(b"[1]").contains("must be a JSON object"));
        assert!(refusal(b" \n").contains("empty"));
        assert!(refusal(b"{\"a\": 1e999}").contains("out of range"));
    }

    #[test]
    fn bytes_that_are_not_utf8_are_refused_with_their_offset() {
        assert!(refusal(b"{\"a\": \"\xff\"}").contains("offset 7"));
    }

    #[test]
    fn deep_nesting_is_refused() {
        let deep = format!("{{\"a\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(refusal(deep.as_bytes()).contains("recursion"));
    }

    #[test]
    fn many_values_are_refused_before_they_take_memory() {
        let text = format!("{{\"a\": [{}0]}}", "0,".repeat(MAX_JSON_VALUES));
        assert!(refusal(text.as_bytes()).contains("JSON values"));
    }

    #[test]
    fn the_model_of_a_body_is_what_its_field_says() {
        for (text, model) in [
            (r#"{"a": {"model": "no"}, "model": "yes", "b": [{}]}"#, Some("yes")),
            (r#"{"model": "a", "model": "b"}"#, Some("b")),
            (r#"{"model": "a", "model": 5}"#, None),
            (r#"{"mo\u0064el": "\u0061/b"}"#, Some("a/b")),
            (r#"{"model": null}"#, None),
            (r#"{"model": ""}"#, None),
            (r#"{"model": "a", "model": ""}"#, None),
            (r#"{"model": "a""#, None),
            (r#"{"model": "a"} {}"#, None),
            (r#"["model", "a"]"#, None),
            ("", None),
        ] {
            assert_eq!(model_of(text.as_bytes()).as_deref(), model, "{text}");
            let object = parse_object(text.as_bytes()).ok();
            let parsed = object.as_ref().and_then(|object| object.get("model")?.as_str());
            let parsed = parsed.filter(|name| !name.is_empty());
            assert_eq!(parsed, model, "{text}");
        }
    }

    #[test]
    fn punctuation_inside_strings_is_not_counted() {
        assert_eq!(count_values(br#"{"a\",,,": "[[,:{"}"#), 3);
    }
}
