//! The compiled kernels: the image that the build made of `kernels/cuda/*.cu`, or another one that TAPER_FATBIN names when the
//! program runs, so that an edited kernel can be tried without a new program.
//!
//! An image is one or several modules, one behind the other, each a fatbin (code for several architectures) or, alone, a cubin
//! (code for one). A GPU loads each by itself; [`modules`] takes the image apart. A fatbin begins with its magic number
//! (u32), version (u16), the size of this header (u16) and of what follows (u64), little-endian.

use std::borrow::Cow;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The variable that names another image.
const VARIABLE: &str = "TAPER_FATBIN";
const FATBIN_MAGIC: [u8; 4] = 0xBA55_ED50_u32.to_le_bytes();
const ELF_MAGIC: [u8; 4] = *b"\x7fELF";
const FATBIN_HEADER: usize = 16;

/// The headers of fatbins are read in words of eight bytes.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

static IMAGE: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/kernels.fatbin")));
static REPORT: &str = include_str!(concat!(env!("OUT_DIR"), "/kernels.txt"));

/// Why there is no image.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FatbinError {
    /// The build made none.
    #[error(
        "this program has no CUDA kernels: {reason}; README.md says how to build it with them, and {VARIABLE} may name an image"
    )]
    NoKernels {
        /// Why it made none.
        reason: &'static str,
    },
    /// The file cannot be read.
    #[error("{VARIABLE}={}: {source}", .path.display())]
    Unreadable {
        /// What the variable says.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// The file has no bytes.
    #[error("{VARIABLE}={}: the file is empty", .path.display())]
    Empty {
        /// What the variable says.
        path: PathBuf,
    },
    /// A module begins with none of the magic numbers.
    #[error(
        "{VARIABLE}={}: neither a fatbin nor a cubin: byte {at} and the next are {found:02x?}; make one by `nvcc -fatbin`",
        .path.display()
    )]
    NotAnImage {
        /// What the variable says.
        path: PathBuf,
        /// Where the module would begin.
        at: usize,
        /// What is there, four bytes at most.
        found: Vec<u8>,
    },
    /// A fatbin ends before its end.
    #[error("{VARIABLE}={}: cut: the fatbin from byte {at} on has {expected} bytes, and {found} are there", .path.display())]
    Cut {
        /// What the variable says.
        path: PathBuf,
        /// Where the module begins.
        at: usize,
        /// Bytes that its header announces, itself among them.
        expected: u64,
        /// Bytes from its beginning to the end of the file.
        found: usize,
    },
}

/// The kernels to load: those in the program, or those of the file that TAPER_FATBIN names.
///
/// # Errors
/// When the program has none, or when the file is not there or not an image.
pub fn image() -> Result<Cow<'static, [u8]>, FatbinError> {
    choose(env::var_os(VARIABLE).as_deref(), &IMAGE.0, REPORT)
}

/// The modules of an image, in order. Each of an [`image()`] has a magic number at its beginning and is as long as it says.
pub fn modules(image: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = image;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let len = usize::try_from(module_len(rest)).map_or(rest.len(), |len| len.min(rest.len()));
        let module;
        (module, rest) = rest.split_at(len);
        Some(module)
    })
}

/// What the build says of its kernels: a line that sums up, the seconds of each file, and for each kernel and architecture its
/// registers, shared memory, stack and spills; or `none: ` and why.
pub fn report() -> &'static str {
    REPORT
}

/// In a line: which kernels would be loaded, or why none.
pub fn describe() -> String {
    describe_image(&image(), REPORT)
}

fn describe_image(image: &Result<Cow<'static, [u8]>, FatbinError>, report: &str) -> String {
    match image {
        Ok(Cow::Owned(bytes)) => {
            format!("{} KiB of {VARIABLE}", bytes.len().div_ceil(1024))
        }
        Ok(Cow::Borrowed(_)) | Err(FatbinError::NoKernels { .. }) => {
            report.lines().next().unwrap_or_default().to_owned()
        }
        Err(error) => error.to_string(),
    }
}

fn choose(
    file: Option<&OsStr>,
    embedded: &'static [u8],
    report: &'static str,
) -> Result<Cow<'static, [u8]>, FatbinError> {
    match file.filter(|file| !file.is_empty()) {
        Some(file) => read(Path::new(file)).map(Cow::Owned),
        None if embedded.is_empty() => {
            Err(FatbinError::NoKernels { reason: report.trim().strip_prefix("none: ").unwrap_or(report) })
        }
        None => Ok(Cow::Borrowed(embedded)),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, FatbinError> {
    let path = || path.to_owned();
    let bytes = fs::read(path()).map_err(|source| FatbinError::Unreadable { path: path(), source })?;
    if bytes.is_empty() {
        return Err(FatbinError::Empty { path: path() });
    }
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        // A cubin does not say how long it is, so there is nothing behind one.
        if !(rest.starts_with(&FATBIN_MAGIC) || at == 0 && rest.starts_with(&ELF_MAGIC)) {
            return Err(FatbinError::NotAnImage { path: path(), at, found: rest[..rest.len().min(4)].to_vec() });
        }
        let expected = module_len(rest);
        match usize::try_from(expected).ok().filter(|&len| len <= rest.len()) {
            Some(len) => at += len,
            None => return Err(FatbinError::Cut { path: path(), at, expected, found: rest.len() }),
        }
    }
    Ok(bytes)
}

/// Bytes of the module at the beginning, as it says itself: more than none.
fn module_len(bytes: &[u8]) -> u64 {
    if !bytes.starts_with(&FATBIN_MAGIC) {
        return bytes.len() as u64;
    }
    let Some(header) = bytes.first_chunk::<FATBIN_HEADER>() else { return FATBIN_HEADER as u64 };
    let [_, _, _, _, _, _, head_low, head_high, size @ ..] = *header;
    u64::from(u16::from_le_bytes([head_low, head_high]))
        .max(FATBIN_HEADER as u64)
        .saturating_add(u64::from_le_bytes(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fatbin of some bytes.
    fn fatbin(content: &[u8]) -> Vec<u8> {
        [&FATBIN_MAGIC, &[1, 0, 16, 0][..], &(content.len() as u64).to_le_bytes(), content].concat()
    }

    /// What comes of a TAPER_FATBIN with these bytes.
    fn from_file(bytes: &[u8]) -> Result<Cow<'static, [u8]>, FatbinError> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("image");
        fs::write(&file, bytes).unwrap();
        choose(Some(file.as_os_str()), b"embedded", "1 KiB")
    }

    #[test]
    fn an_image_of_the_file_that_is_named_is_taken_instead() {
        let two = [fatbin(b"softmax!"), fatbin(b"gemv")].concat();
        let image = from_file(&two).unwrap();
        assert_eq!(modules(&image).collect::<Vec<_>>(), [fatbin(b"softmax!"), fatbin(b"gemv")]);
        let cubin = b"\x7fELF and so on";
        assert_eq!(modules(&from_file(cubin).unwrap()).collect::<Vec<_>>(), [cubin]);
        assert_eq!(describe_image(&Ok(image), "12 KiB for sm_80"), "1 KiB of TAPER_FATBIN");

        assert!(matches!(choose(None, b"embedded", ""), Ok(Cow::Borrowed(b"embedded"))));
        assert!(matches!(choose(Some("".as_ref()), b"embedded", ""), Ok(Cow::Borrowed(b"embedded"))));
    }

    #[test]
    fn a_file_that_is_no_image_is_refused_with_what_it_is() {
        let says = |bytes: &[u8], expected: &str| {
            let error = from_file(bytes).unwrap_err();
            let message = error.to_string();
            assert!(message.starts_with("TAPER_FATBIN=/") && message.contains(expected), "{message}");
            assert_eq!(describe_image(&Err(error), ""), message);
        };
        let whole = fatbin(b"softmax");
        says(b"", "the file is empty");
        says(b"// ptx", "neither a fatbin nor a cubin: byte 0 and the next are [2f, 2f, 20, 70]");
        says(b"\x7f", "are [7f]");
        says(&whole[..whole.len() - 1], "the fatbin from byte 0 on has 23 bytes, and 22 are there");
        says(&whole[..7], "has 16 bytes, and 7 are there");
        says(&[&whole[..], b"\x7fELF"].concat(), "byte 23 and the next are [7f, 45, 4c, 46]");
        says(&[&FATBIN_MAGIC, &[1, 0, 16, 0][..], &[0xff; 8]].concat(), "has 18446744073709551615 bytes");
        let missing = choose(Some("/missing/kernels.fatbin".as_ref()), b"", "").unwrap_err().to_string();
        assert!(missing.contains("/missing/kernels.fatbin: No such file"), "{missing}");
    }

    #[test]
    fn a_build_without_kernels_says_why_and_what_to_do() {
        let report = "none: this build found no nvcc 13.0 or newer (/usr/bin/nvcc is 11.8)\n";
        let none = choose(None, b"", report);
        assert_eq!(describe_image(&none, report), report.trim());
        let message = none.unwrap_err().to_string();
        for part in ["(/usr/bin/nvcc is 11.8); README", "TAPER_FATBIN"] {
            assert!(message.contains(part), "{part} in {message}");
        }
    }

    /// Cargo does not see a new file in the folder.
    #[test]
    fn the_image_of_this_build_has_every_source() {
        let Ok(image) = choose(None, &IMAGE.0, REPORT) else {
            return assert!(REPORT.starts_with("none: "), "{REPORT}");
        };
        assert_eq!(IMAGE.0.as_ptr().addr() % 16, 0);
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda");
        let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let sources: Vec<String> = names.filter(|name| name.ends_with(".cu")).collect();
        for name in &sources {
            let is_there = REPORT.lines().any(|line| line.split_whitespace().next() == Some(name));
            assert!(is_there, "{name} was added after the last run of build.rs: touch kernels/build.rs\n{REPORT}");
        }
        assert_eq!(modules(&image).count(), sources.len());
        assert!(modules(&image).all(|module| module.starts_with(&FATBIN_MAGIC) && module.len() % 8 == 0));
        assert!(describe().contains("nvcc") || env::var_os(VARIABLE).is_some());
    }
}
