//! A server that was asked how it wants to be asked, and levels of load on it.

use super::address::Address;
use super::collected::Collected;
use super::connections::Connections;
use super::driver::{Asked, Level, Prepared, Progress, drive};
use super::form::{Form, LIMITS};
use super::prompts::{Fit, Source, sample, words};
use super::{Arrivals, Endpoint, Failure, Length, Limits, Load};
use crate::{Machine, counted};
use hyper::Method;
use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Name of the benchmark.
const NAME: &str = "serve";
/// Words of the shorter of the two prompts that tokens are counted of.
const FEW_WORDS: usize = 10;

/// What is asked of a server.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The model's name at the server; `None`: the first it has.
    pub model: Option<String>,
    /// Which endpoint is asked.
    pub endpoint: Endpoint,
    /// Temperature of every request.
    pub temperature: f64,
    /// Whether answers go on where the model would end them.
    pub ignore_eos: bool,
    /// Further fields of every request.
    pub extra: Map<String, Value>,
    /// Where prompts come from.
    pub source: Source,
    /// Tokens of an answer.
    pub output: Length,
    /// Of all that is drawn.
    pub seed: u64,
    /// The longest that a request may take.
    pub timeout: Duration,
    /// What a request may take and still count for goodput.
    pub limits: Limits,
}

/// A server, how it is asked, and how many tokens words are to it.
pub struct Session {
    plan: Plan,
    form: Form,
    asked: Asked,
    fit: Fit,
    /// What all prompts begin with.
    prefix: String,
    notes: Vec<String>,
}

impl Session {
    /// Looks the server up, asks for its model where none is named, and sends one request or two that are not measured: what the server
    /// refuses by name is left out from then on, and its count of tokens is what prompts are measured by. `roots` are the certificates
    /// (DER) that https is believed by.
    ///
    /// # Errors
    /// When the server cannot be reached, names no model, or does not answer.
    pub async fn open(address: Address, roots: &[Vec<u8>], mut plan: Plan) -> Result<Session, Failure> {
        let path: Arc<str> = address.endpoint(plan.endpoint.path()).into();
        let server = Arc::new(Connections::new(address, roots).await?);
        let model = match plan.model.take() {
            Some(model) => model,
            None => first_model(&server).await?,
        };
        let mut form = Form::new(model, plan.endpoint);
        form.temperature = Some(plan.temperature);
        form.ignore_eos = plan.ignore_eos;
        form.extra.clone_from(&plan.extra);
        let asked = Asked { server, path, is_streamed: plan.endpoint.has_answer(), timeout: plan.timeout };
        let mut session = Session { plan, form, asked, fit: Fit::WORD, prefix: String::new(), notes: Vec::new() };
        let mut first = match &session.plan.source {
            Source::Words { .. } => session.plan.endpoint.prompt(&sample(FEW_WORDS).0),
            Source::File(file) => file.prompt(0),
        };
        // A token is enough.
        LIMITS.iter().for_each(|name| drop(first.remove(*name)));
        let prompt_tokens = session.first_request(first).await?;
        if let Source::Words { shared_prefix, .. } = session.plan.source {
            session.count_words(prompt_tokens.is_some()).await;
            if shared_prefix > 0 {
                let number = session.fit.words(f64::from(shared_prefix));
                session.prefix = words(number, &mut session.rng(0, 0)) + " ";
            }
        }
        Ok(session)
    }

    /// The model that is asked.
    pub fn model(&self) -> &str {
        &self.form.model
    }

    /// What a reader must know of how the server is asked.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Lets requests take another time from now on.
    #[cfg(test)]
    pub(super) fn be_patient_for(&mut self, timeout: Duration) {
        self.asked.timeout = timeout;
    }

    /// Sends a request until the server takes it, without what it refuses by name; tokens of the prompt, if it counts them.
    async fn first_request(&mut self, prompt: Map<String, Value>) -> Result<Option<u64>, Failure> {
        loop {
            let (body, _) = self.form.body(prompt.clone(), self.plan.endpoint.fewest_tokens());
            let failure = match self.asked.ask(body).await {
                Ok(answer) => return Ok(answer.usage.prompt),
                Err(failure) => failure,
            };
            let refused = match &failure {
                Failure::Status { status: 400 | 422, message, .. } => self.form.without_refused(message),
                _ => None,
            };
            self.notes.push(refused.ok_or(failure)?.to_owned());
        }
    }

    /// Finds out how many tokens words are: by the server's tokenizer, else by what its answers say of their prompts, if they do.
    async fn count_words(&mut self, counts_prompts: bool) {
        // The same words once and twice, so that what is beside them is told from words that are longer than others.
        let (once, num_words) = sample(usize::MAX);
        let twice = format!("{once} {once}");
        let mut counted = self.tokenize(&once).await.zip(self.tokenize(&twice).await);
        let mut by = "/tokenize";
        if counted.is_none() && counts_prompts {
            counted = self.used_for(&once).await.zip(self.used_for(&twice).await);
            by = "usage.prompt_tokens";
        }
        match counted.and_then(|(once, twice)| Fit::through((num_words, once), (2 * num_words, twice))) {
            Some(fit) => {
                let Fit { per_word, beside } = fit;
                self.notes
                    .push(format!("prompts are words of {per_word:.2} tokens, and {beside:.1} beside them, by {by}"));
                self.fit = fit;
            }
            None => self.notes.push("the server counts no tokens of a prompt: a word was taken for one".to_owned()),
        }
    }

    /// Tokens of a prompt as its answer tells them.
    async fn used_for(&self, text: &str) -> Option<u64> {
        let endpoint = self.plan.endpoint;
        let (body, _) = self.form.body(endpoint.prompt(text), endpoint.fewest_tokens());
        self.asked.ask(body).await.ok()?.usage.prompt
    }

    /// Tokens of a prompt by the server's tokenizer, with what stands around it: in vLLM's words, then in llama.cpp's.
    async fn tokenize(&self, text: &str) -> Option<u64> {
        let server = &self.asked.server;
        let path = server.address.beside("tokenize");
        let mut body = self.plan.endpoint.tokenized(text);
        body.insert("model".to_owned(), self.form.model.as_str().into());
        let mut bodies = vec![Value::Object(body)];
        if self.plan.endpoint.is_text() {
            bodies.push(json!({ "content": text, "add_special": true }));
        }
        for body in bodies {
            let answer = server.text(Method::POST, &path, body.to_string());
            let Ok(Ok(answer)) = tokio::time::timeout(self.plan.timeout, answer).await else { continue };
            let json: Value = serde_json::from_str(&answer).unwrap_or_default();
            let tokens = json["count"].as_u64().or(json["tokens"].as_array().map(|tokens| tokens.len() as u64));
            if let Some(tokens) = tokens.filter(|tokens| *tokens > 0) {
                return Some(tokens);
            }
        }
        None
    }

    /// What is drawn for a request, whatever was drawn for others.
    fn rng(&self, stream: u64, index: u64) -> Xoshiro256PlusPlus {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(self.plan.seed);
        Xoshiro256PlusPlus::seed_from_u64(rng.next_u64() ^ (stream << 40) ^ index)
    }

    fn prepare(&self, stream: u64, index: u64) -> Prepared {
        let mut rng = self.rng(stream, index);
        let prompt = match &self.plan.source {
            Source::Words { length, .. } => {
                let number = self.fit.words_of_prompt(length.draw(&mut rng));
                self.plan.endpoint.prompt(&format!("{}{}", self.prefix, words(number, &mut rng)))
            }
            Source::File(file) => file.prompt(index),
        };
        let (body, max_tokens) = self.form.body(prompt, self.plan.output.draw(&mut rng).into());
        Prepared { body, max_tokens }
    }

    /// Puts the `index`-th level on the server, and what comes of it into `collected`: dropped before its end, what has come is there.
    pub async fn run(
        &self,
        index: usize,
        level: &Level,
        collected: &mut Collected,
        observe: &mut dyn FnMut(&Progress),
    ) {
        *collected = Collected::new(self.plan.limits);
        if level.warmup > 0 {
            let mut stop = level.stop;
            stop.requests = Some(level.warmup);
            self.run_part(2 * index + 1, &Level { stop, ..*level }, true, &mut Collected::default(), observe).await;
        }
        self.run_part(2 * index + 2, level, false, collected, observe).await;
    }

    /// `stream` numbers what is drawn, so that no two parts ask the same: a server may remember prompts.
    async fn run_part(
        &self,
        stream: usize,
        level: &Level,
        is_warmup: bool,
        collected: &mut Collected,
        observe: &mut dyn FnMut(&Progress),
    ) {
        let stream = stream as u64;
        let prepare = |index| self.prepare(stream, index);
        let mut observe = |collected: &Collected, elapsed: Duration| {
            observe(&Progress {
                load: level.load,
                is_warmup,
                succeeded: collected.num_succeeded(),
                failed: collected.num_failed(),
                under_way: collected.num_under_way(),
                of: level.stop.requests,
                elapsed,
                rate: collected.rate(),
            });
        };
        drive(&self.asked, level, self.rng(stream, u64::MAX >> 1), &prepare, collected, &mut observe).await;
    }

    /// The level as one JSON object: what was asked, and the figures.
    pub fn row(&self, level: &Level, collected: &Collected, commit: &str) -> Value {
        let plan = &self.plan;
        let (concurrency, rate, from, arrivals) = match level.load {
            Load::Closed { concurrency } => (Some(concurrency), None, None, None),
            Load::Open { rate, from, arrivals, max_concurrency } => (max_concurrency, Some(rate), from, Some(arrivals)),
        };
        let burstiness = match arrivals {
            Some(Arrivals::Poisson) => Some(1.0),
            Some(Arrivals::Gamma(shape)) => Some(shape),
            _ => None,
        };
        let of_answers = |value: Value| if plan.endpoint.has_answer() { value } else { Value::Null };
        let (prompt_tokens, shared_prefix, prompts) = match &plan.source {
            Source::Words { length, shared_prefix } => (Some(length.to_string()), Some(*shared_prefix), None),
            Source::File(file) => (None, None, Some(file.len())),
        };
        let params: [(&str, Value); 21] = [
            ("url", self.asked.server.address.base().into()),
            ("model", self.form.model.as_str().into()),
            ("endpoint", plan.endpoint.path().into()),
            ("loop", if rate.is_none() { "closed" } else { "open" }.into()),
            ("concurrency", concurrency.into()),
            // JSON has no infinity.
            ("rate", rate.map(|rate| if rate.is_finite() { rate.into() } else { Value::from("inf") }).into()),
            ("ramp_from", from.into()),
            ("arrivals", arrivals.map(Arrivals::name).into()),
            ("burstiness", burstiness.into()),
            ("requests", level.stop.requests.into()),
            ("duration_s", level.stop.duration.map(|duration| duration.as_secs_f64()).into()),
            ("warmup", level.warmup.into()),
            ("prompt_tokens", prompt_tokens.into()),
            ("shared_prefix", shared_prefix.into()),
            ("prompts", prompts.into()),
            ("output_tokens", of_answers(plan.output.to_string().into())),
            ("temperature", of_answers(self.form.temperature.into())),
            ("ignore_eos", of_answers(self.form.ignore_eos.into())),
            ("seed", plan.seed.into()),
            ("extra", plan.extra.clone().into()),
            ("limits", plan.limits.to_json()),
        ];
        let params: Map<String, Value> = params.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let mut row = Map::new();
        row.insert("bench".to_owned(), NAME.into());
        row.insert("case".to_owned(), level.load.to_string().into());
        row.insert("params".to_owned(), params.into());
        row.extend(collected.figures());
        row.insert("commit".to_owned(), commit.into());
        row.insert("machine".to_owned(), Machine::read().cpu.into());
        Value::Object(row)
    }

    /// What a reader must know of a level beside its figures.
    pub fn notes_of(&self, level: &Level, collected: &Collected) -> Vec<String> {
        let mut notes = collected.notes();
        if let Source::File(file) = &self.plan.source
            && collected.num_sent > file.len() as u64
        {
            notes.push(format!(
                "{} requests had the {} of the file: a server may remember them",
                collected.num_sent,
                counted(file.len(), "prompt")
            ));
        }
        if collected.num_under_way() > 0 {
            let number = counted(collected.num_under_way() as usize, "request");
            notes.push(format!("{number} broken off, in no figure"));
        }
        notes.into_iter().map(|note| format!("{}: {note}", level.load)).collect()
    }
}

async fn first_model(server: &Connections) -> Result<String, Failure> {
    let path = server.address.endpoint("models");
    let answer = server.text(Method::GET, &path, String::new());
    let answer = tokio::time::timeout(Duration::from_secs(30), answer).await.unwrap_or(Err(Failure::Timeout));
    let setup = |what: String| Failure::Setup(format!("cannot ask for the model: {what}; --model-name names one"));
    let answer = answer.map_err(|failure| setup(failure.to_string()))?;
    let json: Value = serde_json::from_str(&answer).unwrap_or_default();
    let name = json.pointer("/data/0/id").and_then(Value::as_str);
    name.map(str::to_owned).ok_or_else(|| setup("the server lists none".to_owned()))
}
