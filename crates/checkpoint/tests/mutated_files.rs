//! Five hundred damaged and hostile files, opened and read to the last byte: no panic, no allocation that the file does
//! not justify, no hang.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::panic::catch_unwind;
use std::path::Path;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use taper_checkpoint::{Checkpoint, Metadata};
use taper_testkit::hostile::hostile_file;
use taper_testkit::tiny::TinyModel;

const NUM_FILES: u64 = 500;
const MAX_EXTRA_MEMORY: usize = 64 << 20;
const MAX_TIME: Duration = Duration::from_secs(10);

/// Counts the bytes that the current thread has allocated and not freed, and the most they ever were.
struct Counting;

thread_local! {
    static IN_USE: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(freed: usize, allocated: usize) {
    // A thread that is ending has no counters any more.
    let _ = IN_USE.try_with(|in_use| {
        let now = in_use.get().saturating_sub(freed) + allocated;
        in_use.set(now);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(now)));
    });
}

// SAFETY: every call is passed on to the system's allocator as it came; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(0, layout.size());
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(0, layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(layout.size(), 0);
        // SAFETY: as above; the block came from the system's allocator.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // Both blocks may exist while the old one is copied.
        count(0, new_size);
        // SAFETY: as above; the block came from the system's allocator.
        let new = unsafe { System.realloc(block, layout, new_size) };
        count(layout.size(), 0);
        new
    }
}

/// The most that `work` had allocated at any time, beyond what was there before.
fn peak_of(work: impl FnOnce()) -> usize {
    let before = IN_USE.get();
    PEAK.set(before);
    work();
    PEAK.get() - before
}

/// Reads everything there is, in every way.
fn touch(checkpoint: &Checkpoint) {
    let metadata = checkpoint.metadata();
    let _ = metadata.architecture();
    for key in metadata.keys() {
        touch_key(metadata, key);
    }
    for tensor in checkpoint.tensors() {
        assert_eq!(tensor.to_f32().len(), tensor.shape.iter().product::<usize>(), "{tensor:?}");
        assert_eq!(tensor.num_rows() * tensor.row_len(), tensor.num_elements(), "{tensor:?}");
        assert!(checkpoint.tensor(tensor.name).is_ok());
    }
}

fn touch_key(metadata: &Metadata, key: &str) {
    // Each value answers to one kind at least: an empty array to several, an integer out of range with an error that
    // names the key.
    let answers = [
        metadata.string(key).err(),
        metadata.u32(key).err(),
        metadata.u64(key).err(),
        metadata.f32(key).err(),
        metadata.bool(key).err(),
        metadata.strings(key).err(),
        metadata.f32s(key).err(),
        metadata.bools(key).err(),
        metadata.i32s(key).err(),
        metadata.u32s(key).err(),
    ];
    for error in answers.into_iter().flatten() {
        assert!(error.to_string().contains("metadata key `"), "{error}");
    }
}

fn open_and_touch(path: &Path) -> Result<(), String> {
    let checkpoint = Checkpoint::open(path).map_err(|error| error.to_string())?;
    touch(&checkpoint);
    Ok(())
}

#[test]
fn five_hundred_hostile_files_are_read_or_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hostile.gguf");
    let (mut num_refused, mut num_read) = (0, 0);
    for seed in 0..NUM_FILES {
        let file = hostile_file(seed);
        std::fs::write(&path, &file.bytes).unwrap();
        let start = Instant::now();
        let mut outcome = Ok(Ok(()));
        let peak = peak_of(|| outcome = catch_unwind(|| open_and_touch(&path)));
        match outcome {
            Ok(Ok(())) => num_read += 1,
            Ok(Err(text)) => {
                num_refused += 1;
                assert!((20..2000).contains(&text.len()), "{}: {text}", file.story);
                assert!(!text.contains(char::is_control), "{}: {text:?}", file.story);
            }
            Err(_) => panic!("{}: panicked", file.story),
        }
        assert!(peak <= MAX_EXTRA_MEMORY + file.bytes.len(), "{}: {peak} bytes allocated", file.story);
        assert!(start.elapsed() < MAX_TIME, "{}: {:?}", file.story, start.elapsed());
    }
    // Some damage goes unnoticed (a flipped bit in a weight), and most does not.
    assert!(num_refused > NUM_FILES / 3 && num_read > NUM_FILES / 10, "{num_refused} refused, {num_read} read");
}

#[test]
fn the_counter_sees_a_large_allocation() {
    let peak = peak_of(|| drop(std::hint::black_box(vec![1u8; 100 << 20])));
    assert!((100 << 20..101 << 20).contains(&peak), "{peak}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(Checkpoint::from_bytes("random", bytes).is_err());
    }

    #[test]
    fn random_headers_are_read_or_refused(
        version in 2u32..4,
        num_tensors in 0u64..4,
        num_keys in 0u64..4,
        // Mostly small words, which pass for lengths and kinds.
        words in proptest::collection::vec(prop_oneof![4 => 0u32..14, 1 => any::<u32>()], 0..100),
    ) {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(version.to_le_bytes());
        bytes.extend(num_tensors.to_le_bytes());
        bytes.extend(num_keys.to_le_bytes());
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        if let Ok(checkpoint) = Checkpoint::from_bytes("random", bytes) {
            touch(&checkpoint);
        }
    }

    #[test]
    fn any_byte_of_a_model_may_have_any_value(at in any::<proptest::sample::Index>(), value: u8) {
        let mut bytes = TinyModel { hidden: 32, heads: 2, kv_heads: 1, ffn: 32, layers: 1, ..TinyModel::default() }.to_gguf();
        // The first ten kilobytes are header.
        let at = at.index(10_000);
        bytes[at] = value;
        if let Ok(checkpoint) = Checkpoint::from_bytes("changed", bytes) {
            touch(&checkpoint);
        }
    }
}
