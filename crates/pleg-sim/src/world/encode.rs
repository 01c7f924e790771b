//! List items kept encoded, each a few times with its labels and annotations in different orders.
//!
//! Encoding thousands of messages for every list would make the simulator the slow part. Real runtimes range over Go maps, so
//! two answers with the same content differ in bytes; sending one fixed encoding would flatter clients that compare bytes.
//!
//! The statuses that events carry are kept encoded too, after their first event: the simulator must not be the slow part of an event storm.

use std::sync::Arc;

use fastrand::Rng;
use prost::encoding::{WireType, encode_key, encode_varint};

use super::object::{Container, Pairs, Sandbox};
use super::odd::Quirk;

/// How many orders of each item are kept.
pub(crate) const VARIANTS: usize = 3;

/// One list item, ready for the wire: key and length of field 1 of the list response, then the message.
pub(crate) type Item = Arc<[u8]>;

/// The same item in different orders of its maps.
#[derive(Debug, Clone)]
pub(crate) struct Variants([Item; VARIANTS]);

impl Default for Variants {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Arc::from([])))
    }
}

impl Variants {
    /// One of them.
    pub(crate) fn any(&self, rng: &mut Rng) -> &Item {
        &self.0[rng.usize(..VARIANTS)]
    }

    /// Their size in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.0.iter().map(|item| item.len()).sum()
    }

    fn encode(rng: &mut Rng, mut message: impl FnMut(&mut Vec<u8>, &mut Rng)) -> Self {
        let mut scratch = Vec::with_capacity(1024);
        Self(std::array::from_fn(|_| {
            scratch.clear();
            message(&mut scratch, rng);
            list_item(&scratch)
        }))
    }
}

/// Wraps an encoded message as an item of a list.
pub(crate) fn list_item(message: &[u8]) -> Item {
    let mut item = Vec::with_capacity(message.len() + 6);
    put_bytes(&mut item, 1, message);
    item.into()
}

/// A field that must be there even if it is empty.
pub(crate) fn put_bytes(to: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    encode_key(field, WireType::LengthDelimited, to);
    encode_varint(bytes.len() as u64, to);
    to.extend_from_slice(bytes);
}

pub(crate) fn put_text(to: &mut Vec<u8>, field: u32, text: &str) {
    if !text.is_empty() {
        put_bytes(to, field, text.as_bytes());
    }
}

#[expect(
    clippy::cast_sign_loss,
    reason = "protobuf writes negative numbers as their two's complement"
)]
pub(crate) fn put_number(to: &mut Vec<u8>, field: u32, number: i64) {
    if number != 0 {
        encode_key(field, WireType::Varint, to);
        encode_varint(number as u64, to);
    }
}

fn put_message<M: prost::Message>(to: &mut Vec<u8>, field: u32, message: &M) {
    prost::encoding::message::encode(field, message, to);
}

/// A map field, in a random order.
fn put_map(to: &mut Vec<u8>, field: u32, pairs: &Pairs, rng: &mut Rng) {
    let mut order: Vec<&(String, String)> = pairs.iter().collect();
    rng.shuffle(&mut order);
    for (key, value) in order {
        let length = |text: &str| 1 + prost::length_delimiter_len(text.len()) + text.len();
        encode_key(field, WireType::LengthDelimited, to);
        encode_varint((length(key) + length(value)) as u64, to);
        put_bytes(to, 1, key.as_bytes());
        put_bytes(to, 2, value.as_bytes());
    }
}

/// Bytes that are not UTF-8, as a label's value.
fn put_bad_text(to: &mut Vec<u8>, field: u32) {
    let mut entry = Vec::new();
    put_bytes(&mut entry, 1, b"example.com/bad");
    put_bytes(&mut entry, 2, &[0xff, 0xfe, 0x80]);
    put_bytes(to, field, &entry);
}

impl Sandbox {
    /// Brings the encoded form up to date.
    pub(crate) fn encode(&mut self, rng: &mut Rng) {
        self.told.take();
        self.encoded = Variants::encode(rng, |to, rng| {
            put_text(to, 1, &self.id);
            if self.quirk != Some(Quirk::NoMetadata) {
                put_message(to, 2, &self.metadata);
            }
            put_number(to, 3, self.state().into());
            put_number(to, 4, self.created());
            put_map(to, 5, &self.labels, rng);
            if self.quirk == Some(Quirk::BadUtf8) {
                put_bad_text(to, 5);
            }
            put_map(to, 6, &self.annotations, rng);
            put_text(to, 7, &self.handler);
        });
    }

    /// Its status as a field of an event.
    pub(crate) fn told(&self) -> &[u8] {
        self.told.get_or_init(|| field_of_event(4, &self.status()))
    }
}

impl Container {
    /// Brings the encoded form up to date.
    pub(crate) fn encode(&mut self, rng: &mut Rng) {
        self.told.take();
        self.encoded = Variants::encode(rng, |to, rng| {
            put_text(to, 1, &self.id);
            put_text(to, 2, &self.sandbox);
            if self.quirk != Some(Quirk::NoMetadata) {
                put_message(to, 3, &self.metadata);
            }
            let mut image = Vec::with_capacity(96);
            put_text(&mut image, 1, &self.image);
            put_bytes(to, 4, &image);
            put_text(to, 5, &self.image_ref);
            put_number(to, 6, self.wire_state().into());
            put_number(to, 7, self.created());
            put_map(to, 8, &self.labels, rng);
            if self.quirk == Some(Quirk::BadUtf8) {
                put_bad_text(to, 8);
            }
            put_map(to, 9, &self.annotations, rng);
            put_text(to, 10, &self.image_ref);
        });
    }

    /// Its status as a field of an event.
    pub(crate) fn told(&self) -> &[u8] {
        self.told.get_or_init(|| field_of_event(5, &self.status()))
    }
}

pub(crate) fn field_of_event<M: prost::Message>(field: u32, status: &M) -> Box<[u8]> {
    let mut bytes = Vec::with_capacity(status.encoded_len() + 8);
    put_message(&mut bytes, field, status);
    bytes.into()
}
