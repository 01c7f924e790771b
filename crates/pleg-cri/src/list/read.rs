//! gRPC framing over an HTTP/2 body, feeding items to a visitor as frames arrive, some at a time.

use bytes::{Buf, Bytes};

use super::wire::{Malformed, refused_wire_type, split_tag, varint};
use crate::ErrorKind;
use crate::grpc::{Answer, PREFIX, read_prefix};

/// Takes items as their bytes, up to [`BATCH`] at a time.
pub(crate) type Visit<'a> = dyn FnMut(&[&[u8]]) -> Result<(), Malformed> + Send + 'a;

/// So many items are handed on in one go, so that a visitor who looks each of them up can let the waits for memory overlap.
pub const BATCH: usize = 32;

/// What can be wrong with the messages of a list; the caller adds call and endpoint.
#[derive(Debug)]
enum ReadError {
    Malformed(&'static str),
    TooLarge { limit: usize },
}

impl From<Malformed> for ReadError {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed.0)
    }
}

impl From<ReadError> for ErrorKind {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Malformed(what) => Self::Malformed(what.to_owned()),
            ReadError::TooLarge { limit } => Self::TooLarge { limit },
        }
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
pub(crate) async fn read_list(
    mut answer: Answer,
    form: Form,
    limit: usize,
    visit: &mut Visit<'_>,
) -> Result<(usize, usize), ErrorKind> {
    let mut messages = Messages::new(limit);
    while let Some(data) = answer.data().await? {
        messages.feed(data, visit)?;
    }
    Ok(messages.finish(form)?)
}

/// Where in the stream of length-prefixed messages we are.
#[derive(Debug)]
enum State {
    /// In the five bytes before a message.
    Prefix { seen: [u8; PREFIX], have: usize },
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
            state: State::Prefix {
                seen: [0; PREFIX],
                have: 0,
            },
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
                    let n = data.len().min(PREFIX - *have);
                    seen[*have..*have + n].copy_from_slice(&data[..n]);
                    *have += n;
                    data.advance(n);
                    if *have == PREFIX {
                        let left = read_prefix(*seen).map_err(ReadError::Malformed)?;
                        self.count += 1;
                        self.bytes = self.bytes.saturating_add(left);
                        if self.bytes > self.limit {
                            return Err(ReadError::TooLarge { limit: self.limit });
                        }
                        self.state = if left == 0 {
                            State::Prefix {
                                seen: [0; PREFIX],
                                have: 0,
                            }
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
                        self.state = State::Prefix {
                            seen: [0; PREFIX],
                            have: 0,
                        };
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
        other => return Err(refused_wire_type(other)),
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
    use proptest::prelude::*;
    use prost::Message;

    use super::*;
    use crate::grpc::testing::{self, Prepared};
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
    async fn answer(
        form: Form,
        head_status: Option<&'static str>,
        body: &[u8],
        trailer: Option<&'static str>,
    ) -> Result<usize, ErrorKind> {
        let (_directory, endpoint) = testing::serve(Prepared {
            head_status,
            body: body.to_vec(),
            trailers: trailer.map(|status| ("grpc-status", status)).into_iter().collect(),
            ..Prepared::default()
        });
        let connection = testing::connection(endpoint);
        let answer = connection.call("/list", Bytes::from_static(&[0; 5]), None).await?;
        read_list(answer, form, 1000, &mut |_| Ok(()))
            .await
            .map(|(items, _)| items)
    }

    /// Taken for an empty list, it would be the death of every container of the node.
    #[tokio::test]
    async fn a_unary_answer_without_a_message_is_no_empty_list() {
        let malformed = |answer| matches!(answer, Err(ErrorKind::Malformed(_)));
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
            Err(ErrorKind::Malformed(_))
        ));
        assert!(matches!(
            answer(Form::Streaming, Some("14"), &[], None).await,
            Err(ErrorKind::Status { .. })
        ));
        assert!(matches!(
            answer(Form::Streaming, None, &full, Some("14")).await,
            Err(ErrorKind::Status { .. })
        ));
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
