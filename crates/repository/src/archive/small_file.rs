//! Reads one small file of a backup, such as a configuration file of a cluster, into memory.

use super::{
    Archive,
    frame_reader::{FrameReader, extent_content},
    schedule::{ContentEnd, check_whole},
};
use fullbore_format::{
    entry::{Entry, EntryKind},
    error::{Error, ErrorKind, Result, quoted},
    page::PageItem,
};

/// The largest file that is read.
const MAX_BYTES: u64 = 16 << 20;

/// Returns entry and content of a small file of a backup; `None` if it is not there.
pub fn small_file(archive: &Archive, path: &[u8]) -> Result<Option<(Entry, Vec<u8>)>> {
    let items = parts_of(archive, path)?;
    let Some(first) = items
        .first()
        .filter(|item| item.state.is_stored() && item.entry.is_file())
    else {
        return Ok(None);
    };
    // The size is from the backup: this is the bound of the memory.
    if first.entry.data_len() > MAX_BYTES {
        let message = format!(
            "cannot read the settings in {}: it is too large",
            quoted(path)
        );
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    let mut frames = FrameReader::default();
    let mut content = Vec::new();
    for item in &items {
        for extent in &item.extents {
            let frame = &extent.frame;
            let plain = frames.read(archive, item.segment(frame), frame)?;
            content.extend(extent_content(extent, plain).unwrap_or_default());
        }
    }
    match items.last().map(|item| check_whole(item, &content)) {
        Some(ContentEnd::Damaged(why)) => {
            Err(Error::corrupt(format!("file {} is damaged", quoted(path))).because(why))
        }
        _ => Ok(Some((first.entry.clone(), content))),
    }
}

/// Returns the parts of the file at `path`, under this name even if it is another name of a file.
fn parts_of(archive: &Archive, path: &[u8]) -> Result<Vec<PageItem>> {
    let items = archive.find(path)?;
    let Some(EntryKind::HardLink(target)) = items.first().map(|item| &item.entry.kind) else {
        return Ok(items);
    };
    let parts = archive.find(target)?;
    Ok(parts
        .iter()
        .map(|item| item.renamed(path.to_vec()))
        .collect())
}
