//! [`Backend`] on a CUDA device: one launch per operation or for several that are joined, weights as tiles for tensor cores where
//! their type has such (else in the file's own blocks), activations float32 in memory and bfloat16 in products with tiles.
//!
//! A device's errors come late and spoil all that follows, so an operation that meets one panics with its message; who runs a
//! step catches that and fails the step.

mod attention;
mod buffer;
mod choice;
mod choose;
mod constants;
mod fused;
mod graphs;
mod kv_cache;
mod library;
mod observe;
mod reserve;
mod tables;
mod tensor_cores;
mod tiles;
mod warpgroups;
mod weights;

pub use buffer::{Buffer, Vector};
pub use choice::{ProductChoice, ProductTuning, RowOrder, TileChoice};
pub use kv_cache::KvCache;
pub use weights::Matrix;

use super::device::{Argument, Device, Launch};
use super::error::DeviceError;
use super::kernels::Kernel;
use super::memory::Memory;
use crate::cpu::gemm::Shape;
use crate::{
    AttentionParams, AttentionScheme, Backend, BackendInfo, Demand, Draw, Error, HeadLayout, KvLayout, MatrixData,
    Norm, Rope, RopeKind, ScoreStatistics, StepInputs, StepTables, Turn, WeightType,
};
use attention::{AttentionWork, Call};
use buffer::{Heap, grow, to_error, zeros};
use constants::Constants;
use graphs::{Checks, Graphs, Kind, Plan, Recorded, WorkAddresses};
use library::LibraryWork;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tables::DeviceTables;
use tiles::TiledType;
use warpgroups::Warpgroups;

/// The backend of a device.
pub struct Cuda<D: Device> {
    device: Arc<D>,
    heap: Arc<Heap<D>>,
    work: Arc<Mutex<Work<D>>>,
    graphs: Arc<Mutex<Graphs<D>>>,
    /// Where there are such, and rows may have other bits in company.
    warpgroups: Option<Arc<Warpgroups<D>>>,
    /// Whether the vendor's library may multiply: where there is one, and rows may have other bits in company.
    has_library: bool,
    /// Measured choices of products, for matrices that are still to be made.
    tuning: Arc<ProductTuning>,
    /// The choice of all products, whatever was measured.
    forced: Option<ProductChoice>,
}

/// Of the same device and the same working memory.
impl<D: Device> Clone for Cuda<D> {
    fn clone(&self) -> Self {
        let &Cuda { ref device, ref heap, ref work, ref graphs, ref warpgroups, has_library, ref tuning, forced } =
            self;
        Cuda {
            device: Arc::clone(device),
            heap: Arc::clone(heap),
            work: Arc::clone(work),
            graphs: Arc::clone(graphs),
            warpgroups: warpgroups.clone(),
            has_library,
            tuning: Arc::clone(tuning),
            forced,
        }
    }
}

/// Memory that operations use and nobody keeps.
struct Work<D: Device> {
    tables: DeviceTables<D>,
    /// Token ids, rows or positions that an operation is told.
    integers: Memory<D, i32>,
    attention: AttentionWork<D>,
    library: LibraryWork<D>,
    /// Frequencies of the pairs that turn.
    frequencies: Constants<D, f64>,
    /// `[KV heads][phi, below, above]` of the layers whose softmax has references.
    softmax_references: Constants<D, f32>,
    /// While launches are recorded, what was asserted of the step: then nothing may be uploaded, for a replay would not.
    recording: Option<Checks>,
}

/// Integers that an operation is told without taking more memory.
const INTEGERS: usize = 1 << 12;

fn done(outcome: Result<(), DeviceError>) {
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

/// Which pairs turn, as kernels are told.
fn kind_of(rope: &Rope) -> Argument {
    Argument::I32(match rope.kind {
        RopeKind::AdjacentPairs => 0,
        RopeKind::HalfSplit => 1,
    })
}

/// A whole number that a kernel is told.
fn int(value: usize) -> Argument {
    Argument::I32(i32::try_from(value).expect("sizes of a step fit into 31 bits"))
}

impl<D: Device> Cuda<D> {
    /// The backend of this device.
    ///
    /// # Errors
    /// When the device has no memory left.
    pub fn new(device: Arc<D>) -> Result<Cuda<D>, DeviceError> {
        let heap = Heap::new(&device);
        let work = Work {
            tables: DeviceTables::new(&heap)?,
            integers: zeros(&heap, "integers of a step", INTEGERS)?,
            attention: AttentionWork::new(&heap)?,
            library: LibraryWork::default(),
            frequencies: Constants::default(),
            softmax_references: Constants::default(),
            recording: None,
        };
        Ok(Cuda {
            device,
            heap: Arc::new(heap),
            work: Arc::new(Mutex::new(work)),
            graphs: Arc::default(),
            warpgroups: None,
            has_library: false,
            tuning: Arc::default(),
            forced: None,
        })
    }

    /// Whether a row of a product has the same bits whatever rows are computed with it, as it has at first. Without that, products of
    /// 16 rows and more with bf16 weights go to the tensor cores of compute capability 9.0 (`kernels/cuda/gemm_wgmma.cu`); elsewhere,
    /// and for other weights, nothing changes.
    ///
    /// They round x as the others do, but sum in another order: the difference is that of two orders of float32 sums. It makes a row's
    /// bits, and so now and then a token, depend on whether at least 15 others are computed with it: on the batch, on how a prompt is
    /// cut, on what a cache held, on guesses. Two equal requests may then be answered differently. [`BackendInfo::numerics_class`] says
    /// which it is, so blocks that are kept on disk are not mixed.
    ///
    /// # Errors
    /// The device's, such as no memory left.
    pub fn with_exact_rows(mut self, exact_rows: bool) -> Result<Cuda<D>, DeviceError> {
        self.warpgroups = if exact_rows { None } else { Warpgroups::new(&self)?.map(Arc::new) };
        self.has_library = false;
        // Steps that were recorded have the launches of before.
        self.forget_steps();
        Ok(self)
    }

    /// Lets the vendor's library multiply as well, where measurements chose it: then rows have other bits in company, as they may have
    /// without exact rows. It is given what it takes in bfloat16, quantized weights too.
    ///
    /// # Errors
    /// When there is no such library, with the reason.
    pub fn with_library(mut self) -> Result<Cuda<D>, DeviceError> {
        self.device.library()?;
        self.has_library = true;
        self.forget_steps();
        Ok(self)
    }

    /// Forgets all steps whose launches were recorded; clones of this backend keep theirs.
    pub fn forget_steps(&mut self) {
        self.graphs = Arc::default();
    }

    /// Whether a row has the same bits whatever rows are computed with it.
    pub fn has_exact_rows(&self) -> bool {
        self.warpgroups.is_none() && !self.has_library
    }

    /// Multiplies with matrices that are made from now on as was measured. It decides no bit of exact rows.
    pub fn with_tuning(self, tuning: ProductTuning) -> Cuda<D> {
        Cuda { tuning: Arc::new(tuning), ..self }
    }

    /// Computes every product with tiles in this way, where that is offered, or again as was measured; for measurements.
    pub fn force_choice(&mut self, choice: Option<ProductChoice>) {
        self.forced = choice;
    }

    /// What can be chosen for products of that many rows with a matrix, the built-in rule first: none where it has no tiles. Not in
    /// every order of sums, unless rows may have other bits in company.
    pub fn choices(&self, shape: Shape, rows: usize) -> Vec<ProductChoice> {
        let Some(tiled) = TiledType::of(shape.weight_type, shape.inputs) else { return Vec::new() };
        let rule = TileChoice::builtin(rows);
        // Where a type has no kernel with so many rows of a block its neighbour is a candidate by itself.
        let is_own = |choice: &TileChoice| *choice == rule || tiled.has_kernel_of(choice.rows_of_block);
        let of_tiles = TileChoice::candidates(rows).into_iter().filter(is_own).map(ProductChoice::Tiles);
        let others = ProductChoice::of_other_orders().into_iter().filter(|choice| match choice {
            ProductChoice::Tiles(_) => false,
            ProductChoice::Warpgroups => tiled.has_warpgroups && self.warpgroups.is_some(),
            ProductChoice::Library(_) => self.has_library && library::has(tiled, shape.inputs),
        });
        of_tiles.chain(others.filter(|_| rows >= warpgroups::LEAST_ROWS)).collect()
    }

    /// The device.
    pub fn device(&self) -> &Arc<D> {
        &self.device
    }

    fn work(&self) -> MutexGuard<'_, Work<D>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asserts that a step fits heads and cache.
    fn check(&self, step: &StepTables, heads: HeadLayout, layout: KvLayout) {
        step.check(heads, layout);
        if let Some(checks) = &mut self.work().recording {
            checks.caches = Some((heads, layout));
        }
    }

    /// Launches a kernel without dynamic shared memory that is told how large it is by its grid.
    ///
    /// # Safety
    /// That of [`Device::launch`].
    unsafe fn launch(&self, kernel: Kernel, grid: [usize; 3], threads: u32, arguments: &[Argument], bytes: usize) {
        // SAFETY: the caller's obligation.
        unsafe { self.launch_with_shared(kernel, grid, (threads, 0), arguments, bytes) };
    }

    /// As [`Cuda::launch`], with the bytes of dynamic shared memory beside the threads of a block.
    ///
    /// # Safety
    /// That of [`Device::launch`].
    unsafe fn launch_with_shared(
        &self,
        kernel: Kernel,
        grid: [usize; 3],
        (threads, shared_bytes): (u32, usize),
        arguments: &[Argument],
        bytes: usize,
    ) {
        if grid.contains(&0) {
            return;
        }
        let grid = grid.map(|blocks| u32::try_from(blocks).expect("grids of a step are small"));
        let shared_bytes = u32::try_from(shared_bytes).expect("a multiprocessor has less");
        let launch = Launch { kernel, grid, threads, shared_bytes, cooperative: false, arguments, bytes };
        // SAFETY: the caller's obligation.
        done(unsafe { self.device.launch(&launch) });
    }
}

impl<D: Device> Work<D> {
    /// Where all memory is that launches of a step are told of, but for what the caller of an operation owns.
    fn addresses(&self) -> WorkAddresses {
        let [states, tickets] = self.attention.addresses();
        [self.tables.address(), self.integers.address(), states, tickets, self.library.address()]
    }

    /// Frequencies on the device.
    fn frequencies(&mut self, heap: &Heap<D>, values: &[f64]) -> Result<Argument, DeviceError> {
        self.frequencies.of(heap, "frequencies of a rotation", values, self.recording.is_some())
    }

    /// Softmax references of a layer on the device.
    fn softmax_references(&mut self, heap: &Heap<D>, values: &[f32]) -> Result<Argument, DeviceError> {
        self.softmax_references.of(heap, "softmax references", values, self.recording.is_some())
    }

    /// Integers on the device, until it is told others.
    fn integers(&mut self, heap: &Heap<D>, values: &[u32]) -> Result<Argument, DeviceError> {
        assert!(self.recording.is_none(), "a recorded step is told nothing but its tables");
        grow(&mut self.integers, heap, "integers of a step", values.len())?;
        let values: Vec<i32> = values.iter().map(|&value| value as i32).collect();
        self.integers.write(0, &values)?;
        Ok(Argument::Pointer(self.integers.address()))
    }
}

const FLOAT: usize = size_of::<f32>();
/// Products with tiles have activations in bfloat16 (with float16 weights, in float16 scaled to fit), all others in float32; sums
/// are float32 in the order of `kernels/cuda/gemm_mma.cu` or `gemv.cuh`.
pub const NUMERICS_CLASS: &str = "cuda-bf16";
/// The same, with an order of sums that may depend on how many rows there are ([`Cuda::with_exact_rows`]).
pub const NUMERICS_CLASS_BY_ROWS: &str = "cuda-bf16-by-rows";

/// Significant bits that activations have in products with weights of a type, with an even number of columns.
pub fn activation_bits(weight_type: WeightType) -> u32 {
    match TiledType::of(weight_type, 256) {
        None => f32::MANTISSA_DIGITS,
        Some(_) if weight_type == WeightType::F16 => 11,
        Some(_) => 8,
    }
}

impl<D: Device> Backend for Cuda<D> {
    type Buffer = Buffer<D>;
    type Matrix = Matrix<D>;
    type Vector = Vector<D>;
    type KvCache = KvCache<D>;

    fn info(&self) -> BackendInfo {
        let numerics_class = if self.has_exact_rows() { NUMERICS_CLASS } else { NUMERICS_CLASS_BY_ROWS };
        BackendInfo { name: "cuda", isa: "cuda", threads: 1, numerics_class }
    }

    fn free_bytes(&self) -> Option<usize> {
        self.device.free_bytes()
    }

    fn reserve(&self, demand: &Demand<'_>) -> Result<(), Error> {
        KvCache::check(self, demand.cache)?;
        reserve::reserve(self, demand).map_err(to_error)
    }

    fn buffer(&self, rows: usize, cols: usize) -> Result<Buffer<D>, Error> {
        Buffer::new(&self.heap, rows, cols).map_err(to_error)
    }

    fn matrix(&self, parts: &[MatrixData<'_>]) -> Result<Matrix<D>, Error> {
        Matrix::new(self, parts)
    }

    fn matrix_bytes(&self, matrix: &Matrix<D>) -> usize {
        matrix.num_bytes()
    }

    fn vector(&self, values: &[f32]) -> Result<Vector<D>, Error> {
        Vector::new(&self.heap, values).map_err(to_error)
    }

    fn kv_cache(&self, layout: KvLayout) -> Result<KvCache<D>, Error> {
        KvCache::new(self, layout)
    }

    fn kv_block_bytes(&self, layout: KvLayout) -> usize {
        kv_cache::block_bytes(layout)
    }

    fn copy_kv_block(&self, cache: &mut KvCache<D>, from: u32, to: u32) {
        const UNIT: usize = 16;
        let layout = cache.layout;
        assert!((from.max(to) as usize) < layout.num_blocks, "blocks {from} and {to} lie in the cache");
        let block = kv_cache::block_bytes(layout);
        let units = |bytes: usize| Argument::U32(u32::try_from(bytes / UNIT).expect("a layer has less than 64 GiB"));
        let arguments =
            [cache.layer(0), units(block), units(block * layout.num_blocks), int(from as usize), int(to as usize)];
        let grid = [block.div_ceil(UNIT * 256).min(64), layout.num_layers, 1];
        // SAFETY: pieces are multiples of 256 bytes and both blocks are in the cache, as was just asserted.
        unsafe { self.launch(Kernel::CopyKvBlock, grid, 256, &arguments, 2 * block * layout.num_layers) };
    }

    fn export_kv_block(&self, cache: &KvCache<D>, block: u32, out: &mut Vec<u8>) {
        done(cache.export(block, out));
    }

    fn import_kv_block(&self, cache: &mut KvCache<D>, block: u32, bytes: &[u8]) -> Result<(), Error> {
        cache.import(block, bytes)
    }

    fn recomputed(&self, cache: &KvCache<D>) -> Vec<u64> {
        cache.recomputed()
    }

    fn step(&self, inputs: StepInputs<'_>, form: Option<u64>, operations: &mut dyn FnMut(&Self)) {
        done(self.work().tables.set(&self.heap, inputs));
        let Some(kind) = Kind::of(inputs, form) else { return operations(self) };
        let addresses = self.work().addresses();
        let mut graphs = self.graphs.lock().unwrap_or_else(PoisonError::into_inner);
        match graphs.plan(kind, addresses) {
            Plan::Run => return operations(self),
            Plan::Record => {
                self.work().recording = Some(Checks::default());
                let graph = self.device.capture(&mut || {
                    operations(self);
                    Ok(())
                });
                let mut work = self.work();
                let checks = work.recording.take().unwrap_or_default();
                let graph = graph.unwrap_or_else(|error| panic!("{error}"));
                assert_eq!(work.addresses(), addresses, "a recorded step takes no memory");
                graphs.insert(kind, Recorded { graph, addresses, checks });
            }
            Plan::Replay => {}
        }
        let recorded = graphs.get(kind).expect("it was recorded, just now or before");
        recorded.checks.assert(inputs);
        // SAFETY: a step of this kind has run with this working memory, and asks for the same operations on the same memory now, as
        // the caller of `step` promises; its tables, the only other thing that launches read, keep what was asserted of those.
        done(unsafe { self.device.replay(&recorded.graph) });
    }

    fn read_rows(&self, buffer: &Buffer<D>, rows: Range<usize>, out: &mut [f32]) {
        assert_eq!(out.len(), rows.len() * buffer.cols(), "as many elements as the rows have");
        done(buffer.data.read(rows.start * buffer.cols(), out));
    }

    fn choose(&self, logits: &Buffer<D>, draws: &[(usize, Draw)], tokens: &mut Vec<Option<u32>>) -> bool {
        choose::choose(self, logits, draws, tokens).unwrap_or_else(|error| panic!("{error}"))
    }

    fn embed(&self, table: &Matrix<D>, tokens: &[u32], out: &mut Buffer<D>) {
        assert_eq!(out.cols(), table.cols, "a row of the table for each token");
        assert!(
            tokens.iter().all(|&token| (token as usize) < table.num_rows()),
            "token ids are below the table's rows"
        );
        let (rows, cols) = (tokens.len(), table.cols);
        let mut work = self.work();
        if let Some(checks) = &mut work.recording {
            checks.vocabulary = Some(table.num_rows());
        }
        let tokens = match work.tables.tokens(tokens) {
            Some(tokens) => tokens,
            None => work.integers(&self.heap, tokens).unwrap_or_else(|error| panic!("{error}")),
        };
        for part in table.parts() {
            let (kernel, cols_of_block) = part.embed_kernel();
            let grid = [cols.div_ceil(cols_of_block), rows, 1];
            let arguments = [part.bytes, tokens, out.rows(rows), int(cols), int(part.first), int(part.rows)];
            let bytes = rows * (cols * FLOAT + part.row_bytes);
            // SAFETY: the tokens were just uploaded; `out` has as many rows and the table's columns; the part has its rows in the
            // layout that the kernel reads, aligned to 256 bytes.
            unsafe { self.launch(kernel, grid, 256, &arguments, bytes) };
        }
    }

    fn rms_norm(&self, rows: usize, x: &Buffer<D>, weight: &Vector<D>, eps: f32, out: &mut Buffer<D>) {
        let cols = x.cols();
        assert_eq!(out.cols(), cols, "input and output are equally wide");
        let arguments = [x.rows(rows), weight.elements(cols), out.rows(rows), int(cols), Argument::F32(eps)];
        // SAFETY: x and out have `rows` rows of `cols` elements, the weight has `cols`.
        unsafe { self.launch(Kernel::RmsNorm, [rows, 1, 1], 256, &arguments, 2 * rows * cols * FLOAT) };
    }

    fn linear(&self, rows: usize, x: &Buffer<D>, matrix: &Matrix<D>, bias: Option<&Vector<D>>, out: &mut Buffer<D>) {
        fused::linear(self, rows, x, matrix, bias, out);
    }

    fn qk_norm(
        &self,
        rows: usize,
        qkv: &mut Buffer<D>,
        heads: HeadLayout,
        q_weight: &Vector<D>,
        k_weight: &Vector<D>,
        eps: f32,
    ) {
        assert_eq!(qkv.cols(), heads.qkv_width(), "qkv holds the heads it is said to");
        let HeadLayout { num_heads, num_kv_heads, head_dim } = heads;
        let arguments = [
            qkv.rows(rows),
            q_weight.elements(head_dim),
            k_weight.elements(head_dim),
            int(num_heads),
            int(num_kv_heads),
            int(head_dim),
            Argument::F32(eps),
        ];
        let grid = [rows, (num_heads + num_kv_heads).div_ceil(4), 1];
        let bytes = 2 * rows * (num_heads + num_kv_heads) * head_dim * FLOAT;
        // SAFETY: qkv has `rows` rows of these heads, the weights have an element for each of a head's.
        unsafe { self.launch(Kernel::QkNorm, grid, 128, &arguments, bytes) };
    }

    fn rope_angles(&self, rope: &Rope, positions: &[u32], out: &mut Buffer<D>) {
        rope.check();
        assert_eq!(out.cols(), rope.rotary_dim, "a cosine and a sine per pair");
        if rope.rotary_dim == 0 {
            return;
        }
        let rows = positions.len();
        let mut work = self.work();
        let inv_freq = work.frequencies(&self.heap, &rope.inv_freq).unwrap_or_else(|error| panic!("{error}"));
        let positions = match work.tables.positions(positions) {
            Some(positions) => positions,
            None => work.integers(&self.heap, positions).unwrap_or_else(|error| panic!("{error}")),
        };
        let arguments = [positions, inv_freq, out.rows(rows), int(rope.rotary_dim), Argument::F32(rope.magnitude)];
        // SAFETY: positions were just uploaded, a frequency for each pair lies where it was; `out` has a row of `rotary_dim` for each position.
        unsafe { self.launch(Kernel::RopeAngles, [rows, 1, 1], 128, &arguments, rows * rope.rotary_dim * FLOAT) };
    }

    fn rope_kv_store(
        &self,
        step: &StepTables,
        rope: &Rope,
        angles: &Buffer<D>,
        params: AttentionParams<'_>,
        qkv: &mut Buffer<D>,
        cache: &mut KvCache<D>,
    ) {
        let (heads, rows) = (params.heads, step.num_rows());
        rope.check();
        self.check(step, heads, cache.layout);
        assert_eq!(qkv.cols(), heads.qkv_width(), "qkv holds the heads it is said to");
        assert_eq!(angles.cols(), rope.rotary_dim, "the angles are of this rotation");
        assert!(rope.rotary_dim <= heads.head_dim, "no more turns than a head has");
        let tables = self.work().tables.of(&self.heap, step).unwrap_or_else(|error| panic!("{error}"));
        let arguments = [
            qkv.rows(rows),
            angles.rows(rows),
            tables.slots,
            cache.layer(params.layer),
            int(rows),
            int(heads.num_heads),
            int(heads.num_kv_heads),
            int(heads.head_dim),
            int(rope.rotary_dim),
            kind_of(rope),
        ];
        let kernels = [Kernel::RopeKvStoreF16, Kernel::RopeKvStoreBf16, Kernel::RopeKvStoreF32, Kernel::RopeKvStoreF8];
        let kernel = kv_cache::stored(cache.layout.dtype).kernel(kernels);
        let grid = [rows, heads.num_kv_heads, 1];
        // SAFETY: `check` has made sure that slots lie in the cache, which has these heads; qkv and angles have `rows` rows.
        unsafe { self.launch(kernel, grid, 128, &arguments, 2 * rows * heads.qkv_width() * FLOAT) };
    }

    fn attention(
        &self,
        step: &StepTables,
        params: AttentionParams<'_>,
        qkv: &Buffer<D>,
        cache: &KvCache<D>,
        out: &mut Buffer<D>,
    ) {
        self.check(step, params.heads, cache.layout);
        done(attention::attention(self, Call { step, params, qkv, cache }, out));
    }

    fn attention_working_bytes(
        &self,
        step: &StepTables,
        params: AttentionParams<'_>,
        cache: &KvCache<D>,
    ) -> Option<usize> {
        Some(attention::working_bytes(self, step, params, cache))
    }

    fn observe_scores(
        &self,
        step: &StepTables,
        params: AttentionParams<'_>,
        qkv: &Buffer<D>,
        cache: &KvCache<D>,
        statistics: &mut [ScoreStatistics],
    ) {
        self.check(step, params.heads, cache.layout);
        done(observe::observe_scores(self, step, params, qkv, cache, statistics));
    }

    fn silu_mul(&self, rows: usize, gate_up: &Buffer<D>, out: &mut Buffer<D>) {
        let cols = out.cols();
        assert_eq!(gate_up.cols(), 2 * cols, "a gate and an up for each output");
        let arguments = [gate_up.rows(rows), out.rows(rows), int(cols)];
        // SAFETY: gate_up has `rows` rows of two elements for each of out's.
        unsafe {
            self.launch(Kernel::SiluMul, [cols.div_ceil(256), rows, 1], 256, &arguments, 3 * rows * cols * FLOAT);
        };
    }

    fn norm_linear(
        &self,
        rows: usize,
        mut norm: Norm<'_, Self>,
        matrix: &Matrix<D>,
        bias: Option<&Vector<D>>,
        out: &mut Buffer<D>,
    ) {
        fused::norm_linear(self, rows, &mut norm, matrix, bias, out);
    }

    fn norm_linear_silu_mul(
        &self,
        rows: usize,
        mut norm: Norm<'_, Self>,
        matrix: &Matrix<D>,
        gate_up: &mut Buffer<D>,
        out: &mut Buffer<D>,
    ) {
        fused::norm_linear_silu_mul(self, rows, &mut norm, matrix, gate_up, out);
    }

    fn linear_add(
        &self,
        rows: usize,
        x: &Buffer<D>,
        matrix: &Matrix<D>,
        delta: &mut Buffer<D>,
        residual: &mut Buffer<D>,
    ) {
        fused::linear_add(self, rows, x, matrix, delta, residual);
    }

    fn rope_attention(
        &self,
        step: &StepTables,
        turn: Turn<'_, Self>,
        params: AttentionParams<'_>,
        qkv: &mut Buffer<D>,
        cache: &mut KvCache<D>,
        out: &mut Buffer<D>,
    ) {
        // Rows of one sequence see keys of each other, which that kernel stores as it goes.
        if params.scheme == AttentionScheme::SplitKv && step.has_one_row_each() {
            self.check(step, params.heads, cache.layout);
            let outcome = attention::rope_attention(self, Call { step, params, qkv, cache }, &turn, out);
            if outcome.unwrap_or_else(|error| panic!("{error}")) {
                return;
            }
        }
        self.turn_and_store(step, turn, params, qkv, cache);
        self.attention(step, params, qkv, cache, out);
    }

    fn add(&self, rows: usize, residual: &mut Buffer<D>, delta: &Buffer<D>) {
        let cols = residual.cols();
        assert_eq!(delta.cols(), cols, "residual and delta are equally wide");
        let arguments = [residual.rows(rows), delta.rows(rows), int(cols)];
        // SAFETY: both have `rows` rows of `cols` elements.
        unsafe { self.launch(Kernel::Add, [cols.div_ceil(256), rows, 1], 256, &arguments, 3 * rows * cols * FLOAT) };
    }

    fn gather_rows(&self, x: &Buffer<D>, rows: &[u32], out: &mut Buffer<D>) {
        let (cols, num) = (x.cols(), rows.len());
        assert_eq!(out.cols(), cols, "input and output are equally wide");
        let most = rows.iter().max().map_or(0, |&row| row as usize + 1);
        let x = x.rows(most);
        let mut work = self.work();
        let picked = match work.tables.logit_rows(rows) {
            Some(picked) => picked,
            None => work.integers(&self.heap, rows).unwrap_or_else(|error| panic!("{error}")),
        };
        let arguments = [x, picked, out.rows(num), int(cols)];
        // SAFETY: the rows were just uploaded and lie in x; `out` has as many.
        unsafe {
            self.launch(Kernel::GatherRows, [cols.div_ceil(256), num, 1], 256, &arguments, 2 * num * cols * FLOAT);
        };
    }
}
