//! Numbers that every step reads and none changes: frequencies of a rotation, softmax references of a layer.

use super::buffer::{Heap, zeros};
use crate::cuda::device::{Argument, Device};
use crate::cuda::error::DeviceError;
use crate::cuda::memory::{Memory, Plain};

/// Constants by their values. They are never overwritten or given back: recorded steps know where they are, and networks that
/// share a device's working memory have each their own.
pub(super) struct Constants<D: Device, T: Plain> {
    kept: Vec<(Vec<T>, Memory<D, T>)>,
}

impl<D: Device, T: Plain> Default for Constants<D, T> {
    fn default() -> Self {
        Constants { kept: Vec::new() }
    }
}

impl<D: Device, T: Plain + PartialEq> Constants<D, T> {
    /// Where these values are on the device; they are uploaded when they are first met, which is not while launches are
    /// recorded.
    pub(super) fn of(
        &mut self,
        heap: &Heap<D>,
        what: &'static str,
        values: &[T],
        is_recording: bool,
    ) -> Result<Argument, DeviceError> {
        if let Some((_, memory)) = self.kept.iter().find(|(kept, _)| kept == values) {
            return Ok(Argument::Pointer(memory.address()));
        }
        assert!(!is_recording, "a recorded step has the constants of the one before");
        let mut memory = zeros(heap, what, values.len())?;
        memory.write(0, values)?;
        let address = memory.address();
        self.kept.push((values.to_vec(), memory));
        Ok(Argument::Pointer(address))
    }
}
