//! Memory of a device: one allocation, given out in parts that know how long they are.

use super::device::{Device, DevicePtr};
use super::error::DeviceError;
use std::marker::PhantomData;
use std::sync::Arc;

/// What every part begins at a multiple of, in bytes: the driver's own alignment, and enough for every access of a kernel.
const ALIGNMENT: usize = 256;

/// A type whose bytes may be copied to a device and back.
///
/// # Safety
/// It has no padding, and any bytes are a value of it.
pub unsafe trait Plain: Copy + Send + Sync + 'static {}
// SAFETY: these are numbers.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for u16 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for i32 {}
// SAFETY: as above.
unsafe impl Plain for f32 {}
// SAFETY: as above.
unsafe impl Plain for f64 {}

fn bytes<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: `T` is plain, so its bytes are initialised; the slice is as long as the values are.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

fn bytes_mut<T: Plain>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: as in `bytes`, and whatever is written is a value of `T`.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}

/// What was allocated; given back when nobody holds a part of it.
struct Allocation<D: Device> {
    device: Arc<D>,
    address: DevicePtr,
}

impl<D: Device> Drop for Allocation<D> {
    fn drop(&mut self) {
        // SAFETY: the address comes from `allocate` of this device, nobody holds a part any more, and a device frees only what
        // its stream has done with.
        unsafe { self.device.free(self.address) }
    }
}

/// One allocation of a device, and how far it is given out.
pub struct Arena<D: Device> {
    allocation: Arc<Allocation<D>>,
    len: usize,
    parts: Vec<Part>,
}

/// A part of an [`Arena`], for the table that people read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// What it is for.
    pub what: &'static str,
    /// Where it begins, in bytes.
    pub begin: usize,
    /// Bytes that it has.
    pub bytes: usize,
}

impl<D: Device> Arena<D> {
    /// Takes memory of a device.
    ///
    /// # Errors
    /// When there is not so much.
    pub fn new(device: &Arc<D>, what: &'static str, bytes: usize) -> Result<Arena<D>, DeviceError> {
        let address = device.allocate(what, bytes.max(ALIGNMENT))?;
        let allocation = Allocation { device: Arc::clone(device), address };
        Ok(Arena { allocation: Arc::new(allocation), len: bytes, parts: Vec::new() })
    }

    /// Bytes that a part of so many elements takes.
    pub fn bytes_of<T: Plain>(len: usize) -> usize {
        (len * size_of::<T>()).next_multiple_of(ALIGNMENT)
    }

    /// The next part, of zeros.
    ///
    /// # Errors
    /// When the arena has not so much left, or the device's.
    pub fn part<T: Plain>(&mut self, what: &'static str, len: usize) -> Result<Memory<D, T>, DeviceError> {
        let (begin, bytes, free) = (self.used(), Self::bytes_of::<T>(len), self.free());
        if bytes > free {
            return Err(DeviceError::OutOfMemory { what, bytes, free: Some(free) });
        }
        self.parts.push(Part { what, begin, bytes });
        let address = self.allocation.address.at(begin);
        // SAFETY: `begin + bytes` is no more than the allocation has.
        unsafe { self.allocation.device.zero(address, bytes)? };
        Ok(Memory { allocation: Arc::clone(&self.allocation), address, len, elements: PhantomData })
    }

    /// Bytes that are given out.
    pub fn used(&self) -> usize {
        self.parts.last().map_or(0, |part| part.begin + part.bytes)
    }

    /// Bytes that are left.
    pub fn free(&self) -> usize {
        self.len - self.used()
    }

    /// What was given out.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }
}

/// `len` elements in a device's memory, of which there is no second handle.
pub struct Memory<D: Device, T: Plain> {
    allocation: Arc<Allocation<D>>,
    address: DevicePtr,
    len: usize,
    elements: PhantomData<T>,
}

impl<D: Device, T: Plain> Memory<D, T> {
    /// Elements.
    #[allow(clippy::len_without_is_empty, reason = "nobody asks for none")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Where the first element is.
    pub fn address(&self) -> DevicePtr {
        self.address
    }

    /// Whether it is memory of this device, and not of another.
    pub fn is_of(&self, device: &D) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.allocation.device), device)
    }

    /// Writes elements, the first of them at `begin`.
    ///
    /// # Errors
    /// The device's.
    pub fn write(&mut self, begin: usize, values: &[T]) -> Result<(), DeviceError> {
        assert!(begin + values.len() <= self.len, "{} elements at {begin} of {}", values.len(), self.len);
        // SAFETY: the range lies in this memory, as was just asserted.
        unsafe { self.allocation.device.upload(self.address.at(begin * size_of::<T>()), bytes(values)) }
    }

    /// Reads elements, the first of them at `begin`, after all that the device was asked to do.
    ///
    /// # Errors
    /// The device's.
    pub fn read(&self, begin: usize, values: &mut [T]) -> Result<(), DeviceError> {
        assert!(begin + values.len() <= self.len, "{} elements at {begin} of {}", values.len(), self.len);
        // SAFETY: the range lies in this memory, as was just asserted.
        unsafe { self.allocation.device.download(self.address.at(begin * size_of::<T>()), bytes_mut(values)) }
    }
}
