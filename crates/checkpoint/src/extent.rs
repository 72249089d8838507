//! How many bytes a tensor takes, and whether all tensors lie in the file, each in bytes of its own.

use crate::DType;
use crate::error::{Error, bad_tensor, quoted};

/// A tensor whose own description makes sense; `offset` and `len` are still to be held against the file.
pub(crate) struct Extent<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// Bytes of a tensor; `dims` as the file has them, the row length first.
pub(crate) fn tensor_len(name: &[u8], dtype: DType, dims: &[u64]) -> Result<u64, Error> {
    if dims.contains(&0) {
        return Err(bad_tensor(name, format!("its dimensions are {dims:?}; none may be zero")));
    }
    let block_len = dtype.block_len() as u64;
    if !dims[0].is_multiple_of(block_len) {
        let reason = format!("its rows have {} elements; {dtype} comes in blocks of {block_len}", dims[0]);
        return Err(bad_tensor(name, reason));
    }
    // The float32 form must be addressable too.
    let num_elements = dims.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim));
    match num_elements {
        Some(num) if num <= isize::MAX as u64 / 4 => Ok(num / block_len * dtype.block_bytes() as u64),
        _ => Err(bad_tensor(name, format!("its dimensions {dims:?} overflow"))),
    }
}

/// Holds the extents against the file. None may overlap: a file of many tensors over the same bytes would grow without
/// bound when the tensors are repacked.
pub(crate) fn check_extents(mut tensors: Vec<Extent<'_>>, data_offset: u64, file_len: u64) -> Result<(), Error> {
    let available = file_len.saturating_sub(data_offset);
    tensors.sort_by_key(|tensor| tensor.offset);
    let mut previous: Option<(&Extent<'_>, u64)> = None;
    for tensor in &tensors {
        if !tensor.offset.is_multiple_of(8) {
            let reason = format!("its data starts at {}, which is not aligned", tensor.offset);
            return Err(bad_tensor(tensor.name, reason));
        }
        match tensor.offset.checked_add(tensor.len) {
            Some(end) if end <= available => {
                if let Some((other, other_end)) = previous
                    && tensor.offset < other_end
                {
                    return Err(bad_tensor(tensor.name, format!("its data overlaps that of {}", quoted(other.name))));
                }
                previous = Some((tensor, end));
            }
            _ => {
                let what = format!("the data of tensor {}", quoted(tensor.name));
                let available = available.saturating_sub(tensor.offset);
                return Err(Error::Truncated { what, needed: tensor.len, available });
            }
        }
    }
    Ok(())
}
