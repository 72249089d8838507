//! Reading memory as fast as the device can: what shares of bandwidth are of.

use super::device::{Argument, Device, Launch};
use super::error::DeviceError;
use super::kernels::Kernel;
use super::memory::{Arena, Memory};
use std::ops::Range;
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
        self.run_part(device, 0..self.words.len())
    }

    /// Reads these words once; both ends are multiples of four.
    ///
    /// # Errors
    /// The device's.
    pub fn run_part(&mut self, device: &D, part: Range<usize>) -> Result<(), DeviceError> {
        assert!(self.words.is_of(device), "the memory is this device's");
        assert!(part.start.is_multiple_of(WORDS) && part.end.is_multiple_of(WORDS), "{part:?} are whole loads");
        assert!(part.start <= part.end && part.end <= self.words.len(), "{part:?} lies within the words");
        let words = self.words.address().at(part.start * size_of::<u32>());
        let count = (part.len() / WORDS) as u32;
        let arguments = [Argument::Pointer(words), Argument::U32(count), Argument::Pointer(self.found.address())];
        let launch = Launch {
            kernel: Kernel::ReadStream,
            grid: [self.blocks, 1, 1],
            threads: THREADS,
            shared_bytes: 0,
            cooperative: false,
            arguments: &arguments,
            bytes: part.len() * size_of::<u32>(),
        };
        // SAFETY: a part begins at a multiple of 16 bytes and has `count` times four words, as was just asserted; `found` has one for
        // each block.
        unsafe { device.launch(&launch) }
    }

    /// The exclusive or of the words that were read last.
    ///
    /// # Errors
    /// The device's.
    pub fn found(&self) -> Result<u32, DeviceError> {
        let mut found = vec![0; self.found.len()];
        self.found.read(0, &mut found)?;
        Ok(found.into_iter().fold(0, |sum, word| sum ^ word))
    }
}
