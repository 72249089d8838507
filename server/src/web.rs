//! The web page: a chat, and the metrics as they move. Its files lie in `server/web` and are part of the binary.
//!
//! `/` is the page for every client, `/web/...` is what it loads. All of it is public and holds nothing of this server: what
//! the page shows it asks the API for, as any client does. An answer of a model is text from a stranger, so the policy
//! below forbids every script and style that is not one of these files, whatever the page should let through.

use std::future::ready;
use std::hash::{DefaultHasher, Hash, Hasher};

use axum::Router;
use axum::body::Body;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::state::ServerState;

/// What a browser may load for these files, and from where.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file of the page.
struct File {
    /// Its path below `server/web` and below `/web/`.
    name: &'static str,
    bytes: &'static [u8],
}

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        [$(File { name: $name, bytes: include_bytes!(concat!("../web/", $name)) }),*]
    };
}

/// The page itself.
static PAGE: File = File { name: "index.html", bytes: include_bytes!("../web/index.html") };

/// What it loads. The licences are here because they ask to travel with what they are about.
static FILES: [File; 25] = files![
    "app.mjs",
    "api.mjs",
    "chart.mjs",
    "clipboard.mjs",
    "conversations.mjs",
    "dom.mjs",
    "histogram.mjs",
    "history.mjs",
    "icon.svg",
    "live.mjs",
    "markdown.mjs",
    "message.mjs",
    "metrics.mjs",
    "parameters.mjs",
    "settings.mjs",
    "speed.mjs",
    "sse.mjs",
    "style.css",
    "vendor/dompurify/LICENSE",
    "vendor/dompurify/purify.min.js",
    "vendor/marked/LICENSE",
    "vendor/marked/marked.esm.js",
    "vendor/uplot/LICENSE",
    "vendor/uplot/uPlot.iife.min.js",
    "vendor/uplot/uPlot.min.css",
];

/// Whether a path is the page or one of its files. Others below `/web/` are like any path where there is nothing: they ask for
/// a key, count for the rate, and wait for no body where there is no room.
pub(crate) fn is_page(path: &str) -> bool {
    let is_file = |name: &str| FILES.iter().any(|file| file.name == name);
    path == "/" || path.strip_prefix("/web/").is_some_and(is_file)
}

/// `/` and `/web/...`.
pub(crate) fn routes() -> Router<ServerState> {
    FILES
        .iter()
        .fold(serve(Router::new(), "/", &PAGE), |router, file| serve(router, &format!("/web/{}", file.name), file))
}

fn serve(router: Router<ServerState>, path: &str, file: &'static File) -> Router<ServerState> {
    let tag = tag(file.bytes);
    router.route(path, get(move |headers: HeaderMap| ready(answer(file, &tag, &headers))))
}

fn answer(file: &'static File, tag: &HeaderValue, asked: &HeaderMap) -> Response {
    let headers = [
        (ETAG, tag.clone()),
        // Kept, but asked about each time: the files of two versions must never meet in one page.
        (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    ];
    if is_known(asked, tag) {
        return (StatusCode::NOT_MODIFIED, headers).into_response();
    }
    let content_type = [(CONTENT_TYPE, HeaderValue::from_static(content_type(file.name)))];
    (headers, content_type, Body::from(file.bytes)).into_response()
}

/// By the name's ending; a licence has none.
fn content_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, ending)| ending) {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("js" | "mjs") => "text/javascript; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "text/plain; charset=utf-8",
    }
}

/// Names the bytes. Other builds may name the same bytes otherwise, which costs one transfer.
fn tag(bytes: &[u8]) -> HeaderValue {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    let quoted = format!("\"{:016x}\"", hasher.finish());
    HeaderValue::try_from(quoted).unwrap_or(HeaderValue::from_static("\"\""))
}

/// Whether the client has the file of this tag. Our tags have no commas, so that a list of tags may be cut at each.
fn is_known(asked: &HeaderMap, tag: &HeaderValue) -> bool {
    let lists = asked.get_all(IF_NONE_MATCH).iter();
    let mut known = lists.flat_map(|list| list.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii));
    known.any(|known| known == b"*" || known.strip_prefix(b"W/").unwrap_or(known) == tag.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_found_in_what_browsers_and_proxies_send() {
        let tag = HeaderValue::from_static("\"12\"");
        let check = |sent: &str, expected: bool| {
            let mut headers = HeaderMap::new();
            headers.insert(IF_NONE_MATCH, HeaderValue::from_str(sent).unwrap());
            assert_eq!(is_known(&headers, &tag), expected, "{sent}");
        };
        check("\"12\"", true);
        check("W/\"12\"", true);
        check("\"11\", \"12\"", true);
        check("*", true);
        check("\"1\"", false);
        check("12", false);
        check("", false);
        assert!(!is_known(&HeaderMap::new(), &tag));
    }
}
