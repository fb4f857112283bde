//! The stored form of a page: its columns as CBOR, inside one zstd frame.
//!
//! A page of a manifest and entries on their way between hosts have this form. There is no other
//! encoding of an entry but the headers of a tar.

use super::{
    Columns, EntryState, ManifestPage, Record, limit::is_within_limits, read::PageReader,
    write::PageEncoder,
};
use crate::{
    entry::Entry,
    error::{Error, ErrorKind, Result},
    layout::is_backup_id,
};
use zstd_safe::CParameter;

/// Largest page that is decoded, in bytes before compression. A single entry may be as long as its
/// attributes.
const MAX_PAGE_BYTES: usize = 256 << 20;

impl ManifestPage {
    /// Encodes the page as one zstd frame.
    ///
    /// # Errors
    /// [`ErrorKind::Bug`] if the page exceeds the limits of [`ManifestPage::decode`].
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut encoder = PageEncoder::default();
        encoder.columns.segments.clone_from(&self.segments);
        for record in &self.records {
            encoder.entry(&record.entry, &record.state);
            encoder.content(record);
        }
        compressed(&encoder.columns)
    }

    /// Reads a page. Every value in it is checked.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if it is not the output of [`ManifestPage::encode`].
    pub fn decode(stored: &[u8]) -> Result<Self> {
        Self::decode_within(stored, MAX_PAGE_BYTES)
    }

    /// Reads a page of at most `max_bytes` before compression, such as one of another host.
    ///
    /// # Errors
    /// As [`ManifestPage::decode`]. No memory is taken for a page that is too large.
    pub fn decode_within(stored: &[u8], max_bytes: usize) -> Result<Self> {
        Self::from_columns(&decompressed(stored, max_bytes.min(MAX_PAGE_BYTES))?)
    }

    /// Reads the columns of a page from their form before compression.
    ///
    /// # Errors
    /// As [`ManifestPage::decode`].
    pub fn from_columns(plain: &[u8]) -> Result<Self> {
        if !is_within_limits(plain).map_err(|e| damaged(&e.to_string()))? {
            return Err(damaged("it has more values than a page can have"));
        }
        let columns: Columns = minicbor::decode(plain).map_err(|e| damaged(&e.to_string()))?;
        // Backup IDs become parts of paths.
        if !columns
            .segments
            .iter()
            .all(|id| id.backup.is_empty() || is_backup_id(&id.backup))
        {
            return Err(damaged("a backup ID is not valid"));
        }
        PageReader::new(columns)
            .ok_or_else(|| damaged("its columns do not match each other"))?
            .page()
    }
}

/// Encodes entries in archive order as a page of records without content.
///
/// # Errors
/// As [`ManifestPage::encode`].
pub fn encode_entries<'a>(
    entries: impl IntoIterator<Item = (&'a Entry, &'a EntryState)>,
) -> Result<Vec<u8>> {
    let mut encoder = PageEncoder::default();
    for (entry, state) in entries {
        encoder.entry(entry, state);
        encoder.no_content();
    }
    compressed(&encoder.columns)
}

/// Reads the entries of a page of at most `max_bytes` before compression.
///
/// # Errors
/// As [`ManifestPage::decode_within`].
pub fn decode_entries(stored: &[u8], max_bytes: usize) -> Result<Vec<(Entry, EntryState)>> {
    let records = ManifestPage::decode_within(stored, max_bytes)?.records;
    let entries = records
        .into_iter()
        .map(|Record { entry, state, .. }| (entry, state));
    Ok(entries.collect())
}

/// The bytes of a page before compression, as it claims; `None` if it claims nothing. A page with
/// more is not decoded.
pub fn plain_bytes(stored: &[u8]) -> Option<usize> {
    let size = zstd_safe::get_frame_content_size(stored).ok()??;
    size.try_into().ok()
}

/// Returns what is in the frame of a page, of at most `max_bytes`.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if it is damaged, or larger.
pub(crate) fn decompressed(stored: &[u8], max_bytes: usize) -> Result<Vec<u8>> {
    let size = plain_bytes(stored).ok_or_else(|| damaged("it is not a page"))?;
    if size > max_bytes {
        return Err(damaged("it is too large"));
    }
    let mut plain = Vec::with_capacity(size);
    zstd_safe::decompress(&mut plain, stored)
        .map_err(|code| damaged(zstd_safe::get_error_name(code)))?;
    Ok(plain)
}

fn compressed(columns: &Columns) -> Result<Vec<u8>> {
    let plain = minicbor::to_vec(columns).map_err(|e| bug().because(e.to_string()))?;
    if plain.len() > MAX_PAGE_BYTES || !is_within_limits(&plain).unwrap_or(false) {
        return Err(bug().because("it exceeds the limits that readers enforce".to_owned()));
    }
    packed(&plain)
}

/// Returns these bytes in the frame of a page.
///
/// # Errors
/// [`ErrorKind::Bug`] if zstd fails.
pub(crate) fn packed(plain: &[u8]) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(zstd_safe::compress_bound(plain.len()));
    let failed = |code| bug().because(zstd_safe::get_error_name(code));
    let mut context = zstd_safe::CCtx::try_create().ok_or_else(bug)?;
    // If the root is lost, only this checksum tells whether a copy of the page is intact.
    for parameter in [
        CParameter::CompressionLevel(3),
        CParameter::ChecksumFlag(true),
    ] {
        context.set_parameter(parameter).map_err(failed)?;
    }
    context.compress2(&mut out, plain).map_err(failed)?;
    Ok(out)
}

fn bug() -> Error {
    Error::new(ErrorKind::Bug, "cannot encode a manifest page")
}

pub(super) fn damaged(reason: &str) -> Error {
    Error::corrupt("a manifest page is damaged").because(reason.to_owned())
}
