//! The archives of a base backup, member by member.
//!
//! The server is not trusted: names that leave the cluster, members that no cluster has, lengths that do
//! not fit and archives that end early are errors. Memory: one message, and the content that is asked
//! for.

use super::lz4::Lz4Decoder;
use crate::replication::{BackupEnd, BackupPart, BaseBackupStream};
use fullbore_format::{
    entry::{Entry, EntryKind, EntryPath, is_safe},
    error::{Error, ErrorKind, Result, quoted},
    pax::{self, PaxReader, TarItem},
};
use std::io::{self, Read};

/// Bytes of a path, at most. A server sends at most 99 in one archive.
const MAX_PATH_BYTES: usize = 4096;
/// Directories within each other, at most. A server has six.
const MAX_DEPTH: usize = 16;

/// Reads the archives in order.
pub(super) struct SentArchives {
    bytes: SentBytes,
    tar: PaxReader,
    /// Where the paths of the open archive are in the backup.
    open: Option<EntryPath>,
}

/// The bytes of the open archive.
struct SentBytes {
    stream: BaseBackupStream,
    /// Decompresses the open archive, if the server compresses.
    decoder: Option<Lz4Decoder>,
    buffer: Vec<u8>,
    at: usize,
    /// The part behind the open archive.
    next: Option<BackupPart>,
    failed: Option<Error>,
}

/// What comes next.
pub(super) enum SentItem {
    /// A file or directory. The content of a file follows.
    Member(Entry),
    /// An archive begins, which is stored below this path. The directory itself is not in it.
    Archive(EntryPath),
    End(BackupEnd),
}

impl SentArchives {
    pub(super) fn new(stream: BaseBackupStream) -> Self {
        Self {
            bytes: SentBytes {
                stream,
                decoder: None,
                buffer: Vec::new(),
                at: 0,
                next: None,
                failed: None,
            },
            tar: PaxReader::new(),
            open: None,
        }
    }

    /// Returns the next item. The content of the file before it must have been read.
    ///
    /// # Errors
    /// The server's; [`ErrorKind::Corrupt`] for archives that cannot be of a server.
    pub(super) fn next(&mut self) -> Result<SentItem> {
        loop {
            let Some(above) = &self.open else {
                match self.bytes.next_part()? {
                    BackupPart::End(end) => return Ok(SentItem::End(end)),
                    BackupPart::Data(_) => return Err(wrong("it has bytes outside of an archive")),
                    BackupPart::Archive(which) => return self.begin(which),
                }
            };
            let item = self.tar.next(&mut self.bytes);
            match item.map_err(|error| self.bytes.failed.take().unwrap_or(error))? {
                Some(TarItem::Member(member)) => {
                    let path = checked_path(above, &member.entry.path)?;
                    return Ok(SentItem::Member(checked_entry(path, member.entry)?));
                }
                Some(TarItem::Outside(outside)) => {
                    let why = format!(
                        "it has a file {} outside of the cluster",
                        quoted(&outside.name)
                    );
                    return Err(wrong(&why));
                }
                Some(TarItem::Unknown(unknown)) => {
                    let why = format!(
                        "it has a member {} of an unknown type",
                        quoted(&unknown.name)
                    );
                    return Err(wrong(&why));
                }
                None => self.end_archive()?,
            }
        }
    }

    fn begin(&mut self, which: Option<usize>) -> Result<SentItem> {
        let tablespaces = &self.bytes.stream.tablespaces;
        let above = which.map_or_else(EntryPath::new, |index| {
            format!("pg_tblspc/{}", tablespaces[index].oid).into_bytes()
        });
        self.open = Some(above.clone());
        self.tar = PaxReader::new();
        if self.bytes.stream.is_compressed() {
            self.bytes.decoder = Some(Lz4Decoder::new()?);
        }
        Ok(SentItem::Archive(above))
    }

    fn end_archive(&mut self) -> Result<()> {
        if self.bytes.stream.ends_archives() && !self.tar.has_ended()
            || self.tar.has_trailing_bytes()
        {
            return Err(wrong("an archive in it ends early"));
        }
        self.open = None;
        Ok(())
    }

    /// Reads the next `len` bytes of a file, and behind the last of its `size` bytes the padding.
    ///
    /// # Errors
    /// As [`SentArchives::next`].
    pub(super) fn content(&mut self, len: u64, ends: Option<u64>) -> Result<Vec<u8>> {
        let mut content = Vec::new();
        self.append_content(len, ends, &mut content)?;
        Ok(content)
    }

    /// As [`SentArchives::content`], and appends it to `content`.
    ///
    /// # Errors
    /// As [`SentArchives::next`].
    pub(super) fn append_content(
        &mut self,
        len: u64,
        ends: Option<u64>,
        content: &mut Vec<u8>,
    ) -> Result<()> {
        let mut left = len as usize;
        content.reserve(left);
        while left > 0 {
            let bytes = self.bytes.available()?;
            let taken = bytes.len().min(left);
            if taken == 0 {
                return Err(wrong("an archive in it ends in a file"));
            }
            content.extend_from_slice(&bytes[..taken]);
            self.bytes.at += taken;
            left -= taken;
        }
        if let Some(size) = ends {
            let skipped = pax::skip_padding(&mut self.bytes, size);
            skipped.map_err(|error| self.bytes.failed.take().unwrap_or(error))?;
        }
        Ok(())
    }
}

impl SentBytes {
    /// Gets the next bytes of the archive, or finds its end.
    fn fill(&mut self) -> Result<()> {
        if let Some(decoder) = &mut self.decoder {
            self.at = 0; // the bytes that were read give way to the next ones
            if decoder.decode(&mut self.buffer)? {
                return Ok(());
            }
        }
        match (self.stream.next_part()?, &mut self.decoder) {
            (BackupPart::Data(bytes), Some(decoder)) => decoder.add(bytes),
            (BackupPart::Data(bytes), None) => (self.buffer, self.at) = (bytes, 0),
            (other, _) => self.next = Some(other),
        }
        Ok(())
    }

    /// Returns bytes of the archive that are here, and waits for some; empty at its end.
    fn available(&mut self) -> Result<&[u8]> {
        while self.at == self.buffer.len() && self.next.is_none() {
            self.fill()?;
        }
        Ok(&self.buffer[self.at..])
    }

    /// Returns the part behind the open archive.
    fn next_part(&mut self) -> Result<BackupPart> {
        match self.next.take() {
            Some(part) => Ok(part),
            None => self.stream.next_part(),
        }
    }
}

impl Read for SentBytes {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let got = match self.available() {
            Ok(mut bytes) => bytes.read(out)?,
            Err(error) => {
                self.failed = Some(error);
                return Err(io::ErrorKind::ConnectionReset.into());
            }
        };
        self.at += got;
        Ok(got)
    }
}

/// Returns the path in the backup of a member of the archive that is stored below `above`.
fn checked_path(above: &[u8], path: &[u8]) -> Result<EntryPath> {
    let joined = match (above, path) {
        (above, b"") => above.to_vec(),
        (b"", path) => path.to_vec(),
        (above, path) => [above, b"/", path].concat(),
    };
    let depth = joined.iter().filter(|byte| **byte == b'/').count();
    if !is_safe(&joined) || joined.len() > MAX_PATH_BYTES || depth > MAX_DEPTH {
        let why = format!("it has a file {}, which no cluster has", quoted(&joined));
        return Err(wrong(&why));
    }
    Ok(joined)
}

/// Returns the entry with no more than a server sends: no attributes, no holes, no links.
fn checked_entry(path: EntryPath, sent: Entry) -> Result<Entry> {
    let kind = match sent.kind {
        kind @ (EntryKind::Directory | EntryKind::File { map: None, .. }) => kind,
        _ => {
            let why = format!("{} is neither a file nor a directory", quoted(&path));
            return Err(wrong(&why));
        }
    };
    Ok(Entry {
        path,
        kind,
        mode: sent.mode,
        owner: sent.owner,
        mtime: sent.mtime,
        ..Entry::default()
    })
}

/// The server sent a backup that cannot be right.
pub(super) fn wrong(why: &str) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        "cannot use the backup that the server sends",
    )
    .because(why.to_owned())
}
