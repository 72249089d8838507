//! Well-formed files are read as they were written.

use taper_checkpoint::{Checkpoint, DType};
use taper_testkit::approx::assert_close;
use taper_testkit::gguf::{GgufBuilder, Value};
use taper_testkit::quantize::{TinyType, encode};
use taper_testkit::rng::SplitMix;
use taper_testkit::tiny::TinyModel;

fn open(builder: &GgufBuilder) -> Checkpoint {
    Checkpoint::from_bytes("test.gguf", builder.build()).expect("the file is sound")
}

#[test]
fn every_kind_of_value_is_read() {
    for version in [2, 3] {
        let checkpoint = open(
            &GgufBuilder::new(version)
                .string("general.architecture", "llama")
                .u32("u32", 70_000)
                .f32("f32", 1.5)
                .bool("bool", true)
                .value("u8", Value::U8(200))
                .value("i64", Value::I64(-5))
                .value("u64", Value::U64(u64::MAX))
                .value("f64", Value::F64(0.25))
                .strings("strings", &["a", "", "ü"])
                .i32s("i32s", &[-1, 2])
                .f32s("f32s", &[0.5, -0.5])
                .value("u16s", Value::Array(2, vec![Value::U16(65_535)]))
                .value("bools", Value::Array(7, vec![Value::Bool(1), Value::Bool(0)]))
                .value("not utf-8", Value::Array(8, vec![Value::String(vec![b'x', 0xff])])),
        );
        let metadata = checkpoint.metadata();
        assert_eq!(metadata.architecture().unwrap(), "llama");
        assert_eq!(metadata.require_u32("u32").unwrap(), 70_000);
        assert_eq!(metadata.require_f32("f32").unwrap(), 1.5);
        assert_eq!(metadata.require_f32("f64").unwrap(), 0.25);
        assert!(metadata.require_bool("bool").unwrap());
        assert_eq!(metadata.require_u32("u8").unwrap(), 200);
        assert!(metadata.u32("i64").is_err());
        assert_eq!(metadata.require_u64("u64").unwrap(), u64::MAX);
        assert_eq!(metadata.require_strings("strings").unwrap(), ["a", "", "ü"]);
        assert_eq!(metadata.require_i32s("i32s").unwrap(), [-1, 2]);
        assert!(metadata.u32s("i32s").is_err());
        assert_eq!(metadata.require_f32s("f32s").unwrap(), [0.5, -0.5]);
        assert_eq!(metadata.require_u32s("u16s").unwrap(), [65_535]);
        assert_eq!(metadata.bools("bools").unwrap().unwrap(), [true, false]);
        assert_eq!(metadata.require_strings("not utf-8").unwrap(), ["x\u{fffd}"]);
        assert_eq!(metadata.keys().count(), 14);
        assert_eq!(checkpoint.tensors().count(), 0);
    }
}

#[test]
fn tensors_lie_where_the_file_says_at_every_alignment() {
    for alignment in [8, 32, 4096] {
        let floats = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        let checkpoint = open(
            &GgufBuilder::new(3)
                .alignment(alignment)
                .tensor("matrix", &[3, 2], 0, floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))
                .tensor("vector", &[2], 0, floats(&[7.0, 8.0])),
        );
        let matrix = checkpoint.tensor("matrix").unwrap();
        assert_eq!((matrix.dtype, matrix.shape.as_slice()), (DType::F32, &[2, 3][..]));
        assert_eq!((matrix.num_rows(), matrix.row_len(), matrix.num_elements()), (2, 3, 6));
        assert_eq!(matrix.to_f32(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(checkpoint.tensor("vector").unwrap().to_f32(), [7.0, 8.0]);
        assert_eq!(checkpoint.tensors().map(|tensor| tensor.name).collect::<Vec<_>>(), ["matrix", "vector"]);
        let error = checkpoint.tensor("other").unwrap_err().to_string();
        assert!(error.contains("`other`") && checkpoint.find("other").is_none(), "{error}");
    }
}

/// The testkit's quantizers and candle's decoders are two readings of the format: they agree to half a step.
#[test]
fn quantized_values_come_back_within_half_a_step() {
    let mut rng = SplitMix::new(11);
    // Several of the pieces in which blocks are decoded.
    let values = rng.normals(32 * 10_000, 1.0);
    for (dtype, tolerance) in [
        (TinyType::F32, 0.0),
        (TinyType::F16, 0.002),
        (TinyType::BF16, 0.016),
        (TinyType::Q8_0, 0.03),
        (TinyType::Q5_0, 0.3),
        (TinyType::Q5_1, 0.2),
        (TinyType::Q4_0, 0.65),
        (TinyType::Q4_1, 0.4),
    ] {
        let data = encode(dtype, &values, &mut rng);
        let checkpoint = open(&GgufBuilder::new(3).tensor("w", &[320, 1000], dtype.type_id(), data));
        let tensor = checkpoint.tensor("w").unwrap();
        assert_eq!(tensor.dtype.name(), format!("{dtype:?}"));
        let decoded = tensor.to_f32();
        assert_close(&decoded, &values, tolerance, 0.0);
        let error = decoded.iter().zip(&values).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(error >= tolerance / 8.0, "{dtype:?}: the tolerance says nothing, the error is {error}");
    }
}

#[test]
fn random_k_blocks_have_the_deviation_asked_for() {
    let mut rng = SplitMix::new(12);
    let values = rng.normals(256 * 200, 0.05);
    for dtype in [TinyType::Q2_K, TinyType::Q3_K, TinyType::Q4_K, TinyType::Q5_K, TinyType::Q6_K] {
        let data = encode(dtype, &values, &mut rng);
        let checkpoint = open(&GgufBuilder::new(3).tensor("w", &[256, 200], dtype.type_id(), data));
        let decoded = checkpoint.tensor("w").unwrap().to_f32();
        assert_eq!(decoded.len(), values.len());
        let num = decoded.len() as f32;
        let mean = decoded.iter().sum::<f32>() / num;
        let deviation = (decoded.iter().map(|v| v * v).sum::<f32>() / num).sqrt();
        assert!(mean.abs() < 0.01, "{dtype:?}: mean {mean}");
        assert!((0.035..0.07).contains(&deviation), "{dtype:?}: deviation {deviation}");
    }
}

#[test]
fn a_model_on_disk_is_mapped_and_shared_between_threads() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tiny.gguf");
    let file = TinyModel { architecture: "qwen3", weight_type: TinyType::Q8_0, ..TinyModel::default() }.to_gguf();
    std::fs::write(&path, &file).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert_eq!(checkpoint.path(), path);
    assert_eq!(checkpoint.file_len(), file.len() as u64);
    assert_eq!(checkpoint.metadata().require_u32("qwen3.attention.key_length").unwrap(), 16);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let num: usize = checkpoint.tensors().map(|tensor| tensor.to_f32().len()).sum();
                assert!(num > 50_000);
            });
        }
    });
    let data: usize = checkpoint.tensors().map(|tensor| tensor.bytes.len()).sum();
    assert!(data < file.len() && data > file.len() * 3 / 4);
}

#[test]
fn a_tensor_whose_memory_was_given_back_is_read_again_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let bytes: Vec<u8> = (0..300_000_u32).flat_map(|i| (i as f32).to_le_bytes()).collect();
    std::fs::write(&path, GgufBuilder::new(3).tensor("a", &[300_000], 0, bytes.clone()).build()).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let tensor = checkpoint.tensor("a").unwrap();
    for _ in 0..2 {
        assert!(tensor.bytes == bytes);
        checkpoint.release(&tensor);
    }
    assert!(tensor.bytes == bytes);
}
