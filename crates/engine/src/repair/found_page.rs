//! The pages that a repair finds in a segment, and the checksums of its bytes.

use fullbore_format::{digest::Crc64, error::Result, page::ManifestPage, root::PART_BYTES};
use fullbore_repository::archive::object::{ObjectName, ObjectReader};

/// A page that was found.
pub(crate) struct FoundPage {
    pub(crate) stream: u32,
    pub(crate) segment: u32,
    pub(crate) offset: u64,
    /// Its place in the order: the bytes of the segment before it, or before the page that precedes
    /// it in the manifest.
    pub(crate) order: u64,
    pub(crate) stored: Vec<u8>,
    pub(crate) page: ManifestPage,
    /// Whether the segment has a copy of it.
    pub(crate) is_copied: bool,
}

/// Returns the length of a segment, and the CRC-64 of each part of its stored bytes.
///
/// # Errors
/// Errors of the system.
pub(crate) fn sum(store: &dyn ObjectReader, object: &ObjectName) -> Result<(u64, String)> {
    let len = store.len(object)?;
    let (mut parts, mut buffer) = (String::new(), Vec::new());
    let stored = store.sealing().stored_bytes(len);
    for start in (0..stored).step_by(PART_BYTES as usize) {
        let (mut crc, end) = (Crc64::default(), stored.min(start + PART_BYTES));
        for offset in (start..end).step_by(1 << 20) {
            store.read_stored_at(
                object,
                offset,
                (end - offset).min(1 << 20) as usize,
                &mut buffer,
            )?;
            crc.update(&buffer);
        }
        parts.push_str(&format!("{:016x}", crc.value().0));
    }
    Ok((len, parts))
}
