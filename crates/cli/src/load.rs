//! From a name on the command line to a model that computes.

mod draft;

use crate::args::{
    ActivationsKind, AnswerArgs, BackendKind, ContextArgs, Deterministic, Device, EngineArgs, KvKind, ModelArgs,
};
use crate::calibration_file;
use crate::device::open_gpu;
use crate::facts;
use crate::progress::Bars;
use crate::tune_file;
use anyhow::{Context, Result};
use indicatif::BinaryBytes;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use taper_checkpoint::Checkpoint;
use taper_engine::{DiskCache, Engine, EngineConfig, EngineHandle, EngineParts, ModelRunner, Runner, file_digest};
use taper_hub::{Hub, ModelName, Progress, ResolvedModel};
use taper_kernels::cuda::{Cuda, Driver, ProductTuning};
use taper_kernels::{BLOCK_SIZE, Backend, Cpu, CpuConfig, KvDtype, Reference};
use taper_models::{Llama, LoadOptions, ModelConfig};
use taper_server::ServerFacts;
use taper_text::{ChatTemplate, Tokenizer};

/// What is done with a loaded network, whatever computes it.
pub(crate) trait ModelTask {
    /// What comes out.
    type Output;
    /// Is told of the GPU that computes, before the model is loaded onto it.
    fn computes_on(&mut self, _gpu: &Cuda<Driver>) {}
    /// Does it.
    fn run<B: Backend + Clone>(self, model: Llama<B>) -> Result<Self::Output>;
}

/// What the models of one program share.
#[derive(Default)]
pub(crate) struct Shared {
    processor: Processor,
    /// Bytes that the KV cache of each takes at most where nobody says its size; without it, a quarter of what is free.
    pub(crate) kv_cache_limit: Option<usize>,
}

impl Shared {
    /// With this limit of each KV cache, if any.
    pub(crate) fn new(kv_cache_limit: Option<usize>) -> Self {
        Self { kv_cache_limit, ..Self::default() }
    }
}

/// Threads and working memory, with which models take turns: threads of their own on the same cores would wait for each other.
#[derive(Default)]
struct Processor(Mutex<Option<Cpu>>);

impl Processor {
    /// The same whenever it is asked for; the first to ask says how many threads there are.
    fn get(&self, config: CpuConfig) -> Result<Cpu> {
        let mut processor = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cpu) = processor.as_ref() {
            return Ok(cpu.clone());
        }
        let cpu = Cpu::new(config)?;
        *processor = Some(cpu.clone());
        Ok(cpu)
    }
}

/// What a model that answers is loaded from.
pub(crate) struct EngineSource<'a> {
    pub(crate) model: ResolvedModel,
    pub(crate) args: &'a ModelArgs,
    pub(crate) context: &'a ContextArgs,
    pub(crate) engine: &'a EngineArgs,
    pub(crate) config: EngineConfig,
}

/// A model behind an engine, ready to answer.
pub(crate) struct Loaded {
    pub(crate) id: String,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) engine: EngineHandle,
    /// [`taper_kernels::BackendInfo::numerics_class`] of what computes.
    pub(crate) numerics_class: &'static str,
    /// What the file says of itself.
    pub(crate) facts: ServerFacts,
}

/// Finds the file that a name means, and fetches it if need be.
pub(crate) fn resolve(name: &str, progress: &dyn Progress) -> Result<ResolvedModel> {
    let name = ModelName::parse(name)?;
    Ok(Hub::from_env()?.resolve(&name, progress)?)
}

/// Opens a model's file.
pub(crate) fn open(path: &Path) -> Result<Checkpoint> {
    Checkpoint::open(path).with_context(|| format!("cannot load {}", path.display()))
}

/// Its vocabulary.
pub(crate) fn tokenizer(checkpoint: &Checkpoint) -> Result<Arc<Tokenizer>> {
    let tokenizer = Tokenizer::from_metadata(checkpoint.metadata());
    Ok(Arc::new(tokenizer.with_context(|| format!("cannot load {}", checkpoint.path().display()))?))
}

/// Loads the network and hands it to `task`.
pub(crate) fn with_model<T: ModelTask>(
    args: &ModelArgs,
    checkpoint: &Checkpoint,
    options: LoadOptions,
    progress: &dyn Progress,
    task: T,
) -> Result<T::Output> {
    with_model_on(&Processor::default(), (args, checkpoint), options, progress, task)
}

/// [`with_model`] on a processor that others use too.
fn with_model_on<T: ModelTask>(
    processor: &Processor,
    (args, checkpoint): (&ModelArgs, &Checkpoint),
    options: LoadOptions,
    progress: &dyn Progress,
    mut task: T,
) -> Result<T::Output> {
    let options = LoadOptions { quantization: args.quantization(), ..options };
    match (args.device.device, args.backend) {
        (Device::Cuda(index), BackendKind::Cpu) => {
            if args.threads.is_some() || args.isa.is_some() || args.activations != ActivationsKind::Full {
                progress
                    .note("--threads, --isa and --activations are about the processor: a GPU computes without them");
            }
            let gpu = open_gpu(index)?.with_exact_rows(args.deterministic.is_on())?;
            let tuning = tune_file::load_on(&gpu, index);
            let gpu = with_library(args, gpu, &tuning, progress).with_tuning(tuning);
            tell_of_rows(args, gpu.has_exact_rows(), progress);
            task.computes_on(&gpu);
            load(args, gpu, checkpoint, options, progress, task)
        }
        (Device::Auto | Device::Cpu, BackendKind::Cpu) => {
            let config = CpuConfig { threads: args.threads, isa: args.isa.clone() };
            let cpu = processor.get(config)?.with_activations(args.activations.into());
            let tuning = tune_file::load(&cpu.info());
            tell_of_rows(args, true, progress);
            load(args, cpu.with_tuning(tuning), checkpoint, options, progress, task)
        }
        (_, BackendKind::Reference) => load(args, Reference::new(), checkpoint, options, progress, task),
    }
}

/// With the vendor's library, where measurements chose it and rows need not be exact.
fn with_library(args: &ModelArgs, gpu: Cuda<Driver>, tuning: &ProductTuning, progress: &dyn Progress) -> Cuda<Driver> {
    if args.deterministic.is_on() || !tuning.wants_library() {
        return gpu;
    }
    gpu.clone().with_library().unwrap_or_else(|error| {
        progress
            .note(&format!("`taper tune` chose the vendor's library for some products, which is not here: {error}"));
        gpu
    })
}

/// Says what `--deterministic off` means here.
fn tell_of_rows(args: &ModelArgs, has_exact_rows: bool, progress: &dyn Progress) {
    match (args.deterministic, has_exact_rows) {
        (Deterministic::On, _) => {}
        (Deterministic::Off, true) => {
            progress.note("--deterministic off changes nothing here: every kernel of this device computes a row as if it were alone");
        }
        (Deterministic::Off, false) => {
            progress.note("--deterministic off: a row's bits may depend on how many rows are computed with it, and so may answers");
        }
    }
}

fn load<B: Backend + Clone, T: ModelTask>(
    args: &ModelArgs,
    backend: B,
    checkpoint: &Checkpoint,
    options: LoadOptions,
    progress: &dyn Progress,
    task: T,
) -> Result<T::Output> {
    let mut model = load_network(backend, checkpoint, options, progress)?;
    calibration_file::apply(args, checkpoint.path(), &mut model)?;
    task.run(model)
}

/// Reads the weights, with a progress bar.
pub(crate) fn load_network<B: Backend>(
    backend: B,
    checkpoint: &Checkpoint,
    options: LoadOptions,
    progress: &dyn Progress,
) -> Result<Llama<B>> {
    let file = checkpoint.path().file_name().unwrap_or_default().to_string_lossy();
    let (mut started, mut done) = (false, 0);
    let model = Llama::load(backend, checkpoint, options, &mut |state| {
        if !std::mem::replace(&mut started, true) {
            progress.start(&format!("loading {file}"), Some(state.total as u64));
        }
        progress.advance((state.done - done) as u64);
        done = state.done;
    });
    progress.finish();
    let model = model.with_context(|| format!("cannot load {}", checkpoint.path().display()))?;
    for note in model.notes() {
        progress.note(note);
    }
    Ok(model)
}

/// Makes what the engine runs of a network, and of its draft model if there is one.
struct IntoRunners<'a> {
    /// Of the model's file, where blocks are to outlive this program.
    digest: Option<String>,
    draft: Option<&'a Checkpoint>,
    draft_kv_dtype: KvDtype,
    max_batch: usize,
    progress: &'a dyn Progress,
}

struct Runners {
    runner: Box<dyn Runner>,
    draft: Option<Box<dyn Runner>>,
    /// [`taper_kernels::BackendInfo::numerics_class`] of what computes.
    numerics_class: &'static str,
}

impl ModelTask for IntoRunners<'_> {
    type Output = Runners;

    fn run<B: Backend + Clone>(self, mut model: Llama<B>) -> Result<Runners> {
        if let Some(digest) = self.digest {
            model.set_file_digest(digest);
        }
        // The two take turns on the same threads.
        let load_draft = |checkpoint| -> Result<Box<dyn Runner>> {
            let options = draft::options(&model, self.max_batch, self.draft_kv_dtype);
            let mut draft = load_network(model.backend().clone(), checkpoint, options, self.progress)?;
            let bytes = draft.num_blocks() * BLOCK_SIZE * draft.kv_bytes_per_token();
            let bytes = BinaryBytes(bytes as u64);
            self.progress.note(&format!("the draft model has a KV cache of {bytes}, beside the large model's"));
            if self.max_batch > 1 {
                draft.populate_kv_cache();
            }
            Ok(Box::new(ModelRunner(draft)))
        };
        let draft = self.draft.map(load_draft).transpose()?;
        // What many use is used in whole soon. One user's answer should not wait for memory that it never fills.
        if self.max_batch > 1 {
            model.populate_kv_cache();
        }
        let numerics_class = model.backend().info().numerics_class;
        Ok(Runners { runner: Box::new(ModelRunner(model)), draft, numerics_class })
    }
}

/// Loads everything that answering takes.
pub(crate) fn load_engine(source: EngineSource<'_>, shared: &Shared, progress: &dyn Progress) -> Result<Loaded> {
    let EngineSource { model: ResolvedModel { path, id }, args, context, engine, config } = source;
    // A template that cannot be had should not wait for the weights.
    let chosen = chosen_template(context)?;
    let kv_dtype = args.kv_dtype()?;
    let checkpoint = open(&path)?;
    let tokenizer = tokenizer(&checkpoint)?;
    let template = match chosen {
        Some(template) => Some(template),
        None => ChatTemplate::from_metadata(checkpoint.metadata()).with_context(|| {
            format!("cannot use the chat template of {}; --chat-template names another", path.display())
        })?,
    };
    // One sequence needs no more blocks than its context has, and that is no longer than the model was made for.
    let made_for = ModelConfig::from_checkpoint(&checkpoint)
        .with_context(|| format!("cannot load {}", path.display()))?
        .usable_context_len();
    let options = LoadOptions {
        context_len: context.ctx,
        num_blocks: context
            .ctx
            .filter(|_| config.max_batch == 1 && engine.kv_cache_size.is_none())
            .map(|len| len.min(made_for).div_ceil(BLOCK_SIZE)),
        kv_cache_bytes: engine.kv_cache_size,
        kv_cache_limit: shared.kv_cache_limit,
        // A single sequence has rows for its guesses.
        max_logit_rows: config.max_batch.max(16),
        max_rows: LoadOptions::default().max_rows.max(config.max_batch),
        attention: args.attention.scheme(),
        kv_dtype,
        // `with_model` says.
        quantization: None,
    };
    let digest = engine.cache_dir.as_deref().map(|folder| file_digest(&path, folder)).transpose();
    let digest = digest.with_context(|| format!("cannot read {}", path.display()))?;
    let draft = engine.draft_model.as_deref().map(|name| draft::open(name, &tokenizer, progress)).transpose()?;
    let task = IntoRunners {
        digest,
        draft: draft.as_ref(),
        draft_kv_dtype: KvKind::default_of(args.device.device),
        max_batch: config.max_batch,
        progress,
    };
    let Runners { runner, draft, numerics_class } =
        with_model_on(&shared.processor, (args, &checkpoint), options, progress, task)?;
    let open = |folder: &PathBuf| {
        DiskCache::open(folder, &runner.identity(), runner.block_bytes(), engine.cache_dir_size as u64)
    };
    let disk = engine.cache_dir.as_ref().map(open).transpose().context("cannot use --cache-dir")?;
    let engine = Engine::start_with(EngineParts { runner, tokenizer: Arc::clone(&tokenizer), draft, disk }, config);
    Ok(Loaded { id, tokenizer, template, engine, numerics_class, facts: facts::of_file(&checkpoint, made_for) })
}

/// [`load_engine`] for one user at a terminal.
pub(crate) fn load_for_one(args: &AnswerArgs) -> Result<Loaded> {
    let AnswerArgs { model: model_args, context, engine, .. } = args;
    let config = EngineConfig { max_batch: 1, speculation: engine.speculation()?, ..EngineConfig::default() };
    // Nor for the file.
    chosen_template(context)?;
    let progress = Bars::new();
    let model = resolve(&model_args.model, &progress)?;
    let source = EngineSource { model, args: model_args, context, engine, config };
    load_engine(source, &Shared::default(), &progress)
}

/// `--chat-template`, if it is given: the name of a built-in template, else a file.
pub(crate) fn chosen_template(context: &ContextArgs) -> Result<Option<ChatTemplate>> {
    let Some(name) = context.chat_template.as_deref() else { return Ok(None) };
    if let Some(template) = ChatTemplate::builtin(name) {
        return Ok(Some(template));
    }
    let source = std::fs::read_to_string(name).with_context(|| {
        let names = ChatTemplate::builtin_names().join(", ");
        format!("--chat-template {name:?} is neither a file that can be read nor one of {names}")
    })?;
    Ok(Some(ChatTemplate::from_source(name, &source)?))
}
