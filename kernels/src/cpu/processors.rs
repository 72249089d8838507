//! Which processors a thread may run on.
//!
//! A step keeps all cores busy, and it is one thread's work, which the others help with. So where there is a pool thread for each
//! processor, the thread that runs the steps has the first one to itself, each worker another, and whoever serves clients keeps
//! off the first. Without that, the system puts clients, or a worker, on the core of the thread that runs the steps while another
//! core is idle, since it looks for idle cores the less the busier the machine is (`SIS_UTIL`): on two cores (Zen 4, Linux 6.18,
//! 4.4 ms a step, a client on the same two) the 99th percentile of the time between two tokens was 7.9 ms so, and 5.9 when the
//! threads of one server were given these places from outside, in turns. Where another program takes a core the speed is a
//! fifth higher, where others take both up to a tenth lower.
//!
//! With fewer threads than processors, or more, the system decides as it likes.

#[cfg(target_os = "linux")]
mod linux {
    use std::mem::{size_of, zeroed};
    use std::sync::OnceLock;

    /// The calling thread.
    pub(super) const THIS_THREAD: libc::pid_t = 0;

    /// The processors that the process may use, in ascending order: those of its main thread when it is asked first. None where
    /// the system does not tell (there are more than 1,024).
    pub(super) fn of_the_process() -> &'static [usize] {
        static PROCESSORS: OnceLock<Vec<usize>> = OnceLock::new();
        // SAFETY: no preconditions. The number of a process is that of its main thread.
        PROCESSORS.get_or_init(|| of(unsafe { libc::getpid() }))
    }

    /// The processors that a thread may use and that are online.
    pub(super) fn of(thread: libc::pid_t) -> Vec<usize> {
        let mut set = set_of(&[]);
        // SAFETY: the kernel writes at most the size of `set`.
        let status = unsafe { libc::sched_getaffinity(thread, size_of::<libc::cpu_set_t>(), &raw mut set) };
        let num = if status == 0 { libc::CPU_SETSIZE as usize } else { 0 };
        // SAFETY: below the size of the set.
        (0..num).filter(|&processor| unsafe { libc::CPU_ISSET(processor, &set) }).collect()
    }

    fn set_of(processors: &[usize]) -> libc::cpu_set_t {
        // SAFETY: a set of bits, for which all zeros is a value.
        let mut set: libc::cpu_set_t = unsafe { zeroed() };
        for &processor in processors {
            // SAFETY: processors are below the size of the set that they were read from.
            unsafe { libc::CPU_SET(processor, &mut set) };
        }
        set
    }

    /// Restricts the calling thread. Where the system refuses (a processor was taken away meanwhile) nothing changes.
    pub(super) fn restrict_this_thread(processors: &[usize]) {
        let set = set_of(processors);
        // SAFETY: the kernel reads `size_of` bytes, which are those of `set`, and keeps no pointer.
        unsafe { libc::sched_setaffinity(THIS_THREAD, size_of::<libc::cpu_set_t>(), &raw const set) };
    }

    /// Restricts another thread, as above.
    pub(super) fn restrict<T>(thread: &std::thread::JoinHandle<T>, processors: &[usize]) {
        use std::os::unix::thread::JoinHandleExt;

        let set = set_of(processors);
        // SAFETY: a thread whose handle is neither joined nor dropped exists, though it may have ended; the set is read as above.
        unsafe { libc::pthread_setaffinity_np(thread.as_pthread_t(), size_of::<libc::cpu_set_t>(), &raw const set) };
    }
}

/// Systems that are asked for nothing.
#[cfg(not(target_os = "linux"))]
mod linux {
    pub(super) fn of_the_process() -> &'static [usize] {
        &[]
    }

    pub(super) fn restrict_this_thread(_: &[usize]) {}

    pub(super) fn restrict<T>(_: &std::thread::JoinHandle<T>, _: &[usize]) {}
}

use linux::{of_the_process, restrict, restrict_this_thread};
use std::thread::JoinHandle;

/// How many processors the process may use; at least one.
pub fn count() -> usize {
    match of_the_process().len() {
        0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        count => count,
    }
}

/// Lets the calling thread, whoever started it, run on all processors of the process.
pub fn use_all() {
    if !of_the_process().is_empty() {
        restrict_this_thread(of_the_process());
    }
}

/// Keeps the calling thread off the first processor, where there are others. Threads that it starts keep off it too, unless they
/// [`use_all`].
pub fn leave_first() {
    if let [_, others @ ..] = of_the_process()
        && !others.is_empty()
    {
        restrict_this_thread(others);
    }
}

/// Gives the calling thread the first processor and each worker another, in order, where together they are as many as there are
/// processors; or all to all of them again. False where they are not as many, and nothing changes.
pub(super) fn settle<T>(workers: &[JoinHandle<T>], each_its_own: bool) -> bool {
    let all = of_the_process();
    if workers.is_empty() || workers.len() + 1 != all.len() {
        return false;
    }
    restrict_this_thread(if each_its_own { &all[..1] } else { all });
    for (worker, its_own) in workers.iter().zip(all[1..].chunks(1)) {
        restrict(worker, if each_its_own { its_own } else { all });
    }
    true
}

#[cfg(all(test, target_os = "linux"))]
pub(super) mod tests {
    use super::*;
    use std::thread;

    /// The processors of the calling thread.
    pub(in crate::cpu) fn here() -> Vec<usize> {
        linux::of(linux::THIS_THREAD)
    }

    /// On a thread of its own, so that the test's is not restricted.
    fn on_a_thread(test: impl FnOnce() + Send + 'static) {
        thread::spawn(test).join().expect("the test holds");
    }

    #[test]
    fn a_thread_leaves_the_first_processor_and_may_use_all_again() {
        on_a_thread(|| {
            assert_eq!((here().len(), here()), (count(), of_the_process().to_vec()));
            leave_first();
            let left = here();
            if count() == 1 {
                assert_eq!(left, of_the_process());
            } else {
                assert_eq!(left, of_the_process()[1..]);
            }
            // Who is started inherits it, and what the process may use is the same.
            thread::spawn(move || {
                assert_eq!(here(), left);
                use_all();
                assert_eq!(here(), of_the_process());
            })
            .join()
            .expect("a thread that used all");
        });
    }

    #[test]
    fn a_thread_for_each_processor_has_its_own_and_others_have_none() {
        on_a_thread(|| {
            let waiting = |num: usize| -> Vec<JoinHandle<Vec<usize>>> {
                (0..num)
                    .map(|_| {
                        thread::spawn(|| {
                            thread::park();
                            here()
                        })
                    })
                    .collect()
            };
            let seen = |workers: Vec<JoinHandle<Vec<usize>>>| -> Vec<Vec<usize>> {
                workers.iter().for_each(|worker| worker.thread().unpark());
                workers.into_iter().map(|worker| worker.join().expect("a worker")).collect()
            };
            let all = of_the_process();
            let too_many = waiting(count());
            assert!(!settle(&too_many, true));
            assert_eq!((here(), seen(too_many)), (all.to_vec(), vec![all.to_vec(); count()]));
            let one_each = waiting(count() - 1);
            assert_eq!(settle(&one_each, true), count() > 1);
            let others: Vec<Vec<usize>> = all[1..].iter().map(|&processor| vec![processor]).collect();
            assert_eq!((here(), seen(one_each)), (all[..1].to_vec(), others));
            use_all();
            let one_each = waiting(count() - 1);
            settle(&one_each, true);
            settle(&one_each, false);
            assert_eq!((here(), seen(one_each)), (all.to_vec(), vec![all.to_vec(); count() - 1]));
        });
    }
}
