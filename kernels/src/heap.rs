//! How the process's allocator keeps memory that nobody uses. It stands here because the calls are unsafe, as arithmetic's are.

/// Large blocks, in bytes, are pages of their own, which go back to the system when they are freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE: i32 = 1 << 20;

/// Most bytes that a heap keeps at its end.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MOST_KEPT: i32 = 4 << 20;

/// Most heaps. Each keeps as much as ever lay in it at once, and glibc would make eight for each processor.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MOST_HEAPS: i32 = 4;

/// Keeps a long-lived process at the memory that it needs: without this glibc raises, at the first large block that is freed,
/// the size from which blocks are pages of their own (to 32 MiB at most), and what requests leave behind fills one heap after
/// the other. To be called before the first thread starts. Allocators other than glibc's are left alone.
pub fn keep_small() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `mallopt` takes two integers and may not run beside itself or the first allocation of another thread; the caller
    // calls it while there is one thread.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
        libc::mallopt(libc::M_TRIM_THRESHOLD, MOST_KEPT);
        libc::mallopt(libc::M_ARENA_MAX, MOST_HEAPS);
    }
}
