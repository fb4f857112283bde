//! Reads one small file of a backup, such as a configuration file of a cluster, into memory.

use super::{
    Archive,
    frame_reader::{FrameReader, extent_content},
    schedule::{ContentEnd, check_whole},
};
use fullbore_format::{
    entry::Entry,
    error::{Error, ErrorKind, Result, quoted},
};

/// The largest file that is read.
const MAX_BYTES: u64 = 16 << 20;

/// Returns entry and content of a small file of a backup, under this name even if it is another name of a file; `None` if it is not
/// there.
pub fn small_file(archive: &Archive, path: &[u8]) -> Result<Option<(Entry, Vec<u8>)>> {
    let items = archive.file_parts(path)?;
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
        _ => {
            let path = path.to_vec();
            let entry = Entry {
                path,
                ..first.entry.clone()
            };
            Ok(Some((entry, content)))
        }
    }
}
