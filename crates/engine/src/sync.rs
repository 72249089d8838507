//! What handles and the engine thread meet by: the standard library's locks, atomics, channels and threads, or with the
//! feature `shuttle` those of that crate, which runs all threads of a test in a random order that can be repeated
//! (`tests/shuttle.rs`).

#[cfg(not(feature = "shuttle"))]
pub(crate) use std::{
    sync::{Mutex, MutexGuard, atomic, mpsc},
    thread::{Builder, JoinHandle},
};

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::{
    sync::{Mutex, MutexGuard, atomic},
    thread::JoinHandle,
};

/// shuttle's threads with the ways of the standard library's.
#[cfg(feature = "shuttle")]
#[derive(Default)]
pub(crate) struct Builder(shuttle::thread::Builder);

#[cfg(feature = "shuttle")]
impl Builder {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn name(self, name: String) -> Self {
        Builder(self.0.name(name))
    }

    /// A panic ends the thread; shuttle would end the test.
    pub(crate) fn spawn(self, work: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
        let work = std::panic::AssertUnwindSafe(work);
        self.0.spawn(|| drop(std::panic::catch_unwind(work)))
    }
}

/// shuttle's channel with the ways of the standard library's.
#[cfg(feature = "shuttle")]
pub(crate) mod mpsc {
    pub(crate) use shuttle::sync::mpsc::{RecvError, Sender, TryRecvError};

    pub(crate) fn channel<T>() -> (Sender<T>, Receiver<T>) {
        let (sender, receiver) = shuttle::sync::mpsc::channel();
        (sender, Receiver(receiver))
    }

    pub(crate) struct Receiver<T>(shuttle::sync::mpsc::Receiver<T>);

    impl<T> Receiver<T> {
        pub(crate) fn recv(&self) -> Result<T, RecvError> {
            self.0.recv()
        }

        pub(crate) fn try_recv(&self) -> Result<T, TryRecvError> {
            self.0.try_recv()
        }
    }

    /// What was sent ends with the receiver; shuttle would keep it for as long as there are senders.
    impl<T> Drop for Receiver<T> {
        fn drop(&mut self) {
            while self.0.try_recv().is_ok() {}
        }
    }
}
