//! A GPU through NVIDIA's driver: beside the probe the only file that calls it.

use super::cublas_lt::CublasLt;
use super::device::{Device, DeviceProperties, DevicePtr, Launch, LibraryProduct, MAX_ARGUMENTS};
use super::error::{DeviceError, ProbeError};
use super::fatbin;
use super::kernels::Kernel;
use super::library;
use super::probe::{DeviceInfo, probe};
use cudarc::driver::result;
use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdevice_attribute as DeviceAttribute, CUevent, CUfunction,
    CUfunction_attribute as FunctionAttribute, CUgraph, CUgraphExec, CUlaunchAttribute, CUlaunchAttributeID,
    CUlaunchAttributeValue, CUlaunchConfig, CUmodule, CUresult, CUstream, CUstreamCaptureMode,
};
use std::ptr::null_mut;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The functions of the driver that are called here and not by the probe.
const FUNCTIONS: [&str; 25] = [
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventElapsedTime_v2",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuFuncGetAttribute",
    "cuFuncSetAttribute",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuLaunchKernelEx",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuStreamBeginCapture_v2",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamEndCapture",
    "cuStreamSynchronize",
];

/// A stream that does not wait for the null stream.
const NON_BLOCKING: u32 = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;

fn call(name: &'static str, answer: CUresult) -> Result<(), DeviceError> {
    Ok(answer.result().map_err(ProbeError::of(name))?)
}

/// A device's primary context, kept.
struct Context {
    device: CUdevice,
    handle: CUcontext,
}

// SAFETY: the driver's functions may be called from any thread with any handle; each call here makes the context current on its
// thread first.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    fn retain(index: usize) -> Result<Context, DeviceError> {
        let device = result::device::get(index as i32).map_err(ProbeError::of("cuDeviceGet"))?;
        // SAFETY: `device` comes from `device::get`; it is released once, by `drop`.
        let handle = unsafe { result::primary_ctx::retain(device) };
        Ok(Context { device, handle: handle.map_err(ProbeError::of("cuDevicePrimaryCtxRetain"))? })
    }

    /// Makes it the calling thread's current one.
    fn bind(&self) -> Result<(), DeviceError> {
        // SAFETY: the context is retained as long as `self` is there.
        Ok(unsafe { result::ctx::set_current(self.handle) }.map_err(ProbeError::of("cuCtxSetCurrent"))?)
    }

    fn attribute(&self, attribute: DeviceAttribute) -> Result<u32, DeviceError> {
        // SAFETY: the device comes from `device::get`.
        let value = unsafe { result::device::get_attribute(self.device, attribute) };
        Ok(u32::try_from(value.map_err(ProbeError::of("cuDeviceGetAttribute"))?).unwrap_or(0))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was retained once and nothing of it is used any more, not even by this thread.
        unsafe {
            let _ = result::ctx::set_current(null_mut());
            let _ = result::primary_ctx::release(self.device);
        }
    }
}

/// A kernel of a module.
#[derive(Debug, Clone, Copy)]
struct Function {
    handle: CUfunction,
    /// Whether it may begin before the kernel before it has ended: it waits by itself, and is of code that can.
    may_begin_early: bool,
}

/// The least version of PTX whose code waits by itself: compute capability 9.0 (`kernels/cuda/ptx.cuh`).
const WAITING_PTX: i32 = 90;

/// A GPU with its kernels and a stream.
pub struct Driver {
    /// Of products, once somebody asked for it; it ends before its context.
    library: OnceLock<Result<CublasLt, DeviceError>>,
    properties: DeviceProperties,
    context: Arc<Context>,
    modules: Vec<CUmodule>,
    stream: CUstream,
    /// By [`Kernel::index`].
    functions: Vec<Function>,
}

// SAFETY: as for `Context`. Calls from several threads are put into the stream in some order, which is all that is promised.
unsafe impl Send for Driver {}
// SAFETY: as above.
unsafe impl Sync for Driver {}

impl Driver {
    /// Opens a GPU, by its place in the driver's count, with the kernels of an image as [`fatbin::image`] gives it.
    ///
    /// # Errors
    /// When there is no such GPU or none that can be used, or when the image is not for it or of another version.
    pub fn open(index: usize, image: &[u8]) -> Result<Driver, DeviceError> {
        let info = probe(index)?;
        library::require(&FUNCTIONS)?;
        let context = Arc::new(Context::retain(index)?);
        context.bind()?;
        let properties = DeviceProperties {
            name: info.name.clone(),
            multiprocessors: info.multiprocessors,
            shared_bytes_per_block: context
                .attribute(DeviceAttribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            l2_bytes: info.l2_bytes,
        };
        let mut driver = Driver {
            library: OnceLock::new(),
            properties,
            context,
            modules: Vec::new(),
            stream: null_mut(),
            functions: Vec::new(),
        };
        // SAFETY: the handle is written by the call; the stream is destroyed by `drop`.
        call("cuStreamCreate", unsafe { sys::cuStreamCreate(&raw mut driver.stream, NON_BLOCKING) })?;
        for module in fatbin::modules(image) {
            driver.modules.push(load(module, &info)?);
        }
        for &kernel in Kernel::ALL {
            let function = driver.function(kernel)?;
            driver.functions.push(function);
        }
        Ok(driver)
    }

    /// A kernel of one of the modules, which may take all of the shared memory that a block can have.
    fn function(&self, kernel: Kernel) -> Result<Function, DeviceError> {
        let handle = self.find(kernel)?;
        let attribute = |attribute| {
            let mut value = 0;
            // SAFETY: the function was just found, and the int is the call's to write.
            let answer = unsafe { sys::cuFuncGetAttribute(&raw mut value, attribute, handle) };
            call("cuFuncGetAttribute", answer).map(|()| value)
        };
        let of_itself = attribute(FunctionAttribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
        let dynamic = self.properties.shared_bytes_per_block as i32 - of_itself;
        let most = FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: as above.
        call("cuFuncSetAttribute", unsafe { sys::cuFuncSetAttribute(handle, most, dynamic) })?;
        let may_begin_early =
            kernel.waits_for_previous() && attribute(FunctionAttribute::CU_FUNC_ATTRIBUTE_PTX_VERSION)? >= WAITING_PTX;
        Ok(Function { handle, may_begin_early })
    }

    fn find(&self, kernel: Kernel) -> Result<CUfunction, DeviceError> {
        for &module in &self.modules {
            let mut function = null_mut();
            // SAFETY: the module is loaded, and the name ends with a zero.
            let answer = unsafe { sys::cuModuleGetFunction(&raw mut function, module, kernel.name().as_ptr()) };
            if answer != CUresult::CUDA_ERROR_NOT_FOUND {
                return call("cuModuleGetFunction", answer).map(|()| function);
            }
        }
        Err(DeviceError::KernelMissing { kernel: kernel.name().to_string_lossy().into_owned() })
    }

    /// The library of products, looked for when it is asked for the first time.
    fn cublas_lt(&self) -> Result<&CublasLt, DeviceError> {
        self.context.bind()?;
        self.library.get_or_init(CublasLt::open).as_ref().map_err(Clone::clone)
    }

    fn wait(&self) -> Result<(), DeviceError> {
        // SAFETY: the stream is there until `drop`.
        Ok(unsafe { result::stream::synchronize(self.stream) }.map_err(ProbeError::of("cuStreamSynchronize"))?)
    }
}

fn load(module: &[u8], info: &DeviceInfo) -> Result<CUmodule, DeviceError> {
    let mut handle = null_mut();
    // SAFETY: a module says itself how long it is, and the driver reads no further; `fatbin` has looked at its beginning and length.
    let answer = unsafe { sys::cuModuleLoadData(&raw mut handle, module.as_ptr().cast()) };
    if answer == CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU {
        let (index, name, compute_capability) = (info.index, info.name.clone(), info.compute_capability);
        return Err(DeviceError::NoCodeForDevice { index, name, compute_capability });
    }
    call("cuModuleLoadData", answer)?;
    Ok(handle)
}

impl Drop for Driver {
    fn drop(&mut self) {
        if self.context.bind().is_err() {
            return;
        }
        // What the calls answer is of no use any more.
        // SAFETY: the stream is null or was made by `open`, as the modules were, and are used by nobody from here on.
        unsafe {
            if !self.stream.is_null() {
                let _ = self.wait();
                let _ = result::stream::destroy(self.stream);
            }
            for module in self.modules.drain(..) {
                let _ = sys::cuModuleUnload(module);
            }
        }
    }
}

/// Recorded launches, ready to run.
pub struct DriverGraph {
    context: Arc<Context>,
    handle: CUgraphExec,
}

// SAFETY: as for `Context`.
unsafe impl Send for DriverGraph {}

impl Drop for DriverGraph {
    fn drop(&mut self) {
        if !self.handle.is_null() && self.context.bind().is_ok() {
            // SAFETY: the handle was made by `capture` and is used by nobody any more.
            let _ = unsafe { sys::cuGraphExecDestroy(self.handle) };
        }
    }
}

/// A moment in a stream.
pub struct DriverEvent {
    context: Arc<Context>,
    handle: CUevent,
}

// SAFETY: as for `Context`.
unsafe impl Send for DriverEvent {}

impl Drop for DriverEvent {
    fn drop(&mut self) {
        if !self.handle.is_null() && self.context.bind().is_ok() {
            // SAFETY: the handle was made by `record` and is used by nobody any more.
            let _ = unsafe { sys::cuEventDestroy_v2(self.handle) };
        }
    }
}

impl Device for Driver {
    type Graph = DriverGraph;
    type Event = DriverEvent;

    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn free_bytes(&self) -> Option<usize> {
        self.context.bind().ok()?;
        result::mem_get_info().ok().map(|(free, _)| free)
    }

    fn allocate(&self, what: &'static str, bytes: usize) -> Result<DevicePtr, DeviceError> {
        self.context.bind()?;
        let mut address = 0;
        // SAFETY: the address is the call's to write.
        let answer = unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes) };
        if answer == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            let free = result::mem_get_info().ok().map(|(free, _)| free);
            return Err(DeviceError::OutOfMemory { what, bytes, free });
        }
        call("cuMemAlloc", answer)?;
        Ok(DevicePtr(address))
    }

    unsafe fn free(&self, memory: DevicePtr) {
        if self.context.bind().is_ok() {
            // The call waits for what still runs.
            // SAFETY: the caller's obligation.
            let _ = unsafe { sys::cuMemFree_v2(memory.0) };
        }
    }

    unsafe fn upload(&self, to: DevicePtr, from: &[u8]) -> Result<(), DeviceError> {
        self.context.bind()?;
        // Memory that is not pinned is copied aside before the call returns.
        // SAFETY: the source is a slice, and the target the caller's obligation.
        let answer = unsafe { sys::cuMemcpyHtoDAsync_v2(to.0, from.as_ptr().cast(), from.len(), self.stream) };
        call("cuMemcpyHtoDAsync", answer)
    }

    unsafe fn download(&self, from: DevicePtr, to: &mut [u8]) -> Result<(), DeviceError> {
        self.context.bind()?;
        // SAFETY: the target is a slice, which is borrowed until the copy is there; the source is the caller's obligation.
        let answer = unsafe { sys::cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), from.0, to.len(), self.stream) };
        let copied = call("cuMemcpyDtoHAsync", answer);
        self.wait().and(copied)
    }

    unsafe fn zero(&self, at: DevicePtr, bytes: usize) -> Result<(), DeviceError> {
        self.context.bind()?;
        // SAFETY: the caller's obligation.
        call("cuMemsetD8Async", unsafe { sys::cuMemsetD8Async(at.0, 0, bytes, self.stream) })
    }

    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<(), DeviceError> {
        launch.check();
        self.context.bind()?;
        let mut parameters = [null_mut(); MAX_ARGUMENTS];
        for (parameter, argument) in parameters.iter_mut().zip(launch.arguments) {
            *parameter = argument.as_ptr();
        }
        let function = self.functions[launch.kernel.index()];
        let attribute = |id, value| CUlaunchAttribute { id, pad: [0; 4], value };
        let mut attributes = [
            launch.cooperative.then(|| {
                let value = CUlaunchAttributeValue { cooperative: 1 };
                attribute(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, value)
            }),
            function.may_begin_early.then(|| {
                let value = CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 };
                attribute(CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, value)
            }),
        ]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>();
        let [x, y, z] = launch.grid;
        let config = CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: launch.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.shared_bytes,
            hStream: self.stream,
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        };
        // SAFETY: `check` has compared the arguments with the kernel's parameters; the driver copies them before it returns. What
        // they mean is the caller's obligation.
        let answer =
            unsafe { sys::cuLaunchKernelEx(&raw const config, function.handle, parameters.as_mut_ptr(), null_mut()) };
        call("cuLaunchKernelEx", answer)
    }

    fn library(&self) -> Result<(), DeviceError> {
        self.cublas_lt().map(|_| ())
    }

    unsafe fn multiply(&self, product: &LibraryProduct) -> Result<bool, DeviceError> {
        // SAFETY: the caller's obligation; the context was just made current, and the stream is its.
        unsafe { self.cublas_lt()?.multiply(product, self.stream) }
    }

    fn capture(&self, launches: &mut dyn FnMut() -> Result<(), DeviceError>) -> Result<DriverGraph, DeviceError> {
        self.context.bind()?;
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is there until `drop`.
        call("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(self.stream, mode) })?;
        let outcome = launches();
        let mut recorded: CUgraph = null_mut();
        // SAFETY: as above; the handle is the call's to write.
        let ended = call("cuStreamEndCapture", unsafe { sys::cuStreamEndCapture(self.stream, &raw mut recorded) });
        let mut graph = DriverGraph { context: Arc::clone(&self.context), handle: null_mut() };
        let instantiated = outcome.and(ended).and_then(|()| {
            // SAFETY: the graph was just recorded; `graph` destroys what is made of it.
            let answer = unsafe { sys::cuGraphInstantiateWithFlags(&raw mut graph.handle, recorded, 0) };
            call("cuGraphInstantiate", answer)
        });
        if !recorded.is_null() {
            // SAFETY: it was recorded above, and what was made of it does not need it.
            let _ = unsafe { sys::cuGraphDestroy(recorded) };
        }
        instantiated.map(|()| graph)
    }

    unsafe fn replay(&self, graph: &DriverGraph) -> Result<(), DeviceError> {
        self.context.bind()?;
        // SAFETY: the graph is whole, and what its launches need is the caller's obligation.
        call("cuGraphLaunch", unsafe { sys::cuGraphLaunch(graph.handle, self.stream) })
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        self.context.bind()?;
        self.wait()
    }

    fn record(&self) -> Result<DriverEvent, DeviceError> {
        self.context.bind()?;
        let mut event = DriverEvent { context: Arc::clone(&self.context), handle: null_mut() };
        // SAFETY: the handle is the call's to write; `event` destroys it.
        call("cuEventCreate", unsafe { sys::cuEventCreate(&raw mut event.handle, 0) })?;
        // SAFETY: event and stream are there.
        call("cuEventRecord", unsafe { sys::cuEventRecord(event.handle, self.stream) })?;
        Ok(event)
    }

    fn elapsed(&self, from: &DriverEvent, to: &DriverEvent) -> Result<Duration, DeviceError> {
        self.context.bind()?;
        let mut milliseconds = 0.0;
        // SAFETY: both events were recorded.
        call("cuEventSynchronize", unsafe { sys::cuEventSynchronize(to.handle) })?;
        // SAFETY: as above; the float is the call's to write.
        let answer = unsafe { sys::cuEventElapsedTime_v2(&raw mut milliseconds, from.handle, to.handle) };
        call("cuEventElapsedTime", answer)?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds).max(0.0) / 1e3))
    }
}
