//! Answers that are made whole, and what every answer may carry.

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};

/// The text of a JSON body, and the request's fields that nobody knows.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) text: String,
    pub(crate) ignored: Vec<String>,
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response {
        let content_type = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
        let mut response = (content_type, self.text).into_response();
        report_ignored(&mut response, &self.ignored);
        response
    }
}

/// Bytes that a text has inside a JSON string, quotes included: control characters take six times their own.
pub(crate) fn json_len(text: &str) -> usize {
    let len = |byte: u8| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0C => 2,
        ..0x20 => 6,
        _ => 1,
    };
    2 + text.bytes().map(len).sum::<usize>()
}

/// Names the fields that were ignored in a header.
pub(crate) fn report_ignored(response: &mut Response, ignored: &[String]) {
    if !ignored.is_empty()
        && let Ok(names) = HeaderValue::from_str(&ignored.join(", "))
    {
        response.headers_mut().insert("x-taper-ignored-fields", names);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_a_text_in_json_is_that_which_it_is_written_in() {
        for text in ["", "plain", "\"quoted\" \\ and ü§漢😀", &(0..0x80).map(char::from).collect::<String>()] {
            assert_eq!(json_len(text), serde_json::Value::from(text).to_string().len(), "{text:?}");
        }
    }
}
