//! One chunk: at most 1 MiB of memory, compressed where that pays, sealed.
//!
//! ```text
//! length u32 LE │ codec u8 │ sealed bytes, with their tag at the end
//! ```
//!
//! The number of a chunk is its nonce, so none can be left out, doubled or moved; the codec and the
//! manifest are authenticated with it. The last is empty and says so: what ends without one was cut.

use ring::aead::{Aad, LessSafeKey, Nonce};

use super::ArtifactError;
use crate::error::LocalError;

pub(super) const PLAIN_BYTES: usize = 1 << 20;
pub(super) const HEADER_BYTES: usize = 5;
pub(super) const TAG_BYTES: usize = 16;
/// What a chunk that was not compressed comes to.
pub(super) const MOST_BYTES: usize = PLAIN_BYTES + TAG_BYTES;

/// The fastest that still halves what programs keep in memory.
const LEVEL: i32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Codec {
    Plain = 0,
    Zstd = 1,
    End = 2,
}

impl Codec {
    pub(super) const fn read(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Plain),
            1 => Some(Self::Zstd),
            2 => Some(Self::End),
            _ => None,
        }
    }
}

/// As it lies in the image.
pub(super) struct Sealed {
    pub(super) codec: Codec,
    pub(super) bytes: Vec<u8>,
}

impl Sealed {
    pub(super) fn header(&self) -> [u8; HEADER_BYTES] {
        // At most MOST_BYTES.
        let [a, b, c, d] = (self.bytes.len() as u32).to_le_bytes();
        [a, b, c, d, self.codec as u8]
    }

    pub(super) fn tag(&self) -> &[u8] {
        &self.bytes[self.bytes.len().saturating_sub(TAG_BYTES)..]
    }
}

fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

fn bound_to(codec: Codec, head: &[u8; 32]) -> [u8; 33] {
    let mut bound = [codec as u8; 33];
    bound[1..].copy_from_slice(head);
    bound
}

/// Seals one chunk. `compress`: whether that is worth a try.
pub(super) fn seal(
    key: &LessSafeKey,
    head: &[u8; 32],
    number: u64,
    plain: Vec<u8>,
    compress: bool,
) -> Result<Sealed, LocalError> {
    let (codec, mut bytes) = match smaller(&plain, compress) {
        Some(smaller) => (Codec::Zstd, smaller),
        None => (Codec::Plain, plain),
    };
    seal_in_place(key, head, number, codec, &mut bytes)?;
    Ok(Sealed { codec, bytes })
}

/// The one after the last.
pub(super) fn end(key: &LessSafeKey, head: &[u8; 32], number: u64) -> Result<Sealed, LocalError> {
    let mut bytes = Vec::new();
    seal_in_place(key, head, number, Codec::End, &mut bytes)?;
    Ok(Sealed {
        codec: Codec::End,
        bytes,
    })
}

fn seal_in_place(
    key: &LessSafeKey,
    head: &[u8; 32],
    number: u64,
    codec: Codec,
    bytes: &mut Vec<u8>,
) -> Result<(), LocalError> {
    let bound = Aad::from(bound_to(codec, head));
    key.seal_in_place_append_tag(nonce(number), bound, bytes)
        .map_err(|_| LocalError::Cipher("a chunk could not be sealed"))
}

fn smaller(plain: &[u8], compress: bool) -> Option<Vec<u8>> {
    if !compress {
        return None;
    }
    let packed = zstd::bulk::compress(plain, LEVEL).ok()?;
    // What is hardly smaller costs more to unpack than to read.
    (packed.len() < plain.len() - plain.len() / 16).then_some(packed)
}

/// Authenticates one and gives back what was sealed.
pub(super) fn open(
    key: &LessSafeKey,
    head: &[u8; 32],
    number: u64,
    mut sealed: Sealed,
) -> Result<Vec<u8>, ArtifactError> {
    let bound = Aad::from(bound_to(sealed.codec, head));
    let opened = key
        .open_in_place(nonce(number), bound, &mut sealed.bytes)
        .map_err(|_| ArtifactError::Damaged("a part of it is not what was written"))?;
    let length = opened.len();
    sealed.bytes.truncate(length);
    match sealed.codec {
        Codec::Plain | Codec::End => Ok(sealed.bytes),
        Codec::Zstd => zstd::bulk::decompress(&sealed.bytes, PLAIN_BYTES)
            .map_err(|_| ArtifactError::Damaged("a part of it cannot be unpacked")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::key::derive;
    use super::*;

    #[test]
    fn a_chunk_opens_only_in_its_place_and_for_its_manifest() {
        let key = derive(&[7; 32], b"salt").expect("a key");
        let seal_one = |compress| seal(&key, &[1; 32], 5, vec![9; 1000], compress).expect("sealed");
        for compress in [true, false] {
            let opened = open(&key, &[1; 32], 5, seal_one(compress)).expect("authentic");
            assert_eq!(opened, vec![9; 1000]);
            assert!(
                open(&key, &[1; 32], 6, seal_one(compress)).is_err(),
                "moved"
            );
            assert!(
                open(&key, &[2; 32], 5, seal_one(compress)).is_err(),
                "foreign"
            );
            let mut changed = seal_one(compress);
            changed.bytes[3] ^= 1;
            assert!(open(&key, &[1; 32], 5, changed).is_err(), "changed");
        }
        let mut ended = end(&key, &[1; 32], 5).expect("sealed");
        ended.codec = Codec::Plain;
        assert!(
            open(&key, &[1; 32], 5, ended).is_err(),
            "an end that says it is none"
        );
        let other = derive(&[8; 32], b"salt").expect("a key");
        assert!(
            open(&other, &[1; 32], 5, seal_one(true)).is_err(),
            "another's key"
        );
    }
}
