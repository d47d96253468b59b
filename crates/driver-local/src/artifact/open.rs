//! Opening an artifact: from the sealed image to the runtime's plain files. They are whole, and
//! authentic, when this returns without an error, and not to be used before.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;

use sha2::{Digest, Sha256};

use super::chunk::{self, Codec, HEADER_BYTES, MOST_BYTES, Sealed, TAG_BYTES};
use super::manifest::Part;
use super::seal::in_parallel;
use super::{ArtifactError, IMAGE, Manifest, folder, key};
use crate::error::At;
use crate::layout::{SandboxDir, hex};

/// Chunks a worker gets at a time.
const ROUND: usize = 4;

/// Writes the runtime's files to `plain`.
pub(crate) fn open(
    dir: &SandboxDir,
    manifest: &Manifest,
    plain: &Path,
) -> Result<(), ArtifactError> {
    let head = &manifest.head;
    if manifest.plain_bytes() == 0 {
        return Err(ArtifactError::Damaged("it holds no memory"));
    }
    let (bound, bound_to_files) = (head.bound()?, head.bound_to_files()?);
    let key = key::read(dir)?.ok_or(ArtifactError::Damaged("the key to it is gone"))?;
    let salt = unhex(&head.salt).ok_or(ArtifactError::Damaged("its manifest cannot be read"))?;
    let key = key::derive(&key, &salt)?;
    let path = folder(dir, &head.belongs.name).join(IMAGE);
    let mut image = BufReader::with_capacity(1 << 20, File::open(&path).at("opening", &path)?);
    let mut files = Files::new(plain, &head.files)?;
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let mut digest = Sha256::new();
    let mut number = 0;
    let mut ended = false;
    while !ended {
        let mut round = Vec::with_capacity(workers * ROUND);
        while round.len() < workers * ROUND && !ended {
            let sealed = read_chunk(&mut image, &path)?;
            digest.update(sealed.tag());
            ended = sealed.codec == Codec::End;
            round.push(sealed);
        }
        let first = number;
        number += round.len() as u64;
        let opened = in_parallel(workers, round, |at, sealed| {
            let bound = match sealed.codec {
                Codec::Plain | Codec::Zstd => &bound,
                Codec::End => &bound_to_files,
            };
            chunk::open(&key, bound, first + at as u64, sealed)
        })?;
        for bytes in opened {
            files.write(&bytes)?;
        }
    }
    if !at_its_end(&mut image).at("reading", &path)? {
        return Err(ArtifactError::Damaged("something follows its end"));
    }
    if hex(&digest.finalize()) != manifest.digest {
        return Err(ArtifactError::Damaged("its digest is another"));
    }
    files.finish()
}

fn read_chunk(image: &mut impl Read, path: &Path) -> Result<Sealed, ArtifactError> {
    let mut header = [0; HEADER_BYTES];
    read_all(image, &mut header, path)?;
    let [a, b, c, d, codec] = header;
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    let codec = Codec::read(codec).ok_or(ArtifactError::Damaged("a part of it is of no kind"))?;
    if !(TAG_BYTES..=MOST_BYTES).contains(&length) {
        return Err(ArtifactError::Damaged("a part of it has no length"));
    }
    let mut bytes = vec![0; length];
    read_all(image, &mut bytes, path)?;
    Ok(Sealed { codec, bytes })
}

fn read_all(image: &mut impl Read, bytes: &mut [u8], path: &Path) -> Result<(), ArtifactError> {
    match image.read_exact(bytes) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(ArtifactError::Truncated),
        Err(error) => Err(error).at("reading", path)?,
    }
}

fn at_its_end(image: &mut impl Read) -> io::Result<bool> {
    Ok(image.read(&mut [0])? == 0)
}

/// Several files, written one after the other.
struct Files<'a> {
    folder: &'a Path,
    left: std::slice::Iter<'a, Part>,
    now: Option<(File, u64)>,
}

impl<'a> Files<'a> {
    fn new(folder: &'a Path, parts: &'a [Part]) -> Result<Self, ArtifactError> {
        let mut files = Self {
            folder,
            left: parts.iter(),
            now: None,
        };
        files.next()?;
        Ok(files)
    }

    /// Also makes those that are empty.
    fn next(&mut self) -> Result<(), ArtifactError> {
        self.now = None;
        for part in self.left.by_ref() {
            // Authenticated with the manifest, and a plain name all the same.
            if part.name.contains('/') || part.name.starts_with('.') {
                return Err(ArtifactError::Damaged("it names a file that is none"));
            }
            let path = self.folder.join(&part.name);
            let file = File::create_new(&path).at("making", &path)?;
            if part.bytes > 0 {
                self.now = Some((file, part.bytes));
                break;
            }
        }
        Ok(())
    }

    fn write(&mut self, mut bytes: &[u8]) -> Result<(), ArtifactError> {
        while !bytes.is_empty() {
            let Some((file, left)) = &mut self.now else {
                return Err(ArtifactError::Damaged("it holds more than it says"));
            };
            let here = bytes
                .len()
                .min(usize::try_from(*left).unwrap_or(usize::MAX));
            file.write_all(&bytes[..here])
                .at("writing below", self.folder)?;
            *left -= here as u64;
            bytes = &bytes[here..];
            if *left == 0 {
                self.next()?;
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<(), ArtifactError> {
        if self.now.is_some() {
            return Err(ArtifactError::Damaged("it holds less than it says"));
        }
        Ok(())
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text
        .chars()
        .map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
        .collect();
    let digits = digits.filter(|digits| digits.len().is_multiple_of(2))?;
    Some(
        digits
            .chunks(2)
            .map(|pair| pair[0] << 4 | pair[1])
            .collect(),
    )
}
