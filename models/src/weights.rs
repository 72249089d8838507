//! Tensors of a checkpoint as matrices and vectors of a backend: which ones a network has, in which shapes, and how they
//! are stacked (q, k and v read the same input, so they are one matrix; so are gate and up).

use crate::config::ModelConfig;
use crate::registry::Architecture;
use crate::{Error, LoadProgress, rope};
use std::collections::BTreeSet;
use taper_checkpoint::{Checkpoint, DType, TensorView};
use taper_kernels::reference::quantize::{can_be_quantized, quantize_rows};
use taper_kernels::{Backend, MatrixData, WeightType};

/// The embedding table, and the head where there is no other.
pub(crate) const EMBEDDING: &str = "token_embd.weight";
const HEAD: &str = "output.weight";
const OUTPUT_NORM: &str = "output_norm.weight";

/// What the matrices that a step multiplies with become when they are loaded, where the file has them as floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantization {
    /// [`WeightType::F8E4M3`]: a byte for each weight and a scale for each 32. Not every backend takes it.
    Fp8,
}

impl Quantization {
    /// `fp8`.
    pub fn name(self) -> &'static str {
        match self {
            Quantization::Fp8 => "fp8",
        }
    }

    /// What it makes of a matrix of this type with so many columns.
    fn makes(self, weight_type: WeightType, cols: usize) -> WeightType {
        match self {
            Quantization::Fp8 if can_be_quantized(weight_type, cols) => WeightType::F8E4M3,
            Quantization::Fp8 => weight_type,
        }
    }

    /// What the user should know of matrices that it leaves as they are.
    ///
    /// # Errors
    /// When these are all.
    pub(crate) fn check(self, checkpoint: &Checkpoint) -> Result<Option<String>, Error> {
        let of_file = stacked_shapes(checkpoint, None)?.concat();
        let made = stacked_shapes(checkpoint, Some(self))?.concat();
        let left: Vec<&MatrixShape> =
            of_file.iter().zip(&made).filter(|(one, other)| one == other).map(|(one, _)| one).collect();
        let types: BTreeSet<String> = left.iter().map(|shape| format!("{:?}", shape.0)).collect();
        let types = types.into_iter().collect::<Vec<_>>().join(", ");
        let (name, left, total) = (self.name(), left.len(), of_file.len());
        if left == total {
            return Err(Error::BadOption(format!(
                "quantization to {name} would change nothing: it takes matrices of F32, F16 or BF16 with rows of a multiple of 32, and \
                 this file has none, its types are {types}; load it as it is, or a float version of the model"
            )));
        }
        Ok((left > 0).then(|| {
            format!(
                "{left} of {total} matrices stay as they are ({types}): {name} is made of floats, in rows of a multiple of 32"
            )
        }))
    }
}

/// Weights of one layer.
pub(crate) struct Layer<B: Backend> {
    pub(crate) attn_norm: B::Vector,
    pub(crate) qkv: B::Matrix,
    pub(crate) qkv_bias: Option<B::Vector>,
    /// Norm weights of query and key heads.
    pub(crate) qk_norm: Option<(B::Vector, B::Vector)>,
    pub(crate) attn_output: B::Matrix,
    pub(crate) ffn_norm: B::Vector,
    pub(crate) gate_up: B::Matrix,
    pub(crate) ffn_down: B::Matrix,
}

/// Weights of a network.
pub(crate) struct Weights<B: Backend> {
    pub(crate) embedding: B::Matrix,
    pub(crate) layers: Vec<Layer<B>>,
    pub(crate) output_norm: B::Vector,
    /// None when the embedding is the head: there is one copy of it.
    pub(crate) head: Option<B::Matrix>,
}

impl<B: Backend> Weights<B> {
    pub(crate) fn load(
        backend: &B,
        checkpoint: &Checkpoint,
        config: &ModelConfig,
        quantization: Option<Quantization>,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, Error> {
        let total = checkpoint.tensors().map(|tensor| tensor.bytes.len()).sum();
        let mut loader = Loader { backend, checkpoint, quantization, progress, done: 0, total };
        (loader.progress)(LoadProgress { done: 0, total });
        // A table that nothing is multiplied with stays what it is.
        let embedding = loader.stored(&[EMBEDDING], quantization.filter(|_| config.tied))?;
        let layers = (0..config.num_layers).map(|layer| loader.layer(config, layer)).collect::<Result<_, _>>()?;
        let output_norm = loader.vector(&[OUTPUT_NORM])?;
        let head = if config.tied { None } else { Some(loader.matrix(&[HEAD])?) };
        Ok(Weights { embedding, layers, output_norm, head })
    }

    /// The matrix that makes logits.
    pub(crate) fn head(&self) -> &B::Matrix {
        self.head.as_ref().unwrap_or(&self.embedding)
    }
}

/// Bytes of the matrices, in the blocks of their types, that a step with one row reads: all but an embedding that is not the head.
pub(crate) fn bytes_per_token(
    checkpoint: &Checkpoint,
    config: &ModelConfig,
    quantization: Option<Quantization>,
) -> usize {
    let is_read = |tensor: &TensorView<'_>| tensor.shape.len() == 2 && (config.tied || tensor.name != EMBEDDING);
    let bytes = |tensor: TensorView<'_>| {
        let (weight_type, rows, cols) = shape_of(&tensor, quantization);
        weight_type.row_bytes(cols).map_or(tensor.bytes.len(), |of_row| rows * of_row)
    };
    checkpoint.tensors().filter(is_read).map(bytes).sum()
}

/// Type, outputs and inputs of a matrix.
pub type MatrixShape = (WeightType, usize, usize);

/// Those of every matrix that a step multiplies with, as the file has them, stacked as they are when loaded (a stack of parts
/// that differ in type counts as its first).
pub fn matrix_shapes(checkpoint: &Checkpoint) -> Result<Vec<MatrixShape>, Error> {
    let whole = |parts: Vec<MatrixShape>| {
        let outputs = parts.iter().map(|&(_, outputs, _)| outputs).sum();
        parts.first().map(|&(weight_type, _, inputs)| (weight_type, outputs, inputs))
    };
    Ok(stacked_shapes(checkpoint, None)?.into_iter().filter_map(whole).collect())
}

/// The same of every run of parts of one type, as they are stored: a GPU multiplies with each in a launch of its own.
pub fn part_shapes(checkpoint: &Checkpoint, quantization: Option<Quantization>) -> Result<Vec<MatrixShape>, Error> {
    let runs = |parts: Vec<MatrixShape>| {
        let of_run = |run: &[MatrixShape]| (run[0].0, run.iter().map(|part| part.1).sum(), run[0].2);
        parts.chunk_by(|one, next| one.0 == next.0).map(of_run).collect::<Vec<_>>()
    };
    Ok(stacked_shapes(checkpoint, quantization)?.into_iter().flat_map(runs).collect())
}

/// The parts of each matrix that is loaded: those of the steps, and the embedding where it is not the head.
pub(crate) fn stacks_of(
    checkpoint: &Checkpoint,
    config: &ModelConfig,
    quantization: Option<Quantization>,
) -> Result<Vec<Vec<MatrixShape>>, Error> {
    let mut stacks = stacked_shapes(checkpoint, quantization)?;
    if !config.tied {
        stacks.push(vec![shape_of(&checkpoint.tensor(EMBEDDING)?, None)]);
    }
    Ok(stacks)
}

/// What a tensor of two dimensions is stored as.
fn shape_of(tensor: &TensorView<'_>, quantization: Option<Quantization>) -> MatrixShape {
    let (of_file, cols) = (weight_type(tensor.dtype), tensor.shape[1]);
    let stored = quantization.map_or(of_file, |quantization| quantization.makes(of_file, cols));
    (stored, tensor.shape[0], cols)
}

/// Elements of each vector of a file.
pub(crate) fn vector_lens(checkpoint: &Checkpoint) -> Vec<usize> {
    checkpoint.tensors().filter(|tensor| tensor.shape.len() == 1).map(|tensor| tensor.shape[0]).collect()
}

/// The shapes of the parts of each of these matrices.
fn stacked_shapes(checkpoint: &Checkpoint, quantization: Option<Quantization>) -> Result<Vec<Vec<MatrixShape>>, Error> {
    let config = ModelConfig::from_checkpoint(checkpoint)?;
    let head = if config.tied { EMBEDDING } else { HEAD };
    let layers = (0..config.num_layers).flat_map(|layer| stacks(layer).into_iter());
    let shape = |name: &String| Ok(shape_of(&checkpoint.tensor(name)?, quantization));
    layers.chain([vec![head.to_string()]]).map(|names| names.iter().map(shape).collect()).collect()
}

/// The tensors of a layer's matrices: qkv, attention output, gate and up, down.
fn stacks(layer: usize) -> [Vec<String>; 4] {
    let named = |names: &[&str]| names.iter().map(|name| format!("blk.{layer}.{name}.weight")).collect();
    [
        named(&["attn_q", "attn_k", "attn_v"]),
        named(&["attn_output"]),
        named(&["ffn_gate", "ffn_up"]),
        named(&["ffn_down"]),
    ]
}

struct Loader<'a, B: Backend> {
    backend: &'a B,
    checkpoint: &'a Checkpoint,
    quantization: Option<Quantization>,
    progress: &'a mut dyn FnMut(LoadProgress),
    done: usize,
    total: usize,
}

impl<'a, B: Backend> Loader<'a, B> {
    fn layer(&mut self, config: &ModelConfig, layer: usize) -> Result<Layer<B>, Error> {
        let name = |suffix: &str| format!("blk.{layer}.{suffix}");
        let [qkv, attn_output, gate_up, ffn_down] = stacks(layer);
        Ok(Layer {
            attn_norm: self.vector(&[&name("attn_norm.weight")])?,
            qkv: self.matrix(&qkv)?,
            qkv_bias: if config.qkv_bias {
                Some(self.vector(&[&name("attn_q.bias"), &name("attn_k.bias"), &name("attn_v.bias")])?)
            } else {
                None
            },
            qk_norm: if config.qk_norm {
                Some((self.vector(&[&name("attn_q_norm.weight")])?, self.vector(&[&name("attn_k_norm.weight")])?))
            } else {
                None
            },
            attn_output: self.matrix(&attn_output)?,
            ffn_norm: self.vector(&[&name("ffn_norm.weight")])?,
            gate_up: self.matrix(&gate_up)?,
            ffn_down: self.matrix(&ffn_down)?,
        })
    }

    /// One matrix of stacked tensors, for products.
    fn matrix<S: AsRef<str>>(&mut self, names: &[S]) -> Result<B::Matrix, Error> {
        self.stored(names, self.quantization)
    }

    /// One matrix of stacked tensors, stored so.
    fn stored<S: AsRef<str>>(&mut self, names: &[S], quantization: Option<Quantization>) -> Result<B::Matrix, Error> {
        let tensors = self.tensors(names)?;
        let made = tensors.iter().map(|tensor| made_of(tensor, quantization)).collect::<Result<Vec<_>, _>>()?;
        let mut parts = Vec::with_capacity(tensors.len());
        for (tensor, made) in tensors.iter().zip(&made) {
            let (weight_type, rows, cols) = shape_of(tensor, quantization);
            parts.push(MatrixData { weight_type, rows, cols, bytes: made.as_deref().unwrap_or(tensor.bytes) });
        }
        let matrix = self.backend.matrix(&parts)?;
        self.advance(&tensors);
        Ok(matrix)
    }

    /// One vector of tensors laid end to end.
    fn vector<S: AsRef<str>>(&mut self, names: &[S]) -> Result<B::Vector, Error> {
        let tensors = self.tensors(names)?;
        let values: Vec<f32> = tensors.iter().flat_map(TensorView::to_f32).collect();
        let vector = self.backend.vector(&values)?;
        self.advance(&tensors);
        Ok(vector)
    }

    fn tensors<S: AsRef<str>>(&self, names: &[S]) -> Result<Vec<TensorView<'a>>, Error> {
        names.iter().map(|name| Ok(self.checkpoint.tensor(name.as_ref())?)).collect()
    }

    fn advance(&mut self, tensors: &[TensorView<'_>]) {
        self.done += tensors.iter().map(|tensor| tensor.bytes.len()).sum::<usize>();
        tensors.iter().for_each(|tensor| self.checkpoint.release(tensor));
        (self.progress)(LoadProgress { done: self.done, total: self.total });
    }
}

/// The rows of a tensor that is stored as another type than the file's.
fn made_of(tensor: &TensorView<'_>, quantization: Option<Quantization>) -> Result<Option<Vec<u8>>, Error> {
    let (weight_type, rows, cols) = shape_of(tensor, None);
    if shape_of(tensor, quantization).0 == weight_type {
        return Ok(None);
    }
    let rows = quantize_rows(MatrixData { weight_type, rows, cols, bytes: tensor.bytes });
    rows.map(Some).map_err(|reason| Error::Quantization { tensor: tensor.name.to_owned(), reason })
}

fn weight_type(dtype: DType) -> WeightType {
    match dtype {
        DType::F32 => WeightType::F32,
        DType::F16 => WeightType::F16,
        DType::BF16 => WeightType::BF16,
        DType::Q4_0 => WeightType::Q4_0,
        DType::Q4_1 => WeightType::Q4_1,
        DType::Q5_0 => WeightType::Q5_0,
        DType::Q5_1 => WeightType::Q5_1,
        DType::Q8_0 => WeightType::Q8_0,
        DType::Q2_K => WeightType::Q2_K,
        DType::Q3_K => WeightType::Q3_K,
        DType::Q4_K => WeightType::Q4_K,
        DType::Q5_K => WeightType::Q5_K,
        DType::Q6_K => WeightType::Q6_K,
    }
}

/// Tensors of a layer, by what follows `blk.N.`, with their row-major shapes.
fn layer_tensors(config: &ModelConfig) -> Result<Vec<(&'static str, Vec<usize>)>, Error> {
    let hidden = config.hidden_size;
    let head_dim = config.heads.head_dim;
    let width = |heads: usize| {
        heads.checked_mul(head_dim).ok_or_else(|| Error::BadKey {
            key: format!("{}.attention.head_count", config.architecture),
            found: heads.to_string(),
            expected: format!("heads of {head_dim} elements would not fit in any tensor"),
        })
    };
    let (q_width, kv_width) = (width(config.heads.num_heads)?, width(config.heads.num_kv_heads)?);
    let mut tensors = vec![
        ("attn_norm.weight", vec![hidden]),
        ("attn_q.weight", vec![q_width, hidden]),
        ("attn_k.weight", vec![kv_width, hidden]),
        ("attn_v.weight", vec![kv_width, hidden]),
        ("attn_output.weight", vec![hidden, q_width]),
        ("ffn_norm.weight", vec![hidden]),
        ("ffn_gate.weight", vec![config.ffn_size, hidden]),
        ("ffn_up.weight", vec![config.ffn_size, hidden]),
        ("ffn_down.weight", vec![hidden, config.ffn_size]),
    ];
    if config.qkv_bias {
        tensors.extend([
            ("attn_q.bias", vec![q_width]),
            ("attn_k.bias", vec![kv_width]),
            ("attn_v.bias", vec![kv_width]),
        ]);
    }
    if config.qk_norm {
        tensors.extend([("attn_q_norm.weight", vec![head_dim]), ("attn_k_norm.weight", vec![head_dim])]);
    }
    Ok(tensors)
}

/// Checks that the file has every tensor of the network in its shape, and no other. A layer that is missing ends the walk,
/// so a huge layer count costs nothing.
pub(crate) fn check(checkpoint: &Checkpoint, architecture: &Architecture, config: &ModelConfig) -> Result<(), Error> {
    let expect = |name: &str, shape: &[usize]| {
        let tensor = checkpoint.tensor(name)?;
        if tensor.shape == shape {
            return Ok(());
        }
        Err(Error::WrongShape { tensor: name.into(), expected: shape.to_vec(), found: tensor.shape.clone() })
    };
    expect(EMBEDDING, &[config.vocab_size, config.hidden_size])?;
    expect(OUTPUT_NORM, &[config.hidden_size])?;
    if !config.tied {
        expect(HEAD, &[config.vocab_size, config.hidden_size])?;
    }
    let layer_tensors = layer_tensors(config)?;
    for layer in 0..config.num_layers {
        for (suffix, shape) in &layer_tensors {
            expect(&format!("blk.{layer}.{suffix}"), shape)?;
        }
    }
    refuse_unexpected(checkpoint, architecture, config, &layer_tensors)
}

fn refuse_unexpected(
    checkpoint: &Checkpoint,
    architecture: &Architecture,
    config: &ModelConfig,
    layer_tensors: &[(&'static str, Vec<usize>)],
) -> Result<(), Error> {
    let expected = |name: &str| match name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
        Some((layer, suffix)) => {
            layer.parse::<usize>().is_ok_and(|layer| layer < config.num_layers)
                && layer_tensors.iter().any(|(known, _)| *known == suffix)
        }
        None => [EMBEDDING, HEAD, OUTPUT_NORM].contains(&name) || (architecture.rope_factors && name == rope::FACTORS),
    };
    let unexpected: Vec<String> = checkpoint
        .tensors()
        .filter(|tensor| !expected(tensor.name))
        .map(|tensor| tensor.name.chars().take(64).collect())
        .collect();
    if unexpected.is_empty() {
        return Ok(());
    }
    Err(Error::UnexpectedTensors {
        architecture: architecture.name,
        count: unexpected.len(),
        names: unexpected[..unexpected.len().min(5)].join(", "),
    })
}
