//! What cannot be read is refused in words: each message names what is wrong, and what to do where something can be done.

use std::path::Path;

use taper_checkpoint::{Checkpoint, Error};
use taper_testkit::gguf::{GgufBuilder, Value};
use taper_testkit::tiny::TinyModel;

#[track_caller]
fn refused(builder: &GgufBuilder, parts: &[&str]) -> Error {
    let error = Checkpoint::from_bytes("test.gguf", builder.build()).expect_err("the file is unsound");
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{part:?} not in: {text}");
    }
    error
}

fn gguf() -> GgufBuilder {
    GgufBuilder::new(3)
}

#[test]
fn paths_that_are_no_files() {
    let directory = tempfile::tempdir().unwrap();
    let error = Checkpoint::open(directory.path()).unwrap_err();
    assert!(matches!(error, Error::NotGguf { .. }) && error.to_string().contains("directory"), "{error}");
    let error = Checkpoint::open(&directory.path().join("absent.gguf")).unwrap_err();
    assert!(matches!(error, Error::Io { .. }) && error.to_string().contains("absent.gguf"), "{error}");
    let error = Checkpoint::open(Path::new("/dev/null")).unwrap_err();
    assert!(error.to_string().contains("device"), "{error}");
    let empty = directory.path().join("empty.gguf");
    std::fs::write(&empty, "").unwrap();
    let error = Checkpoint::open(&empty).unwrap_err();
    assert!(error.to_string().contains("empty.gguf") && error.to_string().contains("is empty"), "{error}");
    let page = directory.path().join("page.gguf");
    std::fs::write(&page, "<!DOCTYPE html><title>Sign in</title>").unwrap();
    let error = Checkpoint::open(&page).unwrap_err();
    assert!(error.to_string().contains("web page"), "{error}");
}

#[test]
fn versions_and_byte_orders() {
    refused(&GgufBuilder::new(1), &["version 1", "2 and 3"]);
    refused(&GgufBuilder::new(4), &["version 4"]);
    assert!(matches!(refused(&GgufBuilder::new(3 << 24), &["big-endian"]), Error::BigEndian));
}

#[test]
fn parts_of_split_models() {
    for count in [Value::U16(2), Value::U32(2), Value::I32(2)] {
        let error = refused(&gguf().value("split.count", count), &["2 parts", "llama-gguf-split --merge"]);
        assert!(matches!(error, Error::Split { count: 2 }));
    }
    assert!(Checkpoint::from_bytes("whole", gguf().value("split.count", Value::U16(1)).build()).is_ok());
}

#[test]
fn tensor_types_by_name_with_what_to_do() {
    for (id, name) in
        [(9, "Q8_1"), (15, "Q8_K"), (20, "IQ4_NL"), (26, "I32"), (39, "MXFP4"), (34, "TQ1_0"), (99, "number 99")]
    {
        let file = gguf()
            .tensor("fine.weight", &[256], 0, vec![0; 1024])
            .tensor("blk.0.odd.weight", &[256], id, vec![0; 1024])
            .tensor("blk.1.odd.weight", &[256], id, vec![0; 1024]);
        let error = refused(&file, &["`blk.0.odd.weight`", name, "Q4_0", "Q6_K", "BF16", "llama-quantize"]);
        assert!(matches!(error, Error::UnsupportedTensorType { type_id, num_others: 1, .. } if type_id == id));
    }
}

#[test]
fn tensors_whose_description_makes_no_sense() {
    let tensor = |dims: &[u64], dtype, len| gguf().tensor("t", dims, dtype, vec![0; len]);
    refused(&tensor(&[0], 0, 4), &["`t`", "zero"]);
    refused(&tensor(&[], 0, 4), &["`t`", "0 dimensions"]);
    refused(&tensor(&[1; 5], 0, 4), &["`t`", "5 dimensions"]);
    refused(&tensor(&[16, 2], 2, 18), &["`t`", "16 elements", "Q4_0", "blocks of 32"]);
    refused(&tensor(&[1 << 32, 1 << 32], 0, 4), &["`t`", "overflow"]);
    refused(&tensor(&[1 << 62], 0, 4), &["`t`", "overflow"]);
    refused(&tensor(&[1 << 40], 0, 4), &["`t`", "data of tensor", "4398046511104 bytes needed"]);
    refused(&tensor(&[1], 0, 4).at_offset(u64::MAX - 7), &["data of tensor `t`"]);
    refused(&tensor(&[1], 0, 4).at_offset(3), &["`t`", "not aligned"]);
    refused(&tensor(&[8], 0, 32).tensor("u", &[8], 0, vec![0; 32]).at_offset(0), &["`u`", "overlaps", "`t`"]);
    refused(&tensor(&[1], 0, 4).tensor("t", &[1], 0, vec![0; 4]), &["`t`", "twice"]);
}

#[test]
fn keys_that_make_no_sense() {
    refused(&gguf().u32("k", 1).u32("k", 2), &["`k`", "twice"]);
    refused(&gguf().value("k", Value::Raw(13, vec![0; 8])), &["`k`", "unknown kind 13"]);
    refused(&gguf().value("k", Value::Bool(2)), &["`k`", "boolean is 2"]);
    refused(&gguf().value("k", Value::Array(7, vec![Value::Bool(1), Value::Bool(9)])), &["`k`", "boolean is 9"]);
    refused(&gguf().value("k", Value::Array(9, vec![Value::Array(0, vec![])])), &["`k`", "array of arrays"]);
    let too_big = Value::Array(10, vec![Value::U64(u64::MAX)]);
    refused(&gguf().value("k", too_big), &["`k`", "18446744073709551615"]);
    for alignment in [0, 1, 4, 33, 1 << 30] {
        refused(&gguf().u32("general.alignment", alignment), &["`general.alignment`", "power of two"]);
    }
    refused(&gguf().value("general.alignment", Value::U64(64)), &["`general.alignment`", "32-bit"]);
    refused(&gguf().u32("", 1), &["metadata key 0", "0 bytes"]);
    refused(&gguf().raw_key(b"a\0", Value::U8(0)), &["metadata key 0", "`a\\0`"]);
    refused(&gguf().raw_key(&[0xff, 0xfe], Value::U8(0)), &["metadata key 0", "not text"]);
    refused(&gguf().u32(&"k".repeat(70_000), 1), &["70000 bytes"]);
}

#[test]
fn counts_and_lengths_beyond_the_file() {
    refused(&gguf().claim_keys(u64::MAX), &["18446744073709551615 metadata keys"]);
    refused(&gguf().claim_tensors(1 << 40), &["tensors", "at most"]);
    refused(&gguf().claim_tensors(1000), &["1000 tensors", "24000 bytes needed"]);
    refused(&gguf().claim_keys(60_000), &["60000 metadata keys", "fetch it again"]);
    let huge_string = u64::MAX.to_le_bytes().to_vec();
    refused(&gguf().value("k", Value::Raw(8, huge_string)), &["value of key `k`"]);
    for len in [u64::MAX, u64::MAX / 8 + 2, 1 << 33] {
        let huge_array = [&10u32.to_le_bytes()[..], &len.to_le_bytes(), &[0; 64]].concat();
        refused(&gguf().value("k", Value::Raw(9, huge_array)), &["value of key `k`"]);
    }
}

#[test]
fn an_array_that_candle_would_blow_up() {
    let num: u32 = 5 << 20;
    let bytes = [&0u32.to_le_bytes()[..], &u64::from(num).to_le_bytes(), &vec![1; num as usize]].concat();
    refused(&gguf().value("k", Value::Raw(9, bytes)), &["`k`", "320 MiB"]);
}

/// Whatever is cut off, the message says so.
#[test]
fn every_truncation_of_a_small_model() {
    let whole = TinyModel { hidden: 32, heads: 2, kv_heads: 1, ffn: 32, layers: 1, ..TinyModel::default() }.to_gguf();
    // Padding after the last tensor may be missing; it is shorter than an alignment.
    for len in (0..whole.len() - 32).step_by(7).chain(0..64) {
        let error = Checkpoint::from_bytes("cut", whole[..len].to_vec()).unwrap_err();
        let is_expected = match len {
            0..4 => matches!(error, Error::NotGguf { .. }),
            _ => matches!(error, Error::Truncated { .. }),
        };
        assert!(is_expected, "{len}: {error}");
    }
}
