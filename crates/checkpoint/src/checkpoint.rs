//! An open file: the mapping, its metadata, and where each tensor lies.

use std::collections::HashMap;
use std::fs::File;
use std::io::Cursor;
use std::ops::Range;
use std::path::{Path, PathBuf};

use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::Content;
use memmap2::Mmap;
#[cfg(unix)]
use memmap2::UncheckedAdvice;

use crate::error::quoted;
use crate::looks_like::looks_like;
use crate::{DType, Error, Metadata, TensorView, header};

/// An open GGUF file. The file must stay unchanged while it is open: the system ends a program that reads a part of a
/// mapping that was cut off.
pub struct Checkpoint {
    path: PathBuf,
    bytes: Bytes,
    metadata: Metadata,
    /// In the order of the data.
    tensors: Vec<Tensor>,
    index: HashMap<String, usize>,
}

enum Bytes {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

struct Tensor {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    range: Range<usize>,
}

impl Checkpoint {
    /// Maps and checks the file. Reads the header; tensor data is read from disk when it is touched.
    pub fn open(path: &Path) -> Result<Checkpoint, Error> {
        let io = |source| Error::Io { path: path.to_owned(), source };
        let attributes = std::fs::metadata(path).map_err(io)?;
        if !attributes.is_file() {
            let what = if attributes.is_dir() { "a directory" } else { "a pipe, socket or device" };
            let looks_like = format!("it is {what}. Give the .gguf file itself");
            return Err(Error::NotGguf { path: path.to_owned(), looks_like });
        }
        let file = File::open(path).map_err(io)?;
        if attributes.len() == 0 {
            // The system maps no empty file.
            return Checkpoint::new(path, Bytes::Owned(Vec::new()));
        }
        let map = map(&file).map_err(io)?;
        Checkpoint::new(path, Bytes::Mapped(map))
    }

    /// A checkpoint over bytes in memory, under a path that only serves as its name.
    pub fn from_bytes(path: impl Into<PathBuf>, bytes: Vec<u8>) -> Result<Checkpoint, Error> {
        Checkpoint::new(&path.into(), Bytes::Owned(bytes))
    }

    fn new(path: &Path, bytes: Bytes) -> Result<Checkpoint, Error> {
        let file = bytes.as_slice();
        if let Some(looks_like) = looks_like(file) {
            return Err(Error::NotGguf { path: path.to_owned(), looks_like });
        }
        let header = header::check(file)?;
        let content = Content::read(&mut Cursor::new(&file[..header.len]))
            .map_err(|error| Error::BadHeader { reason: first_line(&error.to_string()) })?;
        if content.tensor_data_offset != header.data_offset {
            let reason = format!("data begins at {} or at {}", header.data_offset, content.tensor_data_offset);
            return Err(Error::BadHeader { reason });
        }
        let metadata = Metadata::from_candle(content.metadata)?;

        let mut tensors = Vec::with_capacity(content.tensor_infos.len());
        for (name, info) in content.tensor_infos {
            let dtype = supported(info.ggml_dtype).ok_or_else(|| Error::BadTensor {
                tensor: quoted(name.as_bytes()),
                reason: format!("its type {:?} is not supported", info.ggml_dtype),
            })?;
            let shape = info.shape.into_dims();
            // The walk has checked that neither the product nor the end overflows and that the end is in the file.
            let len = shape.iter().product::<usize>() / dtype.block_len() * dtype.block_bytes();
            let start = (header.data_offset + info.offset) as usize;
            tensors.push(Tensor { name, dtype, shape, range: start..start + len });
        }
        tensors.sort_by_key(|tensor| tensor.range.start);
        let index = tensors.iter().enumerate().map(|(at, tensor)| (tensor.name.clone(), at)).collect();
        Ok(Checkpoint { path: path.to_owned(), bytes, metadata, tensors, index })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the file.
    pub fn file_len(&self) -> u64 {
        self.bytes.as_slice().len() as u64
    }

    /// The key-value part.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors, in the order of their data.
    pub fn tensors(&self) -> impl Iterator<Item = TensorView<'_>> {
        self.tensors.iter().map(|tensor| self.view(tensor))
    }

    /// The tensor of that name; an error that names it when there is none.
    pub fn tensor(&self, name: &str) -> Result<TensorView<'_>, Error> {
        self.find(name).ok_or_else(|| Error::MissingTensor { tensor: quoted(name.as_bytes()) })
    }

    /// The tensor of that name, if there is one.
    pub fn find(&self, name: &str) -> Option<TensorView<'_>> {
        self.index.get(name).map(|&at| self.view(&self.tensors[at]))
    }

    /// Gives back the memory that holds a tensor's part of the file, after it was copied to where it is used: until then file
    /// and copy count twice. The bytes stay what they are; who reads them again waits for the system to fetch them.
    pub fn release(&self, tensor: &TensorView<'_>) {
        if let Bytes::Mapped(map) = &self.bytes {
            let start = tensor.bytes.as_ptr().addr() - map.as_ptr().addr();
            forget_pages(map, start, tensor.bytes.len());
        }
    }

    fn view<'a>(&'a self, tensor: &'a Tensor) -> TensorView<'a> {
        let bytes = &self.bytes.as_slice()[tensor.range.clone()];
        TensorView { name: &tensor.name, dtype: tensor.dtype, shape: tensor.shape.clone(), bytes }
    }
}

impl std::fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Checkpoint({}, {} tensors)", self.path.display(), self.tensors.len())
    }
}

impl Bytes {
    fn as_slice(&self) -> &[u8] {
        match self {
            Bytes::Mapped(map) => map,
            Bytes::Owned(bytes) => bytes,
        }
    }
}

/// candle's messages may carry a backtrace.
fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

#[allow(unsafe_code)]
fn map(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: a mapping is sound while nobody changes the file. Model files are written under another name and renamed
    // when whole, never changed in place; `Checkpoint`'s documentation passes the obligation on to whoever edits one.
    unsafe { Mmap::map(file) }
}

/// Drops whole pages of `len` bytes from `start` out of this process; whatever goes wrong only costs memory.
#[cfg(unix)]
#[allow(unsafe_code)]
fn forget_pages(map: &Mmap, start: usize, len: usize) {
    /// At least as large as a page of every supported system.
    const PAGE: usize = 64 * 1024;
    let (first, end) = (start.next_multiple_of(PAGE), (start + len) / PAGE * PAGE);
    if first < end {
        // SAFETY: the mapping is of a file and read-only, so a dropped page comes back from the file as it was.
        let _ = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, first, end - first) };
    }
}

#[cfg(not(unix))]
fn forget_pages(_: &Mmap, _: usize, _: usize) {}

fn supported(dtype: GgmlDType) -> Option<DType> {
    Some(match dtype {
        GgmlDType::F32 => DType::F32,
        GgmlDType::F16 => DType::F16,
        GgmlDType::BF16 => DType::BF16,
        GgmlDType::Q4_0 => DType::Q4_0,
        GgmlDType::Q4_1 => DType::Q4_1,
        GgmlDType::Q5_0 => DType::Q5_0,
        GgmlDType::Q5_1 => DType::Q5_1,
        GgmlDType::Q8_0 => DType::Q8_0,
        GgmlDType::Q2K => DType::Q2_K,
        GgmlDType::Q3K => DType::Q3_K,
        GgmlDType::Q4K => DType::Q4_K,
        GgmlDType::Q5K => DType::Q5_K,
        GgmlDType::Q6K => DType::Q6_K,
        GgmlDType::Q8_1 | GgmlDType::Q8K => return None,
    })
}
