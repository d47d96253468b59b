//! Whether a program runs without a loader.

use std::path::Path;

use anyhow::{Context, ensure};

/// `PT_INTERP` of elf(5): the segment that names the loader.
const INTERPRETER: u32 = 3;

/// # Errors
/// When it cannot be read, or is no 64-bit little-endian ELF file.
pub(crate) fn is_static(path: &Path) -> anyhow::Result<bool> {
    let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    ensure!(
        bytes.starts_with(b"\x7fELF\x02\x01"),
        "{} is no 64-bit ELF file",
        path.display()
    );
    let at = |offset: usize, width: usize| {
        let field = bytes
            .get(offset..offset + width)
            .context("it is cut short")?;
        // Little-endian, at most eight bytes: every field of the headers read here.
        anyhow::Ok(
            field
                .iter()
                .rev()
                .fold(0_u64, |value, byte| value << 8 | u64::from(*byte)),
        )
    };
    let (table, size, count) = (at(0x20, 8)?, at(0x36, 2)?, at(0x38, 2)?);
    for index in 0..count {
        let header = usize::try_from(table + index * size)?;
        if at(header, 4)? == u64::from(INTERPRETER) {
            return Ok(false);
        }
    }
    Ok(true)
}
