//! What `taper calibrate` found for a model, as a file beside the models, named by the hash of the model's file; and the
//! softmax that a model runs with.

use crate::args::{ModelArgs, SoftmaxKind};
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use taper_hub::{Hub, ResolvedModel};
use taper_kernels::Backend;
use taper_models::{Calibration, Llama, ModelSoftmax};

/// Raised when the choice of references, or their meaning, changes.
const VERSION: u32 = 1;

/// A calibration and what it was made of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CalibrationFile {
    version: u32,
    /// For readers: files of equal content are one model, whatever their name.
    pub(crate) model: String,
    /// Of the model's file, in hexadecimal; the name of this file as well.
    model_sha256: String,
    pub(crate) text: String,
    pub(crate) tokens: usize,
    pub(crate) context: usize,
    pub(crate) layers: Calibration,
}

impl CalibrationFile {
    /// What was found for a model on so many tokens of a text, in chunks of `context`. Reads all of the model's file.
    pub(crate) fn new(
        model: &ResolvedModel,
        text: String,
        (tokens, context): (usize, usize),
        layers: Calibration,
    ) -> Result<Self> {
        let model_sha256 = sha256(&model.path)?;
        Ok(CalibrationFile { version: VERSION, model: model.id.clone(), model_sha256, text, tokens, context, layers })
    }

    /// Where it belongs.
    pub(crate) fn path(&self) -> Result<PathBuf> {
        path(&self.model_sha256)
    }

    /// The file, if there is one.
    fn read(path: &Path, model_sha256: &str) -> Result<Option<CalibrationFile>> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let file: CalibrationFile = serde_json::from_str(&text)
            .with_context(|| format!("{} is not what `taper calibrate` writes", path.display()))?;
        if file.version != VERSION {
            bail!("{} is of version {}, and this build reads {VERSION}", path.display(), file.version);
        }
        if file.model_sha256 != model_sha256 {
            bail!("{} is a calibration of another model, {}", path.display(), file.model);
        }
        Ok(Some(file))
    }

    /// Replaces the file, whole or not at all.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let write = || {
            fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
            let part = path.with_extension(format!("part-{}", std::process::id()));
            fs::write(&part, serde_json::to_string_pretty(self)? + "\n")?;
            fs::rename(&part, path)
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }
}

fn folder() -> Result<PathBuf> {
    Ok(Hub::from_env()?.config().taper_cache.join("calibration"))
}

fn path(model_sha256: &str) -> Result<PathBuf> {
    Ok(folder()?.join(format!("{model_sha256}.json")))
}

/// Of a file's content, in hexadecimal.
fn sha256(path: &Path) -> Result<String> {
    let hash = || -> std::io::Result<String> {
        let (mut file, mut sha256, mut piece) = (File::open(path)?, Sha256::new(), vec![0; 1 << 20]);
        loop {
            match file.read(&mut piece)? {
                0 => return Ok(sha256.finalize().iter().map(|byte| format!("{byte:02x}")).collect()),
                len => sha256.update(&piece[..len]),
            }
        }
    };
    hash().with_context(|| format!("cannot read {}", path.display()))
}

/// The calibration of a model, if there is one. Where nothing was ever calibrated the model need not be read.
fn find(model: &Path) -> Result<Option<CalibrationFile>> {
    let is_empty = fs::read_dir(folder()?).map_or(true, |mut entries| entries.next().is_none());
    if is_empty {
        return Ok(None);
    }
    let model_sha256 = sha256(model)?;
    CalibrationFile::read(&path(&model_sha256)?, &model_sha256)
}

/// Gives a model the softmax that was asked for, and says which in the log. A calibration that cannot be used is a
/// warning, and an error where it was asked for by name.
pub(crate) fn apply<B: Backend>(args: &ModelArgs, path: &Path, model: &mut Llama<B>) -> Result<()> {
    let why = match args.softmax {
        SoftmaxKind::OnlineThreshold if model.backend().info().name != "cuda" => {
            "asked for; here its references are those of online".to_string()
        }
        SoftmaxKind::Online | SoftmaxKind::OnlineThreshold | SoftmaxKind::Bounded => "asked for".to_string(),
        kind => match calibrated(args, path, model) {
            Ok(Some(about)) => about,
            Ok(None) if kind == SoftmaxKind::Auto => "no calibration of this model".to_string(),
            Ok(None) => bail!(
                "--softmax calibrated needs a calibration of this model, and there is none; this makes it:\n  \
                 taper calibrate --model {} --text FILE",
                args.model
            ),
            Err(error) if kind != SoftmaxKind::Auto => bail!(
                "{error:#}\n--softmax calibrated needs a calibration that can be used; this makes a new one:\n  \
                 taper calibrate --model {} --text FILE",
                args.model
            ),
            Err(error) => {
                tracing::warn!("the calibration is not used: {error:#}");
                "the calibration cannot be used".to_string()
            }
        },
    };
    match args.softmax {
        SoftmaxKind::Online => model.set_softmax(ModelSoftmax::Online)?,
        SoftmaxKind::OnlineThreshold => model.set_softmax(ModelSoftmax::OnlineThreshold)?,
        _ if *model.softmax() == ModelSoftmax::Online => model.set_softmax(ModelSoftmax::Bounded)?,
        _ => {}
    }
    tracing::info!("softmax: {} ({why})", model.softmax().name());
    Ok(())
}

/// Sets the softmax that a calibration says, if there is one; a line about it.
fn calibrated<B: Backend>(args: &ModelArgs, path: &Path, model: &mut Llama<B>) -> Result<Option<String>> {
    let Some(file) = find(path)? else { return Ok(None) };
    let softmax = match (args.softmax, file.layers.softmax()) {
        (SoftmaxKind::CalibratedTwoSided, ModelSoftmax::Calibrated(layers)) => ModelSoftmax::CalibratedTwoSided(layers),
        (_, softmax) => softmax,
    };
    model.set_softmax(softmax)?;
    let excluded = file.layers.layers.iter().filter(|layer| layer.excluded).count();
    let of = file.layers.layers.len();
    Ok(Some(format!("from {} tokens of {}; {excluded} of {of} layers online", file.tokens, file.text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_again_and_anything_else_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep").join("model.json");
        let file = CalibrationFile {
            version: VERSION,
            model: "m".into(),
            model_sha256: "5".into(),
            text: "t".into(),
            tokens: 512,
            context: 64,
            layers: Calibration { layers: vec![] },
        };
        let refused = || CalibrationFile::read(&path, "5").unwrap_err().to_string();
        assert_eq!(CalibrationFile::read(&path, "5").unwrap(), None);
        file.write(&path).unwrap();
        assert_eq!(CalibrationFile::read(&path, "5").unwrap(), Some(file.clone()));
        CalibrationFile { model_sha256: "6".into(), ..file.clone() }.write(&path).unwrap();
        assert!(refused().contains("another model"));
        CalibrationFile { version: VERSION + 1, ..file }.write(&path).unwrap();
        assert!(refused().contains("version"));
        fs::write(&path, "{").unwrap();
        assert!(refused().contains("taper calibrate"));
    }

    #[test]
    fn the_hash_is_that_of_the_content() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "abc").unwrap();
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256(file.path()).unwrap(), expected);
    }
}
