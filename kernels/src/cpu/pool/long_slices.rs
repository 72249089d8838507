//! What a thread that computes asks of the operating system's scheduler: long time slices.
//!
//! A thread that computes keeps its core for milliseconds, and those that serve clients need a core for microseconds, when a
//! token is sent and when it arrives. Linux (6.6 and newer) runs whoever's slice would end first; with slices of one length a
//! thread that wakes up mostly finds that this is the one that computes, and waits for the next tick: up to 4 ms, as long as a
//! token takes. A thread with a long slice gets the same share of the machine and gives way to those with shorter ones at
//! once. The length of a thread's slice can be chosen since Linux 6.12, by anyone; older ones ignore it.

/// In nanoseconds. Usual ones have 1 to 4 ms and end first most of the time. A longer one would give way more surely, and be worse where the
/// others keep a core busy: with 20 and 100 ms a first token beside such a program came a quarter later.
#[cfg(target_os = "linux")]
const SLICE_NS: u64 = 6_000_000;

/// Asks for this thread, at its first call. Threads that it starts have slices of the usual length.
#[cfg(target_os = "linux")]
pub(super) fn ask() {
    use std::cell::Cell;
    use std::mem::size_of;

    thread_local! {
        static HAS_ASKED: Cell<bool> = const { Cell::new(false) };
    }
    if HAS_ASKED.replace(true) {
        return;
    }
    let size = size_of::<libc::sched_attr>() as u32;
    let mut attr = libc::sched_attr {
        size,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    const THIS_THREAD: libc::c_long = 0;
    const NO_FLAGS: libc::c_long = 0;
    // SAFETY: the kernel writes at most `size` bytes, which are those of `attr`, and keeps no pointer.
    let status = unsafe { libc::syscall(libc::SYS_sched_getattr, THIS_THREAD, &raw mut attr, size, NO_FLAGS) };
    // Whoever runs the program under another policy (chrt) knows why.
    if status != 0 || attr.sched_policy != libc::SCHED_OTHER as u32 {
        return;
    }
    attr.size = size;
    attr.sched_runtime = SLICE_NS;
    attr.sched_flags |= libc::SCHED_FLAG_RESET_ON_FORK as u64;
    // SAFETY: the kernel reads `attr.size` bytes, which are those of `attr`, and keeps no pointer. Where it refuses, nothing
    // has changed.
    unsafe { libc::syscall(libc::SYS_sched_setattr, THIS_THREAD, &raw const attr, NO_FLAGS) };
}

/// Systems that have no such wish.
#[cfg(not(target_os = "linux"))]
pub(super) fn ask() {}
