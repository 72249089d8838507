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

/// Names the fields that were ignored in a header.
pub(crate) fn report_ignored(response: &mut Response, ignored: &[String]) {
    if !ignored.is_empty()
        && let Ok(names) = HeaderValue::from_str(&ignored.join(", "))
    {
        response.headers_mut().insert("x-taper-ignored-fields", names);
    }
}
