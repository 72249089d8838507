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

/// An event of an answer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Event {
    /// Whether it has text of an answer, of a thought or of a call.
    pub(super) has_text: bool,
    /// Whether a choice ends here.
    pub(super) is_finished: bool,
    /// Whether the stream is over with it.
    pub(super) is_last: bool,
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

impl Usage {
    /// This one, and where it says nothing, the other.
    pub(super) fn or(self, other: Usage) -> Usage {
        Usage {
            prompt: self.prompt.or(other.prompt),
            completion: self.completion.or(other.completion),
            cached: self.cached.or(other.cached),
        }
    }
}

/// Reads the data of an event; one that tells of an error is that error.
pub(super) fn event(data: &str) -> Result<Event, Failure> {
    let json: Value =
        serde_json::from_str(data).map_err(|error| Failure::Broken(format!("an event is not JSON: {error}")))?;
    if json.get("error").is_some_and(|error| !error.is_null()) {
        return Err(Failure::Told(message_of(data)));
    }
    match json["type"].as_str() {
        None => Ok(chunk(&json)),
        Some("error") => Err(Failure::Told(message_of(data))),
        Some("response.failed") => Err(Failure::Told(message_of(&json["response"].to_string()))),
        Some(kind) => Ok(named(kind, &json)),
    }
}

/// An event of /v1/messages or /v1/responses, which have a name each.
fn named(kind: &str, json: &Value) -> Event {
    let is_text = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
    let delta = &json["delta"];
    let count = |usage: &Value, pointer: &str| usage.pointer(pointer).and_then(Value::as_u64);
    // What was computed of a prompt, what was cached, and what was cached for later.
    let anthropics = |usage: &Value| {
        let cached = count(usage, "/cache_read_input_tokens");
        let others = cached.unwrap_or(0) + count(usage, "/cache_creation_input_tokens").unwrap_or(0);
        let prompt = count(usage, "/input_tokens").map(|computed| computed + others);
        usage.is_object().then(|| Usage { prompt, completion: count(usage, "/output_tokens"), cached })
    };
    match kind {
        "content_block_delta" => {
            let has_text = ["text", "thinking", "partial_json"].iter().any(|name| is_text(&delta[*name]));
            Event { has_text, ..Event::default() }
        }
        "message_start" => Event { usage: anthropics(&json["message"]["usage"]), ..Event::default() },
        "message_delta" => {
            let is_finished = delta["stop_reason"].is_string();
            Event { is_finished, usage: anthropics(&json["usage"]), ..Event::default() }
        }
        "message_stop" => Event { is_finished: true, is_last: true, ..Event::default() },
        "response.completed" | "response.incomplete" => {
            let usage = &json["response"]["usage"];
            let usage = usage.is_object().then(|| Usage {
                prompt: count(usage, "/input_tokens"),
                completion: count(usage, "/output_tokens"),
                cached: count(usage, "/input_tokens_details/cached_tokens"),
            });
            Event { is_finished: true, is_last: true, usage, ..Event::default() }
        }
        // Of texts, thoughts, summaries of them, refusals and calls.
        kind if kind.starts_with("response.") && kind.ends_with(".delta") => {
            Event { has_text: is_text(delta), ..Event::default() }
        }
        _ => Event::default(),
    }
}

/// An answer that comes whole, of embeddings: what it cost.
pub(super) fn whole(text: &str) -> Result<Usage, Failure> {
    let json: Value =
        serde_json::from_str(text).map_err(|error| Failure::Broken(format!("the answer is not JSON: {error}")))?;
    if json["data"].as_array().is_none_or(Vec::is_empty) {
        return Err(Failure::Broken("the answer has no `data`".to_owned()));
    }
    let prompt = json.pointer("/usage/prompt_tokens").and_then(Value::as_u64);
    Ok(Usage { prompt, completion: Some(0), cached: None })
}

/// An event of completions or chat completions.
fn chunk(json: &Value) -> Event {
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
    event
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
        assert_eq!(event(data).unwrap(), Event { has_text, is_finished, is_last: false, usage: None }, "{data}");
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
    fn events_of_messages_have_text_usage_and_an_end() {
        let delta = |delta: &str| format!(r#"{{"type":"content_block_delta","index":0,"delta":{delta}}}"#);
        check(&delta(r#"{"type":"text_delta","text":"a"}"#), true, false);
        check(&delta(r#"{"type":"thinking_delta","thinking":"hm"}"#), true, false);
        check(&delta(r#"{"type":"input_json_delta","partial_json":"{"}"#), true, false);
        check(&delta(r#"{"type":"signature_delta","signature":"x"}"#), false, false);
        for quiet in [r#"{"type":"ping"}"#, r#"{"type":"content_block_start","content_block":{"text":""}}"#] {
            check(quiet, false, false);
        }
        let start = r#"{"type":"message_start","message":{"usage":{"input_tokens":5,"cache_read_input_tokens":4,"output_tokens":1}}}"#;
        let begun = event(start).unwrap().usage.unwrap();
        assert_eq!(begun, Usage { prompt: Some(9), completion: Some(1), cached: Some(4) });
        // Anthropic's own says no more than this at the end.
        let end = r#"{"type":"message_delta","delta":{"stop_reason":"max_tokens"},"usage":{"output_tokens":7}}"#;
        let end = event(end).unwrap();
        assert!(end.is_finished && !end.is_last);
        assert_eq!(end.usage.unwrap().or(begun), Usage { prompt: Some(9), completion: Some(7), cached: Some(4) });
        assert!(event(r#"{"type":"message_stop"}"#).unwrap().is_last);
        let failed = r#"{"type":"error","error":{"type":"overloaded_error","message":"busy"}}"#;
        assert_eq!(event(failed), Err(Failure::Told("busy".to_owned())));
    }

    #[test]
    fn events_of_responses_have_text_usage_and_an_end() {
        for kind in ["output_text", "reasoning_text", "reasoning_summary_text", "function_call_arguments"] {
            check(&format!(r#"{{"type":"response.{kind}.delta","delta":"a"}}"#), true, false);
        }
        check(r#"{"type":"response.output_text.done","text":"a"}"#, false, false);
        check(r#"{"type":"response.created","response":{"error":null}}"#, false, false);
        for kind in ["completed", "incomplete"] {
            let data = format!(
                r#"{{"type":"response.{kind}","response":{{"usage":{{"input_tokens":9,"output_tokens":3,"input_tokens_details":{{"cached_tokens":4}}}}}}}}"#
            );
            let usage = Some(Usage { prompt: Some(9), completion: Some(3), cached: Some(4) });
            assert_eq!(event(&data).unwrap(), Event { has_text: false, is_finished: true, is_last: true, usage });
        }
        for failed in [
            r#"{"type":"response.failed","response":{"error":{"code":"server_error","message":"no memory"}}}"#,
            r#"{"type":"error","code":"x","message":"no memory"}"#,
        ] {
            assert_eq!(event(failed), Err(Failure::Told("no memory".to_owned())));
        }
    }

    #[test]
    fn embeddings_are_an_answer_if_there_are_any() {
        let text = r#"{"data":[{"embedding":[0.5]}],"usage":{"prompt_tokens":6,"total_tokens":6}}"#;
        assert_eq!(whole(text).unwrap(), Usage { prompt: Some(6), completion: Some(0), cached: None });
        for nothing in [r#"{"data":[]}"#, "{}", "nonsense"] {
            assert!(matches!(whole(nothing), Err(Failure::Broken(_))), "{nothing}");
        }
    }

    #[test]
    fn errors_and_nonsense_are_failures() {
        assert_eq!(event(r#"{"error":{"message":"out of memory"}}"#), Err(Failure::Told("out of memory".to_owned())));
        assert!(matches!(event("nonsense"), Err(Failure::Broken(_))));
    }
}
