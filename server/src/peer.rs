//! The other end of a connection, which may be seen to leave while nobody reads from it.
//!
//! hyper reads a connection on while it has nothing of it, so a client that leaves in the middle of its answer is noticed. But
//! with further requests at hand, which a client may send without waiting for answers, hyper reads no more: someone who sends
//! fifty requests and leaves would have them all computed. The system knows of the end as soon as it is there.

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Notify;

/// A client that has said that it sends no more is gone when nothing was read for so long: what it said before that may still be
/// on its way through here, and answers that take no computing reach it. Those that do are not begun, or end at once.
const PATIENCE: Duration = Duration::from_millis(50);

/// Requests of one connection that are answered in a row. Who sends a hundred at once would have the thread that serves everybody for
/// milliseconds, and on few processors the core that tokens are computed on.
const IN_A_ROW: u64 = 8;
/// How long others have their turn then.
const PAUSE: Duration = Duration::from_millis(1);

tokio::task_local! {
    static CONNECTION: Arc<Shared>;
}

/// A connection of either kind.
#[derive(Debug)]
pub(crate) enum Connection {
    /// To a port.
    Tcp(TcpStream),
    /// To a path.
    Unix(UnixStream),
}

/// Calls a method that both kinds have.
macro_rules! of_both {
    ($connection:expr, $stream:ident => $call:expr) => {
        match $connection {
            Connection::Tcp($stream) => $call,
            Connection::Unix($stream) => $call,
        }
    };
}

#[derive(Debug)]
struct Shared {
    connection: Connection,
    /// How often bytes were read.
    reads: AtomicU64,
    /// Requests that were begun since then.
    in_a_row: AtomicU64,
    /// Requests of it that a model computes for.
    computing: AtomicUsize,
    /// Told when there is one more.
    begun: Notify,
}

/// While it is held, a model computes for the connection whose request is handled here.
#[derive(Debug)]
pub(crate) struct Computing(Option<Arc<Shared>>);

impl Computing {
    /// From now on; who has left by now is seen to have left, and this does not return.
    pub(crate) async fn begin() -> Self {
        let shared = CONNECTION.try_with(Arc::clone).ok();
        if let Some(shared) = &shared {
            shared.computing.fetch_add(1, Ordering::Relaxed);
            shared.begun.notify_one();
        }
        let computing = Self(shared);
        tokio::task::yield_now().await;
        computing
    }
}

impl Drop for Computing {
    fn drop(&mut self) {
        if let Some(shared) = &self.0 {
            shared.computing.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The bytes of a connection.
#[derive(Debug)]
pub(crate) struct PeerStream(Arc<Shared>);

/// Who looks at a connection without reading from it.
#[derive(Debug)]
pub(crate) struct PeerWatch(Arc<Shared>);

/// A connection as what is read and written, and as what is watched.
pub(crate) fn peer(connection: Connection) -> (PeerStream, PeerWatch) {
    let (reads, in_a_row, computing) = (AtomicU64::new(0), AtomicU64::new(0), AtomicUsize::new(0));
    let shared = Arc::new(Shared { connection, reads, in_a_row, computing, begun: Notify::new() });
    (PeerStream(Arc::clone(&shared)), PeerWatch(shared))
}

/// Waits for the turn of a request of the connection that is served here: one that was sent with many others waits a little.
pub(crate) async fn turn() {
    let Ok(shared) = CONNECTION.try_with(Arc::clone) else { return };
    let before = shared.in_a_row.fetch_add(1, Ordering::Relaxed);
    if before > 0 && before.is_multiple_of(IN_A_ROW) {
        tokio::time::sleep(PAUSE).await;
    }
}

impl PeerWatch {
    /// Serves the connection, whose requests begin their [`Computing`] within.
    pub(crate) fn scope<F: Future>(&self, serving: F) -> impl Future<Output = F::Output> + use<F> {
        CONNECTION.scope(Arc::clone(&self.0), serving)
    }

    /// Completes when the other end has closed the connection, or its half of it, and what it sent is not read any more or is
    /// computed for.
    pub(crate) async fn left(&self) {
        self.closed().await;
        let mut before = None;
        loop {
            let reads = self.0.reads.load(Ordering::Relaxed);
            if before.replace(reads) == Some(reads) {
                return;
            }
            if tokio::time::timeout(PATIENCE, self.computes()).await.is_ok() {
                return;
            }
        }
    }

    async fn computes(&self) {
        while self.0.computing.load(Ordering::Relaxed) == 0 {
            self.0.begun.notified().await;
        }
    }

    /// Completes when the other end sends no more.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    async fn closed(&self) {
        // Readiness for urgent bytes, which are not asked for, or for the end; unlike readiness to be read it says nothing
        // while ordinary bytes lie there.
        let end = of_both!(&self.0.connection, stream => stream.ready(Interest::PRIORITY).await);
        if end.is_err() {
            // The runtime ends, and the connection with it.
            std::future::pending::<()>().await;
        }
    }

    /// Other systems do not tell.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    async fn closed(&self) {
        std::future::pending().await
    }
}

impl PeerStream {
    fn poll_write_with(
        &self,
        context: &mut Context<'_>,
        write: impl Fn(&Connection) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let connection = &self.0.connection;
        loop {
            ready!(of_both!(connection, stream => stream.poll_write_ready(context)))?;
            match write(connection) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }
}

impl AsyncRead for PeerStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Shared { connection, reads, in_a_row, .. } = &*self.0;
        loop {
            ready!(of_both!(connection, stream => stream.poll_read_ready(context)))?;
            let unfilled = buffer.initialize_unfilled();
            match of_both!(connection, stream => stream.try_read(unfilled)) {
                Ok(len) => {
                    reads.fetch_add(1, Ordering::Relaxed);
                    in_a_row.store(0, Ordering::Relaxed);
                    buffer.advance(len);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for PeerStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_with(context, |connection| of_both!(connection, stream => stream.try_write(bytes)))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_with(context, |connection| of_both!(connection, stream => stream.try_write_vectored(slices)))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Nothing is held back here.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(of_both!(&self.0.connection, stream => SockRef::from(stream).shutdown(Shutdown::Write)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const LONG: Duration = Duration::from_secs(60);

    fn pair() -> (PeerStream, PeerWatch, UnixStream) {
        let (near, far) = UnixStream::pair().expect("two sockets");
        let (stream, watch) = peer(Connection::Unix(near));
        (stream, watch, far)
    }

    /// A pair whose far end has sent these bytes and sends no more.
    async fn pair_after(bytes: &[u8]) -> (PeerStream, PeerWatch, UnixStream) {
        let (stream, watch, mut far) = pair();
        far.write_all(bytes).await.expect("it takes bytes");
        far.shutdown().await.expect("it ends");
        (stream, watch, far)
    }

    async fn read(stream: &mut PeerStream, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        tokio::time::timeout(LONG, stream.read_exact(&mut bytes)).await.expect("bytes in time").expect("bytes");
        bytes
    }

    #[tokio::test]
    async fn bytes_go_both_ways_and_the_end_is_told() {
        let (mut stream, _watch, mut far) = pair();
        far.write_all(b"to here").await.expect("it takes bytes");
        assert_eq!(read(&mut stream, 7).await, b"to here");
        stream.write_all(b"to there").await.expect("it takes bytes");
        stream.shutdown().await.expect("it ends");
        let mut all = Vec::new();
        tokio::time::timeout(LONG, far.read_to_end(&mut all)).await.expect("an end in time").expect("an end");
        assert_eq!(all, b"to there");
    }

    #[tokio::test]
    async fn who_leaves_behind_bytes_that_nobody_reads_is_seen_to_leave() {
        let (mut stream, watch, mut far) = pair();
        far.write_all(&[7; 100]).await.expect("it takes bytes");
        read(&mut stream, 1).await;
        // Bytes that lie there are no end.
        assert!(tokio::time::timeout(3 * PATIENCE, watch.left()).await.is_err());
        drop(far);
        tokio::time::timeout(LONG, watch.left()).await.expect("seen");
    }

    #[tokio::test]
    async fn who_has_said_all_is_there_while_it_is_read() {
        let (mut stream, watch, _far) = pair_after(&[7; 100]).await;
        let left = tokio::spawn(async move {
            watch.left().await;
            Instant::now()
        });
        let mut last = Instant::now();
        for _ in 0..20 {
            read(&mut stream, 1).await;
            last = Instant::now();
            tokio::time::sleep(PATIENCE / 5).await;
        }
        let left = tokio::time::timeout(LONG, left).await.expect("seen").expect("no panic");
        assert!(left > last, "a client was gone while it was read");
    }

    #[tokio::test]
    async fn who_has_said_all_is_gone_as_soon_as_a_model_computes() {
        let (mut stream, watch, _far) = pair_after(&[7; 10_000]).await;
        let reading = tokio::spawn(async move {
            for _ in 0..10_000 {
                read(&mut stream, 1).await;
                tokio::time::sleep(PATIENCE / 5).await;
            }
        });
        let serving = watch.scope(async {
            tokio::time::sleep(PATIENCE).await;
            let _computing = Computing::begin().await;
            std::future::pending::<()>().await;
        });
        tokio::select! {
            () = serving => unreachable!("it computes for ever"),
            () = watch.left() => {}
            _ = reading => panic!("a client was there while it was computed for"),
        }
    }

    #[tokio::test]
    async fn of_requests_that_came_together_a_few_have_their_turn_at_a_time() {
        let (mut stream, watch, mut far) = pair();
        let begin = Instant::now();
        watch
            .scope(async {
                for _ in 0..=3 * IN_A_ROW {
                    turn().await;
                }
            })
            .await;
        assert!(begin.elapsed() >= 3 * PAUSE);
        far.write_all(b"another").await.expect("it takes bytes");
        read(&mut stream, 1).await;
        assert_eq!(watch.0.in_a_row.load(Ordering::Relaxed), 0);
        // What is no connection's has no turns.
        turn().await;
    }

    #[tokio::test]
    async fn what_was_computed_before_is_no_computing() {
        let (mut stream, watch, _far) = pair_after(&[7; 20]).await;
        watch.scope(async { drop(Computing::begin().await) }).await;
        let left = tokio::spawn(async move { watch.left().await });
        for _ in 0..20 {
            read(&mut stream, 1).await;
            assert!(!left.is_finished(), "a client was gone while it was read");
            tokio::time::sleep(PATIENCE / 5).await;
        }
        tokio::time::timeout(LONG, left).await.expect("seen").expect("no panic");
    }
}
