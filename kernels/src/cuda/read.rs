//! Reading memory as fast as the device can: what shares of bandwidth are of.

use super::device::{Argument, Device, Launch};
use super::error::DeviceError;
use super::kernels::Kernel;
use super::memory::{Arena, Memory};
use std::sync::Arc;

/// Threads of a block of `read_stream`.
const THREADS: u32 = 512;
/// Blocks that a multiprocessor holds.
const BLOCKS: u32 = 4;
/// Words of one load.
const WORDS: usize = 4;

/// Memory to read, and room for what was found in it.
pub struct Stream<D: Device> {
    words: Memory<D, u32>,
    found: Memory<D, u32>,
    blocks: u32,
}

impl<D: Device> Stream<D> {
    /// Takes memory for `words` zeros of 32 bits; a multiple of four, below 2^34.
    ///
    /// # Errors
    /// When the device has not so much.
    pub fn new(device: &Arc<D>, words: usize) -> Result<Stream<D>, DeviceError> {
        assert!(words.is_multiple_of(WORDS) && words / WORDS <= u32::MAX as usize, "{words} words");
        let blocks = BLOCKS * device.properties().multiprocessors;
        let bytes = Arena::<D>::bytes_of::<u32>(words) + Arena::<D>::bytes_of::<u32>(blocks as usize);
        let mut arena = Arena::new(device, "memory to read", bytes)?;
        let found = arena.part("what blocks found", blocks as usize)?;
        Ok(Stream { words: arena.part("words", words)?, found, blocks })
    }

    /// The words.
    pub fn words(&mut self) -> &mut Memory<D, u32> {
        &mut self.words
    }

    /// Reads all words once.
    ///
    /// # Errors
    /// The device's.
    pub fn run(&mut self, device: &D) -> Result<(), DeviceError> {
        assert!(self.words.is_of(device), "the memory is this device's");
        let (words, found) = (self.words.address(), self.found.address());
        let count = (self.words.len() / WORDS) as u32;
        let arguments = [Argument::Pointer(words), Argument::U32(count), Argument::Pointer(found)];
        let launch = Launch {
            kernel: Kernel::ReadStream,
            grid: [self.blocks, 1, 1],
            threads: THREADS,
            shared_bytes: 0,
            cooperative: false,
            arguments: &arguments,
            bytes: self.words.len() * size_of::<u32>(),
        };
        // SAFETY: memory begins at a multiple of 256 bytes and has `count` times four words; `found` has one for each block.
        unsafe { device.launch(&launch) }
    }

    /// The exclusive or of all words, from the last [`Stream::run`].
    ///
    /// # Errors
    /// The device's.
    pub fn found(&self) -> Result<u32, DeviceError> {
        let mut found = vec![0; self.found.len()];
        self.found.read(0, &mut found)?;
        Ok(found.into_iter().fold(0, |sum, word| sum ^ word))
    }
}
