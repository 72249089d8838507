//! The simulator as a [`Device`]: memory is the host's, a launch runs to its end before it returns, and a graph is the list of
//! its launches, arguments and all. So what launch code bakes into a recorded argument, a length that grows, say, is as wrong
//! in a replay here as on a GPU.

use crate::{Launch as SimLaunch, Schedule, run, signature};
use std::alloc::Layout;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use taper_kernels::cuda::{Argument, Device, DeviceError, DeviceProperties, DevicePtr, Kernel, Launch, LibraryProduct};

/// What every allocation begins at a multiple of, in bytes.
const ALIGNMENT: usize = 256;

/// What was asked for and is done later.
#[derive(Debug, Clone)]
pub enum Recorded {
    /// A launch.
    Launch(RecordedLaunch),
    /// A product by the library.
    Product(LibraryProduct),
}

/// A launch with arguments of its own.
#[derive(Debug, Clone)]
pub struct RecordedLaunch {
    kernel: Kernel,
    grid: [u32; 3],
    threads: u32,
    shared_bytes: u32,
    cooperative: bool,
    arguments: Vec<Argument>,
}

impl RecordedLaunch {
    fn of(launch: &Launch<'_>) -> RecordedLaunch {
        let &Launch { kernel, grid, threads, shared_bytes, cooperative, arguments, .. } = launch;
        RecordedLaunch { kernel, grid, threads, shared_bytes, cooperative, arguments: arguments.to_vec() }
    }
}

#[derive(Default)]
struct State {
    /// Layouts by address.
    allocations: HashMap<u64, Layout>,
    /// What is being recorded, while something is.
    recorded: Option<Vec<Recorded>>,
    /// Launches so far: each has a seed of its own.
    num_launches: u32,
    /// Graphs that were replayed so far.
    num_replays: usize,
    /// Products by the library so far.
    num_products: usize,
    /// Allocations so far, those that were given back among them.
    num_allocations: usize,
}

/// A simulated GPU that runs every launch in one schedule.
pub struct Sim {
    properties: DeviceProperties,
    schedule: Schedule,
    state: Mutex<State>,
}

impl Sim {
    /// A device of few multiprocessors, so that small shapes fill it.
    pub fn new(schedule: Schedule) -> Sim {
        let properties = DeviceProperties {
            name: format!("simulator, schedule {}", schedule.0),
            multiprocessors: 4,
            shared_bytes_per_block: 227 << 10,
            l2_bytes: 1 << 20,
        };
        Sim { properties, schedule, state: Mutex::default() }
    }

    /// Graphs that were replayed so far.
    pub fn num_replays(&self) -> usize {
        self.state().num_replays
    }

    /// Products by the library so far.
    pub fn num_products(&self) -> usize {
        self.state().num_products
    }

    /// Allocations so far, and how many of them there are now.
    pub fn num_allocations(&self) -> (usize, usize) {
        let state = self.state();
        (state.num_allocations, state.allocations.len())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does it, or keeps it while something is recorded.
    ///
    /// # Safety
    /// That of [`Device::launch`] or [`Device::multiply`].
    unsafe fn take(&self, asked: Recorded) -> Result<(), DeviceError> {
        if let Some(recorded) = &mut self.state().recorded {
            recorded.push(asked);
            return Ok(());
        }
        // SAFETY: the caller's obligation.
        unsafe { self.run(&asked) }
    }

    /// # Safety
    /// That of [`Device::launch`] or [`Device::multiply`].
    unsafe fn run(&self, asked: &Recorded) -> Result<(), DeviceError> {
        match asked {
            // SAFETY: the caller's obligation.
            Recorded::Launch(launch) => unsafe { self.run_launch(launch) },
            Recorded::Product(product) => {
                self.state().num_products += 1;
                // SAFETY: the caller's obligation.
                unsafe { multiply(product) };
                Ok(())
            }
        }
    }

    /// # Safety
    /// That of [`Device::launch`].
    unsafe fn run_launch(&self, launch: &RecordedLaunch) -> Result<(), DeviceError> {
        let seed = {
            let mut state = self.state();
            state.num_launches = state.num_launches.wrapping_add(1);
            state.num_launches
        };
        let mut arguments: Vec<*mut c_void> = launch.arguments.iter().map(Argument::as_ptr).collect();
        let sim_launch = SimLaunch {
            grid: launch.grid,
            block: [launch.threads, 1, 1],
            dynamic_shared: launch.shared_bytes.into(),
            cooperative: launch.cooperative,
        };
        let name = launch.kernel.name();
        // SAFETY: the caller's obligation, with the types that `check` has compared.
        let ran = unsafe { run(name, &sim_launch, self.schedule, seed, &mut arguments) };
        ran.map_err(|fault| DeviceError::Fault { kernel: name.to_string_lossy().into_owned(), text: fault.to_string() })
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        assert!(self.state().allocations.is_empty() || std::thread::panicking(), "all memory was given back");
    }
}

impl Device for Sim {
    type Graph = Vec<Recorded>;
    type Event = ();

    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn allocate(&self, what: &'static str, bytes: usize) -> Result<DevicePtr, DeviceError> {
        let none = || DeviceError::OutOfMemory { what, bytes, free: None };
        let layout = Layout::from_size_align(bytes.max(1), ALIGNMENT).map_err(|_| none())?;
        // SAFETY: the layout has a size.
        let memory = unsafe { std::alloc::alloc(layout) };
        if memory.is_null() {
            return Err(none());
        }
        // What nobody wrote is not a number, in every type of float.
        // SAFETY: the memory was just allocated with this size.
        unsafe { memory.write_bytes(0xff, layout.size()) };
        let address = memory as u64;
        let mut state = self.state();
        state.allocations.insert(address, layout);
        state.num_allocations += 1;
        Ok(DevicePtr(address))
    }

    unsafe fn free(&self, memory: DevicePtr) {
        let layout = self.state().allocations.remove(&memory.0);
        let layout = layout.expect("memory that was allocated here and not given back");
        // SAFETY: it was allocated with this layout, and is used by nobody any more, as the caller promises.
        unsafe { std::alloc::dealloc(memory.0 as *mut u8, layout) };
    }

    unsafe fn upload(&self, to: DevicePtr, from: &[u8]) -> Result<(), DeviceError> {
        assert!(self.state().recorded.is_none(), "a graph of launches alone is recorded");
        // SAFETY: the target is the caller's obligation, and never the host's slice.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.0 as *mut u8, from.len()) };
        Ok(())
    }

    unsafe fn download(&self, from: DevicePtr, to: &mut [u8]) -> Result<(), DeviceError> {
        assert!(self.state().recorded.is_none(), "a graph of launches alone is recorded");
        // SAFETY: the source is the caller's obligation, and never the host's slice.
        unsafe { std::ptr::copy_nonoverlapping(from.0 as *const u8, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    unsafe fn zero(&self, at: DevicePtr, bytes: usize) -> Result<(), DeviceError> {
        // SAFETY: the caller's obligation.
        unsafe { (at.0 as *mut u8).write_bytes(0, bytes) };
        Ok(())
    }

    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<(), DeviceError> {
        launch.check();
        // SAFETY: the caller's obligation.
        unsafe { self.take(Recorded::Launch(RecordedLaunch::of(launch))) }
    }

    fn library(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    unsafe fn multiply(&self, product: &LibraryProduct) -> Result<bool, DeviceError> {
        // SAFETY: the caller's obligation.
        unsafe { self.take(Recorded::Product(*product)) }.map(|()| true)
    }

    fn capture(&self, launches: &mut dyn FnMut() -> Result<(), DeviceError>) -> Result<Vec<Recorded>, DeviceError> {
        let before = self.state().recorded.replace(Vec::new());
        assert!(before.is_none(), "one graph is recorded at a time");
        let outcome = launches();
        let recorded = self.state().recorded.take().unwrap_or_default();
        outcome.map(|()| recorded)
    }

    unsafe fn replay(&self, graph: &Vec<Recorded>) -> Result<(), DeviceError> {
        self.state().num_replays += 1;
        // SAFETY: the caller's obligation.
        graph.iter().try_for_each(|asked| unsafe { self.run(asked) })
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn record(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn elapsed(&self, (): &(), (): &()) -> Result<Duration, DeviceError> {
        Ok(Duration::ZERO)
    }
}

/// What a vendor's library would compute, with sums in the order of k.
///
/// # Safety
/// That of [`Device::multiply`].
unsafe fn multiply(product: &LibraryProduct) {
    let &LibraryProduct { rows, num_outputs, cols, x, weights, bias, out, out_stride, .. } = product;
    let pointers = [x, weights, out, product.workspace];
    assert!(pointers.iter().all(|pointer| pointer.0 % 16 == 0), "{product:?}: operands are aligned to 16 bytes");
    assert!(cols % 8 == 0 && out_stride % 4 == 0 && out_stride >= num_outputs, "{product:?}: so are rows");
    // SAFETY: the caller's obligation; the memory is the host's.
    let elements = |at: DevicePtr, len| unsafe { std::slice::from_raw_parts(at.0 as *const u16, len) };
    let (x, weights) = (elements(x, rows * cols), elements(weights, num_outputs * cols));
    let to_float = |&bits: &u16| f32::from_bits(u32::from(bits) << 16);
    for (row, x) in x.chunks_exact(cols).enumerate() {
        for (output, weights) in weights.chunks_exact(cols).enumerate() {
            // SAFETY: as above.
            let bias = bias.map_or(0.0, |bias| unsafe { *(bias.0 as *const f32).add(output) });
            let sum: f32 = x.iter().zip(weights).map(|(x, weight)| to_float(x) * to_float(weight)).sum();
            // SAFETY: as above.
            unsafe { *(out.0 as *mut f32).add(row * out_stride + output) = sum + bias };
        }
    }
}

/// Kernels whose parameters in the source are not those that Rust declares, or that the source has not: name and both.
pub fn differences() -> Vec<String> {
    let differs = |kernel: &Kernel| {
        let (declared, source) = (kernel.signature(), signature(kernel.name()));
        (source != Some(declared)).then(|| format!("{:?}: {declared:?}, in the source {source:?}", kernel.name()))
    };
    Kernel::ALL.iter().filter_map(differs).collect()
}
