//! What a network is whose matrices are quantized when it is loaded.
#![allow(clippy::unwrap_used, reason = "a test stops at the first thing that goes wrong")]

mod support;

use support::{cpu, run_whole};
use taper_checkpoint::Checkpoint;
use taper_kernels::reference::dequantize::dequantize_row;
use taper_kernels::reference::quantize::quantize_rows;
use taper_kernels::{Backend, MatrixData, Reference, WeightType};
use taper_models::{Error, Llama, LoadOptions, Quantization, part_shapes};
use taper_testkit::tiny::{TinyModel, TinyType};

const EMBEDDING: &str = "token_embd.weight";

fn load_as<B: Backend>(backend: B, bytes: Vec<u8>, quantization: Option<Quantization>) -> Result<Llama<B>, Error> {
    let options = LoadOptions { quantization, ..support::options() };
    Llama::load(backend, &Checkpoint::from_bytes("tiny.gguf", bytes)?, options, &mut |_| {})
}

fn fp8(bytes: Vec<u8>) -> Result<Llama<Reference>, Error> {
    load_as(Reference::new(), bytes, Some(Quantization::Fp8))
}

/// A file that has as float32 what the blocks of a quantized network stand for.
fn decoded(model: &TinyModel) -> Vec<u8> {
    let weight_type = match model.weight_type {
        TinyType::F32 => WeightType::F32,
        TinyType::F16 => WeightType::F16,
        _ => WeightType::BF16,
    };
    let file = Checkpoint::from_bytes("tiny.gguf", model.to_gguf()).unwrap();
    let mut builder = model.builder();
    for tensor in file.tensors().filter(|tensor| tensor.shape.len() == 2 && (model.tied || tensor.name != EMBEDDING)) {
        let (rows, cols) = (tensor.shape[0], tensor.shape[1]);
        let blocks = quantize_rows(MatrixData { weight_type, rows, cols, bytes: tensor.bytes }).unwrap();
        let mut values = vec![0.0_f32; rows * cols];
        dequantize_row(WeightType::F8E4M3, &blocks, &mut values);
        let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let dims = [cols as u64, rows as u64];
        builder = builder.without_tensor(tensor.name).tensor(tensor.name, &dims, TinyType::F32.type_id(), bytes);
    }
    builder.build()
}

fn bits(model: &mut Llama<Reference>) -> Vec<u32> {
    let tokens: Vec<u32> = (0..40).map(|i| i * 7 % 250).collect();
    run_whole(model, &tokens).concat().iter().map(|x| x.to_bits()).collect()
}

#[test]
fn a_quantized_network_is_that_of_a_file_with_what_its_blocks_stand_for() {
    let cases = [("llama", TinyType::F32, true), ("qwen3", TinyType::BF16, false), ("qwen2", TinyType::F16, true)];
    for (architecture, weight_type, tied) in cases {
        let model = TinyModel { architecture, weight_type, tied, ..TinyModel::default() };
        let mut quantized = fp8(model.to_gguf()).unwrap();
        assert!(quantized.notes().is_empty(), "{:?}", quantized.notes());
        let actual = bits(&mut quantized);
        let expected = bits(&mut load_as(Reference::new(), decoded(&model), None).unwrap());
        assert!(actual == expected, "{architecture} {weight_type:?}");
        let plain = bits(&mut load_as(Reference::new(), model.to_gguf(), None).unwrap());
        assert!(actual != plain, "{architecture} {weight_type:?}: nothing was quantized");
    }
}

#[test]
fn a_token_reads_a_byte_and_a_sixteenth_for_each_weight() {
    let bytes = |weight_type, tied| {
        let model = TinyModel { weight_type, tied, ..TinyModel::default() };
        let plain = load_as(Reference::new(), model.to_gguf(), None).unwrap().weight_bytes_per_token();
        (plain, fp8(model.to_gguf()).unwrap().weight_bytes_per_token())
    };
    for tied in [true, false] {
        let (bf16, of_bf16) = bytes(TinyType::BF16, tied);
        let (f32, of_f32) = bytes(TinyType::F32, tied);
        assert_eq!((of_bf16, of_f32), (bf16 / 2 / 32 * 34, f32 / 4 / 32 * 34));
    }
}

#[test]
fn products_are_measured_with_what_is_stored() {
    let model = TinyModel { weight_type: TinyType::BF16, embedding_type: Some(TinyType::Q8_0), ..TinyModel::default() };
    let file = Checkpoint::from_bytes("tiny.gguf", model.to_gguf()).unwrap();
    let types = |quantization| -> Vec<WeightType> {
        part_shapes(&file, quantization).unwrap().into_iter().map(|(weight_type, ..)| weight_type).collect()
    };
    // Four in each of two layers, and the head.
    let expected = |of_layers| [vec![of_layers; 8], vec![WeightType::Q8_0]].concat();
    assert_eq!(types(None), expected(WeightType::BF16));
    assert_eq!(types(Some(Quantization::Fp8)), expected(WeightType::F8E4M3));
}

#[test]
fn it_has_an_identity_of_its_own() {
    let identity = |quantization| {
        let mut model = load_as(Reference::new(), TinyModel::default().to_gguf(), quantization).unwrap();
        model.set_file_digest("a".into());
        model.identity()
    };
    assert_eq!(identity(Some(Quantization::Fp8)), identity(Some(Quantization::Fp8)));
    assert_ne!(identity(None), identity(Some(Quantization::Fp8)));
}

#[test]
fn what_is_quantized_already_stays_as_it_is_and_the_user_is_told() {
    let mixed = TinyModel {
        weight_type: TinyType::Q8_0,
        embedding_type: Some(TinyType::BF16),
        layers: 2,
        ..TinyModel::default()
    };
    let model = fp8(mixed.to_gguf()).unwrap();
    let [note] = model.notes() else { panic!("{:?}", model.notes()) };
    assert!(note.contains("14 of 15 matrices stay as they are (Q8_0)"), "{note}");

    let Err(error) = fp8(TinyModel { weight_type: TinyType::Q8_0, ..TinyModel::default() }.to_gguf()) else {
        panic!("nothing was left to quantize")
    };
    let message = error.to_string();
    assert!(message.contains("fp8 would change nothing") && message.contains("its types are Q8_0"), "{message}");
}

#[test]
fn a_weight_that_has_no_place_is_refused_with_the_name_of_its_tensor() {
    let model = TinyModel::default();
    let name = "blk.1.ffn_up.weight";
    for bad in [f32::NAN, f32::INFINITY, 1e30] {
        let mut values = vec![0.01_f32; model.hidden * model.ffn];
        values[777] = bad;
        let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let dims = [model.hidden as u64, model.ffn as u64];
        let file = model.builder().without_tensor(name).tensor(name, &dims, TinyType::F32.type_id(), bytes).build();
        assert!(load_as(Reference::new(), file.clone(), None).is_ok());
        let Err(error) = fp8(file) else { panic!("{bad} was taken") };
        let message = error.to_string();
        assert!(message.contains(name) && message.contains("F8E4M3"), "{message}");
    }
}

#[test]
fn processors_say_what_to_use_in_its_place() {
    let Err(error) = load_as(cpu(1), TinyModel::default().to_gguf(), Some(Quantization::Fp8)) else {
        panic!("it was loaded")
    };
    assert!(error.to_string().contains("Q8_0"), "{error}");
}
