//! What a request says, and what is left out of it for a server that does not take it.

use serde_json::{Map, Value, json};

/// Which endpoint is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/completions`.
    Completions,
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/messages`, Anthropic's.
    Messages,
    /// `/v1/responses`.
    Responses,
    /// `/v1/embeddings`, whose answers come whole and have no tokens.
    Embeddings,
}

/// What the limit of an answer's tokens is called somewhere.
pub(super) const LIMITS: [&str; 3] = ["max_tokens", "max_completion_tokens", "max_output_tokens"];

impl Endpoint {
    /// Its path behind the version.
    pub(super) fn path(self) -> &'static str {
        match self {
            Endpoint::Completions => "completions",
            Endpoint::Chat => "chat/completions",
            Endpoint::Messages => "messages",
            Endpoint::Responses => "responses",
            Endpoint::Embeddings => "embeddings",
        }
    }

    /// What is to be answered is called so.
    pub(super) fn field(self) -> &'static str {
        match self {
            Endpoint::Completions => "prompt",
            Endpoint::Chat | Endpoint::Messages => "messages",
            Endpoint::Responses | Endpoint::Embeddings => "input",
        }
    }

    /// The fields that say what is to be answered.
    pub(super) fn prompt(self, text: &str) -> Map<String, Value> {
        let value = if self.field() == "messages" { messages(text) } else { text.into() };
        Map::from_iter([(self.field().to_owned(), value)])
    }

    /// The fields by which vLLM's tokenizer is asked for the tokens of a prompt.
    pub(super) fn tokenized(self, text: &str) -> Map<String, Value> {
        let (name, value) = if self.is_text() { ("prompt", text.into()) } else { ("messages", messages(text)) };
        Map::from_iter([(name.to_owned(), value)])
    }

    /// Whether the model reads the text as it is, and no conversation.
    pub(super) fn is_text(self) -> bool {
        matches!(self, Endpoint::Completions | Endpoint::Embeddings)
    }

    /// Whether there is an answer, which comes as it is made.
    pub fn has_answer(self) -> bool {
        self != Endpoint::Embeddings
    }

    /// The fewest tokens that every server lets an answer have: OpenAI's responses have 16 at least.
    pub(super) fn fewest_tokens(self) -> u64 {
        if self == Endpoint::Responses { 16 } else { 1 }
    }
}

/// A conversation that begins.
fn messages(text: &str) -> Value {
    json!([{ "role": "user", "content": text }])
}

/// What all requests say.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Form {
    /// The model's name at the server.
    pub(super) model: String,
    /// Which endpoint is asked.
    pub(super) endpoint: Endpoint,
    /// Temperature; `None` leaves it to the server.
    pub(super) temperature: Option<f64>,
    /// Whether answers go on where the model would end them.
    pub(super) ignore_eos: bool,
    /// Further fields; they go before all others.
    pub(super) extra: Map<String, Value>,
    /// What the limit of an answer's tokens is called.
    max_tokens: &'static str,
    /// Whether the server is asked to count tokens.
    asks_for_usage: bool,
}

impl Form {
    /// Of a model at an endpoint: temperature 0, and nothing else that was not asked for.
    pub(super) fn new(model: String, endpoint: Endpoint) -> Form {
        Form {
            model,
            endpoint,
            temperature: Some(0.0),
            ignore_eos: false,
            extra: Map::new(),
            max_tokens: if endpoint == Endpoint::Responses { "max_output_tokens" } else { "max_tokens" },
            // The others count without being asked.
            asks_for_usage: matches!(endpoint, Endpoint::Completions | Endpoint::Chat),
        }
    }

    /// A request's body: what `prompt` has, which may be any field, before what all requests have; `max_tokens` unless `prompt` or
    /// the further fields limit the answer themselves. With it, the limit.
    pub(super) fn body(&self, prompt: Map<String, Value>, max_tokens: u64) -> (String, Option<u64>) {
        let mut body = Map::new();
        let mut set = |name: &str, value: Value| body.insert(name.to_owned(), value);
        set("model", self.model.as_str().into());
        if self.endpoint.has_answer() {
            set("stream", true.into());
            if self.asks_for_usage {
                set("stream_options", json!({ "include_usage": true }));
            }
            set(self.max_tokens, max_tokens.into());
            if let Some(temperature) = self.temperature {
                set("temperature", temperature.into());
            }
            if self.ignore_eos {
                set("ignore_eos", true.into());
            }
        }
        for (name, value) in prompt.into_iter().chain(self.extra.clone()) {
            // One of the names is one too many.
            if LIMITS.contains(&name.as_str()) {
                body.remove(self.max_tokens);
            }
            body.insert(name, value);
        }
        let limit = LIMITS.iter().find_map(|name| body.get(*name)?.as_u64());
        (Value::Object(body).to_string(), limit)
    }

    /// Leaves out, or calls by another name, what a server has refused by its name; says what that is. `None` where the refusal is about
    /// something else.
    pub(super) fn without_refused(&mut self, message: &str) -> Option<&'static str> {
        if self.ignore_eos && message.contains("ignore_eos") {
            self.ignore_eos = false;
            Some("the server does not take `ignore_eos`: answers end where the model ends them")
        } else if self.asks_for_usage && ["stream_options", "include_usage"].iter().any(|name| message.contains(name)) {
            self.asks_for_usage = false;
            Some("the server does not take `stream_options`")
        } else if self.max_tokens == "max_tokens" && message.contains("max_completion_tokens") {
            self.max_tokens = "max_completion_tokens";
            Some("the server takes `max_completion_tokens` and not `max_tokens`")
        } else if self.temperature.is_some() && message.contains("temperature") {
            self.temperature = None;
            Some("the server does not take the temperature: answers are at its own")
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(form: &Form, prompt: Map<String, Value>) -> (Value, Option<u64>) {
        let (body, limit) = form.body(prompt, 7);
        (serde_json::from_str(&body).unwrap(), limit)
    }

    #[test]
    fn a_request_has_what_was_asked_for_and_no_more() {
        let mut form = Form::new("m".to_owned(), Endpoint::Completions);
        let (body, limit) = sent(&form, Endpoint::Completions.prompt("hi"));
        let usage = json!({ "include_usage": true });
        let expected = json!({
            "model": "m", "stream": true, "stream_options": usage, "max_tokens": 7, "temperature": 0.0, "prompt": "hi",
        });
        assert_eq!((body, limit), (expected, Some(7)));
        form.ignore_eos = true;
        form.extra.insert("temperature".to_owned(), 1.into());
        let (body, _) = sent(&form, Endpoint::Chat.prompt("hi"));
        assert_eq!((&body["ignore_eos"], &body["temperature"]), (&true.into(), &1.into()));
        assert_eq!(body["messages"], json!([{ "role": "user", "content": "hi" }]));
    }

    #[test]
    fn every_endpoint_has_its_own_words() {
        let of = |endpoint: Endpoint| sent(&Form::new("m".to_owned(), endpoint), endpoint.prompt("hi"));
        let messages = json!([{ "role": "user", "content": "hi" }]);
        for (endpoint, expected, limit) in [
            (
                Endpoint::Messages,
                json!({ "model": "m", "stream": true, "max_tokens": 7, "temperature": 0.0, "messages": messages }),
                Some(7),
            ),
            (
                Endpoint::Responses,
                json!({ "model": "m", "stream": true, "max_output_tokens": 7, "temperature": 0.0, "input": "hi" }),
                Some(7),
            ),
            (Endpoint::Embeddings, json!({ "model": "m", "input": "hi" }), None),
        ] {
            assert_eq!(of(endpoint), (expected, limit));
        }
        assert_eq!(Value::Object(Endpoint::Responses.tokenized("hi")), json!({ "messages": messages }));
        assert_eq!(Value::Object(Endpoint::Embeddings.tokenized("hi")), json!({ "prompt": "hi" }));
    }

    #[test]
    fn a_request_may_limit_its_answer_itself() {
        let form = Form::new("m".to_owned(), Endpoint::Completions);
        let mut prompt = Endpoint::Completions.prompt("hi");
        prompt.insert("max_completion_tokens".to_owned(), 3.into());
        let (body, limit) = sent(&form, prompt);
        assert_eq!((body.get("max_tokens"), limit), (None, Some(3)));
    }

    #[test]
    fn what_is_refused_by_name_is_left_out_once() {
        let mut form = Form::new("m".to_owned(), Endpoint::Chat);
        form.ignore_eos = true;
        assert!(
            form.without_refused("Unrecognized request argument supplied: ignore_eos").unwrap().contains("ignore_eos")
        );
        assert_eq!(form.without_refused("ignore_eos"), None, "it is not sent any more");
        assert!(form.without_refused("stream_options: extra fields not permitted").is_some());
        assert!(form.without_refused("use 'max_completion_tokens' instead of 'max_tokens'").is_some());
        assert!(form.without_refused("'temperature' does not support 0").is_some());
        let (body, _) = sent(&form, Endpoint::Chat.prompt("hi"));
        let names: Vec<&String> = body.as_object().unwrap().keys().collect();
        assert_eq!(names, ["model", "stream", "max_completion_tokens", "messages"]);
        assert_eq!(form.without_refused("context length exceeded"), None);
    }
}
