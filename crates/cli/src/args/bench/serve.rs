//! `taper bench serve` on the command line.

use crate::args::engine::seconds;
use crate::args::positive;
use clap::{Args, ValueEnum};
use serde_json::{Map, Value};
use std::path::PathBuf;
use std::time::Duration;
use taper_bench::load::{Arrivals, Endpoint, Length, Level, Limits, Load, Stop};

/// Requests of a closed loop for each of its users, and at least, where nobody says how many.
const REQUESTS_PER_USER: u64 = 4;
const FEWEST_REQUESTS: u64 = 16;
/// Requests of an open loop.
const OPEN_REQUESTS: u64 = 100;
/// The flags that make one.
const OPEN: &str = "open";

/// `taper bench serve`
#[derive(Debug, Args)]
#[command(
    after_help = "A closed loop (--concurrency) has so many users, who ask again when they have their answer; one whose request fails waits as long as Retry-After says, else 0.1 s. An open loop (--rate, --ramp-up) has users who ask when it is their time: there latencies count from when a request was due, not from when it was sent, and LATE says how late that was. A level ends when the requests under way have.\n\nTTFT is the time to the first event with text, ITL between two of them, E2E to the end of the stream, TPOT (E2E - TTFT) / (tokens - 1); all in milliseconds. Embeddings come whole and have E2E alone. Tokens are the server's own count (usage). A request that fails counts by its kind and in no latency. GOODPUT is requests per second that kept every --limit.\n\nLengths are N, MIN..MAX (each as likely), normal:MEAN,SD or lognormal:MEAN,SD. Prompts are random words, as many as the server's tokenizer (POST /tokenize) or its usage makes so many tokens of. No two are alike, unless --seed repeats those of an earlier run: a server may remember them.\n\nCtrl-C ends it early, with what was measured. https believes the system's certificates, or those of SSL_CERT_FILE. Proxies are not used. The status is 1 if no request succeeded."
)]
pub(crate) struct BenchServeArgs {
    /// A server with OpenAI's interface, such as `http://localhost:8000` or `https://api.example.com/v1`, or `unix:PATH`, the socket of
    /// `taper serve --unix-socket`.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    pub(crate) url: String,

    /// Model of the server [default: the first it lists].
    #[arg(long, value_name = "NAME")]
    pub(crate) model_name: Option<String>,

    /// Key for the server; an empty one is none [default: for a server on this machine the first of TAPER_API_KEY, else
    /// OPENAI_API_KEY].
    // No `env`: for `taper serve` the variable lists its own keys, which are not for a server elsewhere.
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Option<String>,

    /// What is asked.
    #[arg(long, value_enum, value_name = "ENDPOINT", default_value_t = EndpointKind::Completions)]
    pub(crate) endpoint: EndpointKind,

    /// Users of a closed loop; a row for each of several, separated by commas [default: 1].
    #[arg(long, short = 'c', value_name = "N", value_delimiter = ',', value_parser = users, conflicts_with = OPEN)]
    pub(crate) concurrency: Vec<usize>,

    /// Requests per second of an open loop, `inf` for all at once; a row for each of several, separated by commas.
    #[arg(long, value_name = "R", value_delimiter = ',', value_parser = rate, group = OPEN)]
    pub(crate) rate: Vec<f64>,

    /// An open loop whose requests per second grow evenly from A to B: by its last request, or with --duration alone by its end.
    #[arg(long, value_name = "linear:A-B", value_parser = ramp, group = OPEN)]
    pub(crate) ramp_up: Option<(f64, f64)>,

    /// How the requests of an open loop follow each other.
    #[arg(long, value_enum, default_value_t = ArrivalsKind::Poisson, requires = OPEN)]
    pub(crate) arrivals: ArrivalsKind,

    /// Shape of the gamma distribution of the gaps, as in vLLM's benchmark: 1 is --arrivals poisson, below it requests come in bunches,
    /// above it at gaps that differ less.
    #[arg(long, value_name = "SHAPE", value_parser = burstiness, requires = OPEN, conflicts_with = "arrivals")]
    pub(crate) burstiness: Option<f64>,

    /// Most requests of an open loop that are under way; others wait here, and their time runs [default: no limit].
    #[arg(long, value_name = "N", value_parser = users, requires = OPEN)]
    pub(crate) max_concurrency: Option<usize>,

    /// Requests of each row [default: four for each user and at least 16; of an open loop 100; with --duration no limit].
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) requests: Option<u64>,

    /// Send requests for so long in each row; those due until then are sent.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) duration: Option<Duration>,

    /// Requests before each row, at its load, that are not counted.
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) warmup: u64,

    /// Tokens of a prompt.
    #[arg(long, value_name = "LENGTH", default_value = "128", value_parser = str::parse::<Length>)]
    pub(crate) prompt_tokens: Length,

    /// Tokens of an answer (max_tokens); with --ignore-eos it has as many.
    #[arg(long, value_name = "LENGTH", default_value = "128", value_parser = str::parse::<Length>)]
    pub(crate) output_tokens: Length,

    /// Tokens before those of --prompt-tokens that all prompts begin with.
    #[arg(long, value_name = "TOKENS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    pub(crate) shared_prefix: u32,

    /// Prompts instead of random words, one on each line: texts, or JSON objects with `prompt`, or with `messages` or `input` where the
    /// endpoint calls it so, whose other fields (`max_tokens`) go into the request.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt_tokens", "shared_prefix"])]
    pub(crate) prompts: Option<PathBuf>,

    /// Of what is drawn [default: another one in each run, told in --json].
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,

    /// Temperature of every request.
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    pub(crate) temperature: f64,

    /// Send `ignore_eos`, with which taper, vLLM, SGLang and llama-server go on where the model would end its answer. Whether the server
    /// refuses it is told.
    #[arg(long)]
    pub(crate) ignore_eos: bool,

    /// Longest that a request may take.
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds)]
    pub(crate) timeout: Duration,

    /// What a request may take and still be goodput, such as `ttft=200ms,tpot=50ms,e2e=10s`; itl is its longest wait for a token.
    #[arg(long, value_name = "LIMITS", value_parser = str::parse::<Limits>)]
    pub(crate) limit: Option<Limits>,

    /// Further fields of every request.
    #[arg(long, value_name = "JSON", value_parser = object)]
    pub(crate) extra_body: Option<Map<String, Value>>,

    /// Print one JSON object per row instead of the table, or write them to FILE beside it.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub(crate) json: Option<PathBuf>,

    /// Write a line of CSV per row.
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,

    /// Write a web page with plots.
    #[arg(long, value_name = "FILE", alias = "report")]
    pub(crate) html: Option<PathBuf>,
}

/// Which endpoint is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EndpointKind {
    /// POST /v1/completions.
    Completions,
    /// POST /v1/chat/completions, each prompt as a message.
    Chat,
    /// POST /v1/messages, Anthropic's, each prompt as a message.
    Messages,
    /// POST /v1/responses.
    Responses,
    /// POST /v1/embeddings, a prompt each: E2E and tokens of prompts.
    Embeddings,
}

impl EndpointKind {
    pub(crate) fn endpoint(self) -> Endpoint {
        match self {
            EndpointKind::Completions => Endpoint::Completions,
            EndpointKind::Chat => Endpoint::Chat,
            EndpointKind::Messages => Endpoint::Messages,
            EndpointKind::Responses => Endpoint::Responses,
            EndpointKind::Embeddings => Endpoint::Embeddings,
        }
    }
}

/// How the requests of an open loop follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ArrivalsKind {
    /// As those of users who know nothing of each other: exponential gaps.
    Poisson,
    /// At equal gaps.
    Uniform,
    /// Once in a second, all of that second together.
    Burst,
}

impl BenchServeArgs {
    /// The levels, in order.
    pub(crate) fn levels(&self) -> Vec<Level> {
        let arrivals = match (self.burstiness, self.arrivals) {
            (Some(shape), _) if shape != 1.0 => Arrivals::Gamma(shape),
            (_, ArrivalsKind::Poisson) => Arrivals::Poisson,
            (_, ArrivalsKind::Uniform) => Arrivals::Uniform,
            (_, ArrivalsKind::Burst) => Arrivals::Burst,
        };
        let max_concurrency = self.max_concurrency;
        let level = |load: Load, default: u64| {
            let requests = self.requests.or(if self.duration.is_none() { Some(default) } else { None });
            Level { load, stop: Stop { requests, duration: self.duration }, warmup: self.warmup }
        };
        let closed = |&concurrency: &usize| {
            let requests = (REQUESTS_PER_USER * concurrency as u64).max(FEWEST_REQUESTS);
            level(Load::Closed { concurrency }, requests)
        };
        let open =
            |from: Option<f64>, rate: f64| level(Load::Open { rate, from, arrivals, max_concurrency }, OPEN_REQUESTS);
        if let Some((from, rate)) = self.ramp_up {
            return vec![open(Some(from), rate)];
        }
        if self.rate.is_empty() {
            let users: &[usize] = if self.concurrency.is_empty() { &[1] } else { &self.concurrency };
            return users.iter().map(closed).collect();
        }
        self.rate.iter().map(|&rate| open(None, rate)).collect()
    }
}

fn users(text: &str) -> Result<usize, String> {
    positive(text).and_then(|users| if users <= 1 << 16 { Ok(users) } else { Err("must be at most 65536".to_owned()) })
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse::<f64>().ok().filter(|rate| *rate >= 1e-6);
    rate.ok_or_else(|| format!("expected requests per second, such as 4, 0.5 or inf, not {text:?}"))
}

/// Two rates, of which the second may be the smaller one.
fn ramp(text: &str) -> Result<(f64, f64), String> {
    let finite = |text: &str| rate(text).ok().filter(|rate| rate.is_finite());
    let rates = text.strip_prefix("linear:").and_then(|rates| {
        // Any of them: an exponent has one too, as in 1e-3-8.
        let mut signs = rates.match_indices('-');
        signs.find_map(|(at, _)| Some((finite(&rates[..at])?, finite(&rates[at + 1..])?)))
    });
    rates.ok_or_else(|| format!("expected two numbers of requests per second, such as linear:1-8, not {text:?}"))
}

fn burstiness(text: &str) -> Result<f64, String> {
    let shape = text.parse::<f64>().ok().filter(|shape| (1e-3..=1e6).contains(shape));
    shape.ok_or_else(|| format!("expected a number from 0.001 to 1000000, such as 0.5, not {text:?}"))
}

fn object(text: &str) -> Result<Map<String, Value>, String> {
    let object: Map<String, Value> = serde_json::from_str(text)
        .map_err(|error| format!("expected a JSON object such as {{\"top_k\": 40}}: {error}"))?;
    match ["stream", "model", "prompt", "messages", "input"].iter().find(|name| object.contains_key(**name)) {
        Some(name) => Err(format!("`{name}` is the benchmark's to say")),
        None => Ok(object),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{BenchArgs, BenchCommand, Cli, Command};
    use clap::Parser;

    fn parse(arguments: &str) -> Result<BenchServeArgs, String> {
        let words = ["taper", "bench", "serve"].into_iter().chain(arguments.split_whitespace());
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        match cli.command {
            Command::Bench(BenchArgs { what: BenchCommand::Serve(args) }) => Ok(*args),
            other => panic!("{other:?}"),
        }
    }

    fn levels(arguments: &str) -> Vec<(String, Option<u64>)> {
        let levels = parse(arguments).unwrap().levels();
        levels.into_iter().map(|level| (level.load.to_string(), level.stop.requests)).collect()
    }

    #[test]
    fn a_list_has_a_level_each() {
        assert_eq!(levels(""), [("concurrency 1".to_owned(), Some(16))]);
        assert_eq!(
            levels("--concurrency 1,8"),
            [("concurrency 1".to_owned(), Some(16)), ("concurrency 8".to_owned(), Some(32))]
        );
        assert_eq!(levels("-c 2 --duration 5"), [("concurrency 2".to_owned(), None)]);
        assert_eq!(levels("-c 2 --duration 5 -n 3"), [("concurrency 2".to_owned(), Some(3))]);
        assert_eq!(
            levels("--rate 0.5,inf"),
            [("0.5 requests/s".to_owned(), Some(100)), ("inf requests/s".to_owned(), Some(100))]
        );
        assert_eq!(levels("--ramp-up linear:0.5-8 -n 9"), [("0.5 to 8 requests/s".to_owned(), Some(9))]);
    }

    #[test]
    fn rates_of_a_ramp_may_have_exponents() {
        for (text, rates) in
            [("1-8", (1.0, 8.0)), ("1e-3-8", (1e-3, 8.0)), ("8-1e-3", (8.0, 1e-3)), ("1e-3-2e-3", (1e-3, 2e-3))]
        {
            assert_eq!(ramp(&format!("linear:{text}")), Ok(rates));
        }
        for text in ["linear:1e-3", "linear:-", "linear:1", "linear:-1-2", "1-8"] {
            assert!(ramp(text).is_err(), "{text}");
        }
    }

    #[test]
    fn burstiness_of_one_is_poisson() {
        let arrivals = |arguments: &str| match parse(arguments).unwrap().levels()[0].load {
            Load::Open { arrivals, .. } => arrivals,
            Load::Closed { .. } => panic!("{arguments} is closed"),
        };
        assert_eq!(arrivals("--rate 1 --burstiness 1"), Arrivals::Poisson);
        assert_eq!(arrivals("--rate 1 --burstiness 0.5"), Arrivals::Gamma(0.5));
        assert_eq!(arrivals("--ramp-up linear:8-1 --burstiness 3"), Arrivals::Gamma(3.0));
    }

    #[test]
    fn what_makes_no_sense_together_is_refused() {
        for (arguments, words) in [
            ("--rate 1 --concurrency 2", "--concurrency"),
            ("--max-concurrency 3", "--rate"),
            ("--arrivals burst", "--rate"),
            ("--burstiness 2", "--rate"),
            ("--rate 1 --burstiness 0", "0.001"),
            ("--rate 1 --arrivals uniform --burstiness 2", "--burstiness"),
            ("--rate 1 --ramp-up linear:1-2", "--ramp-up"),
            ("--ramp-up linear:1-2 --concurrency 2", "--concurrency"),
            ("--ramp-up 1-2", "linear:1-8"),
            ("--ramp-up linear:1-inf", "linear:1-8"),
            ("--extra-body {\"input\":1}", "`input`"),
            ("--prompts f --prompt-tokens 5", "--prompt-tokens"),
            ("--concurrency 0", "at least 1"),
            ("--rate 0", "requests per second"),
            ("--rate NaN", "requests per second"),
            ("--prompt-tokens 5..2", "64..256"),
            ("--limit ttft=5", "ttft=200ms"),
            ("--extra-body {\"stream\":false}", "`stream`"),
            ("--extra-body 5", "JSON object"),
        ] {
            let refused = parse(arguments).unwrap_err();
            assert!(refused.contains(words), "{arguments}: {refused}");
        }
    }
}
