//! The connection: a unix stream whose reads go through one large, aligned buffer.
//!
//! A list answer of a busy node is megabytes in 16 kB frames. The kernel copies into 64-byte aligned memory several times
//! faster than into the odd addresses h2 would hand it, so a copy of our own from an aligned buffer is a gain, not a loss.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;

/// What one read from the kernel may bring.
const CAPACITY: usize = 128 * 1024;
const ALIGNMENT: usize = 64;

/// A connected unix stream with an aligned read buffer.
#[derive(Debug)]
pub struct Socket {
    stream: UnixStream,
    buffer: Box<[u8]>,
    /// Where aligned memory begins in `buffer`.
    base: usize,
    /// The part not yet handed on, relative to `base`.
    unread: std::ops::Range<usize>,
}

impl Socket {
    /// Connects to the socket at `path`.
    pub async fn connect(path: &Path) -> io::Result<Self> {
        Ok(Self::new(UnixStream::connect(path).await?))
    }

    fn new(stream: UnixStream) -> Self {
        let buffer = vec![0; CAPACITY + ALIGNMENT].into_boxed_slice();
        // `align_offset` may refuse to tell; then we are merely slower.
        let base = Some(buffer.as_ptr().align_offset(ALIGNMENT))
            .filter(|&base| base < ALIGNMENT)
            .unwrap_or(0);
        Self {
            stream,
            buffer,
            base,
            unread: 0..0,
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.unread.is_empty() {
            let mut chunk = ReadBuf::new(&mut this.buffer[this.base..this.base + CAPACITY]);
            ready!(Pin::new(&mut this.stream).poll_read(cx, &mut chunk))?;
            this.unread = 0..chunk.filled().len();
        }
        let n = this.unread.len().min(to.remaining());
        let from = this.base + this.unread.start;
        to.put_slice(&this.buffer[from..from + n]);
        this.unread.start += n;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn bytes_arrive_in_order_whatever_the_read_size() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let sent: Vec<u8> = (0..1_000_000u32).map(|n| (n % 251) as u8).collect();
        let expected = sent.clone();
        let writer = tokio::spawn(async move {
            theirs.write_all(&sent).await.unwrap();
        });
        let mut socket = Socket::new(ours);
        let mut got = Vec::new();
        for size in [1usize, 7, 9000, 300_000].into_iter().cycle() {
            let mut chunk = vec![0; size];
            match socket.read(&mut chunk).await.unwrap() {
                0 => break,
                n => got.extend_from_slice(&chunk[..n]),
            }
        }
        writer.await.unwrap();
        assert!(got == expected);
    }
}
