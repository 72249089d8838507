//! What a CUDA device is to the code that launches kernels: memory, one stream of work, launches, recorded graphs, events.
//! [`super::Driver`] is one over NVIDIA's driver, [`super::Recorder`] one that computes nothing and counts, and for tests the
//! simulator in `kernels/cuda/sim` is one. The launch code is the same for all of them, so what tests run is what a GPU is
//! given.

use super::error::DeviceError;
use super::kernels::Kernel;
use std::ffi::c_void;
use std::time::Duration;

/// An address in a device's memory; it means nothing on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    /// So many bytes further.
    pub fn at(self, bytes: usize) -> DevicePtr {
        DevicePtr(self.0 + bytes as u64)
    }
}

/// A value that a kernel is given.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Argument {
    /// An address in the device's memory.
    Pointer(DevicePtr),
    /// `int`.
    I32(i32),
    /// `unsigned`.
    U32(u32),
    /// `float`.
    F32(f32),
}

impl Argument {
    /// Its letter in [`Kernel::signature`].
    pub fn letter(self) -> char {
        match self {
            Argument::Pointer(_) => 'p',
            Argument::I32(_) => 'i',
            Argument::U32(_) => 'u',
            Argument::F32(_) => 'f',
        }
    }

    /// The address so many bytes further.
    pub fn at(self, bytes: usize) -> Argument {
        match self {
            Argument::Pointer(address) => Argument::Pointer(address.at(bytes)),
            other => panic!("{other:?} is no address"),
        }
    }

    /// Where the value itself lies, as the driver wants to be told.
    pub fn as_ptr(&self) -> *mut c_void {
        match self {
            Argument::Pointer(value) => std::ptr::from_ref(value).cast_mut().cast(),
            Argument::I32(value) => std::ptr::from_ref(value).cast_mut().cast(),
            Argument::U32(value) => std::ptr::from_ref(value).cast_mut().cast(),
            Argument::F32(value) => std::ptr::from_ref(value).cast_mut().cast(),
        }
    }
}

/// Arguments that a kernel may have, at most.
pub const MAX_ARGUMENTS: usize = 24;
/// Threads that a block may have.
const MAX_THREADS: u32 = 1024;
/// Blocks along the second and the third axis of a grid.
const MAX_GRID_YZ: u32 = 65_535;

/// One launch of a kernel.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// Which kernel.
    pub kernel: Kernel,
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// Whether blocks wait for each other, so that all must be on the machine at once.
    pub cooperative: bool,
    /// Values in the order of the kernel's parameters.
    pub arguments: &'a [Argument],
    /// Bytes of the device's memory that the launch has to read and write at least once. No device needs it: dry runs and
    /// benchmarks do.
    pub bytes: usize,
}

impl Launch<'_> {
    /// Asserts what CUDA asks of every launch, and that the arguments are those that the kernel declares.
    pub fn check(&self) {
        let name = self.kernel.name();
        let given: String = self.arguments.iter().map(|argument| argument.letter()).collect();
        assert_eq!(given, self.kernel.signature(), "{name:?} is given what it declares");
        assert!(given.len() <= MAX_ARGUMENTS, "{name:?} has no more than {MAX_ARGUMENTS} arguments");
        let [x, y, z] = self.grid;
        assert!(x > 0 && (1..=MAX_GRID_YZ).contains(&y) && (1..=MAX_GRID_YZ).contains(&z), "{name:?}: {x} x {y} x {z}");
        assert!((1..=MAX_THREADS).contains(&self.threads), "{name:?}: {} threads in a block", self.threads);
    }
}

/// A product by the vendor's library: `out = x w^T (+ bias)`, with sums in float32 and in an order of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LibraryProduct {
    /// Rows of x and out.
    pub rows: usize,
    /// Rows of w.
    pub num_outputs: usize,
    /// Columns of x and w.
    pub cols: usize,
    /// `[rows, cols]` of bfloat16.
    pub x: DevicePtr,
    /// `[num_outputs, cols]` of bfloat16.
    pub weights: DevicePtr,
    /// `[num_outputs]` of float32.
    pub bias: Option<DevicePtr>,
    /// `[rows, num_outputs]` of float32, with rows `out_stride` elements apart.
    pub out: DevicePtr,
    /// Elements from one row of out to the next.
    pub out_stride: usize,
    /// Memory that the library may write.
    pub workspace: DevicePtr,
    /// Bytes of it.
    pub workspace_bytes: usize,
    /// Which of the ways that the library proposes, the one that it holds for the best first; the best where there are not so many.
    pub candidate: usize,
}

/// What a device is and has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceProperties {
    /// What it is called.
    pub name: String,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of shared memory that one block may have.
    pub shared_bytes_per_block: u32,
    /// Bytes of its second-level cache.
    pub l2_bytes: usize,
}

/// A CUDA device with kernels and one stream, on which everything runs in the order of the calls.
///
/// Errors of a kernel come late, with whichever call is next to hear of them; after one, nothing on the device can be used.
pub trait Device: Send + Sync + 'static {
    /// Launches that are replayed together.
    type Graph: Send;
    /// A moment in the stream.
    type Event: Send;

    /// What it is.
    fn properties(&self) -> &DeviceProperties;

    /// Bytes that can still be allocated, if the device has memory of its own.
    fn free_bytes(&self) -> Option<usize> {
        None
    }

    /// Takes memory, aligned to 256 bytes, with any contents; `what` is for the message when there is none.
    ///
    /// # Errors
    /// When there is not so much memory.
    fn allocate(&self, what: &'static str, bytes: usize) -> Result<DevicePtr, DeviceError>;

    /// Gives memory back.
    ///
    /// # Safety
    /// It comes from [`Device::allocate`] of this device, is given back once, and nothing uses it any more.
    unsafe fn free(&self, memory: DevicePtr);

    /// Copies from the host. The source may be changed when the call returns.
    ///
    /// # Safety
    /// The target lies in memory of this device.
    ///
    /// # Errors
    /// The device's.
    unsafe fn upload(&self, to: DevicePtr, from: &[u8]) -> Result<(), DeviceError>;

    /// Copies to the host, after all that was asked before.
    ///
    /// # Safety
    /// The source lies in memory of this device.
    ///
    /// # Errors
    /// The device's, of what was asked before among them.
    unsafe fn download(&self, from: DevicePtr, to: &mut [u8]) -> Result<(), DeviceError>;

    /// Fills memory with zeros.
    ///
    /// # Safety
    /// The range lies in memory of this device.
    ///
    /// # Errors
    /// The device's.
    unsafe fn zero(&self, at: DevicePtr, bytes: usize) -> Result<(), DeviceError>;

    /// Launches a kernel.
    ///
    /// # Safety
    /// The launch keeps the contract in the head of the kernel's file: the pointers lead to as much memory of this device as the
    /// grid and the other arguments say, and grid, threads and shared memory are of the form that it asks for.
    ///
    /// # Errors
    /// The device's.
    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<(), DeviceError>;

    /// Makes sure that there is a library of the vendor's for [`Device::multiply`].
    ///
    /// # Errors
    /// Why there is none.
    fn library(&self) -> Result<(), DeviceError> {
        Err(DeviceError::NoLibrary { reason: "this device has none".to_owned() })
    }

    /// Multiplies by the vendor's library; false, and nothing is done, where that has no such product.
    ///
    /// # Safety
    /// [`Device::library`] has found one; the pointers lead to memory of this device, aligned to 16 bytes, of the sizes that
    /// [`LibraryProduct`] says.
    ///
    /// # Errors
    /// The device's.
    unsafe fn multiply(&self, product: &LibraryProduct) -> Result<bool, DeviceError> {
        let _ = product;
        Ok(false)
    }

    /// Records what `launches` launches, and runs none of it.
    ///
    /// # Errors
    /// The first of `launches`, or the device's.
    fn capture(&self, launches: &mut dyn FnMut() -> Result<(), DeviceError>) -> Result<Self::Graph, DeviceError>;

    /// Runs recorded launches: with the arguments that they had, and the memory as it is now.
    ///
    /// # Safety
    /// That of each [`Device::launch`] that was recorded, now.
    ///
    /// # Errors
    /// The device's.
    unsafe fn replay(&self, graph: &Self::Graph) -> Result<(), DeviceError>;

    /// Waits until all is done.
    ///
    /// # Errors
    /// The device's, of what was asked before among them.
    fn synchronize(&self) -> Result<(), DeviceError>;

    /// Marks this moment in the stream.
    ///
    /// # Errors
    /// The device's.
    fn record(&self) -> Result<Self::Event, DeviceError>;

    /// The device's own time between two moments, once both have passed; it waits for the later one. Zero where time means
    /// nothing.
    ///
    /// # Errors
    /// The device's.
    fn elapsed(&self, from: &Self::Event, to: &Self::Event) -> Result<Duration, DeviceError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARGUMENTS: [Argument; 3] =
        [Argument::Pointer(DevicePtr(256)), Argument::Pointer(DevicePtr(512)), Argument::I32(5)];

    fn launch(arguments: &[Argument]) -> Launch<'_> {
        Launch {
            kernel: Kernel::SoftmaxBlock,
            grid: [1, 1, 1],
            threads: 128,
            shared_bytes: 0,
            cooperative: false,
            arguments,
            bytes: 0,
        }
    }

    #[test]
    fn a_launch_with_the_declared_arguments_passes() {
        launch(&ARGUMENTS).check();
    }

    #[test]
    #[should_panic(expected = "given what it declares")]
    fn an_argument_of_another_type_is_found() {
        launch(&[ARGUMENTS[0], ARGUMENTS[1], Argument::F32(5.0)]).check();
    }

    #[test]
    #[should_panic(expected = "threads in a block")]
    fn a_block_is_not_larger_than_cuda_allows() {
        Launch { threads: 1025, ..launch(&ARGUMENTS) }.check();
    }

    #[test]
    fn arguments_are_pointed_at_themselves() {
        let argument = Argument::F32(1.5);
        // SAFETY: the pointer is that of the float in `argument`.
        assert_eq!(unsafe { *argument.as_ptr().cast::<f32>() }, 1.5);
    }
}
