//! Where things are in the file.
//!
//! ```text
//! 0      4 KiB          + 2 MiB         + 2 MiB
//! ├ header ┼ slot 0 ───────┼ slot 1 ───────┼ …
//!            │
//!            ├ head ┼ frame ┼ frame ┼ … ┼ footer frame ┼ (free) ┼ tail ┤
//! ```
//!
//! A slot holds one segment: frames in the order in which they were written, each with one block. A full segment is *sealed*: a footer with
//! the index of its blocks and pods, and a tail that says where the footer is. Segments are numbered; the one with the highest
//! number is written to, and the lowest one gives its slot when all are used. So the file never grows beyond its limit, nothing is
//! rewritten, and writing costs one sequential write and one `fdatasync` for each batch.
//!
//! Every part has a checksum that includes the number of its segment: what an earlier segment left in the slot is never taken for a part of
//! this one, and a write that a crash cut short is not there.

/// The first bytes of the file.
pub(crate) const MAGIC: [u8; 16] = *b"pleg history\n\0\0\0";
/// The version of everything below. A file of a later one is moved aside.
pub(crate) const VERSION: u32 = 1;
/// The length of the header, and where the first slot begins.
pub(crate) const HEADER: u64 = 4096;
/// The length of a slot. Tests of this crate use many small ones.
pub(crate) const SLOT: u64 = if cfg!(test) { 128 << 10 } else { 2 << 20 };
/// The length of a slot's head, and of its tail.
pub(crate) const EDGE: u64 = 128;
/// Before the content of a frame: its length and its checksum.
pub(crate) const FRAME: u64 = 8;

const HEAD_MAGIC: u64 = u64::from_le_bytes(*b"plegsegm");
const TAIL_MAGIC: u64 = u64::from_le_bytes(*b"plegtail");

/// Where a slot begins.
pub(crate) fn slot_offset(slot: u32) -> u64 {
    HEADER + u64::from(slot) * SLOT
}

/// The header of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileHeader {
    /// It can be read.
    Known,
    /// A later release wrote it.
    Newer(u32),
    /// It is no history.
    Foreign,
}

impl FileHeader {
    pub(crate) fn encode() -> Vec<u8> {
        let mut fields = Fields::default();
        fields.bytes(&MAGIC).u32(VERSION).u64(SLOT);
        let mut bytes = fields.with_sum(0);
        bytes.resize(usize::try_from(HEADER).unwrap_or_default(), 0);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Self {
        let mut reader = Reader(bytes);
        let (magic, version) = (reader.take(16), reader.u32());
        match (magic, version) {
            (Some(magic), Some(version)) if magic == MAGIC => match version {
                // What follows the version is that version's own.
                VERSION if reader.u64() == Some(SLOT) && sum_fits(bytes, 28, 0) => Self::Known,
                version if version > VERSION => Self::Newer(version),
                _ => Self::Foreign,
            },
            _ => Self::Foreign,
        }
    }
}

/// The head of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    /// The segment's number.
    pub(crate) number: u64,
    /// The id of its first entry.
    pub(crate) first_id: u64,
    /// When it was begun, in nanoseconds since 1970.
    pub(crate) created: i64,
}

impl Head {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut fields = Fields::default();
        fields
            .u64(HEAD_MAGIC)
            .u64(self.number)
            .u64(self.first_id)
            .u64(self.created.cast_unsigned());
        edge(fields.with_sum(self.number))
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let magic = reader.u64()?;
        let head = Self {
            number: reader.u64()?,
            first_id: reader.u64()?,
            created: reader.u64()?.cast_signed(),
        };
        (magic == HEAD_MAGIC && sum_fits(bytes, 32, head.number)).then_some(head)
    }
}

/// What is known of a segment without its footer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The id after its last entry.
    pub(crate) end_id: u64,
    /// The earliest and the latest time, in nanoseconds since 1970.
    pub(crate) times: (i64, i64),
    /// The instances of its first and of its last entry.
    pub(crate) instances: (u64, u64),
}

/// The tail of a sealed segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tail {
    /// The segment's number.
    pub(crate) number: u64,
    /// Where the footer is in the slot, and how long it is, with its frame.
    pub(crate) footer: (u32, u32),
    pub(crate) extent: Extent,
}

impl Tail {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut fields = Fields::default();
        fields
            .u64(TAIL_MAGIC)
            .u64(self.number)
            .u32(self.footer.0)
            .u32(self.footer.1)
            .u64(self.extent.end_id)
            .u64(self.extent.times.0.cast_unsigned())
            .u64(self.extent.times.1.cast_unsigned())
            .u64(self.extent.instances.0)
            .u64(self.extent.instances.1);
        edge(fields.with_sum(self.number))
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let magic = reader.u64()?;
        let tail = Self {
            number: reader.u64()?,
            footer: (reader.u32()?, reader.u32()?),
            extent: Extent {
                end_id: reader.u64()?,
                times: (reader.u64()?.cast_signed(), reader.u64()?.cast_signed()),
                instances: (reader.u64()?, reader.u64()?),
            },
        };
        (magic == TAIL_MAGIC && sum_fits(bytes, 64, tail.number)).then_some(tail)
    }
}

fn edge(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(usize::try_from(EDGE).unwrap_or_default(), 0);
    bytes
}

/// A frame of a segment.
pub(crate) fn frame(number: u64, content: &[u8], into: &mut Vec<u8>) {
    // A block is far smaller than a slot.
    let length = u32::try_from(content.len()).unwrap_or(u32::MAX);
    into.extend_from_slice(&length.to_le_bytes());
    into.extend_from_slice(&sum(content, number).to_le_bytes());
    into.extend_from_slice(content);
}

/// The length of a frame's content, and its checksum.
pub(crate) fn frame_head(bytes: [u8; 8]) -> (u32, u32) {
    let both = u64::from_le_bytes(bytes);
    let half = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).unwrap_or_default();
    (half(both), half(both >> 32))
}

pub(crate) fn sum(content: &[u8], number: u64) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&number.to_le_bytes());
    hasher.update(content);
    hasher.finalize()
}

/// The 4 bytes at `at` are the checksum of those before them.
fn sum_fits(bytes: &[u8], at: usize, number: u64) -> bool {
    let (Some(content), Some(&[a, b, c, d])) = (bytes.get(..at), bytes.get(at..at + 4)) else {
        return false;
    };
    sum(content, number) == u32::from_le_bytes([a, b, c, d])
}

/// Numbers, one after another.
#[derive(Debug, Default)]
pub(crate) struct Fields(pub(crate) Vec<u8>);

impl Fields {
    pub(crate) fn u32(&mut self, number: u32) -> &mut Self {
        self.bytes(&number.to_le_bytes())
    }

    pub(crate) fn u64(&mut self, number: u64) -> &mut Self {
        self.bytes(&number.to_le_bytes())
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn with_sum(mut self, number: u64) -> Vec<u8> {
        let sum = sum(&self.0, number);
        self.u32(sum);
        self.0
    }
}

/// Reads what [`Fields`] wrote.
#[derive(Debug)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        let bytes = self.take(4)?.try_into().ok()?;
        Some(u32::from_le_bytes(bytes))
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        let bytes = self.take(8)?.try_into().ok()?;
        Some(u64::from_le_bytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXTENT: Extent = Extent {
        end_id: 9,
        times: (-5, i64::MAX),
        instances: (1, u64::MAX),
    };

    #[test]
    fn parts_are_read_back_and_damage_is_found() {
        let head = Head {
            number: 3,
            first_id: 7,
            created: -1,
        };
        let tail = Tail {
            number: 3,
            footer: (100, 200),
            extent: EXTENT,
        };
        let (mut bytes, mut end) = (head.encode(), tail.encode());
        assert_eq!((bytes.len(), end.len()), (128, 128));
        assert_eq!(Head::decode(&bytes), Some(head));
        assert_eq!(Tail::decode(&end), Some(tail));
        assert_eq!((Tail::decode(&bytes), Head::decode(&end)), (None, None));
        for at in [0, 9, 17, 31, 33] {
            bytes[at] ^= 1;
            assert_eq!(Head::decode(&bytes), None, "{at}");
            bytes[at] ^= 1;
        }
        end[20] ^= 4;
        assert_eq!(Tail::decode(&end), None);
        assert_eq!(Head::decode(&bytes[..20]), None);
        // The same content in another segment is not the same.
        assert_ne!(sum(b"x", 1), sum(b"x", 2));
    }

    #[test]
    fn headers_say_who_wrote_the_file() {
        let mut header = FileHeader::encode();
        assert_eq!(header.len(), 4096);
        assert_eq!(FileHeader::decode(&header), FileHeader::Known);
        header[20] ^= 1;
        assert_eq!(FileHeader::decode(&header), FileHeader::Foreign);
        header[16] = 9;
        assert_eq!(FileHeader::decode(&header), FileHeader::Newer(9));
        assert_eq!(FileHeader::decode(b"redb"), FileHeader::Foreign);
        assert_eq!(FileHeader::decode(&[0; 4096]), FileHeader::Foreign);
    }
}
