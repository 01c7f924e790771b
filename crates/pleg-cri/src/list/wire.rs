//! A visitor over protobuf bytes: any field order, the last value wins, unknown fields are skipped, every length is checked.

use super::{ContainerItem, SandboxItem};

/// The bytes are no protobuf message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed protobuf: {0}")]
pub struct Malformed(pub(crate) &'static str);

/// One field of a message.
enum Field<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// Fixed 32 or 64: no field we read has these types.
    Skipped,
}

/// Reads a varint from the front of `bytes`. `Ok(None)`: it is cut off.
#[inline]
pub(super) fn varint(bytes: &[u8]) -> Result<Option<(u64, usize)>, Malformed> {
    // Most tags are one byte, most lengths one or two.
    match *bytes {
        [a, ..] if a < 0x80 => Ok(Some((u64::from(a), 1))),
        [a, b, ..] if b < 0x80 => Ok(Some((u64::from(a & 0x7f) | u64::from(b) << 7, 2))),
        _ => long_varint(bytes),
    }
}

fn long_varint(bytes: &[u8]) -> Result<Option<(u64, usize)>, Malformed> {
    let mut value = 0u64;
    for (i, &byte) in bytes.iter().take(10).enumerate() {
        if i == 9 && byte > 1 {
            return Err(Malformed("varint overflows 64 bits"));
        }
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            return Ok(Some((value, i + 1)));
        }
    }
    if bytes.len() >= 10 {
        Err(Malformed("varint overflows 64 bits"))
    } else {
        Ok(None)
    }
}

/// Walks the fields of one whole message.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    #[inline]
    fn varint(&mut self) -> Result<u64, Malformed> {
        let (value, used) = varint(self.0)?.ok_or(Malformed("truncated varint"))?;
        self.0 = &self.0[used..];
        Ok(value)
    }

    #[inline]
    fn take(&mut self, n: usize) -> Result<&'a [u8], Malformed> {
        let (head, tail) = self
            .0
            .split_at_checked(n)
            .ok_or(Malformed("length exceeds the message"))?;
        self.0 = tail;
        Ok(head)
    }

    /// The next field; `None` at the end. Inlined: it is most of what a relist does.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "measured: a tenth of a relist")]
    fn next(&mut self) -> Result<Option<(u32, Field<'a>)>, Malformed> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let (number, wire_type) = split_tag(self.varint()?)?;
        let field = match wire_type {
            0 => Field::Varint(self.varint()?),
            1 => self.take(8).map(|_| Field::Skipped)?,
            2 => {
                let len = usize::try_from(self.varint()?).map_err(|_| Malformed("length exceeds the message"))?;
                Field::Bytes(self.take(len)?)
            }
            5 => self.take(4).map(|_| Field::Skipped)?,
            other => return Err(refused_wire_type(other)),
        };
        Ok(Some((number, field)))
    }
}

impl Fields<'_> {
    /// Skips what follows under the same one-byte tag of a length-delimited field: maps come as runs of entries. Stops before
    /// anything unusual, which [`Fields::next`] then judges.
    #[inline]
    fn skip_run(&mut self, tag: u8) {
        while let [first, rest @ ..] = self.0
            && *first == tag
            && let Ok(Some((len, used))) = varint(rest)
            && let Some(tail) = usize::try_from(len)
                .ok()
                .and_then(|len| rest.get(used.checked_add(len)?..))
        {
            self.0 = tail;
        }
    }
}

/// Splits a tag into field number and wire type.
#[inline]
pub(super) fn split_tag(tag: u64) -> Result<(u32, u8), Malformed> {
    let number = u32::try_from(tag >> 3).map_err(|_| Malformed("field number too large"))?;
    if number == 0 || number > 0x1fff_ffff {
        return Err(Malformed("field number out of range"));
    }
    Ok((number, (tag & 7) as u8))
}

/// A start or end of a group. CRI is proto3, which has no groups, so no runtime can have written it: the bytes are corrupt, or hostile.
/// prost skips a group in place of an unknown field. We refuse it, because the end of a group is only found by reading all of it, and
/// [`read_list`](super::read::read_list) must know how long a field is before it has arrived.
const GROUP: Malformed = Malformed("field is a group, which proto3 does not have");

/// Why a field of this wire type cannot be read or skipped.
#[cold]
pub(super) fn refused_wire_type(wire_type: u8) -> Malformed {
    match wire_type {
        3 | 4 => GROUP,
        _ => Malformed("unknown wire type"),
    }
}

/// Enums and `int32` travel sign-extended to 64 bits; what is cut off is what protobuf cuts off.
#[expect(clippy::cast_possible_truncation, reason = "protobuf's own rule for int32")]
fn int32(value: u64) -> i32 {
    value as i32
}

#[expect(clippy::cast_possible_truncation, reason = "protobuf's own rule for uint32")]
fn uint32(value: u64) -> u32 {
    value as u32
}

/// One entry of a `map<string, string>`.
#[inline(always)]
#[expect(clippy::inline_always, reason = "measured, as above")]
fn map_entry(entry: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    // As every encoder writes it: the key, then the value, both shorter than 128 bytes.
    if let [0x0a, key_len @ 0..0x80, rest @ ..] = entry
        && let Some((key, [0x12, value_len @ 0..0x80, value @ ..])) = rest.split_at_checked(usize::from(*key_len))
        && value.len() == usize::from(*value_len)
    {
        return Ok((key, value));
    }
    unusual_map_entry(entry)
}

fn unusual_map_entry(entry: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let (mut key, mut value): (&[u8], &[u8]) = (b"", b"");
    let mut fields = Fields(entry);
    while let Some((number, field)) = fields.next()? {
        match (number, field) {
            (1, Field::Bytes(bytes)) => key = bytes,
            (2, Field::Bytes(bytes)) => value = bytes,
            (1 | 2, _) => return Err(WRONG_TYPE),
            _ => {}
        }
    }
    Ok((key, value))
}

const POD_UID: &[u8; 21] = b"io.kubernetes.pod.uid";
const POD_NAME: &[u8; 22] = b"io.kubernetes.pod.name";
const POD_NAMESPACE: &[u8; 27] = b"io.kubernetes.pod.namespace";

/// Compares arrays, which is done in place; a comparison of slices is a call.
#[inline]
fn is_label<const N: usize>(key: &[u8], label: &[u8; N]) -> bool {
    <&[u8; N]>::try_from(key).is_ok_and(|key| key == label)
}

/// A known field that comes as another type. prost refuses it too, save for maps.
const WRONG_TYPE: Malformed = Malformed("field has an unexpected wire type");

/// The id and state of a message, or `None` where anything about it is unusual: then it has to be read in full. Top-level fields
/// are walked to the end, because a later value wins; what is inside of them is not looked at.
#[inline]
fn glance(bytes: &[u8], state_number: u8, time_number: u8) -> Option<(&[u8], i32)> {
    const ID: u8 = 1 << 3 | 2;
    // Fields with a one-byte tag that may be length-delimited.
    let delimited: u16 = !(1 | 1 << state_number | 1 << time_number);
    let (mut id, mut state) = (&bytes[..0], 0);
    let mut rest = bytes;
    while let [tag, tail @ ..] = rest {
        let tag = *tag;
        if tag & 0x87 == 2 && delimited >> (tag >> 3) & 1 == 1 {
            // Almost all are that short.
            let (body, tail) = if let [len @ 0..0x80, tail @ ..] = tail {
                tail.split_at_checked(usize::from(*len))?
            } else {
                let (len, used) = varint(tail).ok()??;
                tail[used..].split_at_checked(usize::try_from(len).ok()?)?
            };
            if tag == ID {
                id = body;
            }
            rest = tail;
        } else {
            let (value, used) = varint(tail).ok()??;
            rest = &tail[used..];
            if tag == state_number << 3 {
                state = int32(value);
            } else if tag != time_number << 3 {
                return None;
            }
        }
    }
    Some((id, state))
}

/// The id and state of a `PodSandbox`, for recognising what is unchanged; `None`: unusual, read it with [`parse_sandbox`].
pub fn glance_sandbox(bytes: &[u8]) -> Option<(&[u8], i32)> {
    glance(bytes, 3, 4)
}

/// The id and state of a `Container`, for recognising what is unchanged; `None`: unusual, read it with [`parse_container`].
pub fn glance_container(bytes: &[u8]) -> Option<(&[u8], i32)> {
    glance(bytes, 6, 7)
}

/// Reads a `PodSandbox`.
pub fn parse_sandbox(bytes: &[u8]) -> Result<SandboxItem<'_>, Malformed> {
    let mut item = SandboxItem::default();
    let mut fields = Fields(bytes);
    while let Some((number, field)) = fields.next()? {
        match (number, field) {
            (1, Field::Bytes(id)) => item.id = id,
            (2, Field::Bytes(metadata)) => {
                item.has_metadata = true;
                let mut fields = Fields(metadata);
                while let Some((number, field)) = fields.next()? {
                    match (number, field) {
                        (1, Field::Bytes(name)) => item.name = name,
                        (2, Field::Bytes(uid)) => item.uid = uid,
                        (3, Field::Bytes(namespace)) => item.namespace = namespace,
                        (4, Field::Varint(attempt)) => item.attempt = uint32(attempt),
                        (1..=4, _) => return Err(WRONG_TYPE),
                        _ => {}
                    }
                }
            }
            (3, Field::Varint(state)) => item.state = int32(state),
            (4, Field::Varint(nanos)) => item.created_at = nanos.cast_signed(),
            (5, Field::Bytes(label)) => {
                let (key, value) = map_entry(label)?;
                if is_label(key, POD_UID) {
                    item.pod_uid_label = value;
                }
            }
            (6, Field::Bytes(_)) => fields.skip_run(6 << 3 | 2),
            (1..=6, _) => return Err(WRONG_TYPE),
            _ => {}
        }
    }
    Ok(item)
}

/// Reads a `Container`.
pub fn parse_container(bytes: &[u8]) -> Result<ContainerItem<'_>, Malformed> {
    let mut item = ContainerItem::default();
    let mut fields = Fields(bytes);
    while let Some((number, field)) = fields.next()? {
        match (number, field) {
            (1, Field::Bytes(id)) => item.id = id,
            (2, Field::Bytes(id)) => item.pod_sandbox_id = id,
            (3, Field::Bytes(metadata)) => {
                let mut fields = Fields(metadata);
                while let Some((number, field)) = fields.next()? {
                    match (number, field) {
                        (1, Field::Bytes(name)) => item.name = name,
                        (2, Field::Varint(attempt)) => item.attempt = uint32(attempt),
                        (1 | 2, _) => return Err(WRONG_TYPE),
                        _ => {}
                    }
                }
            }
            (6, Field::Varint(state)) => item.state = int32(state),
            (7, Field::Varint(nanos)) => item.created_at = nanos.cast_signed(),
            (8, Field::Bytes(label)) => {
                let (key, value) = map_entry(label)?;
                // By length first: that tells almost every other label apart without a byte compared.
                if is_label(key, POD_UID) {
                    item.pod_uid_label = value;
                } else if is_label(key, POD_NAME) {
                    item.pod_name_label = value;
                } else if is_label(key, POD_NAMESPACE) {
                    item.pod_namespace_label = value;
                }
            }
            (9, Field::Bytes(_)) => fields.skip_run(9 << 3 | 2),
            (4 | 5, Field::Bytes(_)) => {}
            (1..=9, _) => return Err(WRONG_TYPE),
            _ => {}
        }
    }
    Ok(item)
}

#[cfg(test)]
mod tests;
