//! What a stream of server-sent events says, as far as it is measured.

use super::Failure;
use super::failure::message_of;
use serde_json::Value;

/// Longest line of a stream: a server that sends more is none.
pub(super) const MOST_LINE_BYTES: usize = 16 << 20;

/// Lines out of bytes as they come.
#[derive(Default)]
pub(super) struct Lines {
    /// A line that has not ended.
    rest: Vec<u8>,
}

impl Lines {
    /// Hands the data of every event that has come whole to `each`.
    pub(super) fn push(
        &mut self,
        bytes: &[u8],
        each: &mut dyn FnMut(&str) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        self.rest.extend_from_slice(bytes);
        let mut begin = 0;
        while let Some(len) = self.rest[begin..].iter().position(|byte| *byte == b'\n') {
            let line = &self.rest[begin..begin + len];
            begin += len + 1;
            if let Some(data) = line.strip_prefix(b"data:") {
                let data = std::str::from_utf8(data).map_err(|_| Failure::Broken("it is not UTF-8".to_owned()))?;
                each(data.trim())?;
            }
        }
        self.rest.drain(..begin);
        if self.rest.len() > MOST_LINE_BYTES {
            return Err(Failure::Broken(format!("a line of more than {} MiB", MOST_LINE_BYTES >> 20)));
        }
        Ok(())
    }
}

/// An event of completions or chat completions.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Event {
    /// Whether it has text of an answer or of a thought.
    pub(super) has_text: bool,
    /// Whether a choice ends here.
    pub(super) is_finished: bool,
    pub(super) usage: Option<Usage>,
}

/// Tokens, as the server counts them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) prompt: Option<u64>,
    pub(super) completion: Option<u64>,
    /// Of the prompt, those that were not computed again.
    pub(super) cached: Option<u64>,
}

/// Reads the data of an event; one that tells of an error is that error.
pub(super) fn event(data: &str) -> Result<Event, Failure> {
    let json: Value =
        serde_json::from_str(data).map_err(|error| Failure::Broken(format!("an event is not JSON: {error}")))?;
    if json.get("error").is_some_and(|error| !error.is_null()) {
        return Err(Failure::Told(message_of(data)));
    }
    let mut event = Event::default();
    for choice in json["choices"].as_array().into_iter().flatten() {
        let delta = &choice["delta"];
        // Completions; chat; a thought by DeepSeek's and vLLM's name, and by OpenRouter's.
        let texts = [&choice["text"], &delta["content"], &delta["reasoning_content"], &delta["reasoning"]];
        event.has_text |= texts.iter().any(|text| text.as_str().is_some_and(|text| !text.is_empty()));
        event.is_finished |= choice["finish_reason"].is_string();
    }
    let usage = &json["usage"];
    if usage.is_object() {
        let count = |pointer: &str| usage.pointer(pointer).and_then(Value::as_u64);
        event.usage = Some(Usage {
            prompt: count("/prompt_tokens"),
            completion: count("/completion_tokens"),
            cached: count("/prompt_tokens_details/cached_tokens"),
        });
    }
    Ok(event)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pieces: &[&[u8]]) -> Result<Vec<String>, Failure> {
        let mut found = Vec::new();
        let mut lines = Lines::default();
        for piece in pieces {
            lines.push(piece, &mut |data| {
                found.push(data.to_owned());
                Ok(())
            })?;
        }
        Ok(found)
    }

    #[test]
    fn events_are_the_same_however_their_bytes_are_cut() {
        let stream = b": ping\n\ndata: {\"a\":1}\r\n\r\nevent: x\ndata:two\n\ndata: \xc3\xa9\n\ndata: [DONE]\n\n";
        let expected = ["{\"a\":1}", "two", "\u{e9}", "[DONE]"];
        for len in 1..stream.len() {
            let pieces: Vec<&[u8]> = stream.chunks(len).collect();
            assert_eq!(lines(&pieces).unwrap(), expected, "pieces of {len}");
        }
        assert!(lines(&[b"data: \xff\n"]).is_err());
    }

    #[test]
    fn an_endless_line_is_refused() {
        let megabyte = vec![b'a'; 1 << 20];
        let broken = lines(&[megabyte.as_slice(); 17]).unwrap_err();
        assert!(broken.to_string().contains("16 MiB"), "{broken}");
    }

    fn check(data: &str, has_text: bool, is_finished: bool) {
        assert_eq!(event(data).unwrap(), Event { has_text, is_finished, usage: None }, "{data}");
    }

    #[test]
    fn text_is_text_on_either_endpoint() {
        check(r#"{"choices":[{"text":"a","finish_reason":null}]}"#, true, false);
        check(r#"{"choices":[{"text":"","finish_reason":"length"}]}"#, false, true);
        check(r#"{"choices":[{"delta":{"content":"a"}}],"usage":null}"#, true, false);
        check(r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#, false, false);
        check(r#"{"choices":[{"delta":{"reasoning_content":"hm"}}]}"#, true, false);
        check(r#"{"choices":[{"delta":{"reasoning":"hm"}}]}"#, true, false);
        check(r#"{"choices":[]}"#, false, false);
    }

    #[test]
    fn usage_counts_what_it_names() {
        let data = r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}}"#;
        let usage = Usage { prompt: Some(9), completion: Some(3), cached: Some(4) };
        assert_eq!(event(data).unwrap().usage, Some(usage));
    }

    #[test]
    fn errors_and_nonsense_are_failures() {
        assert_eq!(event(r#"{"error":{"message":"out of memory"}}"#), Err(Failure::Told("out of memory".to_owned())));
        assert!(matches!(event("nonsense"), Err(Failure::Broken(_))));
    }
}
