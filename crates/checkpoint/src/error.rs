//! Why a file cannot be used, in words that name the key or tensor and say what to do.

use std::path::PathBuf;

use crate::DType;

/// What can be wrong with a checkpoint. Files come from anywhere, so all of it is the caller's to report, not ours to panic about.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file could not be opened or mapped.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The path leads to something that is not a GGUF file.
    #[error("{} is not a GGUF file: {looks_like}", path.display())]
    NotGguf {
        /// The file.
        path: PathBuf,
        /// What it looks like, and what to do.
        looks_like: String,
    },
    /// A GGUF version that is not read here.
    #[error(
        "this is GGUF version {version}; versions 2 and 3 are supported. Convert the model again with a current llama.cpp"
    )]
    Version {
        /// The version that the file states.
        version: u32,
    },
    /// The numbers in the file are big-endian.
    #[error(
        "this GGUF file is big-endian (made for s390x or similar); only little-endian files are supported. Fetch the usual variant, or convert with gguf_convert_endian.py"
    )]
    BigEndian,
    /// One part of a model that is split over several files.
    #[error(
        "this file is one of {count} parts of a split model, which is not supported. Join them with `llama-gguf-split --merge FIRST_PART OUTPUT.gguf`"
    )]
    Split {
        /// The number of parts that the file states.
        count: u64,
    },
    /// The file ends too early.
    #[error(
        "the file ends inside {what}: {needed} bytes needed, {available} left. It is incomplete or damaged; fetch it again"
    )]
    Truncated {
        /// What was being read.
        what: String,
        /// Bytes that should follow.
        needed: u64,
        /// Bytes that do follow.
        available: u64,
    },
    /// A header whose structure makes no sense.
    #[error("the GGUF header is damaged: {reason}. Fetch the file again")]
    BadHeader {
        /// What was found and what was expected.
        reason: String,
    },
    /// A tensor is stored in a type that does not run here.
    #[error(
        "tensor {tensor} is stored as {type_name}, which is not supported{}. Supported: {}. \
         Fetch another variant of the model, or convert it from its float version with `llama-quantize MODEL-F16.gguf OUT.gguf Q8_0`",
        others(*num_others), DType::all_names()
    )]
    UnsupportedTensorType {
        /// The first such tensor.
        tensor: String,
        /// The number of the type in the file.
        type_id: u32,
        /// The name of the type.
        type_name: String,
        /// How many more tensors of the file have an unsupported type.
        num_others: usize,
    },
    /// A tensor that the model needs is not in the file.
    #[error("tensor {tensor} is missing from the file")]
    MissingTensor {
        /// The name that was asked for.
        tensor: String,
    },
    /// A metadata key that the model needs is not in the file.
    #[error("metadata key {key} is missing from the file")]
    MissingKey {
        /// The key that was asked for.
        key: String,
    },
    /// A metadata value has another type than the one that its key stands for.
    #[error("metadata key {key} is {found}; expected {expected}")]
    WrongKeyType {
        /// The key.
        key: String,
        /// The type that was asked for.
        expected: &'static str,
        /// The type in the file.
        found: String,
    },
    /// A tensor whose description makes no sense.
    #[error("tensor {tensor} is damaged: {reason}")]
    BadTensor {
        /// The tensor.
        tensor: String,
        /// What was found and what was expected.
        reason: String,
    },
    /// A metadata value that makes no sense.
    #[error("metadata key {key} cannot be used: {reason}")]
    BadKey {
        /// The key.
        key: String,
        /// What was found and what was expected.
        reason: String,
    },
}

fn others(num: usize) -> String {
    match num {
        0 => String::new(),
        1 => " (and so is another tensor)".to_owned(),
        _ => format!(" (nor are the types of {num} other tensors)"),
    }
}

/// A name from a file, fit to stand in a message: escaped, and cut when it is long.
pub(crate) fn quoted(name: &[u8]) -> String {
    const MAX: usize = 100;
    let text = String::from_utf8_lossy(&name[..name.len().min(4 * MAX)]);
    let mut escaped: String = text.chars().take(MAX).flat_map(char::escape_debug).collect();
    if text.chars().count() > MAX {
        escaped.push_str("...");
    }
    format!("`{escaped}`")
}

/// A complaint about a key of the file.
pub(crate) fn bad_key(key: &[u8], reason: String) -> Error {
    Error::BadKey { key: quoted(key), reason }
}

/// A complaint about a tensor of the file.
pub(crate) fn bad_tensor(name: &[u8], reason: String) -> Error {
    Error::BadTensor { tensor: quoted(name), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_files_cannot_paint_the_terminal() {
        assert_eq!(quoted(b"a.weight"), "`a.weight`");
        assert_eq!(quoted(b"\x1b[31m\n"), "`\\u{1b}[31m\\n`");
        assert!(quoted(&vec![b'x'; 1 << 20]).len() < 200);
    }

    #[test]
    fn an_unsupported_type_says_what_to_do() {
        let error = Error::UnsupportedTensorType {
            tensor: "`blk.0.ffn_up.weight`".into(),
            type_id: 39,
            type_name: "MXFP4".into(),
            num_others: 3,
        };
        let text = error.to_string();
        for part in ["blk.0.ffn_up.weight", "MXFP4", "3 other tensors", "Q6_K", "llama-quantize"] {
            assert!(text.contains(part), "{part} not in: {text}");
        }
    }
}
