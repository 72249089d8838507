//! A walk over the whole GGUF header that believes none of it: every count, length, type and extent is checked against
//! the file before candle, which allocates as it reads, sees a byte.
//!
//! ```text
//! magic "GGUF" | u32 version | u64 num_tensors | u64 num_keys
//! num_keys    x [string key | u32 kind | value]            value of an array: u32 kind | u64 len | elements
//! num_tensors x [string name | u32 num_dims | u64 dims[] (row length first) | u32 type | u64 offset]
//! padding to general.alignment, then the data that the offsets count from
//! ```
//!
//! A string is a u64 length and its bytes. All numbers are little-endian.

use std::collections::HashSet;

use crate::dtype::{DType, unsupported_name};
use crate::error::{Error, bad_key, bad_tensor, quoted};
use crate::extent::{Extent, check_extents, tensor_len};
use crate::kind::Kind;

/// What candle may take for the metadata, by the estimate below. The largest vocabularies in use (262,144 tokens, twice
/// as many merges) come to 150 MiB; a hostile array of single bytes would come to 72 times its size.
const MAX_METADATA_MEMORY: u64 = 320 << 20;
/// candle keeps 24 bytes an element in a vector that doubles: 24 n old and 48 n new while it grows.
const ARRAY_ELEMENT_MEMORY: u64 = 72;
/// A string's heap block, at its least.
const STRING_MEMORY: u64 = 32;
/// More than any model has; bounds the tables of names.
const MAX_KEYS: u64 = 1 << 16;
const MAX_TENSORS: u64 = 1 << 16;
/// The format's own limit on keys; tensor names are shorter still.
const MAX_NAME_LEN: u64 = u16::MAX as u64;
/// Files use 32; up to a huge page makes sense.
const MAX_ALIGNMENT: u64 = 2 << 20;

/// What the walk found out.
#[derive(Debug, PartialEq)]
pub(crate) struct Header {
    /// Bytes of the header, without padding: all that candle needs to see.
    pub(crate) len: usize,
    /// Where tensor data begins. At the end of the file, or beyond it, when there are no tensors.
    pub(crate) data_offset: u64,
}

/// Checks the header of a file that begins with the magic.
pub(crate) fn check(file: &[u8]) -> Result<Header, Error> {
    let mut walk = Walk { file, at: 4, memory: 0, alignment: 32, num_parts: 1 };
    let version = walk.u32("the version")?;
    match version {
        2 | 3 => {}
        // A small number with its bytes reversed.
        _ if version != 0 && version & 0xffff == 0 => return Err(Error::BigEndian),
        _ => return Err(Error::Version { version }),
    }
    let num_tensors = walk.u64("the number of tensors")?;
    let num_keys = walk.u64("the number of metadata keys")?;
    walk.check_count("tensors", num_tensors, MAX_TENSORS, 24)?;
    walk.check_count("metadata keys", num_keys, MAX_KEYS, 13)?;

    let mut keys = HashSet::new();
    for index in 0..num_keys {
        let key = walk.name("metadata key", index)?;
        walk.value(key)?;
        if !keys.insert(key) {
            return Err(Error::BadKey { key: quoted(key), reason: "it appears twice".to_owned() });
        }
    }
    if walk.num_parts > 1 {
        return Err(Error::Split { count: walk.num_parts });
    }
    let tensors = walk.tensors(num_tensors)?;
    let data_offset = (walk.at as u64).next_multiple_of(walk.alignment);
    check_extents(tensors, data_offset, file.len() as u64)?;
    Ok(Header { len: walk.at, data_offset })
}

/// Where the walk is, and what it has learnt on the way.
struct Walk<'a> {
    file: &'a [u8],
    at: usize,
    /// Estimate of what candle will allocate for the metadata so far.
    memory: u64,
    /// `general.alignment`.
    alignment: u64,
    /// `split.count`.
    num_parts: u64,
}

impl<'a> Walk<'a> {
    fn left(&self) -> u64 {
        (self.file.len() - self.at) as u64
    }

    fn take(&mut self, len: u64, what: impl Into<String>) -> Result<&'a [u8], Error> {
        if len > self.left() {
            return Err(Error::Truncated { what: what.into(), needed: len, available: self.left() });
        }
        let taken = &self.file[self.at..][..len as usize];
        self.at += len as usize;
        Ok(taken)
    }

    fn u32(&mut self, what: &str) -> Result<u32, Error> {
        Ok(little_endian(self.take(4, what)?) as u32)
    }

    fn u64(&mut self, what: &str) -> Result<u64, Error> {
        Ok(little_endian(self.take(8, what)?))
    }

    fn check_count(&self, what: &str, num: u64, max: u64, min_bytes_each: u64) -> Result<(), Error> {
        if num > max {
            let reason = format!("it claims {num} {what}; at most {max} are read");
            return Err(Error::BadHeader { reason });
        }
        let needed = num * min_bytes_each;
        if needed > self.left() {
            return Err(Error::Truncated { what: format!("the {num} {what}"), needed, available: self.left() });
        }
        Ok(())
    }

    /// A key's or tensor's name: text that candle gives back unchanged.
    fn name(&mut self, what: &str, index: u64) -> Result<&'a [u8], Error> {
        let place = || format!("the name of {what} {index}");
        let len = self.u64(&place())?;
        if len == 0 || len > MAX_NAME_LEN {
            let reason = format!("{} has {len} bytes; expected 1 to {MAX_NAME_LEN}", place());
            return Err(Error::BadHeader { reason });
        }
        let name = self.take(len, place())?;
        if std::str::from_utf8(name).is_err() || name.contains(&0) {
            let reason = format!("{} is not text: {}", place(), quoted(name));
            return Err(Error::BadHeader { reason });
        }
        Ok(name)
    }

    fn value(&mut self, key: &[u8]) -> Result<(), Error> {
        let place = format!("the value of key {}", quoted(key));
        let kind = self.kind(key, &place)?;
        match kind {
            Kind::String => self.string(key, &place),
            Kind::Array => self.array(key, &place),
            Kind::Bool => {
                let flags = self.take(1, place)?;
                check_bools(key, flags)
            }
            _ => {
                let bytes = self.take(kind.len(), place)?;
                self.remember(key, kind, bytes)
            }
        }
    }

    fn kind(&mut self, key: &[u8], place: &str) -> Result<Kind, Error> {
        let id = self.u32(place)?;
        Kind::from_id(id).ok_or_else(|| bad_key(key, format!("its value has the unknown kind {id}")))
    }

    fn string(&mut self, key: &[u8], place: &str) -> Result<(), Error> {
        let len = self.u64(place)?;
        let bytes = self.take(len, place)?;
        // Read once and copied once; each invalid byte grows to the three of U+FFFD, in a string that doubles.
        let factor = if std::str::from_utf8(bytes).is_ok() { 2 } else { 8 };
        self.count_memory(key, factor * len + STRING_MEMORY)
    }

    fn array(&mut self, key: &[u8], place: &str) -> Result<(), Error> {
        let kind = self.kind(key, place)?;
        let len = self.u64(place)?;
        if kind == Kind::Array {
            return Err(bad_key(key, "it is an array of arrays, which no model uses".to_owned()));
        }
        let needed = len.saturating_mul(kind.len());
        if needed > self.left() {
            return Err(Error::Truncated { what: place.to_owned(), needed, available: self.left() });
        }
        self.count_memory(key, len.saturating_mul(ARRAY_ELEMENT_MEMORY))?;
        match kind {
            Kind::String => (0..len).try_for_each(|_| self.string(key, place)),
            Kind::Bool => {
                let flags = self.take(len, place)?;
                check_bools(key, flags)
            }
            _ => self.take(needed, place).map(drop),
        }
    }

    fn count_memory(&mut self, key: &[u8], bytes: u64) -> Result<(), Error> {
        self.memory = self.memory.saturating_add(bytes);
        if self.memory > MAX_METADATA_MEMORY {
            let max = MAX_METADATA_MEMORY >> 20;
            return Err(bad_key(key, format!("with it the metadata would take more than {max} MiB of memory")));
        }
        Ok(())
    }

    /// The two values that say how to go on.
    fn remember(&mut self, key: &[u8], kind: Kind, bytes: &[u8]) -> Result<(), Error> {
        match key {
            b"general.alignment" => {
                // candle and llama.cpp take the alignment from 32-bit integers; another kind would be silently ignored.
                if !matches!(kind, Kind::U32 | Kind::I32) {
                    return Err(bad_key(key, "expected a 32-bit unsigned integer".to_owned()));
                }
                let alignment = little_endian(bytes);
                if !alignment.is_power_of_two() || !(8..=MAX_ALIGNMENT).contains(&alignment) {
                    let expected = format!("expected a power of two from 8 to {MAX_ALIGNMENT}");
                    return Err(bad_key(key, format!("it is {alignment}; {expected}")));
                }
                self.alignment = alignment;
            }
            b"split.count" if kind.is_integer() => self.num_parts = little_endian(bytes),
            _ => {}
        }
        Ok(())
    }

    /// Reads all tensor descriptions, so that a complaint about types can say how many tensors share it.
    fn tensors(&mut self, num: u64) -> Result<Vec<Extent<'a>>, Error> {
        let mut names = HashSet::new();
        let mut extents = Vec::new();
        let mut unsupported: Option<(&[u8], u32)> = None;
        let mut num_unsupported = 0;
        for index in 0..num {
            let name = self.name("tensor", index)?;
            let place = format!("the description of tensor {}", quoted(name));
            if !names.insert(name) {
                return Err(bad_tensor(name, "it appears twice".to_owned()));
            }
            let num_dims = self.u32(&place)?;
            if !(1..=4).contains(&num_dims) {
                return Err(bad_tensor(name, format!("it has {num_dims} dimensions; expected 1 to 4")));
            }
            let dims = self.take(8 * u64::from(num_dims), place.as_str())?;
            let dims: Vec<u64> = dims.chunks_exact(8).map(little_endian).collect();
            let type_id = self.u32(&place)?;
            let offset = self.u64(&place)?;
            match DType::from_type_id(type_id) {
                Some(dtype) => extents.push(Extent { name, offset, len: tensor_len(name, dtype, &dims)? }),
                None => {
                    num_unsupported += 1;
                    unsupported.get_or_insert((name, type_id));
                }
            }
        }
        match unsupported {
            None => Ok(extents),
            Some((name, type_id)) => Err(Error::UnsupportedTensorType {
                tensor: quoted(name),
                type_id,
                type_name: unsupported_name(type_id),
                num_others: num_unsupported - 1,
            }),
        }
    }
}

fn check_bools(key: &[u8], flags: &[u8]) -> Result<(), Error> {
    match flags.iter().find(|&&flag| flag > 1) {
        Some(flag) => Err(bad_key(key, format!("a boolean is {flag}; expected 0 or 1"))),
        None => Ok(()),
    }
}

fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}
