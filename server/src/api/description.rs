//! The API's description: GET /openapi.json, and GET /docs, the same for people. Both are made of the rows of
//! [`crate::routes`], so no route can be missing.
//!
//! Requests are read field by field (`crate::fields`) and answers are written by hand, so there are no types to derive schemas
//! from; they stand here, one file for each group of endpoints. Tests hold them against the code: every field that is read
//! is in the schema of its request and the other way round, and every answer of a stub server fits its schema.

use std::sync::LazyLock;

use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{Html, IntoResponse, Response};
use serde_json::{Map, Value, json};

use crate::routes::{Route, routes};

pub(crate) mod embeddings;
pub(crate) mod generation;
pub(crate) mod info;
pub(crate) mod messages;
pub(crate) mod model_control;
pub(crate) mod native;
pub(crate) mod ollama;
mod page;
pub(crate) mod responses;
mod schema;
#[cfg(test)]
mod tests;
pub(crate) mod tokens;

/// What is told of one method of one path.
pub(crate) struct Operation {
    /// The group that it is listed in.
    pub(crate) tag: &'static str,
    /// One line.
    pub(crate) summary: &'static str,
    /// Schemas of parameters in the query, by name.
    pub(crate) query: Vec<(&'static str, Value)>,
    /// The schema of the request's JSON body.
    pub(crate) request: Option<Value>,
    /// What a 200 has, by media type.
    pub(crate) answers: Vec<(&'static str, Value)>,
    /// What any other status has.
    pub(crate) error: Value,
}

impl Operation {
    /// A GET that is answered by JSON.
    pub(crate) fn get(tag: &'static str, summary: &'static str, answer: Value) -> Operation {
        let (query, answers) = (Vec::new(), vec![(JSON, answer)]);
        Operation { tag, summary, query, request: None, answers, error: schema::reference("Error") }
    }

    /// A POST of JSON that is answered by JSON.
    pub(crate) fn post(tag: &'static str, summary: &'static str, request: Value, answer: Value) -> Operation {
        Operation { request: Some(request), ..Operation::get(tag, summary, answer) }
    }

    /// With `stream`, server-sent events with this data, the last of which is `[DONE]`.
    fn streamed(self, data: Value) -> Operation {
        let last = json!({ "const": "[DONE]", "description": "The last one." });
        self.streamed_as(vec![("data", schema::any_of(vec![last, schema::text_of_json(data)], ""))])
    }

    /// With `stream`, server-sent events with this data.
    fn streamed_until_the_end(self, data: Value) -> Operation {
        self.streamed_as(vec![("data", schema::text_of_json(data))])
    }

    /// With `stream`, server-sent events with this data, each under the name that is its `type`.
    fn streamed_by_name(self, data: Value) -> Operation {
        let name = schema::string("The type of the data.");
        self.streamed_as(vec![("data", schema::text_of_json(data)), ("event", name)])
    }

    /// The schema is that of an event, not of the whole stream, and has the form that OpenAPI 3.2 gives to events.
    fn streamed_as(mut self, fields: Vec<schema::Named>) -> Operation {
        self.answers.push((EVENTS, schema::all(fields)));
        self
    }

    /// With `stream`, each line.
    fn streamed_as_lines(mut self, line: Value) -> Operation {
        self.answers.push((LINES, line));
        self
    }

    fn with_query(mut self, query: Vec<(&'static str, Value)>) -> Operation {
        self.query = query;
        self
    }
}

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";
const LINES: &str = "application/x-ndjson";

/// Schemas that several others refer to, by name.
fn components() -> Map<String, Value> {
    let groups = [
        schema::components(),
        generation::components(),
        messages::components(),
        responses::components(),
        native::components(),
        ollama::components(),
        embeddings::components(),
        model_control::components(),
    ];
    groups.into_iter().flatten().map(|(name, schema)| (name.to_owned(), schema)).collect()
}

/// The description, in OpenAPI 3.1, whose schemas are JSON Schema 2020-12.
pub(crate) fn document() -> Value {
    let mut paths = Map::new();
    for Route { method, path, describe, .. } in routes() {
        let (path, parameters) = path_parameters(path);
        let name = path.trim_start_matches('/').replace(['/', '-', '.', '{', '}'], "_");
        paths.entry(path).or_insert_with(|| json!({}))[method] =
            operation(describe(), &format!("{method}_{name}"), parameters);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Taper",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "A language-model server for one machine. In requests null counts as absent, an unknown field is accepted \
                and named in the x-taper-ignored-fields header of the answer, and a known parameter that the server does not have is \
                a 400 with its name. Every answer has an x-request-id.",
        },
        "paths": paths,
        "components": { "schemas": components() },
    })
}

/// A path as OpenAPI writes it, with its parameters.
fn path_parameters(path: &str) -> (String, Vec<Value>) {
    let path = path.replace("{*", "{");
    let names = path.split('{').skip(1).filter_map(|rest| rest.split('}').next());
    let parameter = |name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } });
    let parameters = names.map(parameter).collect();
    (path, parameters)
}

fn operation(operation: Operation, id: &str, mut parameters: Vec<Value>) -> Value {
    let Operation { tag, summary, query, request, answers, error } = operation;
    let media = |(media, schema): (&str, Value)| (media.to_owned(), json!({ "schema": schema }));
    parameters.extend(query.into_iter().map(|(name, schema)| json!({ "name": name, "in": "query", "schema": schema })));
    let mut described = json!({
        "operationId": id,
        "tags": [tag],
        "summary": summary,
        "responses": {
            "200": { "description": "Success", "content": answers.into_iter().map(media).collect::<Map<_, _>>() },
            "default": { "description": "An error", "content": { JSON: { "schema": error } } },
        },
    });
    if !parameters.is_empty() {
        described["parameters"] = parameters.into();
    }
    if let Some(schema) = request {
        described["requestBody"] = json!({ "required": true, "content": { JSON: { "schema": schema } } });
    }
    described
}

static DOCUMENT: LazyLock<String> = LazyLock::new(|| document().to_string());
static PAGE: LazyLock<String> = LazyLock::new(|| page::write(&document()));

pub(crate) async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static(JSON))], DOCUMENT.as_str()).into_response()
}

/// The page has no scripts and loads nothing; a browser would not let it.
pub(crate) async fn docs() -> Response {
    let nonce = uuid::Uuid::new_v4().simple().to_string();
    let policy = format!(
        "default-src 'none'; style-src 'nonce-{nonce}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let mut response = Html(PAGE.replacen(page::NONCE, &nonce, 1)).into_response();
    let headers = response.headers_mut();
    if let Ok(policy) = HeaderValue::from_str(&policy) {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    headers.insert(HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff"));
    headers.insert(HeaderName::from_static("referrer-policy"), HeaderValue::from_static("no-referrer"));
    response
}
