//! gRPC framing over an HTTP/2 body, feeding items to a visitor as frames arrive, some at a time.

use bytes::{Buf, Bytes};
use http_body::Body;
use std::pin::pin;

use super::wire::{Malformed, split_tag, varint};

/// Takes items as their bytes, up to [`BATCH`] at a time.
pub(crate) type Visit<'a> = dyn FnMut(&[&[u8]]) -> Result<(), Malformed> + Send + 'a;

/// So many items are handed on in one go, so that a visitor who looks each of them up can let the waits for memory overlap.
pub const BATCH: usize = 32;

/// What can be wrong with a body; the caller adds call and endpoint.
#[derive(Debug)]
pub(crate) enum ReadError {
    Status(tonic::Status),
    Malformed(&'static str),
    TooLarge { limit: usize },
}

impl From<Malformed> for ReadError {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed.0)
    }
}

/// Which of its two calls a list came by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Exactly one message. An answer without any is broken: taken for an empty list, it would be the death of everything.
    Unary,
    /// Any number of messages, also none: a node without containers.
    Streaming,
}

/// Reads a list's whole answer. Returns (items, bytes).
pub(crate) async fn read_list<B>(
    response: http::Response<B>,
    form: Form,
    limit: usize,
    visit: &mut Visit<'_>,
) -> Result<(usize, usize), ReadError>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (mut head, body) = response.into_parts();
    // What has no message at all, errors and empty streams, may come with its status in the head ("trailers only").
    let mut status = status_of(&mut head.headers);
    if let Some(status) = status.take_if(|status| status.code() != tonic::Code::Ok) {
        return Err(ReadError::Status(status));
    }
    if head.status != http::StatusCode::OK {
        return Err(ReadError::Status(tonic::Status::unknown(format!(
            "HTTP status {}",
            head.status
        ))));
    }
    let mut body = pin!(body);
    let mut messages = Messages::new(limit);
    while let Some(frame) = std::future::poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        match frame
            .map_err(|e| ReadError::Status(tonic::Status::from_error(e.into())))?
            .into_data()
        {
            Ok(data) => {
                // The head spoke for an answer without a message; this one has to end with a status of its own.
                status = None;
                messages.feed(data, visit)?;
            }
            Err(frame) => {
                if let Ok(mut trailers) = frame.into_trailers() {
                    status = status_of(&mut trailers);
                }
            }
        }
    }
    match status {
        Some(status) if status.code() == tonic::Code::Ok => messages.finish(form),
        Some(status) => Err(ReadError::Status(status)),
        None => Err(ReadError::Malformed("the answer ended without a status")),
    }
}

/// The status in headers or trailers. Without its details: we do not read them, and tonic panics where they are no base64.
fn status_of(headers: &mut http::HeaderMap) -> Option<tonic::Status> {
    headers.remove("grpc-status-details-bin");
    tonic::Status::from_header_map(headers)
}

/// Where in the stream of length-prefixed messages we are.
#[derive(Debug)]
enum State {
    /// In the five bytes before a message.
    Prefix { seen: [u8; 5], have: usize },
    /// In a message with this many bytes to come.
    Message { left: usize },
}

/// Cuts the body into messages and the messages into items of field 1.
#[derive(Debug)]
struct Messages {
    state: State,
    /// The start of an item (with its tag and length) whose end has not arrived.
    carry: Vec<u8>,
    limit: usize,
    count: usize,
    items: usize,
    bytes: usize,
}

impl Messages {
    fn new(limit: usize) -> Self {
        Self {
            state: State::Prefix { seen: [0; 5], have: 0 },
            carry: Vec::new(),
            limit,
            count: 0,
            items: 0,
            bytes: 0,
        }
    }

    fn feed(&mut self, mut data: Bytes, visit: &mut Visit<'_>) -> Result<(), ReadError> {
        while data.has_remaining() {
            match &mut self.state {
                State::Prefix { seen, have } => {
                    let n = data.len().min(5 - *have);
                    seen[*have..*have + n].copy_from_slice(&data[..n]);
                    *have += n;
                    data.advance(n);
                    if *have == 5 {
                        let [compressed, len @ ..] = *seen;
                        if compressed != 0 {
                            return Err(ReadError::Malformed("unexpected compressed message"));
                        }
                        let left = u32::from_be_bytes(len) as usize;
                        self.count += 1;
                        self.bytes = self.bytes.saturating_add(left);
                        if self.bytes > self.limit {
                            return Err(ReadError::TooLarge { limit: self.limit });
                        }
                        self.state = if left == 0 {
                            State::Prefix { seen: [0; 5], have: 0 }
                        } else {
                            State::Message { left }
                        };
                    }
                }
                State::Message { left } => {
                    let part = data.split_to(data.len().min(*left));
                    *left -= part.len();
                    let ends = *left == 0;
                    self.fields(&part, visit)?;
                    if ends {
                        if !self.carry.is_empty() {
                            return Err(ReadError::Malformed("message ends inside an item"));
                        }
                        self.state = State::Prefix { seen: [0; 5], have: 0 };
                    }
                }
            }
        }
        Ok(())
    }

    /// Walks the fields of a message's next part; what is incomplete is carried.
    fn fields(&mut self, mut part: &[u8], visit: &mut Visit<'_>) -> Result<(), ReadError> {
        // First complete the carried field, copying no more than it needs.
        while !self.carry.is_empty() && !part.is_empty() {
            let want = match field(&self.carry)? {
                // The head itself is cut: bytes one by one until it is whole.
                Parsed::Head => 1,
                Parsed::Field { size, .. } => size.saturating_sub(self.carry.len()),
            };
            let n = want.min(part.len());
            self.carry.extend_from_slice(&part[..n]);
            part = &part[n..];
            if let Parsed::Field { number, body, size } = field(&self.carry)?
                && self.carry.len() >= size
            {
                if number == 1
                    && let Some(from) = body
                {
                    visit(&[&self.carry[from..size]])?;
                    self.items += 1;
                }
                self.carry.clear();
            }
        }
        let mut batch: [&[u8]; BATCH] = [&[]; BATCH];
        let mut filled = 0;
        while !part.is_empty() {
            match field(part)? {
                Parsed::Field { number, body, size } if size <= part.len() => {
                    if number == 1
                        && let Some(from) = body
                    {
                        batch[filled] = &part[from..size];
                        filled += 1;
                        if filled == BATCH {
                            visit(&batch)?;
                            self.items += filled;
                            filled = 0;
                        }
                    }
                    part = &part[size..];
                }
                _ => {
                    self.carry.extend_from_slice(part);
                    break;
                }
            }
        }
        if filled > 0 {
            visit(&batch[..filled])?;
            self.items += filled;
        }
        Ok(())
    }

    fn finish(self, form: Form) -> Result<(usize, usize), ReadError> {
        match self.state {
            State::Prefix { have: 0, .. } if form == Form::Unary && self.count != 1 => {
                Err(ReadError::Malformed("expected exactly one message"))
            }
            State::Prefix { have: 0, .. } => Ok((self.items, self.bytes)),
            _ => Err(ReadError::Malformed("the answer is truncated")),
        }
    }
}

enum Parsed {
    /// Tag or length are not complete yet.
    Head,
    /// A field of `size` bytes in all; `body` is where a length-delimited field's content begins.
    Field {
        number: u32,
        body: Option<usize>,
        size: usize,
    },
}

fn field(bytes: &[u8]) -> Result<Parsed, Malformed> {
    let Some((tag, used)) = varint(bytes)? else {
        return Ok(Parsed::Head);
    };
    let (number, wire_type) = split_tag(tag)?;
    let rest = &bytes[used..];
    let size = match wire_type {
        0 => match varint(rest)? {
            Some((_, n)) => used + n,
            None => return Ok(Parsed::Head),
        },
        1 => used + 8,
        5 => used + 4,
        2 => {
            let Some((len, n)) = varint(rest)? else {
                return Ok(Parsed::Head);
            };
            // The message's own limit bounds this long before it could overflow.
            let len = u32::try_from(len).map_err(|_| Malformed("length exceeds the message"))? as usize;
            return Ok(Parsed::Field {
                number,
                body: Some(used + n),
                size: used + n + len,
            });
        }
        _ => return Err(Malformed("unknown wire type")),
    };
    if number == 1 {
        return Err(Malformed("item has an unexpected wire type"));
    }
    Ok(Parsed::Field {
        number,
        body: None,
        size,
    })
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use http_body::Frame;
    use proptest::prelude::*;
    use prost::Message;

    use super::*;
    use crate::v1;

    fn frame(message: &[u8]) -> Vec<u8> {
        let len = u32::try_from(message.len()).unwrap().to_be_bytes();
        [&[0][..], &len, message].concat()
    }

    /// Feeds `body` in pieces of the given sizes.
    fn read(body: &[u8], sizes: &[usize], limit: usize) -> Result<(Vec<Vec<u8>>, usize), ReadError> {
        let mut items = Vec::new();
        let mut messages = Messages::new(limit);
        let mut rest = body;
        for &size in sizes.iter().cycle() {
            let (part, tail) = rest.split_at(size.clamp(1, rest.len().max(1)).min(rest.len()));
            messages.feed(Bytes::copy_from_slice(part), &mut |batch| {
                items.extend(batch.iter().map(|item| item.to_vec()));
                Ok(())
            })?;
            rest = tail;
            if rest.is_empty() {
                break;
            }
        }
        messages.finish(Form::Streaming).map(|(_, bytes)| (items, bytes))
    }

    /// Reads an answer with the given status in its head or in its trailers.
    async fn answer(form: Form, head: Option<&str>, body: &[u8], trailer: Option<&str>) -> Result<usize, ReadError> {
        let mut frames = Vec::new();
        if !body.is_empty() {
            frames.push(Frame::data(Bytes::copy_from_slice(body)));
        }
        if let Some(status) = trailer {
            let trailers = http::HeaderMap::from_iter([("grpc-status".parse().unwrap(), status.parse().unwrap())]);
            frames.push(Frame::trailers(trailers));
        }
        let mut response = http::Response::new(Frames(frames.into()));
        if let Some(status) = head {
            response.headers_mut().insert("grpc-status", status.parse().unwrap());
        }
        read_list(response, form, 1000, &mut |_| Ok(()))
            .await
            .map(|(items, _)| items)
    }

    struct Frames(std::collections::VecDeque<Frame<Bytes>>);

    impl Body for Frames {
        type Data = Bytes;
        type Error = std::io::Error;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
            Poll::Ready(self.0.pop_front().map(Ok))
        }
    }

    /// Taken for an empty list, it would be the death of every container of the node.
    #[tokio::test]
    async fn a_unary_answer_without_a_message_is_no_empty_list() {
        let malformed = |answer| matches!(answer, Err(ReadError::Malformed(_)));
        assert!(malformed(answer(Form::Unary, None, &[], Some("0")).await));
        assert!(malformed(answer(Form::Unary, Some("0"), &[], None).await));
        let two = [frame(&[]), frame(&[])].concat();
        assert!(malformed(answer(Form::Unary, None, &two, Some("0")).await));
        assert_eq!(answer(Form::Unary, None, &frame(&[]), Some("0")).await.unwrap(), 0);
    }

    /// A Go server that streams nothing sends its status in the head and no trailers.
    #[tokio::test]
    async fn a_stream_without_a_message_is_an_empty_list() {
        for (head, trailer) in [(Some("0"), None), (None, Some("0"))] {
            assert_eq!(answer(Form::Streaming, head, &[], trailer).await.unwrap(), 0);
        }
        let full = frame(&list(3).encode_to_vec());
        assert_eq!(answer(Form::Streaming, None, &full, Some("0")).await.unwrap(), 3);
        // Without a status it may be half a list.
        assert!(matches!(
            answer(Form::Streaming, None, &full, None).await,
            Err(ReadError::Malformed(_))
        ));
        assert!(matches!(
            answer(Form::Streaming, Some("14"), &[], None).await,
            Err(ReadError::Status(_))
        ));
        assert!(matches!(
            answer(Form::Streaming, None, &full, Some("14")).await,
            Err(ReadError::Status(_))
        ));
    }

    #[test]
    fn garbled_details_of_a_status_are_no_panic() {
        let mut headers = http::HeaderMap::new();
        headers.insert("grpc-status", http::HeaderValue::from_static("13"));
        headers.insert("grpc-status-details-bin", http::HeaderValue::from_static("%%%"));
        assert_eq!(status_of(&mut headers).unwrap().code(), tonic::Code::Internal);
    }

    fn list(n: usize) -> v1::ListContainersResponse {
        let container = |i| v1::Container {
            id: format!("id-{i}"),
            labels: [("some.label".to_owned(), "x".repeat(i * 37 % 400))].into(),
            ..Default::default()
        };
        v1::ListContainersResponse {
            containers: (0..n).map(container).collect(),
        }
    }

    proptest! {
        /// However the transport cuts the bytes, the items are the same; also over several messages, as a stream sends them.
        #[test]
        fn cuts_do_not_matter(n in 0usize..20, more in 0usize..5, sizes in proptest::collection::vec(1usize..300, 1..20)) {
            let (first, second) = (list(n), list(more));
            let body = [frame(&first.encode_to_vec()), frame(&second.encode_to_vec())].concat();
            let (items, _) = read(&body, &sizes, usize::MAX).unwrap();
            let expected: Vec<_> = first.containers.iter().chain(&second.containers).map(Message::encode_to_vec).collect();
            prop_assert_eq!(items, expected);
        }

        #[test]
        fn noise_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200), sizes in proptest::collection::vec(1usize..50, 1..5)) {
            let _ = read(&frame(&bytes), &sizes, 1000);
            let _ = read(&bytes, &sizes, 1000);
        }
    }

    #[test]
    fn unknown_fields_between_items_are_skipped() {
        let mut message = vec![0x10, 0x96, 0x01]; // field 2, varint
        message.extend(
            v1::ListContainersResponse {
                containers: list(1).containers,
            }
            .encode_to_vec(),
        );
        message.extend([0x1a, 2, b'h', b'i', 0x25, 0, 0, 0, 0, 0x29, 0, 0, 0, 0, 0, 0, 0, 0]); // 3 bytes, 4 fixed32, 5 fixed64
        for size in 1..message.len() {
            assert_eq!(read(&frame(&message), &[size], usize::MAX).unwrap().0.len(), 1);
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        assert!(matches!(read(&[1, 0, 0, 0, 0], &[5], 10), Err(ReadError::Malformed(_))));
        assert!(matches!(
            read(&[0, 0, 0, 1, 0], &[5], 10),
            Err(ReadError::TooLarge { limit: 10 })
        ));
        assert!(matches!(
            read(&[0, 0, 0, 0, 2, 0x0a], &[9], 10),
            Err(ReadError::Malformed(_))
        ));
        assert!(matches!(
            read(&[0, 0, 0, 0, 2, 0x0a, 9], &[9], 10),
            Err(ReadError::Malformed(_))
        ));
        // The limit counts all messages of a stream together.
        assert!(matches!(
            read(&[0, 0, 0, 0, 2, 0x0a, 0, 0, 0, 0, 0, 9], &[1], 10),
            Err(ReadError::TooLarge { .. })
        ));
    }
}
