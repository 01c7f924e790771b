//! Adds the usual error body to the errors that hyper answers by itself.
//!
//! A request head that is too large or not HTTP reaches no handler: hyper writes a bare status line and closes the connection. It offers
//! no hook for that, but it writes such an answer in one piece, which this wrapper replaces on its way to the socket.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connection on which errors have bodies.
#[derive(Debug)]
pub(super) struct Explained<S> {
    stream: S,
    /// The replacement that is being written.
    instead: Option<Instead>,
}

#[derive(Debug)]
struct Instead {
    bytes: Vec<u8>,
    written: usize,
    /// The length of hyper's own answer.
    replaces: usize,
}

impl<S> Explained<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, instead: None }
    }
}

/// The replacement for `answer`, if that is a complete error without a body.
fn explain(answer: &[u8]) -> Option<Vec<u8>> {
    let head = str::from_utf8(answer.strip_suffix(b"\r\n\r\n")?).ok()?;
    let (status, headers) = head.split_once("\r\n")?;
    let code: u16 = status.strip_prefix("HTTP/1.1 ")?.split(' ').next()?.parse().ok()?;
    let empty = |line: &str| line.eq_ignore_ascii_case("content-length: 0");
    if code < 400 || !headers.split("\r\n").any(empty) {
        return None;
    }
    let words = match code {
        400 => "the request cannot be read: it is not HTTP/1.1",
        414 => "the path of the request is too long",
        431 => "the head of the request is too large: about 16 kB and 64 headers are accepted",
        _ => "the request is refused",
    };
    let body = format!("{}\n", serde_json::json!({ "error": words }));
    let kept: Vec<&str> = headers.split("\r\n").filter(|line| !empty(line)).collect();
    let length = body.len();
    let kept = kept.iter().fold(String::new(), |all, line| all + line + "\r\n");
    Some(
        format!("{status}\r\n{kept}content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}")
            .into_bytes(),
    )
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Explained<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if this.instead.is_none() {
            this.instead = explain(bytes).map(|instead| Instead {
                bytes: instead,
                written: 0,
                replaces: bytes.len(),
            });
        }
        let Some(instead) = &mut this.instead else {
            return Pin::new(&mut this.stream).poll_write(context, bytes);
        };
        while instead.written < instead.bytes.len() {
            let rest = &instead.bytes[instead.written..];
            match ready!(Pin::new(&mut this.stream).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                n => instead.written += n,
            }
        }
        let replaced = instead.replaces;
        this.instead = None;
        Poll::Ready(Ok(replaced))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Explained<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[test]
    fn only_whole_errors_without_a_body_are_exchanged() {
        let bare = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        let text = String::from_utf8(explain(bare).unwrap()).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n"));
        assert!(head.ends_with(&format!("content-length: {}", body.len())), "{text}");
        assert!(body.contains("64 headers"), "{text}");
        for other in [
            &b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"[..],
            b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}",
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: 20\r\n\r\n",
            b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\n",
            b"{\"message\":\"HTTP/1.1 400\"}\r\n\r\n",
            b"",
        ] {
            assert_eq!(explain(other), None);
        }
    }

    #[tokio::test]
    async fn a_narrow_pipe_gets_all_of_it() {
        let (ours, mut theirs) = tokio::io::duplex(7);
        let mut connection = Explained::new(ours);
        let write = async move {
            connection
                .write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
                .await
                .unwrap();
            connection.write_all(b"more").await.unwrap();
        };
        let mut text = String::new();
        let ((), read) = tokio::join!(write, theirs.read_to_string(&mut text));
        read.unwrap();
        assert!(
            text.starts_with("HTTP/1.1 400 Bad Request\r\n") && text.ends_with("HTTP/1.1\"}\nmore"),
            "{text}"
        );
    }
}
